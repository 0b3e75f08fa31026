"""relay.frontend."""

from ....absent import absent
from ....importers import from_mxnet, from_onnx, from_pytorch, from_tflite
from . import mxnet_qnn_op_utils, pytorch_utils

__all__ = ["from_mxnet", "from_onnx", "from_pytorch", "from_tflite", "mxnet_qnn_op_utils", "pytorch_utils"]

_EXPORT = "export the model to ONNX or TFLite"

__getattr__ = absent(
    "relay.frontend",
    {f"from_{name}": _EXPORT for name in ("tensorflow", "keras", "paddle", "coreml", "caffe", "darknet", "oneflow")},
)

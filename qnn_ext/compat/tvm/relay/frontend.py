"""relay.frontend."""

from ...absent import absent
from ...importers import from_mxnet, from_onnx, from_pytorch, from_tflite

__all__ = ["from_mxnet", "from_onnx", "from_pytorch", "from_tflite"]

_EXPORT = "export the model to ONNX or TFLite"

__getattr__ = absent(
    "relay.frontend",
    {f"from_{name}": _EXPORT for name in ("tensorflow", "keras", "paddle", "coreml", "caffe", "darknet", "oneflow")},
)

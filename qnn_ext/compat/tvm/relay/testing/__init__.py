"""relay.testing."""

from ....absent import absent
from ....checking import run_infer_type, run_opt_pass
from ....workloads import create_workload
from . import dcgan, densenet, dqn, inception_v3, lstm, mlp, mobilenet, resnet, squeezenet, synthetic, temp_op_attr, vgg

__all__ = [
    "create_workload",
    "dcgan",
    "densenet",
    "dqn",
    "inception_v3",
    "lstm",
    "mlp",
    "mobilenet",
    "resnet",
    "run_infer_type",
    "run_opt_pass",
    "squeezenet",
    "synthetic",
    "temp_op_attr",
    "vgg",
]

_TORCH = "torchvision has it: qnn_ext.from_pytorch(torch.export.export(...))"

__getattr__ = absent("relay.testing", dict.fromkeys(("resnet_3d", "darknet", "yolo_detection"), _TORCH))

"""qnn_ext: integer execution of pre-quantized neural networks on Apache TVM."""

from .build import build
from .errors import (
    ArtifactError,
    InputError,
    ModelFormatError,
    QnnError,
    ShapeError,
    TargetError,
    UnsupportedOperatorError,
)
from .frontends.mxnet import from_mxnet
from .frontends.onnx import from_onnx
from .frontends.pytorch import from_pytorch
from .frontends.tflite import from_tflite
from .interpreter import Interpreter
from .module import QnnModule, TensorSpec
from .qparams import QParams
from .runtime import Engine, load

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "Engine",
    "InputError",
    "Interpreter",
    "ModelFormatError",
    "QParams",
    "QnnError",
    "QnnModule",
    "ShapeError",
    "TargetError",
    "TensorSpec",
    "UnsupportedOperatorError",
    "build",
    "from_mxnet",
    "from_onnx",
    "from_pytorch",
    "from_tflite",
    "load",
]

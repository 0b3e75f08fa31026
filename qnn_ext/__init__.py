"""qnn_ext: integer execution of pre-quantized neural networks on Apache TVM.

All but the exceptions is imported at first use: the command line prints its help without NumPy, and a compiled model
runs with TVM's runtime alone, without `tvm`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import (
    AccuracyError,
    ArtifactError,
    InputError,
    LimitError,
    ModelFormatError,
    QnnError,
    QuantizationError,
    ShapeError,
    TargetError,
    TuningError,
    UnsupportedOperatorError,
)
from .stand_ins import hide_pytorch_from_tvm
from .targets.host import ask_where_unknown
from .version import VERSION

if TYPE_CHECKING:
    from . import autotune, cluster, evaluation, qat, quantize, report
    from .building import build
    from .evaluation import accuracy
    from .frontends.mxnet import from_mxnet
    from .frontends.onnx import from_onnx
    from .frontends.pytorch import from_pytorch
    from .frontends.relax import from_relax
    from .frontends.tflite import from_tflite
    from .interpreter import Interpreter
    from .limits import Limits
    from .module import QnnModule, TensorSpec
    from .qparams import QParams
    from .running.engine import Engine, load
    from .running.pool import Pool

__version__ = VERSION

__all__ = [
    "AccuracyError",
    "ArtifactError",
    "Engine",
    "InputError",
    "Interpreter",
    "LimitError",
    "Limits",
    "ModelFormatError",
    "Pool",
    "QParams",
    "QnnError",
    "QnnModule",
    "QuantizationError",
    "ShapeError",
    "TargetError",
    "TensorSpec",
    "TuningError",
    "UnsupportedOperatorError",
    "accuracy",
    "autotune",
    "build",
    "cluster",
    "evaluation",
    "from_mxnet",
    "from_onnx",
    "from_pytorch",
    "from_relax",
    "from_tflite",
    "load",
    "qat",
    "quantize",
    "report",
]

_LAZY = {
    "Engine": ".running.engine",
    "Interpreter": ".interpreter",
    "Limits": ".limits",
    "Pool": ".running.pool",
    "QParams": ".qparams",
    "QnnModule": ".module",
    "TensorSpec": ".module",
    "accuracy": ".evaluation",
    "build": ".building",
    "from_mxnet": ".frontends.mxnet",
    "from_onnx": ".frontends.onnx",
    "from_pytorch": ".frontends.pytorch",
    "from_relax": ".frontends.relax",
    "from_tflite": ".frontends.tflite",
    "load": ".running.engine",
}

_LAZY_MODULES = ("autotune", "cluster", "evaluation", "qat", "quantize", "report")

hide_pytorch_from_tvm()
# On systems other than Linux, only the compiler knows this CPU's features
ask_where_unknown(lambda: import_module(".targets.names", __name__).features_of_model())


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return import_module(f".{name}", __name__)
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_LAZY_MODULES})

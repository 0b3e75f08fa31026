"""qnn_ext: integer execution of pre-quantized neural networks on Apache TVM.

Running a compiled model needs TVM's runtime only. What compiles is imported at its first use, and with it `tvm`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import (
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
from .module import QnnModule, TensorSpec
from .qparams import QParams
from .runtime import Engine, load

if TYPE_CHECKING:
    from . import autotune, quantize
    from .build import build
    from .frontends.mxnet import from_mxnet
    from .frontends.onnx import from_onnx
    from .frontends.pytorch import from_pytorch
    from .frontends.tflite import from_tflite
    from .interpreter import Interpreter
    from .limits import Limits

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "Engine",
    "InputError",
    "Interpreter",
    "LimitError",
    "Limits",
    "ModelFormatError",
    "QParams",
    "QnnError",
    "QnnModule",
    "QuantizationError",
    "ShapeError",
    "TargetError",
    "TensorSpec",
    "TuningError",
    "UnsupportedOperatorError",
    "autotune",
    "build",
    "from_mxnet",
    "from_onnx",
    "from_pytorch",
    "from_tflite",
    "load",
    "quantize",
]

_LAZY = {
    "Interpreter": ".interpreter",
    "Limits": ".limits",
    "build": ".build",
    "from_mxnet": ".frontends.mxnet",
    "from_onnx": ".frontends.onnx",
    "from_pytorch": ".frontends.pytorch",
    "from_tflite": ".frontends.tflite",
}

_LAZY_MODULES = ("autotune", "quantize")


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


class _Package(ModuleType):
    """Keeps `build` the function: importing the submodule of that name puts the module in its place."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value.build if name == "build" and isinstance(value, ModuleType) else value)


sys.modules[__name__].__class__ = _Package

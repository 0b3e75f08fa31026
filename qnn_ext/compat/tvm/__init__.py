"""tvm, as scripts up to TVM 0.19 import it: Relay, autotvm and runtime are the façade's, all else is TVM's own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import tvm as _tvm

from ..absent import absent
from ..aliases import Aliases
from ..arrays import NDArray
from ..devices import cpu, cuda, device, gpu
from ..modules import IRModule

Aliases(__name__, "tvm").install()

from . import autotvm, contrib, ir, nd, relay, runtime, target, testing, transform  # noqa: E402

__version__ = _tvm.__version__
__all__ = [
    "IRModule",
    "NDArray",
    "autotvm",
    "contrib",
    "cpu",
    "cuda",
    "device",
    "gpu",
    "ir",
    "nd",
    "relay",
    "runtime",
    "target",
]
__all__ += ["testing", "transform"]

_INSTEAD = {
    "auto_scheduler": "qnn_ext.autotune tunes the kernels of a model",
    "build": "qnn_ext.build compiles a model; TVM's own functions are compiled with tvm.compile of the package tvm",
    "driver": "the command line is qnn-ext",
    "micro": "boards take a C library: README.md, ARM boards",
    "context": "use tvm.device",
    "tir": "it is tvm.tirx in TVM 0.27",
}


def _own(name: str) -> Any:
    if name in ("build", "tir"):
        raise AttributeError(name)
    if hasattr(_tvm, name):
        return getattr(_tvm, name)
    try:
        return import_module(f"tvm.{name}")
    except ImportError:
        raise AttributeError(name) from None


__getattr__ = absent("tvm", _INSTEAD, _own)

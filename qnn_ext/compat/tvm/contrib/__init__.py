"""tvm.contrib."""

import tvm.contrib as _contrib

from ...absent import absent
from . import graph_executor, utils

__all__ = ["graph_executor", "utils"]

_INSTEAD = {
    "ndk": "engine.save links for the target by itself",
    "cc": "engine.save links for the target by itself",
    "debugger": "engine.profile() times each kernel",
}

__getattr__ = absent("tvm.contrib", _INSTEAD, lambda name: getattr(_contrib, name))

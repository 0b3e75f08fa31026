"""tvm.contrib. What compiles and links, TVM 0.27 has in tvm.support; `export_library` needs none of it."""

from importlib import import_module
from typing import Any

import tvm.contrib as _contrib

from ...absent import absent
from . import debugger, graph_executor, relay_viz, utils

__all__ = ["debugger", "graph_executor", "relay_viz", "utils"]


def _own(name: str) -> Any:
    if hasattr(_contrib, name):
        return getattr(_contrib, name)
    for package in ("tvm.contrib", "tvm.support"):
        try:
            return import_module(f"{package}.{name}")
        except ImportError:
            pass
    raise AttributeError(name)


__getattr__ = absent("tvm.contrib", None, _own)

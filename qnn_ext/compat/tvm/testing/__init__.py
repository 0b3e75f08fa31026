"""tvm.testing: TVM's own, which needs pytest; what tutorials call works without."""

from importlib import import_module
from typing import Any

from ...absent import absent
from . import utils

__all__ = ["utils"]


def _own(name: str) -> Any:
    try:
        module = import_module("tvm.testing")
    except ImportError:
        raise AttributeError(name) from None
    if name not in vars(module):
        raise AttributeError(name)
    return vars(module)[name]


__getattr__ = absent("tvm.testing", None, _own)

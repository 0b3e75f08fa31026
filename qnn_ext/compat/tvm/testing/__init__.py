"""tvm.testing: TVM's own, which needs pytest; what tutorials call works without."""

from importlib import import_module
from typing import Any

from ...absent import absent
from ...marks import (
    exclude_targets,
    known_failing_targets,
    parametrize_targets,
    requirement,
    requires_package,
    uses_gpu,
)
from . import utils

__all__ = [
    "exclude_targets",
    "known_failing_targets",
    "parametrize_targets",
    "requires_package",
    "uses_gpu",
    "utils",
]


def _own(name: str) -> Any:
    try:
        module = import_module("tvm.testing")
    except ImportError:
        raise AttributeError(name) from None
    return vars(module)[name] if name in vars(module) else requirement(name)


__getattr__ = absent("tvm.testing", None, _own)

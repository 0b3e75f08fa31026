"""tvm.ir."""

from typing import Any

import tvm.ir as _ir

from ...absent import absent
from ...expressions import Op, TensorType, TupleType
from ...modules import IRModule

__all__ = ["IRModule", "Op", "TensorType", "TupleType"]

_INSTEAD = {"assert_structural_equal": "expressions become Relax: compare results, or mod.astext()"}


def _own(name: str) -> Any:
    if name in _INSTEAD:
        raise AttributeError(name)
    return getattr(_ir, name)


__getattr__ = absent("tvm.ir", _INSTEAD, _own)

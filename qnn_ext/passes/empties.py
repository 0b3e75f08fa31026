"""Tensors without elements: they are constants, and joins leave them out. LLVM cannot allocate them in a kernel.

What sorts has kernels that take them.
"""

from __future__ import annotations

import numpy as np
from tvm import IRModule, relax

from ..op.base import constant, shape_of
from .layout.forms import static_shape
from .rewrite import Emit, op_name, rewrite


def without_empties(mod: IRModule) -> IRModule:
    """`mod` without operators whose result has no elements."""

    def rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
        if not op_name(value) or not value.op.get_attr("FPurity"):
            return None
        if _is_empty(value) and op_name(value) not in ("sort", "argsort", "topk"):
            return constant(np.zeros(shape_of(value), str(value.ty.dtype)))
        if op_name(value) == "concat" and isinstance(value.args[0], relax.Tuple):
            fields = [field for field in value.args[0].fields if not _is_empty(field)]
            if len(fields) == len(value.args[0].fields):
                return None
            return fields[0] if len(fields) == 1 else relax.op.concat(fields, value.attrs.axis)
        return None

    return rewrite(mod, rule)


def _is_empty(value: relax.Expr) -> bool:
    shape = static_shape(value)
    return shape is not None and 0 in shape

"""Fold: merges chains of constant additions, (acc + c₁) + c₂ = acc + (c₁ + c₂), so that T3, T4 and the bias are one.

Integer addition wraps, so the order does not matter. All other constants were computed at import.
"""

from __future__ import annotations

import numpy as np
from tvm import IRModule, relax

from ..op.arguments import data_of
from ..op.base import constant, constant_value, shape_of
from .rewrite import Emit, op_name, rewrite


def fold_constant_sums(mod: IRModule) -> IRModule:
    """`mod` with every chain of constant int32 or int64 additions merged into its last link."""
    known: dict[relax.Var, tuple[relax.Expr, np.ndarray]] = {}  # variable -> (acc, c) if it is bound to acc + c

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        parts = _constant_addition(expr)
        if parts is None:
            return None
        base, value = parts
        if base in known:
            base, inner = known[base]
            value = inner + value
        # bind here rather than in `rewrite`, so that later links of the chain find the variable
        var = emit(relax.op.add(base, constant(value)))
        known[var] = (base, value)
        return var

    return rewrite(mod, rule)


def _constant_addition(expr: relax.Expr) -> tuple[relax.Var, np.ndarray] | None:
    """(acc, c) if `expr` is acc + c or acc − c in int32 or int64 and c does not broadcast acc to a larger shape."""
    name = op_name(expr)
    if name not in ("add", "subtract") or str(data_of(expr).ty.dtype) not in ("int32", "int64"):
        return None
    left, right = expr.args
    value = constant_value(right)
    if value is None and name == "add":
        left, right = right, left
        value = constant_value(right)
    if value is None or not isinstance(left, relax.Var):
        return None
    shape = shape_of(left)
    if np.broadcast_shapes(shape, value.shape) != shape:
        return None
    return left, value if name == "add" else -value

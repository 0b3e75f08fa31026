"""Mixed precision: chosen products on float16 operands, with casts around them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..op.base import constant, constant_value
from ..passes.layout.rules import rebuild
from ..passes.rewrite import Emit, bindings_of, rewrite

_LARGEST = float(np.finfo(np.float16).max)


def to_float16(mod: IRModule, names: Collection[str]) -> IRModule:
    """`mod` with the products bound to these variables computed from float16 operands.

    float32(Σ float16(x) · float16(w)): operands are rounded to float16 (beyond its range: to its largest number), the
    sum is float32 as in tensor cores. Constants are stored in float16. Bias and activation stay float32.
    """
    chosen = iter([str(binding.var.name) in names for binding in bindings_of(mod["main"])])

    def rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
        if not next(chosen):
            return None
        operands = [_half(arg, emit) for arg in value.args[:2]]
        return rebuild(value, [*operands, *value.args[2:]], out_dtype="float32")

    return rewrite(mod, rule)


def _half(expr: Any, emit: Emit) -> Any:
    array = constant_value(expr)
    if array is not None:
        return constant(np.clip(array, -_LARGEST, _LARGEST).astype(np.float16))
    return emit(relax.op.astype(emit(relax.op.clip(expr, -_LARGEST, _LARGEST)), "float16"))

"""Splits become slices: on CPUs all of them, because slices may be read in place; on GPUs those into many parts.
Scheduling a single kernel that writes many results, and LLVM, take quadratic time; so does every pass that looks at the
whole tuple's type for each of its elements.
"""

from __future__ import annotations

from typing import Any

from tvm import IRModule, relax, tirx

from ..op.arguments import data_of
from .rewrite import Emit, bindings_of, op_name, rewrite

MOST = 64  # results of a single kernel


def slice_splits(mod: IRModule, most: int = MOST) -> IRModule:
    """`mod` with every R.split into more than `most` results replaced by R.strided_slice."""

    def is_wide(value: Any, ty: Any) -> bool:
        if op_name(value) != "split" or not isinstance(ty, relax.TupleType):
            return False
        known = all(isinstance(field.shape[int(value.attrs.axis)], tirx.IntImm) for field in ty.fields)
        return known and len(ty.fields) > most

    if not any(is_wide(binding.value, binding.var.ty) for binding in bindings_of(mod["main"])):
        return mod
    known: dict[Any, list[relax.Expr]] = {}

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        if isinstance(expr, relax.TupleGetItem) and expr.tuple_value in known:
            return known[expr.tuple_value][expr.index]
        if op_name(expr) != "split":
            return None
        whole = emit(expr)
        if not is_wide(expr, whole.ty):
            return whole
        parts = [emit(part) for part in _slices(expr, whole.ty)]
        var = emit(relax.Tuple(parts))
        known[var] = parts
        return var

    return rewrite(mod, rule)


def _slices(split: relax.Call, ty: relax.TupleType) -> list[relax.Expr]:
    data = data_of(split)
    axis, begin = int(split.attrs.axis) % len(data.ty.shape), 0
    found = []
    for field in ty.fields:
        end = begin + int(field.shape[axis])
        found.append(relax.op.strided_slice(data, [axis], [begin], [end]))
        begin = end
    return found

"""The numbers that a kernel computes values with: scales and zero points, which differ from layer to layer.

Numbers in indices, conditions and extents are none of them, nor operands of instructions, of which some must be
immediates, nor 0 and 1, with which there is less to compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tvm_ffi
from tvm import ir, tirx

from .operator import is_call
from .saturate import is_saturate

Expr = Any
Immediate: TypeAlias = tirx.IntImm | tirx.FloatImm

_NOT_ENTERED = (
    ir.TensorLoad,
    tirx.Ramp,
    tirx.Shuffle,
    *(tirx.FloorDiv, tirx.FloorMod, tirx.Mod, tirx.LShift, tirx.RShift),
    *(tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or, tirx.Not),
)
"""Expressions whose immediates are indices, conditions, or better immediates."""

_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "int64")


def _is_number(number: Immediate) -> bool:
    """Whether an immediate that values are computed with is one."""
    dtype, value = str(number.ty.dtype), number.value
    if dtype == "float32":
        return value not in (0.0, 1.0) and np.isfinite(value)
    return dtype in _INTEGERS and value not in (0, 1) and -(1 << 31) <= value < 1 << 31


def mapped(body: tirx.Stmt, rule: Callable[[Immediate], Expr]) -> tirx.Stmt:
    """The statement with a rule applied to each of these numbers, in the same order for statements that are equal but
    for them."""

    def number(value: Immediate, _mutator: Any) -> Expr:
        return rule(value) if _is_number(value) else value

    def kept(value: Expr, _mutator: Any) -> Expr:
        return value

    def inside(value: Expr, mutator: Any) -> Expr:
        return value if isinstance(value, Immediate) else mutator.mutate(value)

    def call(value: ir.Call, mutator: Any) -> Expr:
        if is_saturate(value):
            args = [mutator.mutate(arg) for arg in value.args]
        elif is_call(value, "prim.if_then_else"):
            condition, *branches = value.args
            args = [condition, *map(mutator.mutate, branches)]
        else:
            real = "float" in str(value.ty.dtype)  # an instruction's or a function's floats; what is left is no operand
            args = [
                mutator.mutate(arg) if real and isinstance(arg, tirx.FloatImm) else inside(arg, mutator)
                for arg in value.args
            ]
        return ir.Call(value.op, args, value.attrs, value.ty_args, ret_ty=value.ty)

    def select(value: tirx.Select, mutator: Any) -> Expr:
        return tirx.Select(value.condition, mutator.mutate(value.true_value), mutator.mutate(value.false_value))

    def broadcast(value: tirx.Broadcast, mutator: Any) -> Expr:
        return tirx.Broadcast(mutator.mutate(value.value), value.lanes)

    def extreme(value: tirx.Max | tirx.Min, mutator: Any) -> Expr:
        """Floats stay: what keeps NaN is simpler for a bound that is known to be a number."""
        keep = "float" in str(value.ty.dtype)
        a, b = (inside(arg, mutator) if keep else mutator.mutate(arg) for arg in (value.a, value.b))
        return type(value)(a, b)

    def quotient(value: tirx.Div, mutator: Any) -> Expr:
        return mutator.default_mutate(value) if "float" in str(value.ty.dtype) else value

    rules = [
        ((tirx.IntImm, tirx.FloatImm), number),
        (_NOT_ENTERED, kept),
        (ir.Call, call),
        (tirx.Select, select),
        (tirx.Broadcast, broadcast),
        ((tirx.Max, tirx.Min), extreme),
        (tirx.Div, quotient),
    ]

    stores: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(body, (tirx.BufferStore, stores.append))
    values = iter(tvm_ffi.structural_mutate(tvm_ffi.Array([store.value for store in stores]), rules)[:])

    def store(stmt: tirx.BufferStore) -> tirx.Stmt:
        return tirx.BufferStore(stmt.buffer, next(values), stmt.indices)

    return tvm_ffi.structural_map(body, (tirx.BufferStore, store))

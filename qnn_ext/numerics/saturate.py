"""The TIR operator for saturating narrowing, saturate(x + zero_point) from int32 to 8 bits.

It stays a separate operator until code generation: so TVM's simplifier, which takes longer with every minimum and
maximum, skips it, and only then is it known how many lanes the CPU can narrow at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx

from ..qparams import dtype_range
from .operator import define, is_call

Expr = Any
SATURATE = "tirx.qnn_saturate"

SMALL = "tirx.qnn_small"
LEAST_LARGE = 1 << 22
"""Integers below, added to 1.5·2²³ or subtracted from it, are exact as float32."""

_ROUNDER = 3 << 22
_ROUNDER_BITS = int(np.float32(_ROUNDER).view(np.int32))
_LRINT = int(tirx.call_llvm_pure_intrin("int32", "llvm.lrint", tirx.const(0.0, "float32")).args[0])


def saturated(x: Expr, zero_point: int, dtype: str) -> Expr:
    """saturate(x + zero_point) to an 8-bit dtype, for int32 x with |x| < 2³¹ − 2⁹, or any int32 x on ARM."""
    return tirx.call_intrin(dtype, SATURATE, x, tirx.const(zero_point, "int32"))


def is_saturate(node: Expr) -> bool:
    """Whether an expression is the operator."""
    return is_call(node, SATURATE)


def narrowed(call: Expr) -> Expr:
    """The operator as ordinary TIR."""
    x, zero_point = call.args
    low, high = dtype_range(_scalar(call))
    return _clip(x + zero_point, low, high).astype(call.ty.dtype)


def widened(call: Expr) -> Expr:
    """The same value, left in 32 bits. The zero point is added last, since usually a subtraction of it follows."""
    x, _ = call.args
    low, high = dtype_range(_scalar(call))
    shift = zero_point(call)
    return _clip(x, low - shift, high - shift) + in_lanes(shift, x)


def as_float(call: Expr, offset: Expr, product: Callable[[Expr, Expr], Expr]) -> Expr | None:
    """float32(value − offset) without a conversion, if x is lrint(y) of a float32 y; None for other x.

    y + 1.5·2²³ rounds y to an integer, midpoints to even, and has it in its lowest bits. Read as integers, the bits are
    ordered like the sums, so they can be clipped; for |y| beyond 2²² the sums are inexact, but then they are clipped.

    offset:  see `is_small`
    product: computes a·b, rounded before anything is added
    """
    x, _ = call.args
    y = rounded_operand(x)
    if y is None:
        return None
    real = str(y.ty.dtype)
    if isinstance(y, tirx.Mul):
        y = product(y.a, y.b)
    low, high = dtype_range(_scalar(call))
    shift = zero_point(call)
    bits = tirx.reinterpret(x.ty.dtype, y + tirx.const(float(_ROUNDER), real))
    clipped = _clip(bits, (_ROUNDER_BITS + low) - shift, (_ROUNDER_BITS + high) - shift)
    return tirx.reinterpret(real, clipped) - in_lanes((_ROUNDER - shift + offset).astype("float32"), y)


def rounded_operand(x: Expr) -> Expr | None:
    """y if x is lrint(y) of a float32 y, else None."""
    if getattr(getattr(x, "op", None), "name", "") != "tirx.call_llvm_pure_intrin" or int(x.args[0]) != _LRINT:
        return None
    y = x.args[-1]
    return y if str(y.ty.dtype).startswith("float32") else None


def zero_point(call: Expr) -> Expr:
    """The operator's zero point, which vectorization may have broadcast: an immediate, or a constant that is read."""
    return scalar(call.args[1])


def scalar(value: Expr) -> Expr:
    """What a value has in all its lanes, if vectorization has broadcast it."""
    return value.value if isinstance(value, tirx.Broadcast) else value


def in_lanes(value: Expr, like: Expr) -> Expr:
    """A single value in as many lanes as `like` has."""
    lanes = str(like.ty.dtype).partition("x")[2]
    return tirx.Broadcast(value, int(lanes)) if lanes else value


def small(value: Expr) -> Expr:
    """An int32 value, marked as one that `is_small`."""
    return tirx.call_intrin("int32", SMALL, value)


def is_small(value: Expr) -> bool:
    """Whether a single value is known to be an integer, |value| < `LEAST_LARGE`."""
    return abs(int(value)) < LEAST_LARGE if isinstance(value, tirx.IntImm) else is_call(value, SMALL)


def _scalar(call: Expr) -> str:
    return str(call.ty.dtype).split("x")[0]


def _clip(x: Expr, low: Expr, high: Expr) -> Expr:
    low, high = (tirx.const(bound, "int32") if isinstance(bound, int) else bound for bound in (low, high))
    return tirx.max(tirx.min(x, in_lanes(high, x)), in_lanes(low, x))


define(SATURATE, "saturate(x + zero_point)", 2, narrowed)
define(SMALL, "x, |x| < 2²²", 1, lambda call: call.args[0])

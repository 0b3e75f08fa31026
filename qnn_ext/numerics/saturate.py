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
    return _clip(x, low - shift, high - shift) + tirx.const(shift, x.ty.dtype)


def as_float(call: Expr, offset: int, product: Callable[[Expr, Expr], Expr]) -> Expr | None:
    """float32(value − offset) without a conversion, if x is lrint(y) of a float32 y; None for other x.

    y + 1.5·2²³ rounds y to an integer, midpoints to even, and has it in its lowest bits. Read as integers, the bits are
    ordered like the sums, so they can be clipped; for |y| beyond 2²² the sums are inexact, but then they are clipped.

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
    clipped = _clip(bits, _ROUNDER_BITS + low - shift, _ROUNDER_BITS + high - shift)
    return tirx.reinterpret(real, clipped) - tirx.const(float(_ROUNDER - shift + offset), real)


def rounded_operand(x: Expr) -> Expr | None:
    """y if x is lrint(y) of a float32 y, else None."""
    if getattr(getattr(x, "op", None), "name", "") != "tirx.call_llvm_pure_intrin" or int(x.args[0]) != _LRINT:
        return None
    y = x.args[-1]
    return y if str(y.ty.dtype).startswith("float32") else None


def zero_point(call: Expr) -> int:
    """The operator's zero point, which vectorization may have broadcast."""
    value = call.args[1]
    return int(value.value if isinstance(value, tirx.Broadcast) else value)


def _scalar(call: Expr) -> str:
    return str(call.ty.dtype).split("x")[0]


def _clip(x: Expr, low: int, high: int) -> Expr:
    wide = x.ty.dtype
    return tirx.max(tirx.min(x, tirx.const(high, wide)), tirx.const(low, wide))


define(SATURATE, "saturate(x + zero_point)", 2, narrowed)

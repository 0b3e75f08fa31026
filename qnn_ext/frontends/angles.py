"""atan2 of floats, from the arctangent of a quotient of at most one."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import relax

from ..op.base import constant

Emit = Callable[[relax.Expr], relax.Expr]


def atan2(emit: Emit, y: relax.Expr, x: relax.Expr) -> relax.Expr:
    """The angle of the point (x, y), float32 and in −π … π, as C's atan2 has it: zeros have a sign, and infinities meet
    at odd multiples of π/4. Computed in float64.

    atan(min/max) of the absolute values lies in 0 … π/4; mirroring it at π/4, π/2 and 0 gives all other angles.
    """
    op = relax.op

    def number(value: float) -> relax.Expr:
        return constant(np.float64(value))

    def negative(value: relax.Expr) -> relax.Expr:
        """Whether the sign bit is set: of −0, only the reciprocal shows it."""
        below = emit(op.less(value, number(0)))
        return emit(op.logical_or(below, emit(op.less(emit(op.divide(number(1), value)), number(0)))))

    y, x = (emit(op.astype(value, "float64")) for value in (y, x))
    height, width = emit(op.abs(y)), emit(op.abs(x))
    largest = emit(op.maximum(height, width))
    # 0 / 0 and ∞ / ∞ become 0 / 1 and 1 / 1
    divisor = emit(op.where(emit(op.equal(largest, number(0))), number(1), largest))
    quotient = emit(op.divide(emit(op.minimum(height, width)), divisor))
    quotient = emit(op.where(emit(op.equal(height, width)), emit(op.sign(height)), quotient))
    angle = emit(op.atan(quotient))
    angle = emit(op.where(emit(op.greater(height, width)), emit(op.subtract(number(math.pi / 2), angle)), angle))
    angle = emit(op.where(negative(x), emit(op.subtract(number(math.pi), angle)), angle))
    angle = emit(op.where(negative(y), emit(op.negative(angle)), angle))
    total = emit(op.add(height, width))
    defined = emit(op.equal(total, total))  # neither is NaN
    return op.astype(emit(op.where(defined, angle, number(math.nan))), "float32")

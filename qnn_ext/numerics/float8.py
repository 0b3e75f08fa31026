"""float8: float32 rounded to 8 bits, to nearest with ties to even, saturating; as NumPy and as TIR, equal bit for bit.

The values travel as float32, which holds them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from tvm import tirx

from .tir import fence, shared

Expr = Any

_INFINITY, _MAGNITUDE, _SIGN = 0x7F800000, 0x7FFFFFFF, 0x80000000


@dataclass(frozen=True)
class Format:
    """A kind of float8: the bits of its mantissa, the exponent of its smallest normal number, its largest number and
    whether it tells −0 from 0."""

    mantissa: int
    exponent: int
    largest: float
    signed_zero: bool


FORMATS = {
    "float8_e4m3fn": Format(3, -6, 448.0, True),
    "float8_e4m3fnuz": Format(3, -7, 240.0, False),
    "float8_e5m2": Format(2, -14, 57344.0, True),
    "float8_e5m2fnuz": Format(2, -15, 57344.0, False),
}


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values rounded to float8; what lies beyond the largest number becomes it, infinities too. NaN stay."""
    largest = np.float32(FORMATS[dtype].largest)
    with np.errstate(invalid="ignore"):
        return np.clip(x, -largest, largest).astype(getattr(ml_dtypes, dtype)).astype(np.float32)


def rounded_expression(x: Expr, dtype: str) -> Expr:
    """The twin of `rounded` for a float32 expression.

    Adding 1.5 · 2^23 steps and subtracting them again leaves a multiple of a step, rounded to nearest, ties to even. A
    step is 2^−mantissa of the power of two below the number, or below the smallest normal one.
    """
    form = FORMATS[dtype]
    smallest, above = (127 + form.exponent) << 23, ((23 - form.mantissa) << 23) + (1 << 22)

    def nearest(x: Expr) -> Expr:
        word = tirx.reinterpret("uint32", x)
        power = tirx.max(tirx.bitwise_and(word, _word(_INFINITY)), _word(smallest))
        large = tirx.reinterpret("float32", power + _word(above))
        value = tirx.reinterpret("uint32", fence(x + large) - large)  # TVM would cancel the two
        sign = _word(_SIGN) if form.signed_zero else tirx.Select(value == _word(0), _word(0), _word(_SIGN))
        return tirx.reinterpret("float32", tirx.bitwise_or(value, tirx.bitwise_and(word, sign)))

    def saturated(x: Expr) -> Expr:
        inside = tirx.max(tirx.min(x, _real(form.largest)), _real(-form.largest))
        bits = tirx.bitwise_and(tirx.reinterpret("uint32", x), _word(_MAGNITUDE))
        return tirx.Select(bits > _word(_INFINITY), x, shared(inside, nearest))

    return shared(x, saturated)


def _word(value: int) -> Expr:
    return tirx.const(value, "uint32")


def _real(value: float) -> Expr:
    return tirx.const(value, "float32")

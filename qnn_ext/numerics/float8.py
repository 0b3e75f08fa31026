"""float8: float32 rounded to 8 bits, to nearest with ties to even, saturating; as NumPy and as TIR, equal bit for bit.

The values travel as float32, which holds them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from tvm import tirx

from .tir import round_half_even, shared

Expr = Any

_INFINITY, _MAGNITUDE = 0x7F800000, 0x7FFFFFFF


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

    Normal numbers are rounded as integers: half a step less one, and one more where the last bit is odd, carries into
    the bits that stay. Those below are multiples of one step, 2^(exponent − mantissa).
    """
    form = FORMATS[dtype]
    dropped = 23 - form.mantissa
    steps = 2.0 ** (form.mantissa - form.exponent)

    def nearest(x: Expr) -> Expr:
        word = tirx.reinterpret("uint32", x)
        odd = tirx.bitwise_and(tirx.shift_right(word, _word(dropped)), _word(1))
        carried = tirx.bitwise_and(word + (odd + _word(2 ** (dropped - 1) - 1)), _word(2**32 - 2**dropped))
        small = round_half_even(x * _real(steps)) * _real(1 / steps)
        is_small = tirx.bitwise_and(word, _word(_MAGNITUDE)) < _word((127 + form.exponent) << 23)
        value = tirx.Select(is_small, small, tirx.reinterpret("float32", carried))
        return value if form.signed_zero else shared(value, lambda v: tirx.Select(v == _real(0), _real(0), v))

    def saturated(x: Expr) -> Expr:
        inside = tirx.max(tirx.min(x, _real(form.largest)), _real(-form.largest))
        bits = tirx.bitwise_and(tirx.reinterpret("uint32", x), _word(_MAGNITUDE))
        return tirx.Select(bits > _word(_INFINITY), x, shared(inside, nearest))

    return shared(x, saturated)


def _word(value: int) -> Expr:
    return tirx.const(value, "uint32")


def _real(value: float) -> Expr:
    return tirx.const(value, "float32")

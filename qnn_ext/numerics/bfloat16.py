"""bfloat16: the upper half of a float32, rounded to nearest, ties to even; as NumPy and as TIR, equal bit for bit.

Its values travel as their 16 bits in uint16: NumPy has no such dtype, and TVM's code generation none either.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from .tir import shared

BITS = "uint16"
"""The dtype that holds a bfloat16."""

_QUIET, _INFINITY, _MAGNITUDE = 0x40, 0x7F800000, 0x7FFFFFFF

Expr = Any


def bits_of(x: np.ndarray) -> np.ndarray:
    """The bits of float32 values rounded to bfloat16; a NaN stays one."""
    word = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (word + (((word >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    return np.where(word & _MAGNITUDE > _INFINITY, (word >> 16) | _QUIET, rounded).astype(np.uint16)


def from_bits(bits: np.ndarray) -> np.ndarray:
    """The float32 values that 16 bits stand for."""
    return (np.asarray(bits, np.uint32) << 16).view(np.float32)


def rounded(x: np.ndarray) -> np.ndarray:
    """float32 values rounded to bfloat16."""
    return from_bits(bits_of(x)).reshape(np.shape(x))


def bits_of_expression(x: Expr) -> Expr:
    """The twin of `bits_of` for a float32 expression."""
    return _rounded_word(x).astype(BITS)


def from_bits_expression(bits: Expr) -> Expr:
    """The twin of `from_bits`."""
    return tirx.reinterpret("float32", tirx.shift_left(bits.astype("uint32"), _const(16)))


def rounded_expression(x: Expr) -> Expr:
    """The twin of `rounded`."""
    return tirx.reinterpret("float32", tirx.shift_left(_rounded_word(x), _const(16)))


def _rounded_word(x: Expr) -> Expr:
    def upper_half(word: Expr) -> Expr:
        high = tirx.shift_right(word, _const(16))
        nearest = tirx.shift_right(word + (tirx.bitwise_and(high, _const(1)) + _const(0x7FFF)), _const(16))
        is_nan = tirx.bitwise_and(word, _const(_MAGNITUDE)) > _const(_INFINITY)
        return tirx.Select(is_nan, tirx.bitwise_or(high, _const(_QUIET)), nearest)

    return shared(tirx.reinterpret("uint32", x), upper_half)


def _const(value: int) -> Expr:
    return tirx.const(value, "uint32")

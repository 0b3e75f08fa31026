"""Integer division for every divisor: cases that are undefined in C, and crash on CPUs, have a result here.

    n / 0 = n    n mod 0 = 0    INT_MIN / −1 = INT_MIN    n mod −1 = 0

both truncating and flooring. A divisor of 0 is also reported, see `passes/checks.py`. Once in NumPy, once in TIR.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx

from .tir import dtype_of, shared

Expr = Any
QUOTIENTS = (tirx.Div, tirx.FloorDiv)
REMAINDERS = (tirx.Mod, tirx.FloorMod)


def divided(kind: type, n: Expr, d: Expr) -> Expr:
    """A quotient or remainder (QUOTIENTS, REMAINDERS) of two integers, as TIR."""
    dtype = dtype_of(n)
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
    if dtype.startswith("uint"):
        return shared(d, lambda d: kind(n, tirx.Select(d == zero, one, d)))
    lowest, minus_one = tirx.min_value(dtype), tirx.const(-1, dtype)

    def defined(n: Expr, d: Expr) -> Expr:
        # Not Select(d == −1, −n, n / …): a Select computes both sides, but TVM simplifies each under its condition and
        # would drop the test for −1 from the divisor. −INT_MIN is never computed: LLVM assumes that nothing overflows.
        divisor = tirx.Select(tirx.any(d == zero, d == minus_one), one, d)
        if kind in REMAINDERS:
            return kind(n, divisor)
        negated = tirx.Select(n == lowest, lowest, zero - n)
        return kind(tirx.Select(d == minus_one, negated, n), divisor)

    return shared(n, lambda n: shared(d, lambda d: defined(n, d)))


def truncated_quotient(n: np.ndarray, d: np.ndarray) -> np.ndarray:
    """n / d of integers, rounded towards zero."""
    quotient, remainder = floor_quotient(n, d), floor_remainder(n, d)
    return np.asarray(quotient + ((remainder != 0) & ((n < 0) != (d < 0)))).astype(n.dtype)


def truncated_remainder(n: np.ndarray, d: np.ndarray) -> np.ndarray:
    """n − d · truncated_quotient(n, d), with the sign of n."""
    with np.errstate(over="ignore"):
        return np.asarray(np.fmod(n, _safe(d)))


def floor_quotient(n: np.ndarray, d: np.ndarray) -> np.ndarray:
    """⌊n / d⌋ of integers."""
    with np.errstate(over="ignore"):
        negated = np.negative(n)  # wraps if n is the lowest value
    return np.asarray(np.where(_is_minus_one(d), negated, n // _safe(d)))


def floor_remainder(n: np.ndarray, d: np.ndarray) -> np.ndarray:
    """n − d · ⌊n / d⌋, with the sign of d."""
    return np.asarray(n % _safe(d))


def _safe(d: np.ndarray) -> np.ndarray:
    return np.where((d == 0) | _is_minus_one(d), np.ones_like(d), d)


def _is_minus_one(d: np.ndarray) -> np.ndarray:
    return (d == -1) if d.dtype.kind == "i" else np.zeros(d.shape, bool)


NUMPY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "divide": truncated_quotient,
    "floor_divide": floor_quotient,
    "mod": truncated_remainder,
    "floor_mod": floor_remainder,
}
"""Functions by the name of the Relax operator."""

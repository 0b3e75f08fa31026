"""x / s of float32 for many x and one s, correctly rounded without a division for each: in NumPy and in TIR.

    r = RN(1 / s)    y = RN(x · r)    q = RN(y + r · RN(x − y·s))    two of the roundings are of a fused multiply-add

q = RN(x / s) wherever nothing under- or overflows. For x and s in [1, 2), let u be the distance of floats around x / s.
|y − x/s| ≤ 1.5 u, so that x − y·s is a multiple of 2⁻²³u below 3 · 2²³ of them. It is exact for s < 4/3, as it then has
24 bits; otherwise off by one of them at most, which is 1.5 u/2²⁴ when divided by s. The error of r adds 1.5 u/2²⁴, so
that q can only be wrong if x / s is within 3 u/2²⁴ of the middle of two floats. With integers X = 2²³x, S = 2²³s and an
odd N that distance is |2ᵏX − N·S| / 2S u, with k = 25 or 24: less than 3 u/2²⁴ only if |2ᵏX − N·S| < 6. q was compared
with x / s for all pairs with that property, 69,775,484 with a few more (`tests/numerics/test_quotient.py`).

Quantization divides by a scale found at run time. Where that is constant, LLVM divides as before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from .reference import fused_multiply_add
from .tir import clipped, shared
from .tir import fused_multiply_add as fused

Expr = Any

LEAST, MOST = 2.0**-98, 2.0**98
"""Divisors for which no intermediate value of a quotient in [¼, 2¹⁸] under- or overflows: x − y·s is a multiple of
2⁻²⁶ · 2⁻¹²¹ there, and below ¼ the last bit does not matter to an integer."""

BOUND = 2.0**18
"""Quotients are clipped to ±BOUND."""


def quotient(x: np.ndarray, s: np.ndarray) -> np.ndarray:
    """RN(x / s) of float32, as above."""
    r = np.float32(1) / s
    y = x * r
    return fused_multiply_add(fused_multiply_add(y, -s, x), r, y)


def bounded_quotient(x: Expr, s: Expr) -> Expr:
    """x / s clipped to ±BOUND, up to the last bit of a quotient below ¼; NaN counts as −∞. One `s` for all x."""
    zero, one = tirx.const(0.0, "float32"), tirx.const(1.0, "float32")
    usual = tirx.all(s >= tirx.const(LEAST, "float32"), s <= tirx.const(MOST, "float32"))
    reciprocal, most = one / s, s * tirx.const(BOUND, "float32")

    def corrected(x: Expr) -> Expr:
        return shared(x * reciprocal, lambda y: fused(fused(y, zero - s, x), reciprocal, y))

    fast = shared(clipped(x, most), corrected)
    return tirx.if_then_else(usual, fast, clipped(x / s, tirx.const(BOUND, "float32")))

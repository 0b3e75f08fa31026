"""Maximum and minimum of floats, as NumPy and as TIR, equal bit for bit: NaN where either operand is NaN.

Comparisons alone, as TVM and the vector instructions of x86 have them, give NaN or the number by the order of operands.
Of equal operands, such as zeros of either sign, the first is the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import te, tirx

Expr = Any


def maximum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """max(a, b) of arrays of one float dtype."""
    return np.where((b > a) | np.isnan(b), b, a)


def minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """min(a, b) of arrays of one float dtype."""
    return np.where((b < a) | np.isnan(b), b, a)


def clip(x: np.ndarray, low: Any, high: Any) -> np.ndarray:
    """min(max(x, low), high); NaN stays."""
    return minimum(maximum(x, x.dtype.type(low)), x.dtype.type(high))


def tir_maximum(a: Expr, b: Expr) -> Expr:
    """max(a, b); one comparison where b is a constant."""
    return tirx.Select(_or_nan(b > a, b), b, a)


def tir_minimum(a: Expr, b: Expr) -> Expr:
    """min(a, b); one comparison where b is a constant."""
    return tirx.Select(_or_nan(b < a, b), b, a)


def _or_nan(condition: Expr, b: Expr) -> Expr:
    if isinstance(b, tirx.FloatImm) and b.value == b.value:
        return condition
    return tirx.Or(condition, tirx.isnan(b))  # b != b would be simplified away


def _reducer(combine: Callable[[Expr, Expr], Expr], identity: float, name: str) -> Callable[..., Expr]:
    return te.comm_reducer(combine, lambda dtype: tirx.const(identity, dtype), name=name)


largest = _reducer(tir_maximum, float("-inf"), "largest")
smallest = _reducer(tir_minimum, float("inf"), "smallest")
"""Reductions over axes, as te.max and te.min."""

"""Functions of float32 made of sixteen cubic polynomials, as NumPy and as TIR: equal bit for bit.

    x' = min(max(x, low), high), low for NaN
    i  = min(rint(x'·factor + offset), 15)
    y  = ((c₃[i]·x' + c₂[i])·x' + c₁[i])·x' + c₀[i]

Sixteen float32 are what the widest registers look up at once, see `topi_int8.x86.segments`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx

from . import tir
from .reference import fused_multiply_add

SEGMENTS = 16
ROWS = 4  # of coefficients, by degree

Expr = Any


def evaluated(data: np.ndarray, coefficients: np.ndarray, low: Any, high: Any, factor: Any, offset: Any) -> np.ndarray:
    """The function of an array; coefficients: c₀ to c₃ as float32 (4, 16)."""
    low, high, factor, offset = map(np.float32, (low, high, factor, offset))
    x = np.asarray(data, np.float32)
    x = np.where(x > low, x, low)
    x = np.where(x < high, x, high)
    index = segment(x, factor, offset)
    result = coefficients[-1][index]
    for row in coefficients[-2::-1]:
        result = fused_multiply_add(result, x, row[index])
    return np.asarray(result)


def segment(x: np.ndarray, factor: np.float32, offset: np.float32) -> np.ndarray:
    """The i of float32 x from low to high."""
    return np.minimum(
        np.rint(fused_multiply_add(x, np.asarray(factor), np.asarray(offset))).astype(np.int32), SEGMENTS - 1
    )


def expression(
    x: Expr, coefficient: Callable[[int, Expr], Expr], low: float, high: float, factor: float, offset: float
) -> Expr:
    """The function of a float32 expression; coefficient: (degree, i) -> the element of the constant."""
    least, most, a, b = (tirx.const(float(value), "float32") for value in (low, high, factor, offset))
    x = tirx.Select(x > least, x, least)
    x = tirx.Select(x < most, x, most)
    # not tir.shared: TVM does not accept its variable in an address
    index = tirx.min(tir.round_to_int32(tir.fused_multiply_add(x, a, b)), tirx.const(SEGMENTS - 1, "int32"))
    result = coefficient(ROWS - 1, index)
    for degree in range(ROWS - 2, -1, -1):
        result = tir.fused_multiply_add(result, x, coefficient(degree, index))
    return result

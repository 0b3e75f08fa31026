"""Winograd's minimal filtering F(4×4, 3×3): 16 results of a 3×3 window from 36 products in place of 144.

    Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A        d: a 6×6 tile of the data, g: the 3×3 weights, Y: 4×4 results

The matrices interpolate polynomials at 0, ±√½, ±√2 and ∞. Of the points tried, these have the smallest error in
float32: their squares are powers of two, and they lie evenly around 1. With 128 channels of random data, the largest
error is 1.7 times that of sums taken one by one; at the usual points 0, ±1, ±2, ∞ it is 8 times.

Rounded to float32, with C channels added up, a result differs from the exact one by less than

    (C + 16) · 2⁻²⁴ · |A|ᵀ [(|G| |g| |G|ᵀ) ⊙ (|B|ᵀ |d| |B|)] |A|

as the roundings of both transforms, of the weights and of the sum add up. Every element of the tile counts, also those
that the result does not depend on: an infinity or NaN spoils all 16 of them.

The transforms are written once, for NumPy arrays and for TIR alike. Source: Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks" (2015); Toom and Cook for the matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import reference

RESULTS, WINDOW = 4, 3
SIZE = RESULTS + WINDOW - 1
"""Rows and columns of a tile of the data, and of its products."""

PRODUCTS = SIZE * SIZE

_NEAR, _FAR = float(np.sqrt(0.5)), float(np.sqrt(2.0))
_POINTS = (0.0, _NEAR, -_NEAR, _FAR, -_FAR)

Value = Any


@dataclass(frozen=True)
class Numbers:
    """The arithmetic of the transforms. Products are parts of an fma, so that compilers have nothing to contract."""

    constant: Callable[[float], Value]
    fma: Callable[[Value, Value, Value], Value]


NUMPY = Numbers(np.float32, reference.fused_multiply_add)


def transformed_data(d: Sequence[Value], on: Numbers) -> list[Value]:
    """Bᵀ d for six values."""

    def pair(point: float, other: float) -> tuple[Value, Value]:
        root = on.constant(-(other**2))
        even, odd = on.fma(root, d[2], d[4]), on.fma(root, d[1], d[3])
        return on.fma(on.constant(point), odd, even), on.fma(on.constant(-point), odd, even)

    both = on.constant(-(_NEAR**2 + _FAR**2))
    return [
        d[4] + on.fma(both, d[2], d[0]),
        *pair(_NEAR, _FAR),
        *pair(_FAR, _NEAR),
        d[5] + on.fma(both, d[3], d[1]),
    ]


def transformed_products(m: Sequence[Value], on: Numbers) -> list[Value]:
    """Aᵀ m for six values."""
    near, far = (m[1] + m[2], m[1] - m[2]), (m[3] + m[4], m[3] - m[4])

    def weighted(power: int, more: Value | None = None) -> Value:
        scale = on.constant(_FAR**power)
        last = scale * far[power % 2] if more is None else on.fma(scale, far[power % 2], more)
        return on.fma(on.constant(_NEAR**power), near[power % 2], last)

    return [m[0] + (near[0] + far[0]), weighted(1), weighted(2), weighted(3, m[5])]


def weight_matrix() -> np.ndarray:
    """G, (6, 3)."""
    rows = [
        [point**k / np.prod([point - other for other in _POINTS if other != point]) for k in range(WINDOW)]
        for point in _POINTS
    ]
    return np.array([*rows, [0.0] * (WINDOW - 1) + [1.0]])


def transformed_weight(weight: np.ndarray) -> np.ndarray:
    """G g Gᵀ of OHWI weights, computed in float64: (36 · O, 1, 1, I), a group of O channels for each product."""
    g = weight_matrix()
    outputs, _, _, inputs = weight.shape
    products = np.einsum("pr,orsi,qs->pqoi", g, weight.astype(np.float64), g)
    return np.ascontiguousarray(products.reshape(PRODUCTS * outputs, 1, 1, inputs).astype(np.float32))


def tiles(size: int) -> int:
    """How many tiles as many results take, along one axis."""
    return -(-size // RESULTS)

"""Winograd's minimal filtering: the results of a 3×3 window from fewer products.

    Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A        d: a tile of the data, g: the 3×3 weights, Y: the results

FLOATS is F(4×4, 3×3): 16 results from 36 products in place of 144. The matrices interpolate polynomials at 0, ±√½, ±√2
and ∞. Of the points tried, these have the smallest error in float32: their squares are powers of two, and they lie
evenly around 1. With 128 channels of random data, the largest error is 1.7 times that of sums taken one by one; at the
usual points 0, ±1, ±2, ∞ it is 8 times.

Rounded to float32, with C channels added up, a result differs from the exact one by less than

    (C + 16) · 2⁻²⁴ · |A|ᵀ [(|G| |g| |G|ᵀ) ⊙ (|B|ᵀ |d| |B|)] |A|

as the roundings of both transforms, of the weights and of the sum add up. Every element of the tile counts, also those
that the result does not depend on: an infinity or NaN spoils all 16 of them.

INTEGERS is F(2×2, 3×3), at the points 0, ±1 and ∞: 4 results from 16 products in place of 36. It is exact. Twice G has
integers only, so four times the result is a sum of integers, and a shift by two bits ends it. Transformed data of 8
bits, up to 4 · 255, and weights, up to 9 · 255, fit 16 bits; sums wrap around, which changes nothing where four times
the result fits 32 bits.

The transforms are written once, for NumPy arrays and for TIR alike. Source: Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks" (2015); Toom and Cook for the matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import reference

WINDOW = 3

_NEAR, _FAR = float(np.sqrt(0.5)), float(np.sqrt(2.0))
_POINTS = (0.0, _NEAR, -_NEAR, _FAR, -_FAR)

Value = Any


@dataclass(frozen=True)
class Numbers:
    """The arithmetic of the transforms of floats. Products are parts of an fma, so that compilers have nothing to
    contract."""

    constant: Callable[[float], Value]
    fma: Callable[[Value, Value, Value], Value]


NUMPY = Numbers(np.float32, reference.fused_multiply_add)

Transform = Callable[[Sequence[Value], Numbers], list[Value]]


@dataclass(frozen=True)
class Form:
    """A form of the algorithm.

    results:  rows and columns of the results that come from one tile
    dtypes:   of the data that it takes, of transformed data and weights, of products and results
    data:     Bᵀ d for `size` values
    products: Aᵀ m for as many
    weights:  G, or for integers twice that, (size, 3)
    shift:    bits by which results are shifted to the right in the end
    """

    results: int
    dtypes: tuple[tuple[str, ...], str, str]
    data: Transform
    products: Transform
    weights: np.ndarray
    shift: int = 0

    @property
    def size(self) -> int:
        """Rows and columns of a tile of the data, and of its products."""
        return self.results + WINDOW - 1

    @property
    def tile_products(self) -> int:
        """Products of a tile."""
        return self.size**2

    def tiles(self, size: int) -> int:
        """How many tiles as many results take, along one axis."""
        return -(-size // self.results)

    def transformed_weight(self, weight: np.ndarray) -> np.ndarray:
        """G g Gᵀ of OHWI weights, computed in float64: (products · O, 1, 1, I), a group of O channels for each
        product."""
        found = np.einsum("pr,orsi,qs->pqoi", self.weights, weight.astype(np.float64), self.weights)
        return np.ascontiguousarray(found.reshape(-1, 1, 1, weight.shape[-1]).astype(self.dtypes[1]))


def _float_data(d: Sequence[Value], on: Numbers) -> list[Value]:
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


def _float_products(m: Sequence[Value], on: Numbers) -> list[Value]:
    near, far = (m[1] + m[2], m[1] - m[2]), (m[3] + m[4], m[3] - m[4])

    def weighted(power: int, more: Value | None = None) -> Value:
        scale = on.constant(_FAR**power)
        last = scale * far[power % 2] if more is None else on.fma(scale, far[power % 2], more)
        return on.fma(on.constant(_NEAR**power), near[power % 2], last)

    return [m[0] + (near[0] + far[0]), weighted(1), weighted(2), weighted(3, m[5])]


def _float_weights() -> np.ndarray:
    rows = [
        [point**k / np.prod([point - other for other in _POINTS if other != point]) for k in range(WINDOW)]
        for point in _POINTS
    ]
    return np.array([*rows, [0.0] * (WINDOW - 1) + [1.0]])


def _integer_data(d: Sequence[Value], on: Numbers) -> list[Value]:
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _integer_products(m: Sequence[Value], on: Numbers) -> list[Value]:
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


FLOATS = Form(4, (("float32",), "float32", "float32"), _float_data, _float_products, _float_weights())
INTEGERS = Form(
    2,
    (("uint8", "int8"), "int16", "int32"),
    _integer_data,
    _integer_products,
    np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]]),
    shift=2,
)
FORMS = (FLOATS, INTEGERS)


def form_for_data(dtype: str) -> Form:
    """The form of the algorithm that takes data of a dtype."""
    return next(form for form in FORMS if dtype in form.dtypes[0])


def form_for_products(dtype: str) -> Form:
    """The form of the algorithm whose products have a dtype."""
    return next(form for form in FORMS if dtype == form.dtypes[2])


def is_exact(weight: np.ndarray, largest: int) -> bool:
    """Whether INTEGERS gives exact results for these weights and data of at most that magnitude: if transformed weights
    fit 16 bits, and four times a result, whatever the data, fits 32."""
    sizes = np.abs(weight.astype(np.int64))
    sums = sizes.sum(axis=(1, 2, 3)) << INTEGERS.shift
    return bool(WINDOW**2 * sizes.max(initial=0) < 2**15 and sums.max(initial=0) * largest < 2**31)

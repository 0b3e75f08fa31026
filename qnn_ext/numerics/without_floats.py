"""Requantization by a float64 factor, with integers alone: for CPUs that compute float64 by library functions.

TFLite's reference kernel of dense layers returns saturate(round(x · r) + z) with x · r in float64 and midpoints away
from zero. Of an 8- or 16-bit result only the places matter where it grows by one. Both that function and
⌊(x · m + 2^(s−1)) / 2^s⌋ never decrease, so they are equal for every int32 x if they are equal on both sides of each of
these places, which is checked here.
"""

from __future__ import annotations

import math

import numpy as np

from ..qparams import dtype_range

_MOST = 31  # bits of the multiplier
_NEIGHBOURS = (0, 1, -1, 2, -2)
_INT32 = np.iinfo(np.int32)


def equal_fixed_point(ratio: np.ndarray, zero_point: int, dtype: str) -> tuple[np.ndarray, np.ndarray] | None:
    """(m, s) with saturate(⌊(x · m + 2^(s−1)) / 2^s⌋ + z) equal to saturate(round(x · r) + z) for every int32 x.

    ratio: r > 0, float64, one or one for each channel; m: int32 and s: int32, of the same shape, 1 ≤ s ≤ 62.
    None if there are no such numbers.
    """
    found = [_equal(float(one), zero_point, dtype) for one in ratio.reshape(-1)]
    if None in found:
        return None
    m, s = (np.asarray(part, np.int32).reshape(ratio.shape) for part in zip(*found, strict=True))  # type: ignore[arg-type]
    return m, s


def _equal(ratio: float, zero_point: int, dtype: str) -> tuple[int, int] | None:
    if not 0 < ratio < 1 << 20:
        return None
    values, places = _places(ratio, zero_point, dtype)
    shift = _MOST - math.frexp(ratio)[1]
    if not 1 <= shift <= 62:
        return None
    nearest = round(math.ldexp(ratio, shift))
    for multiplier in (nearest + change for change in _NEIGHBOURS):
        if 0 < multiplier <= _INT32.max and _agrees(multiplier, shift, values, places):
            return multiplier, shift
    return None


def _places(ratio: float, zero_point: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The values above the lowest, without the zero point, and the least x for which each is reached; those beyond
    int32 left out."""
    low, high = dtype_range(dtype)
    values = np.arange(low + 1, high + 1, dtype=np.int64) - zero_point
    about = np.floor((values - 0.5) / ratio)
    within = np.abs(about) < _INT32.max - 8
    values, about = values[within], about[within].astype(np.int64)
    around = about[:, None] + np.arange(-4, 6)
    reached = _rounded(around * ratio) >= values[:, None]
    assert not reached[:, 0].any() and reached[:, -1].all()
    return values, np.take_along_axis(around, reached.argmax(axis=1)[:, None], axis=1)[:, 0]


def _rounded(real: np.ndarray) -> np.ndarray:
    return np.trunc(real + np.copysign(np.nextafter(0.5, 0), real))


def _agrees(multiplier: int, shift: int, values: np.ndarray, places: np.ndarray) -> bool:
    half = np.int64(1) << (shift - 1)
    reached = (places * multiplier + half) >> shift
    before = ((places - 1) * multiplier + half) >> shift
    return bool((reached >= values).all() and (before < values).all())

"""Histogram: the values of one tensor over a whole data set, counted in one pass whatever their range turns out to be.

The bins lie on a fixed grid: their width is a power of two. When a larger value comes, the range doubles and pairs of
bins merge, which loses nothing: the counts are as if the range had been known from the start. So they depend neither on
the order of the data nor on how they were divided among processes.
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import QuantizationError
from . import counting

_BLOCK = 1 << 15  # elements binned at a time, as many as fit in the L2 cache
_WORTH_COMPILING = 1 << 13  # elements from which the compiled code is faster
_MOST_COMPILED = 1 << 15  # bins on each side up to which its tables fit in the cache
_SMALLEST_EXPONENT = -100  # a tensor with all values below 2^-100 is binned as if its largest were that


class Histogram:
    """Counts of float32 values over −2^exponent … 2^exponent in 2·half bins of equal width.

    bins:     the least number of bins between 0 and the largest magnitude
    half:     bins on each side of 0, a power of two, 2 to 4 times `bins`
    exponent: the smallest with all magnitudes below 2^exponent; None until a nonzero value has been added
    counts:   int64 (2·half,): bin i holds the values of (i − half)·width ≤ x < (i + 1 − half)·width
    zeros:    how many values are exactly 0: they are also counted in bin `half`, and no quantization changes them
    total:    the number of values; low, high: the smallest and the largest, 0 if there are none
    """

    def __init__(self, bins: int = 2048) -> None:
        self.half = 1 << (math.ceil(math.log2(bins)) + 1)
        self.exponent: int | None = None
        self.counts = np.zeros(2 * self.half, np.int64)
        self.zeros = 0
        self.total = 0
        self.low = 0.0
        self.high = 0.0

    @property
    def width(self) -> float:
        """The width of a bin, in units of the values."""
        return 0.0 if self.exponent is None else math.ldexp(1.0, self.exponent) / self.half

    @property
    def centers(self) -> np.ndarray:
        """float64 (2·half,): the center of each bin."""
        return (np.arange(-self.half, self.half) + 0.5) * self.width

    def add(self, values: np.ndarray) -> None:
        """Count an array of float values of any shape. Raises QuantizationError for NaN and infinities."""
        flat = np.asarray(values, np.float32).reshape(-1)
        if flat.size:
            self.count(flat, *extremes(flat))

    def count(self, flat: np.ndarray, low: float, high: float) -> None:
        """Count float32 values, at least one, whose extremes are these."""
        self._widen(low, high, flat.size)
        if self.exponent is None:
            self.zeros += flat.size
            self.counts[self.half] += flat.size
            return
        per_unit = math.ldexp(float(self.half), -self.exponent)
        compiled = 0
        if flat.size >= _WORTH_COMPILING and self.half <= _MOST_COMPILED:
            compiled = flat.size - flat.size % counting.LANES
            counts, zeros = counting.count(flat[:compiled], per_unit, self.counts.size)
            self.counts += counts
            self.zeros += zeros
        self._add_small(flat[compiled:], np.float32(per_unit))

    def _add_small(self, flat: np.ndarray, per_unit: np.float32) -> None:
        """Does what `counting.count` does, for few values or many bins."""
        self.zeros += flat.size - int(np.count_nonzero(flat))
        scaled = np.empty(min(flat.size, _BLOCK), np.float32)
        index = np.empty(scaled.size, np.intp)
        for start in range(0, flat.size, _BLOCK):
            block = flat[start : start + _BLOCK]
            np.multiply(block, per_unit, out=scaled[: block.size])  # by a power of two: exact
            np.floor(scaled[: block.size], out=scaled[: block.size])
            np.add(scaled[: block.size], self.half, out=index[: block.size], casting="unsafe")
            self._count(index[: block.size])

    def _count(self, index: np.ndarray) -> None:
        first = int(index.min()) if self.half > _BLOCK else 0  # a block touches few bins of a wide histogram
        found = np.bincount(index - first if first else index)
        self.counts[first : first + found.size] += found

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram with the same `bins`."""
        if other.half != self.half:
            raise ValueError(f"histograms of {other.half} and {self.half} bins cannot be merged")
        if not other.total:
            return
        self._widen(other.low, other.high, other.total)
        shift = 0 if other.exponent is None or self.exponent is None else self.exponent - other.exponent
        self.counts += _halved(other.counts, shift)
        self.zeros += other.zeros

    def _widen(self, low: float, high: float, count: int) -> None:
        """Update the extremes for `count` new values, and double the range until it contains them."""
        self.low, self.high = (min(self.low, low), max(self.high, high)) if self.total else (low, high)
        self.total += count
        largest = max(-low, high)
        if largest == 0:
            return
        exponent = max(math.frexp(largest)[1], _SMALLEST_EXPONENT)
        if self.exponent is None:
            self.exponent = exponent
        elif exponent > self.exponent:
            self.counts = _halved(self.counts, exponent - self.exponent)
            self.exponent = exponent

    def magnitudes(self, zeros: bool = True) -> np.ndarray:
        """int64 (half,): counts of |x|, bin i for i·width ≤ |x| < (i + 1)·width, with or without exact zeros."""
        counts = self.counts[self.half :] + self.counts[: self.half][::-1]
        if not zeros:
            counts[0] -= self.zeros
        return counts

    def signed(self, zeros: bool = True) -> np.ndarray:
        """A copy of `counts`, with or without exact zeros."""
        counts = self.counts.copy()
        if not zeros:
            counts[self.half] -= self.zeros
        return counts

    def quantile(self, share: float) -> float:
        """The value that this share (0 … 1) of the values does not exceed; linear within a bin."""
        position = position_of_share(self.counts, share)
        return float(np.clip((position - self.half) * self.width, self.low, self.high))

    def magnitude_quantile(self, share: float) -> float:
        """The magnitude that this share (0 … 1) of the values does not exceed; linear within a bin."""
        return min(position_of_share(self.magnitudes(), share) * self.width, max(-self.low, self.high))


def extremes(values: np.ndarray) -> tuple[float, float]:
    """The smallest and the largest value. Raises QuantizationError for NaN and infinities."""
    low, high = float(values.min()), float(values.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        count = values.size - int(np.count_nonzero(np.isfinite(values)))
        raise QuantizationError(
            f"{count} of {values.size} values are NaN or infinite: the float model computes them from this data: check "
            "both, or keep the layers before it in float"
        )
    return low, high


def position_of_share(counts: np.ndarray, share: float) -> float:
    """Where the cumulative counts reach `share` of their sum, in bins from the start of the first one."""
    cumulated = np.cumsum(counts)
    wanted = share * cumulated[-1]
    index = min(int(np.searchsorted(cumulated, wanted)), counts.size - 1)
    if not counts[index]:
        return float(index)
    return index + 1 - float(cumulated[index] - wanted) / float(counts[index])


def _halved(counts: np.ndarray, times: int) -> np.ndarray:
    """The counts after doubling the range `times` times: pairs of bins merge, in the middle of as many bins."""
    half = counts.size // 2
    for _ in range(min(times, half.bit_length())):  # by then all are in the two bins next to 0
        merged = np.zeros_like(counts)
        merged[half // 2 : half // 2 + half] = counts.reshape(-1, 2).sum(axis=1)
        counts = merged
    return counts

"""entropy: both ends of the range by KL divergence, for data distributed unevenly around zero."""

from __future__ import annotations

import numpy as np

from ..histogram import Histogram
from ..ranges import Range
from .base import HistogramCalibrator, calibrator
from .divergence import divergences

_CANDIDATES = 512  # thresholds compared at a time
_MOVES = 8


@calibrator("entropy")
class Entropy(HistogramCalibrator):
    """The window low … high around 0 with the smallest KL(P‖Q), Q having 2^bits levels.

    Like kl_divergence, but on the signed histogram: the end that gains more moves to its best position while the other
    stays, until neither gains. For symmetric ranges, `qparams_of` takes the larger of the two ends.
    """

    def _range(self, statistic: Histogram) -> Range:
        if not statistic.width:
            return self._clipped(statistic, statistic.low, statistic.high)
        start, stop = _best_window(statistic, 2**self.settings.bits)
        half, width = statistic.half, statistic.width
        return self._clipped(statistic, (start - half) * width, (stop - half) * width)


def _best_window(statistic: Histogram, levels: int) -> tuple[int, int]:
    """First bin, and bin after the last, of the best window that contains zero."""
    counts = statistic.signed(zeros=False)
    used = np.flatnonzero(statistic.counts)
    zero = statistic.half
    first, end = min(int(used[0]), zero), max(int(used[-1]) + 1, zero)
    start, stop = first, end
    least = np.inf
    for _ in range(_MOVES):
        stops = _candidates(max(zero, start + levels), end)
        starts = _candidates(first, min(zero, stop - levels))
        windows = np.array([(start, other) for other in stops] + [(other, stop) for other in starts], np.int64).reshape(
            -1, 2
        )
        found = divergences(counts, windows[:, 0], windows[:, 1], levels)
        if not found.size or not found.min() < least:
            break
        least = found.min()
        start, stop = (int(bin) for bin in windows[int(np.argmin(found))])
    return start, stop


def _candidates(low: int, high: int) -> np.ndarray:
    """A limited number of integers from low to high, both included; none if low > high."""
    if low > high:
        return np.zeros(0, np.int64)
    return np.unique(np.linspace(low, high, min(high - low + 1, _CANDIDATES)).round().astype(np.int64))

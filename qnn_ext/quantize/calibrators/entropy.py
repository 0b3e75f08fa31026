"""entropy: both ends of the range by KL divergence, for data that lie unevenly around zero."""

from __future__ import annotations

import numpy as np

from ..histogram import Histogram
from ..ranges import Range
from .base import HistogramCalibrator, calibrator
from .divergence import divergences

_CANDIDATES = 512  # thresholds that are compared at a time
_ROUNDS = 4


@calibrator("entropy")
class Entropy(HistogramCalibrator):
    """The window low … high around 0 with the smallest KL(P‖Q), Q having 2^bits levels.

    As kl_divergence, on the signed histogram: in turns the upper and the lower end move to the best place while the
    other stays, until neither moves. Symmetric ranges get the larger of the two ends from `qparams_of`.
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
    for _ in range(_ROUNDS):
        before = start, stop
        stops = _candidates(max(zero, start + levels), end)
        stop = _best(counts, np.full_like(stops, start), stops, levels, stops, stop)
        starts = _candidates(first, min(zero, stop - levels))
        start = _best(counts, starts, np.full_like(starts, stop), levels, starts, start)
        if (start, stop) == before:
            break
    return start, stop


def _candidates(low: int, high: int) -> np.ndarray:
    """Whole numbers from low to high, both included, not too many; none if low > high."""
    if low > high:
        return np.zeros(0, np.int64)
    return np.unique(np.linspace(low, high, min(high - low + 1, _CANDIDATES)).round().astype(np.int64))


def _best(
    counts: np.ndarray, starts: np.ndarray, stops: np.ndarray, levels: int, ends: np.ndarray, otherwise: int
) -> int:
    """The end of the window with the smallest divergence; `otherwise` when there is none to choose from."""
    if not ends.size:
        return otherwise
    return int(ends[int(np.argmin(divergences(counts, starts, stops, levels)))])

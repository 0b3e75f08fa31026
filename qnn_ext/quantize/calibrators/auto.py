"""auto: the ranges of one of several calibrators for the whole model, compared by the model's outputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..histogram import Histogram, extremes
from ..ranges import Range
from .base import CALIBRATORS, Calibrator, Extremes, HistogramCalibrator, Position, calibrator
from .extremes import COVERED, extrapolated


class Seen:
    """The histogram of one tensor's values, and the extremes of each batch until there are COVERED of them: more need
    no extrapolation.

    several: whether there were so many that none are kept
    """

    def __init__(self, bins: int) -> None:
        self.histogram = Histogram(bins)
        self.extremes = Extremes()
        self.several = False

    def add(self, array: np.ndarray, batch: Position | None) -> None:
        """Add one array, not empty. Raises QuantizationError for NaN and infinities."""
        flat = np.asarray(array, np.float32).reshape(-1)
        low, high = extremes(flat)
        self.histogram.count(flat, low, high)
        if not self.several:
            self.extremes.note(low, high, batch)
            self._forget()

    def merge(self, other: Seen) -> None:
        """Add what another one has seen."""
        self.histogram.merge(other.histogram)
        self.several |= other.several
        self.extremes.merge(other.extremes)
        self._forget()

    def _forget(self) -> None:
        if self.several or len(self.extremes.batches) >= COVERED:
            self.several, self.extremes = True, Extremes()

    def extrapolated(self, batch_size: int) -> Range:
        """See `extremes.extrapolated`."""
        if self.several:
            return Range(self.histogram.low, self.histogram.high, "extrapolated")
        return extrapolated(self.extremes.in_order(), batch_size)


@calibrator("auto")
class Auto(Calibrator[Seen]):
    """The range of "extrapolated", and those of the modes that `alternatives` lists.

    What clipping costs the outputs is not in any tensor alone, so models are compared where that is possible. Models
    with states are not: there "extrapolated" was 2.0 to 4.5 dB better than "mse", "minmax" and "percentile", which are
    alike (six networks of a GRU or RNN cell; 48 steps calibrate, and the next 400 are measured).
    """

    def _new(self) -> Seen:
        return Seen(self.settings.bins)

    def _add(self, statistic: Seen, array: np.ndarray, batch: Position | None) -> None:
        statistic.add(array, batch)

    def _range(self, statistic: Seen) -> Range:
        return statistic.extrapolated(self.settings.batch_size)

    def by(self, mode: str, percentile: float | None, site: str) -> Range:
        """The range of a site as another calibrator of histograms, "minmax" or "extrapolated" finds it; percentile:
        instead of the one in the settings."""
        statistic = self.statistics[site]
        if mode == "extrapolated":
            return statistic.extrapolated(self.settings.batch_size)
        if mode == "minmax":
            return Range(statistic.histogram.low, statistic.histogram.high, mode)
        settings = self.settings if percentile is None else replace(self.settings, percentile=percentile)
        other = CALIBRATORS[mode](settings)
        assert isinstance(other, HistogramCalibrator)
        return other._range(statistic.histogram)

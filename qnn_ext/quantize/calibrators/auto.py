"""auto: the ranges of one of several calibrators for the whole model, compared by the model's outputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..histogram import Histogram, extremes
from ..ranges import Range
from .base import CALIBRATORS, Calibrator, Extremes, HistogramCalibrator, Position, calibrator
from .extremes import COVERED, extrapolated
from .mse import MeanSquaredError


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
    """The range of "mse", and those of the modes that `alternatives` lists.

    Where models are not compared, "mse" is best on the data that it has seen: on the networks measured (digits CNN and
    transformer, MobileNet V2 and V3) its signal-to-noise ratio is the best or within half a decibel of the best,
    symmetric or not, with 400 images or 8. Each of the others fails somewhere: minmax by 1.7 dB on V3, whose hard swish
    makes outliers; percentile by 6 dB on cubed Laplace noise, whose tails it cuts regardless of their weight; the
    divergences by 10 dB on the CNN, since they consider the shape of a distribution but not how large the clipped
    values are. But on a trained MobileNet V2 with 0.35 of the channels it was 2.6 dB below minmax: what clipping costs
    the outputs is not in any tensor alone.
    """

    def _new(self) -> Seen:
        return Seen(self.settings.bins)

    def _add(self, statistic: Seen, array: np.ndarray, batch: Position | None) -> None:
        statistic.add(array, batch)

    def _range(self, statistic: Seen) -> Range:
        return MeanSquaredError(self.settings)._range(statistic.histogram)

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

"""percentile: a range that contains a given share of the values."""

from __future__ import annotations

from ..histogram import Histogram
from ..ranges import Range
from .base import HistogramCalibrator, calibrator


@calibrator("percentile")
class Percentile(HistogramCalibrator):
    """The range with `percentile` percent of the values inside.

    symmetric:  −t … t, where that share of the values has |x| ≤ t
    asymmetric: half of the excluded values lie on each side

    Exact to a fraction of a bin. Source: ONNX Runtime's PercentileCalibrater; Relay's mode of that name with 99.999.
    """

    def _range(self, statistic: Histogram) -> Range:
        share = self.settings.percentile / 100
        if self.settings.symmetric:
            threshold = statistic.magnitude_quantile(share)
            return self._clipped(statistic, -threshold, threshold)
        cut = (1 - share) / 2
        return self._clipped(statistic, statistic.quantile(cut), statistic.quantile(1 - cut))

"""output_error: several calibrators' ranges, of which each tensor takes the best for the layers that read it."""

from __future__ import annotations

from dataclasses import replace

from ..histogram import Histogram
from ..ranges import Range
from .base import HistogramCalibrator, calibrator
from .kl_divergence import KlDivergence
from .mse import MeanSquaredError
from .percentile import Percentile

_PERCENTILES = (99.9, 99.99, 99.999)


@calibrator("output_error")
class OutputError(HistogramCalibrator):
    """The range of "mse", and the candidates that `choose.choose_ranges` compares by the results of layers."""

    def _range(self, statistic: Histogram) -> Range:
        return self._by(MeanSquaredError(self.settings), statistic)

    def candidates(self, site: str) -> list[Range]:
        """Ranges from the same values: of "mse", the smallest and the largest, percentiles, "kl_divergence"."""
        statistic = self.statistics[site]
        settings = [replace(self.settings, percentile=share) for share in _PERCENTILES]
        calibrators = [MeanSquaredError(self.settings), *map(Percentile, settings), KlDivergence(self.settings)]
        found = [self._by(one, statistic) for one in calibrators]
        return [found[0], Range(statistic.low, statistic.high, "minmax"), *found[1:]]

    @staticmethod
    def _by(calibrator: HistogramCalibrator, statistic: Histogram) -> Range:
        return calibrator._range(statistic)

"""minmax and moving_average: ranges from the smallest and the largest value of each batch."""

from __future__ import annotations

from ..ranges import Range
from .base import Extremes, ExtremesCalibrator, calibrator


@calibrator("minmax")
class MinMax(ExtremesCalibrator):
    """The smallest and the largest of all values: nothing is clipped, a single outlier decides."""

    def _range(self, statistic: Extremes) -> Range:
        batches = statistic.in_order()
        return Range(batches[:, 0].min(), batches[:, 1].max(), self.mode)


@calibrator("moving_average")
class MovingAverage(ExtremesCalibrator):
    """A moving average of the batches' extremes: r ← momentum · r + (1 − momentum) · extreme, from the first batch on.

    Source: quantization-aware training of TensorFlow and PyTorch (MovingAverageMinMaxObserver, whose averaging_constant
    is 1 − momentum).
    """

    def _range(self, statistic: Extremes) -> Range:
        batches = statistic.in_order()
        average = batches[0]
        for batch in batches[1:]:
            average = self.settings.momentum * average + (1 - self.settings.momentum) * batch
        return Range(average[0], average[1], self.mode)

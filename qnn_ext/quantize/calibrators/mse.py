"""mse: the range with the smallest expected squared error, of rounding and clipping together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from ..histogram import Histogram
from ..ranges import Range, integer_range, qparams_of
from .base import HistogramCalibrator, calibrator

_STEPS_PER_OCTAVE = 16  # thresholds are tried at 2^(−k/16) of the extreme: the error is flat around its minimum
_OCTAVES = 10
_FACTORS = np.exp2(-np.arange(_STEPS_PER_OCTAVE * _OCTAVES + 1) / _STEPS_PER_OCTAVE)
_ROUNDS = 3

Error: TypeAlias = Callable[[float, float], float]


@calibrator("mse")
class MeanSquaredError(HistogramCalibrator):
    """Minimizes Σ n(x) · (x − dequantize(quantize(x)))² over low and high, x being the middles of the bins.

    Symmetric: one threshold. Asymmetric: upper and lower end in turns until neither moves. Exact zeros have no error.
    """

    def _range(self, statistic: Histogram) -> Range:
        low, high = statistic.low, statistic.high
        if not statistic.width:
            return self._clipped(statistic, low, high)
        error = self._error(statistic)
        if self.settings.symmetric:
            largest = max(-low, high)
            threshold = largest * _best_factor(lambda factor: error(-factor * largest, factor * largest))
            return self._clipped(statistic, -threshold, threshold)
        return self._clipped(statistic, *_descend(error, min(low, 0.0), max(high, 0.0)))

    def _error(self, statistic: Histogram) -> Error:
        """The sum of squared errors, up to a constant factor, that the range low … high makes."""
        settings = self.settings
        counts = statistic.signed(zeros=False)
        used = np.flatnonzero(counts)
        middles, weights = statistic.centers[used], counts[used].astype(np.float64)
        q_low, q_high = integer_range(settings.dtype, settings.bits, settings.symmetric)

        def error(low: float, high: float) -> float:
            found = Range(low, high, self.mode)
            qparams = qparams_of(found, settings.dtype, settings.bits, settings.symmetric, settings.power_of_two)
            scale, zero_point = float(qparams.scale), int(qparams.zero_point)
            steps = np.clip(np.rint(middles / scale), q_low - zero_point, q_high - zero_point)
            return float(weights @ np.square(middles - steps * scale))

        return error


def _descend(error: Error, low: float, high: float) -> tuple[float, float]:
    """The best ends at or within low … high, one after the other; an end at 0 stays there."""
    best_low, best_high = low, high
    for _ in range(_ROUNDS):
        before = best_low, best_high
        if high > 0:
            best_high = high * _best_factor(lambda factor: error(best_low, factor * high))  # noqa: B023  (called at once)
        if low < 0:
            best_low = low * _best_factor(lambda factor: error(factor * low, best_high))  # noqa: B023
        if (best_low, best_high) == before:
            break
    return best_low, best_high


def _best_factor(error: Callable[[float], float]) -> float:
    """Of the factors up to 1 that are tried the one with the smallest error, the largest of several."""
    errors = [error(float(factor)) for factor in _FACTORS]
    return float(_FACTORS[int(np.argmin(errors))])

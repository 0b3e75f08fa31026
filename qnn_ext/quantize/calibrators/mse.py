"""mse: the range with the smallest expected squared error from rounding and clipping together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from ..histogram import Histogram
from ..ranges import Range, integer_range, qparams_of
from .base import HistogramCalibrator, calibrator

# Thresholds are tried at 2^(−k/4) of the extreme, then around the best at 2^(−k/16): the error is flat at its minimum
_OCTAVES = 10
_COARSE, _FINE = 4, 16
_ROUNDS = 3

Ends: TypeAlias = float | np.ndarray
Error: TypeAlias = Callable[[Ends, Ends], np.ndarray]


@calibrator("mse")
class MeanSquaredError(HistogramCalibrator):
    """Minimizes Σ n(x) · (x − dequantize(quantize(x)))² over low and high, where x are the centers of the bins.

    Symmetric: one threshold. Asymmetric: upper and lower end in turn until neither moves. Exact zeros have no error.
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
        """The sums of squared errors of several ranges low … high, up to a constant factor."""
        settings = self.settings
        counts = statistic.signed(zeros=False)
        used = np.flatnonzero(counts)
        middles, weights = statistic.centers[used], counts[used].astype(np.float64)
        q_low, q_high = integer_range(settings.dtype, settings.bits, settings.symmetric)

        def error(low: Ends, high: Ends) -> np.ndarray:
            lows, highs = np.broadcast_arrays(low, high)
            found = Range(lows, highs, self.mode)
            qparams = qparams_of(found, settings.dtype, settings.bits, settings.symmetric, settings.power_of_two, 0)
            scale = np.asarray(qparams.scale, np.float64)[:, None]
            zero_point = np.asarray(qparams.zero_point)[:, None]
            errors = middles / scale
            np.clip(np.rint(errors, out=errors), q_low - zero_point, q_high - zero_point, out=errors)
            errors *= scale
            errors -= middles
            return np.array([weights @ row for row in np.square(errors, out=errors)])

        return error


def _descend(error: Error, low: float, high: float) -> tuple[float, float]:
    """The best ends within low … high, improved in turn; an end at 0 stays there."""
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


def _best_factor(error: Callable[[np.ndarray], np.ndarray]) -> float:
    """Of the factors tried, up to 1, the one with the smallest error; of equals, the largest."""
    coarse = np.arange(_OCTAVES * _COARSE + 1) / _COARSE
    near = coarse[int(np.argmin(error(np.exp2(-coarse))))]
    fine = near + np.arange(1 - _FINE // _COARSE, _FINE // _COARSE) / _FINE
    factors = np.exp2(-fine[fine >= 0])
    return float(factors[int(np.argmin(error(factors)))])

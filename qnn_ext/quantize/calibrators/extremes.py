"""minmax, moving_average and extrapolated: ranges from the smallest and the largest value of each batch."""

from __future__ import annotations

import math

import numpy as np

from ..ranges import Range
from .base import Extremes, ExtremesCalibrator, calibrator

COVERED = 64  # samples, the largest value of which an extrapolated range is expected to contain


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


@calibrator("extrapolated")
class Extrapolated(ExtremesCalibrator):
    """The extremes of COVERED samples, extrapolated from those of fewer: see `extrapolated`."""

    def _range(self, statistic: Extremes) -> Range:
        return extrapolated(statistic.in_order(), self.settings.batch_size)


def extrapolated(batches: np.ndarray, batch_size: int = 1) -> Range:
    """The range that COVERED samples are expected to need.

    batches: float64 (n, 2), low and high of each batch; batch_size: samples in each, n · batch_size together

    A new sample exceeds the largest value of N others with a probability of 1 / (N + 1), at each tensor of a network:
    after 32 samples, about three of a hundred tensors clip it. The largest values of samples whose tails fall
    exponentially or faster follow a Gumbel distribution with some scale β, and so do those of batches, with the same β.
    The largest of K times as many is larger by β·ln K:

        high = max h + β·ln(COVERED / N),   β = λ₂ / ln 2,   λ₂ = Σᵢ (2i − n − 1)·h₍ᵢ₎ / (n·(n − 1))

    λ₂ is the second L-moment of the batches' largest values h, in ascending order. Where all are equal, as behind a
    relu6 or a softmax, β is 0. The same holds for the other end. An end that no value takes beyond zero
    remains, and none more than doubles, whatever a single outlier makes of β.

    COVERED does not depend on N: with a range R, rounding noise grows by 2·β/R for each unit of ln K, and the noise of
    clipping falls with 1 / (K·N), so their sum is least at some K·N. On eleven trained networks, 64 from 8 samples gave
    0.3 to 9 dB more than no room on five, 0.4 to 8 dB less on six; from 32 samples between 0.6 dB more and 2.1 dB less,
    and 256 another 0.1 to 2.3 dB less. On three others (GhostNet, StarNet, MobileViT; 32 samples) the sum was least
    between 128 and 512. From COVERED samples on, and from a single batch, the range is that of "minmax".

    Source: J. R. M. Hosking, L-moments, Journal of the Royal Statistical Society B 52 (1990).
    """
    low, high = -extrapolated_end(-batches[:, 0], batch_size), extrapolated_end(batches[:, 1], batch_size)
    return Range(low, high, "extrapolated")


def extrapolated_end(largest: np.ndarray, batch_size: int = 1) -> float:
    """The upper end of `extrapolated`. largest: of each batch, (n,)"""
    growth = math.log(max(1.0, COVERED / (len(largest) * batch_size)))
    high = float(largest.max())
    return high + min(growth * float(gumbel_scale(largest)), high) if high > 0 else high


def gumbel_scale(largest: np.ndarray) -> np.ndarray:
    """β of the Gumbel distribution of these values (n, …), by their second L-moment; 0 for a single one."""
    count = len(largest)
    if count < 2:
        return np.zeros(largest.shape[1:])
    weights = 2.0 * np.arange(1, count + 1) - count - 1
    return np.asarray(np.tensordot(weights, np.sort(largest, axis=0), 1) / (count * (count - 1)) / math.log(2))

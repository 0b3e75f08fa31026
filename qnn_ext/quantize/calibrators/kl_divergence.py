"""kl_divergence: the threshold at which the clipped and quantized magnitudes stay closest to the distribution."""

from __future__ import annotations

import numpy as np

from ..histogram import Histogram
from ..ranges import Range
from .base import HistogramCalibrator, calibrator
from .divergence import divergences


@calibrator("kl_divergence")
class KlDivergence(HistogramCalibrator):
    """TensorRT's recipe on the histogram of |x|: of all thresholds the one with the smallest KL(P‖Q).

    levels: 2^(bits − 1) of each sign when symmetric, so 128 for 8 bits; when asymmetric, 2^bits if all values have one
    sign. The range is −t … t, cut to the extremes of the data. Exact zeros, half of a relu's results, do not count: no
    threshold changes them, and they would outweigh the others.

    It keeps the shape of the distribution, not the values: of long tails it clips up to some percent, which can cost a
    network nearly everything (docs/guides/quantize.md has figures). Few bins clip less, none with as many as levels:
    ONNX Runtime's default.

    Source: S. Migacz, 8-bit Inference with TensorRT, GTC 2017.
    """

    def _range(self, statistic: Histogram) -> Range:
        settings = self.settings
        one_sign = statistic.low >= 0 or statistic.high <= 0
        levels = 2 ** (settings.bits if one_sign and not settings.symmetric else settings.bits - 1)
        threshold = kl_threshold(statistic, levels)
        return self._clipped(statistic, -threshold, threshold)


def kl_threshold(statistic: Histogram, levels: int) -> float:
    """The threshold of |x| with the smallest divergence, of those at (i + ½) bins with i ≥ levels; in real units."""
    largest = max(-statistic.low, statistic.high)
    if not statistic.width:
        return largest
    used = int(largest / statistic.width) + 1
    if used <= levels:
        return largest
    counts = statistic.magnitudes(zeros=False)[:used]
    stops = np.arange(levels, used + 1)
    found = divergences(counts, np.zeros_like(stops), stops, levels)
    return min((int(stops[int(np.argmin(found))]) + 0.5) * statistic.width, largest)

"""How much a distribution loses when its bins are merged to few levels: the measure of kl_divergence and entropy.

`reference_divergence` is the recipe as NVIDIA describes it (8-bit Inference with TensorRT, GTC 2017), except for how it
counts clipped values; `divergences` computes the same for many windows of a histogram at once, from cumulative sums.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

_MOST_AT_ONCE = 1 << 16  # elements of a temporary array: in a cache, three times as fast as of many


def merge_to_levels(counts: np.ndarray, levels: int) -> np.ndarray:
    """`counts` merged to `levels` levels, each spread evenly again over its non-empty bins.

    Level l holds the bins ⌊l·n/levels⌋ ≤ i < ⌊(l + 1)·n/levels⌋. With two levels [1,0,2,3, 5,3,1,7] becomes
    [2,0,2,2, 4,4,4,4].
    """
    merged = np.zeros(counts.size)
    bounds = np.arange(levels + 1) * counts.size // levels
    for start, stop in pairwise(bounds):
        used = counts[start:stop] > 0
        if used.any():
            merged[start:stop][used] = counts[start:stop].sum() / used.sum()
    return merged


def reference_divergence(counts: np.ndarray, start: int, stop: int, levels: int) -> float:
    """KL(P‖Q) = Σ p·ln(p / q) − Σ p + Σ q for the window start ≤ i < stop of a histogram.

    P: the window, with counts outside it added to its first and last bin, as clipping does
    Q: the window alone, merged to `levels`

    Both are shares of all values; infinite if Q is zero where P is not. The recipe normalizes Q instead: a share c of
    clipped values then costs about c² / 2 less, which hardly moves a threshold, but a window with a single value costs
    nothing if all others are clipped to it, as happens where no values are near 0 (the gates of squeeze and excite,
    pixels that are never black).
    """
    inside = counts[start:stop].astype(np.float64)
    p = inside.copy()
    p[0] += counts[:start].sum()
    p[-1] += counts[stop:].sum()
    q = merge_to_levels(inside, levels)
    if not q.any():
        return float("inf")
    p, q = p / p.sum(), q / p.sum()
    used = p > 0
    with np.errstate(divide="ignore"):
        return float(np.sum(p[used] * np.log(p[used] / q[used])) - p.sum() + q.sum())


def divergences(counts: np.ndarray, starts: np.ndarray, stops: np.ndarray, levels: int) -> np.ndarray:
    """`reference_divergence` of each window starts[k] … stops[k], equal except for the order of float64 sums.

    With S the count and c the number of non-empty bins of a level, Q is S/c in each of them: the definition's sum over
    bins becomes a sum over levels, whose terms are differences of cumulative sums.
    """
    rows = max(1, _MOST_AT_ONCE // (levels + 1))
    cumulated = _Cumulated(counts)
    parts = [
        _divergences(cumulated, starts[first : first + rows], stops[first : first + rows], levels)
        for first in range(0, starts.size, rows)
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


class _Cumulated:
    """For each bin, sums over the bins before it: of the counts n, of [n > 0], of n·ln n."""

    def __init__(self, counts: np.ndarray) -> None:
        self.counts = counts.astype(np.float64)
        self.sums = _before(self.counts)
        self.used = _before((counts > 0).astype(np.float64))
        self.self_information = _before(_n_log_n(self.counts))


def _before(values: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(values)])


def _n_log_n(values: np.ndarray) -> np.ndarray:
    return values * np.log(np.where(values > 0, values, 1.0))


def _divergences(c: _Cumulated, starts: np.ndarray, stops: np.ndarray, levels: int) -> np.ndarray:
    total, inside = c.sums[-1], c.sums[stops] - c.sums[starts]
    below, above = c.sums[starts], total - c.sums[stops]
    bounds = starts[:, None] + np.arange(levels + 1) * (stops - starts)[:, None] // levels
    level_sums = np.diff(c.sums[bounds], axis=1)
    level_used = np.diff(c.used[bounds], axis=1)
    log_q = np.log(np.where(level_sums > 0, level_sums, 1.0) / np.where(level_used > 0, level_used, 1.0))
    first, last = c.counts[starts], c.counts[stops - 1]
    p_log_p = c.self_information[stops] - c.self_information[starts]
    p_log_p += _n_log_n(first + below) - _n_log_n(first)
    p_log_p += _n_log_n(last + above) - _n_log_n(last)
    p_log_q = (level_sums * log_q).sum(axis=1) + below * log_q[:, 0] + above * log_q[:, -1]
    lost = ((below > 0) & (first == 0)) | ((above > 0) & (last == 0)) | (inside == 0)
    with np.errstate(divide="ignore"):
        found = (p_log_p - p_log_q) / max(total, 1.0) + inside / max(total, 1.0) - 1
    return np.where(lost, np.inf, found)

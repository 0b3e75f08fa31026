"""Counting: how many cells a pooling window covers at each position."""

from __future__ import annotations

import numpy as np


def axis_counts(
    size: int, out_size: int, extent: int, stride: int, low: int, high: int, dilation: int, count_include_pad: bool
) -> np.ndarray:
    """Cells that each of `out_size` windows averages over along one axis padded by low and high: int64.

    Cells of the padding count if `count_include_pad`; cells beyond it, which only ceil_mode reaches, never do.
    """
    positions = np.arange(out_size)[:, None] * stride + np.arange(extent) * dilation - low
    first, last = (-low, size + high) if count_include_pad else (0, size)
    return ((positions >= first) & (positions < last)).sum(axis=1)

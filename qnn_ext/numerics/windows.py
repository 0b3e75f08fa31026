"""How many cells a pooling window covers at each position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np


def axis_counts(
    size: int, out_size: int, extent: int, stride: int, low: int, high: int, dilation: int, count_include_pad: bool
) -> np.ndarray:
    """The number of cells that each of `out_size` windows averages over, along one axis padded by low and high: int64.

    Cells in the padding count if `count_include_pad`; cells beyond it, which only ceil_mode reaches, never do.
    """
    positions = np.arange(out_size)[:, None] * stride + np.arange(extent) * dilation - low
    first, last = (-low, size + high) if count_include_pad else (0, size)
    return ((positions >= first) & (positions < last)).sum(axis=1)


def window_counts(
    size: Sequence[int],
    out_size: Sequence[int],
    pool_size: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    count_include_pad: bool,
) -> np.ndarray:
    """How many cells each window of an h × w image averages over: int64 (1, oh, ow, 1)."""
    rows, columns = (
        axis_counts(
            size[i],
            out_size[i],
            pool_size[i],
            strides[i],
            padding[i],
            padding[i + 2],
            dilation[i],
            count_include_pad,
        )
        for i in range(2)
    )
    return (rows[:, None] * columns).reshape(1, *out_size, 1)


def pooled_cells(
    size: tuple[int, ...],
    out_size: tuple[int, ...],
    pool_size: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    count_include_pad: bool,
) -> np.ndarray:
    """How many cells each window averages over, float32 (1, out…, 1): all its cells if `count_include_pad`."""
    rank = len(size)
    if count_include_pad:
        return np.full((1,) * (rank + 2), math.prod(pool_size), np.float32)
    counts = [
        axis_counts(size[i], out_size[i], pool_size[i], strides[i], padding[i], padding[rank + i], 1, False)
        for i in range(rank)
    ]
    return reduce(np.multiply.outer, counts).reshape(1, *out_size, 1).astype(np.float32)

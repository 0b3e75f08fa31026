"""Float softmax, and layer normalization along the last axis, on NumPy arrays: sums in an order that suits vectors.

`topi_int8/generic/float_rows.py` has the same in TE, equal bit for bit for finite values.
"""

from __future__ import annotations

import numpy as np

from . import elementary
from .reference import Array, fused_multiply_add

LANES = 16  # partial sums of a row, each over its elements i, i + 16, i + 32, …


def row_sum(x: Array) -> Array:
    """Σ over the last axis, kept with extent 1: sixteen partial sums; the second eight are added to the first, then
    repeatedly each to its neighbour."""
    length = x.shape[-1]
    padded = np.zeros((*x.shape[:-1], -(-length // LANES) * LANES), np.float32)
    padded[..., :length] = x
    lanes = np.zeros((*x.shape[:-1], LANES), np.float32)
    for start in range(0, length, LANES):
        lanes = lanes + padded[..., start : start + LANES]
    lanes = lanes[..., : LANES // 2] + lanes[..., LANES // 2 :]
    while lanes.shape[-1] > 1:
        lanes = lanes[..., ::2] + lanes[..., 1::2]
    return lanes


def softmax(x: Array, axis: int = -1) -> Array:
    """e^(x − max) · (1 / Σ e^(x − max)) over one axis of float32 values."""
    rows = np.moveaxis(x, axis, -1)
    with np.errstate(all="ignore"):
        exps = elementary.on_arrays(elementary.exp, rows - rows.max(axis=-1, keepdims=True))
        return np.ascontiguousarray(np.moveaxis(exps * (np.float32(1) / row_sum(exps)), -1, axis))


def layer_norm(x: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    """fma((x − mean) / √(variance + ε), γ, β) for float32 rows, with the variance computed from the deviations."""
    count = np.float32(x.shape[-1])
    deviation = x - row_sum(x) / count
    variance = row_sum(deviation * deviation) / count
    inverse = np.float32(1) / np.sqrt(variance + np.float32(epsilon))
    return fused_multiply_add(deviation * inverse, gamma, beta)

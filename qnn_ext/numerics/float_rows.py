"""Float softmax, and layer normalization along the last axis, on NumPy arrays: sums in the order of ONNX Runtime's MLAS
with AVX-512, whose bits softmax has for all rows, and layer normalization for those of at least 8 elements.

`topi_int8/generic/float_rows.py` has the same in TE, equal bit for bit for finite values.
"""

from __future__ import annotations

import numpy as np

from . import elementary, mlas, xnnpack
from .reference import Array, fused_multiply_add

LANES = 16  # partial sums of a row, each over its elements i, i + 16, i + 32, …
SQUARES = 8  # the same of its squares


def row_sum(x: Array) -> Array:
    """Σ over the last axis, kept with extent 1: sixteen partial sums; the second eight are added to the first, then
    repeatedly each to its neighbour."""
    length = x.shape[-1]
    padded = np.zeros((*x.shape[:-1], -(-length // LANES) * LANES), x.dtype)
    padded[..., :length] = x
    lanes = np.zeros((*x.shape[:-1], LANES), x.dtype)
    for start in range(0, length, LANES):
        lanes = lanes + padded[..., start : start + LANES]
    lanes = lanes[..., : LANES // 2] + lanes[..., LANES // 2 :]
    while lanes.shape[-1] > 1:
        lanes = lanes[..., ::2] + lanes[..., 1::2]
    return lanes


def row_squares(x: Array) -> Array:
    """Σ x² over the last axis of float32 values, kept with extent 1, by fused multiply-adds: eight partial sums, then
    repeatedly one half added to the other. The elements that fill no eight follow one by one; if they are four or more,
    the first four by multiplication and addition."""
    whole = x.shape[-1] // SQUARES * SQUARES
    rounded = rounded_squares(x.shape[-1])
    lanes = np.zeros((*x.shape[:-1], SQUARES), np.float32)
    for start in range(0, whole, SQUARES):
        group = x[..., start : start + SQUARES]
        lanes = fused_multiply_add(group, group, lanes)
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    for index in range(whole, x.shape[-1]):
        last = x[..., index : index + 1]
        lanes = lanes + last * last if index in rounded else fused_multiply_add(last, last, lanes)
    return lanes


def rounded_squares(length: int) -> range:
    """The elements of a row whose squares are rounded before they are added."""
    whole = length // SQUARES * SQUARES
    return range(whole, whole + (SQUARES // 2 if length - whole >= SQUARES // 2 else 0))


def softmax(x: Array, axis: int = -1) -> Array:
    """e^(x − max) · (1 / Σ e^(x − max)) over one axis of float32 values."""
    rows = np.moveaxis(x, axis, -1)
    with np.errstate(all="ignore"):
        exps = elementary.on_arrays(mlas.exp, rows - rows.max(axis=-1, keepdims=True))
        return np.ascontiguousarray(np.moveaxis(exps * (np.float32(1) / row_sum(exps)), -1, axis))


def log_softmax(x: Array, axis: int = -1) -> Array:
    """(x − max) − ln Σ e^(x − max) over one axis of float32 values."""
    rows = np.moveaxis(x, axis, -1)
    with np.errstate(all="ignore"):
        below = rows - rows.max(axis=-1, keepdims=True)
        total = row_sum(elementary.on_arrays(mlas.exp, below))
        return np.ascontiguousarray(np.moveaxis(below - elementary.on_arrays(elementary.log, total), -1, axis))


def lane_softmax(x: Array) -> Array:
    """The same over the last axis, with XNNPACK's exponentials and sums."""
    with np.errstate(all="ignore"):
        exps = elementary.on_arrays(xnnpack.exp_of_negative, x - x.max(axis=-1, keepdims=True))
        return xnnpack.flushed(exps * (np.float32(1) / _double_row_sum(exps)), elementary.NUMPY)


def _double_row_sum(x: Array) -> Array:
    """Σ over the last axis, kept with extent 1: twice sixteen partial sums over whole groups of 64, the second ones
    added to the first; to these what follows, sixteen by sixteen; then repeatedly one half added to the other."""
    length = x.shape[-1]
    whole = length // (4 * LANES) * 4 * LANES
    padded = np.zeros((*x.shape[:-1], -(-length // LANES) * LANES), np.float32)
    padded[..., :length] = x
    double = np.zeros((*x.shape[:-1], 2 * LANES), np.float32)
    for start in range(0, whole, 2 * LANES):
        double = double + padded[..., start : start + 2 * LANES]
    lanes = double[..., :LANES] + double[..., LANES:]
    for start in range(whole, length, LANES):
        lanes = lanes + padded[..., start : start + LANES]
    return _halved(lanes)


def wide_sum(x: Array) -> Array:
    """Σ over the last axis of float32 values, kept with extent 1, in the order that `op.wide_sum` says."""
    length = x.shape[-1]
    padded = np.zeros((*x.shape[:-1], -(-length // (2 * LANES)) * 2 * LANES), np.float32)
    padded[..., :length] = x
    double = np.zeros((*x.shape[:-1], 2 * LANES), np.float32)
    whole = length // (2 * LANES) * 2 * LANES
    for start in range(0, whole, 2 * LANES):
        double = double + padded[..., start : start + 2 * LANES]
    first, second, rest = double[..., :LANES], double[..., LANES:], padded[..., whole:]
    if length - whole >= LANES:
        first, rest = first + rest[..., :LANES], rest[..., LANES:]
    lanes = first + second
    return _halved(lanes + rest[..., :LANES] if rest.shape[-1] else lanes)


def _halved(lanes: Array) -> Array:
    """Repeatedly one half added to the other."""
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes


def layer_norm(x: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    """fma((x − mean) / √(variance + ε), γ, β) for float32 rows: the mean from a sum in float64, the variance from the
    deviations."""
    count = x.shape[-1]
    deviation = x - (row_sum(x.astype(np.float64)) / count).astype(np.float32)
    variance = row_squares(deviation) / np.float32(count)
    inverse = np.float32(1) / np.sqrt(variance + np.float32(epsilon))
    return fused_multiply_add(deviation * inverse, gamma, beta)


def welford_norm(x: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    """(x − mean) / √(variance + ε) · γ + β for float32 rows, with Welford's running mean and squares."""
    mean, squares = np.zeros((2, *x.shape[:-1]), np.float32)
    for index in range(x.shape[-1]):
        element = x[..., index]
        step = element - mean
        mean = mean + step / np.float32(index + 1)
        squares = squares + step * (element - mean)
    deviation = np.sqrt(squares / np.float32(x.shape[-1]) + np.float32(epsilon))
    return (x - mean[..., None]) / deviation[..., None] * gamma + beta


def rms_norm(x: Array, gamma: Array, epsilon: float, in_order: bool) -> Array:
    """x / √(mean of x² + ε) · γ for float32 rows, as `op.rms_norm` says."""
    count, small = np.float32(x.shape[-1]), np.float32(epsilon)
    if not in_order:
        return x * (np.float32(1) / np.sqrt(row_squares(x) / count + small)) * gamma
    total = np.zeros((*x.shape[:-1], 1), np.float32)
    for index in range(x.shape[-1]):
        element = x[..., index : index + 1]
        total = total + element * element
    return x / np.sqrt(total / count + small) * gamma


PACKET = 4  # floats of a vector of 16 bytes


def lane_sum(x: Array, packets: int, aligned: bool) -> Array:
    """Σ over the last axis of float32 values, kept with extent 1, in the order that `op.lane_sum` says; so many packets
    at a time, from each row's first aligned element on, or from its first one."""
    length = x.shape[-1]
    rows = np.ascontiguousarray(x).reshape(-1, length)
    sums = np.zeros((len(rows), 1), np.float32)
    for first in range(PACKET):
        start = min(-first * length % PACKET, length) if aligned else 0
        sums[first::PACKET] = _sum_from(rows[first::PACKET], start, packets)
    return sums.reshape(*x.shape[:-1], 1)


def lane_norm(x: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    """x · f + (β − mean · f) with f = γ / √(variance + ε) for float32 rows (N, C, L), as `op.lane_norm` says."""
    count = np.float32(x.shape[-1])
    mean = lane_sum(x, 2, aligned=True) / count
    deviation = x - mean
    variance = lane_sum(deviation * deviation, 2, aligned=False) / count
    factor = np.float32(1) / np.sqrt(variance + np.float32(epsilon)) * gamma[:, None]
    return x * factor + (beta[:, None] - mean * factor)


def _sum_from(rows: Array, start: int, packets: int) -> Array:
    """The same from element `start` on, so many packets at a time."""
    length, size = rows.shape[-1], packets * PACKET
    groups, whole = (start + (length - start) // one * one for one in (size, PACKET))
    lanes = np.zeros((len(rows), size), np.float32)
    for index in range(start, groups, size):
        lanes = lanes + rows[:, index : index + size]
    if packets == 2:
        lanes = lanes[:, :PACKET] + lanes[:, PACKET:]
    if whole > groups:
        lanes = lanes + rows[:, groups:whole]
    lanes = lanes[:, : PACKET // 2] + lanes[:, PACKET // 2 :]
    total = lanes[:, :1] + lanes[:, 1:]
    for index in (*range(start), *range(whole, length)):
        total = total + rows[:, index : index + 1]
    return total

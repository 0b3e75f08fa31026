"""Resize with antialias=1, as in ONNX Runtime (upsample_antialias.h): where an axis shrinks, the filter of linear or
cubic interpolation is as many times as wide, and a result is a weighted sum over its window.

The axes follow each other, the last one first. Sums are in float32, from the window's first element on; those of uint8
are in fixed point, rounded and clipped after each axis.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from ....limits import check, check_elements
from ....op.base import constant
from ..node import Node
from .arithmetic import cast, number, plus, times

_FRACTION_BITS = 22  # of a weight for uint8
_HALF = np.float32(0.5)
_FAR = np.float32(1 << 40)  # beyond any tensor

Filter = Callable[[np.ndarray], np.ndarray]
"""Weights at distances ≥ 0 that are multiples of the input's step, float32."""


def linear(x: np.ndarray) -> np.ndarray:
    """1 − x, which is 0 from 1 on."""
    return np.where(x < 1, 1 - x, np.float32(0))


def cubic(a: np.float32) -> Filter:
    """Keys' cubic convolution, which is 0 from 2 on."""

    def weights(x: np.ndarray) -> np.ndarray:
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = (((x - 5) * x + 8) * x - 4) * a
        return np.where(x < 1, near, np.where(x < 2, far, np.float32(0)))

    return weights


def resized(
    node: Node, data: relax.Expr, index: int, positions: np.ndarray, length: int, scale: float, exclude_outside: bool
) -> relax.Expr:
    """The data along one axis at these float32 positions."""
    mode = node.attribute("mode")
    kernel = linear if mode == "linear" else cubic(np.float32(node.attribute("cubic_coeff_a", -0.75)))
    first, weights = windows(kernel, 1 if mode == "linear" else 2, positions, length, scale, exclude_outside)
    trailing = (1,) * (len(node.shape(0)) - index - 1)
    integers = str(data.ty.dtype) == "uint8"
    if integers:  # rounded half away from zero
        steps = weights * np.float32(1 << _FRACTION_BITS)
        weights = (np.sign(steps) * np.floor(np.abs(steps) + _HALF)).astype(np.int32)
    values = cast(node, data, str(weights.dtype))
    total = number(1 << (_FRACTION_BITS - 1), "int32") if integers else None
    for tap, weight in enumerate(weights):
        places = np.clip(first + tap, 0, length - 1)
        part = node.emit(relax.op.take(values, constant(places), index))
        term = times(node, part, constant(weight.reshape(-1, *trailing)))
        total = term if total is None else plus(node, total, term)
    assert total is not None, "a window has at least one element"
    if not integers:
        return cast(node, total, str(data.ty.dtype))
    shifted = node.emit(relax.op.right_shift(total, number(_FRACTION_BITS, "int32")))
    return cast(node, node.emit(relax.op.clip(shifted, 0, 255)), "uint8")


def windows(
    kernel: Filter, support: int, positions: np.ndarray, length: int, scale: float, exclude_outside: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(first element, float32 weights (window, positions)) of the windows around positions.

    A filter reaches `support` elements to each side, stretched by 1 / scale if that is more than 1. What lies outside
    of the data has no weight, or adds its own to the nearest edge's.
    """
    step = np.float32(1) / np.float32(scale)
    stretch, reach = max(step, np.float32(1)), np.float32(support) * max(step, np.float32(1))
    most = 2 * int(np.ceil(reach)) + 1
    check("unrolled", most, "a window of Resize with antialias")
    check_elements((most, len(positions)), "the weights", "folded")
    centre = positions + _HALF
    begin, end = (
        np.floor(np.clip(edge, -_FAR, _FAR)).astype(np.int64)
        for edge in (centre - reach + _HALF, centre + reach + _HALF)
    )
    end = np.minimum(end, begin + most)
    first, last = np.clip(begin, 0, length), np.clip(end, 0, length)
    if exclude_outside:
        begin, end = first, last
    taps = np.arange(most)[:, np.newaxis]
    distances = np.abs(((taps + begin).astype(np.float32) - centre + _HALF) * (np.float32(1) / stretch))
    weights = np.where(taps < end - begin, kernel(distances), np.float32(0))
    total = _summed(weights, np.zeros_like(centre), np.ones_like(weights, bool))
    if not exclude_outside:
        _fold_outside(weights, begin, end, length)
    moved = np.clip(taps + first - begin, 0, most - 1)  # from the first element within the data on
    weights = np.where(taps < last - first, np.take_along_axis(weights, moved, 0), np.float32(0))
    inverse = np.float32(1) / np.where(total == 0, np.float32(1), total)
    weights = weights * inverse
    return first, weights[: max(int((last - first).max()), 1)]


def _summed(weights: np.ndarray, start: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """start + the chosen weights of each window, one after another in float32."""
    total = start
    for row, use in zip(weights, chosen, strict=True):
        total = np.where(use, total + row, total)
    return total


def _fold_outside(weights: np.ndarray, begin: np.ndarray, end: np.ndarray, length: int) -> None:
    """Add the weights of elements outside of the data to those of its edges, in place."""
    count, windows = end - begin, np.arange(weights.shape[1])
    taps = np.arange(len(weights))[:, np.newaxis]
    below = np.clip(-begin, 0, np.maximum(count - 1, 0))
    above = np.clip(end - length, 0, np.maximum(count - 1, 0))
    for edge, outside in ((below, taps < below), (count - above - 1, (taps >= count - above) & (taps < count))):
        weights[edge, windows] = _summed(weights, weights[edge, windows], outside)

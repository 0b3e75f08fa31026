"""Maximum pooling.

Of integers, without a padded copy: a cell beyond the edge is read as the nearest one inside. That cell is in the window
too, so it changes no maximum. All cells of a window form one expression: the running maximum stays in a register.

Of floats, with −∞ beyond the edges, which is the maximum of no cells at all; TVM's own begins at the lowest finite
number, and so never finds −∞.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import inf

from tvm import te, tirx

from ...numerics import extremes
from .operands import Expr

MOST_CELLS = 25
"""Larger windows stay reductions."""


def has_cells_inside(
    size: Sequence[int], out_size: Sequence[int], pool_size: Sequence[int], strides: Sequence[int], pad: Sequence[int]
) -> bool:
    """Whether every window has a cell inside; `pad`: the padding before the first row and column."""
    axes = zip(size, out_size, pool_size, strides, pad, strict=True)
    return all(before < pool and (out - 1) * stride - before < length for length, out, pool, stride, before in axes)


def max_pool2d(
    x: te.Tensor, out_size: Sequence[int], pool_size: Sequence[int], strides: Sequence[int], pad: Sequence[int]
) -> te.Tensor:
    """x (N, H, W, C) to (N, *out_size, C)."""
    batch, height, width, channels = (int(extent) for extent in x.shape)

    def inside(index: Expr, tap: int, axis: int, length: int) -> Expr:
        """The index that a window's tap reads."""
        place = index * strides[axis] + tap - pad[axis]
        if tap < pad[axis]:
            place = tirx.max(place, 0)
        if (out_size[axis] - 1) * strides[axis] + tap - pad[axis] >= length:
            place = tirx.min(place, length - 1)
        return place

    def largest(n: Expr, row: Expr, column: Expr, channel: Expr) -> Expr:
        rows = [inside(row, tap, 0, height) for tap in range(pool_size[0])]
        columns = [inside(column, tap, 1, width) for tap in range(pool_size[1])]
        return reduce(tirx.max, (x(n, r, c, channel) for r in rows for c in columns))

    return te.compute((batch, *out_size, channels), largest, name="max_pool2d")


def float_max_pool(
    x: te.Tensor,
    shape: Sequence[int],
    axes: Sequence[int],
    pool_size: Sequence[int],
    strides: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
) -> te.Tensor:
    """x pooled along `axes` to `shape`; pad: before the first cell of each axis."""
    taps = [te.reduce_axis((0, size), f"k{axis}") for axis, size in zip(axes, pool_size, strict=True)]
    data = _with_margins(x, shape, axes, pool_size, strides, pad, dilation)

    def pooled(*indices: Expr) -> Expr:
        places = list(indices)
        for axis, tap, stride, step in zip(axes, taps, strides, dilation, strict=True):
            places[axis] = indices[axis] * stride + tap * step
        return extremes.largest(data(*places), axis=taps)

    return te.compute(tuple(shape), pooled, name="max_pool")


def _with_margins(
    x: te.Tensor,
    shape: Sequence[int],
    axes: Sequence[int],
    pool_size: Sequence[int],
    strides: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
) -> te.Tensor:
    """x with −∞ around it, as far as windows reach."""
    sizes = [int(size) for size in x.shape]
    extents, before = list(sizes), [0] * len(sizes)
    for axis, pool, stride, low, step in zip(axes, pool_size, strides, pad, dilation, strict=True):
        before[axis] = low
        extents[axis] = max((shape[axis] - 1) * stride + (pool - 1) * step + 1, low + sizes[axis])
    if extents == sizes:
        return x

    def padded(*indices: Expr) -> Expr:
        inside = [
            tirx.all(index >= low, index < low + size)
            for index, low, size, extent in zip(indices, before, sizes, extents, strict=True)
            if extent != size
        ]
        places = (index - low for index, low in zip(indices, before, strict=True))
        return tirx.if_then_else(tirx.all(*inside), x(*places), tirx.const(-inf, x.dtype))

    return te.compute(tuple(extents), padded, name="pad")

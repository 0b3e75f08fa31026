"""Maximum pooling of integers without a padded copy: a cell beyond the edge is read as the nearest one inside.

That cell is in the window too, so it changes no maximum. All cells of a window form one expression: the running maximum
stays in a register.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from tvm import te, tirx

from .elementwise import Expr

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

"""Means of windows of floats with the bits of XNNPACK. It converts no operators."""

from __future__ import annotations

from functools import partial, reduce
from itertools import product

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from tvm import relax

from ....op.base import constant
from ..node import Node

_GROUP = 9
_MOST_SLICES = 128
"""The most elements of a window whose sum is written out."""


def window_mean(node: Node, pool_size: tuple, strides: tuple, padding: tuple) -> relax.Expr | None:
    """The mean of each window of an NHWC image: its elements, column by column, in groups of nine, each summed as in
    `_group`; these sums added one by one; the result times 1 / n in float32. Padding is not counted. None for windows
    of more than 128 elements that are not the whole image."""
    top, left, bottom, right = padding
    data, (height, width) = node.input(0), node.shape(0)[1:3]
    spatial = (height + top + bottom, width + left + right)
    if any(padding):
        data = node.emit(relax.op.nn.pad(data, [0, 0, top, bottom, left, right, 0, 0]))
    if spatial == pool_size:
        total = _of_whole_images(node, data, (node.shape(0)[0], *spatial, node.shape(0)[3]))
    elif pool_size[0] * pool_size[1] <= _MOST_SLICES:
        total = _of_windows(node, data, spatial, pool_size, strides)
    else:
        return None
    inside = np.pad(np.ones((height, width), np.float32), ((top, bottom), (left, right)))
    counts = sliding_window_view(inside, pool_size)[:: strides[0], :: strides[1]].sum((2, 3))
    return relax.op.multiply(total, constant((1 / counts)[None, :, :, None]))


def _of_windows(node: Node, data: relax.Expr, spatial: tuple, pool_size: tuple, strides: tuple) -> relax.Expr:
    """The sum of each window."""
    last = [(size - extent) // step * step for size, extent, step in zip(spatial, pool_size, strides, strict=True)]
    taps: list[relax.Expr | None] = []
    for column, row in product(range(pool_size[1]), range(pool_size[0])):
        ends = [row + last[0] + 1, column + last[1] + 1]
        taps.append(node.emit(relax.op.strided_slice(data, [1, 2], [row, column], ends, list(strides))))
    groups = [_group(node, taps[first : first + _GROUP]) for first in range(0, len(taps), _GROUP)]
    return reduce(partial(_plus, node), groups)


def _of_whole_images(node: Node, data: relax.Expr, shape: tuple) -> relax.Expr:
    """The sum of each image, whatever its size."""
    batch, height, width, channels = shape
    count = -(-height * width // _GROUP)
    columns = node.emit(relax.op.permute_dims(data, [0, 2, 1, 3]))
    columns = node.emit(relax.op.reshape(columns, (batch, height * width, channels)))
    columns = node.emit(relax.op.nn.pad(columns, [0, 0, 0, count * _GROUP - height * width, 0, 0]))
    columns = node.emit(relax.op.reshape(columns, (batch, count, _GROUP, channels)))
    taps = [node.emit(relax.op.strided_slice(columns, [2], [index], [index + 1])) for index in range(_GROUP)]
    return node.emit(relax.op.sum(_group(node, taps), [1], keepdims=True))


def _group(node: Node, taps: list[relax.Expr | None]) -> relax.Expr:
    """((t2 + t3) + (t4 + t5)) + (((t0 + t1) + t8) + (t6 + t7)), where missing ones are zero."""
    plus = partial(_plus, node)
    t = [*taps, *[None] * (_GROUP - len(taps))]
    return plus(plus(plus(t[2], t[3]), plus(t[4], t[5])), plus(plus(plus(t[0], t[1]), t[8]), plus(t[6], t[7])))


def _plus(node: Node, one: relax.Expr | None, other: relax.Expr | None) -> relax.Expr | None:
    if one is None or other is None:
        return other if one is None else one
    return node.emit(relax.op.add(one, other))

"""Reads and writes at indices, whose numbers may have such sizes."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...op.base import constant, shape_of
from ...passes.rewrite import op_name
from ..sizes import Axes, Sizes
from .registry import rule


@rule("take")
def _take(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Rows by indices; rows of data with such a size could be counted from an end that is not known here."""
    data, indices = call.args
    axes, rank = sizes.of(data), len(shape_of(indices))
    axis = None if call.attrs.axis is None else int(call.attrs.axis) % len(shape_of(data))
    if (axis is None and axes) or axis in axes:
        raise sizes.refused(call)
    axis = 0 if axis is None else axis
    found = {one + (rank - 1 if one > axis else 0): size for one, size in axes.items()}
    return call, found | {axis + one: size for one, size in sizes.of(indices).items()}


@rule("gather_elements")
def _gather_elements(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """data[…, indices[…], …]: the result has the indices' shape; other axes of the data are at least as long."""
    data, indices = call.args
    if int(call.attrs.axis) % len(shape_of(data)) in sizes.of(data):
        raise sizes.refused(call)
    axes = sizes.of(indices)
    if any(axis not in axes or not axes[axis].same(size) for axis, size in sizes.of(data).items()):
        raise sizes.refused(call)
    return call, axes


@rule("gather_nd")
def _gather_nd(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Indices of elements or rows, with such a size of their own, or one that they share with the data's batches."""
    data, indices = call.args
    last, batch = len(shape_of(indices)) - 1, int(call.attrs.batch_dims)
    axes, found = sizes.of(data), sizes.of(indices)
    alike = set(axes) == {axis for axis in found if axis < batch}
    if last in found or not alike or any(not found[axis].same(size) for axis, size in axes.items()):
        raise sizes.refused(call)
    return call, found


@rule("scatter_nd", "scatter_elements")
def _scatter(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Data with such a size could be counted from an end that is not known here."""
    if sizes.of(call.args[0]):
        raise sizes.refused(call)
    return scattered(sizes, call), {}


def scattered(sizes: Sizes, call: relax.Call) -> relax.Expr:
    """A scatter whose indices count from the start and have such sizes: what does not count is written into a row
    behind the data, which is cut off. Data may have one only along the axis of a scatter_elements."""
    data, indices, updates = call.args
    shape, name = shape_of(data), op_name(call)
    axes = sizes.of(indices)
    last = len(shape_of(indices)) - 1
    shared = axes if name == "scatter_nd" else {**axes, **sizes.of(updates)}
    alike = all(axis in shared and shared[axis].same(size) for axis, size in sizes.of(updates).items())
    if not alike or (name == "scatter_nd" and last in axes):
        raise sizes.refused(call)
    axis = 0 if name == "scatter_nd" else int(call.attrs.axis) % len(shape)
    if set(sizes.of(data)) - {axis}:
        raise sizes.refused(call)
    pads = [0] * (2 * len(shape))
    pads[2 * axis + 1] = 1
    wider = sizes.emit(relax.op.nn.pad(data, pads))
    row = [shape[axis], *(0,) * (shape_of(indices)[-1] - 1)] if name == "scatter_nd" else shape[axis]
    behind = np.array(row, str(indices.ty.dtype))
    places = indices
    for one, size in axes.items():
        length = shape_of(indices)[one]
        wide = tuple(length if index == one else 1 for index in range(last + 1))
        valid = sizes.emit(relax.op.reshape(sizes.valid(size, length), wide))
        places = sizes.emit(relax.op.where(valid, places, constant(behind)))
    written = sizes.emit(relax.Call(call.op, [wider, places, updates], call.attrs, call.ty_args))
    return relax.op.strided_slice(written, [axis], [0], [shape[axis]])


@rule("vision.roi_align")
def _regions(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """A crop for each region."""
    data, regions = call.args
    if sizes.of(data) or set(sizes.of(regions)) != {0}:
        raise sizes.refused(call)
    return call, sizes.of(regions)

"""Parts of a tensor replaced: what is left of in-place updates, such as those of a key-value cache, once the program is
functional."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..... import op as qnn
from .....errors import UnsupportedOperatorError
from .....limits import check_elements
from .....op.base import constant, shape_of
from ....run_time import checked_indices
from ...scatter import index_put
from ...windows import fold, unfold
from ..registry import converter
from ..values import cast, dtype_of, reshape
from .shape import static


def _written(
    importer: Any, data: relax.Expr, rows: relax.Expr, positions: relax.Expr, axis: int, negative: bool
) -> relax.Expr:
    length = shape_of(data)[axis]
    checked = checked_indices(importer.emit, positions, length, importer.label, negative)
    return qnn.write_rows(data, rows, cast(importer, checked, "int64"), axis)


@converter("aten.index_copy.default")
def _index_copy(importer: Any, x: relax.Expr, dim: int, index: relax.Expr, source: relax.Expr) -> relax.Expr:
    """x[…, index[i], …] = source[…, i, …]"""
    shape = shape_of(x)
    if not shape:
        raise UnsupportedOperatorError("index_copy of a scalar")
    axis = dim % len(shape)
    count = shape_of(index)[0] if shape_of(index) else 1
    positions = reshape(importer, index, (count,))
    rows = reshape(importer, source, (*shape[:axis], count, *shape[axis + 1 :]))
    return _written(importer, x, rows, positions, axis, negative=False)


@converter("aten.index_put.default")
def _index_put(importer: Any, x: relax.Expr, indices: Any, values: relax.Expr, accumulate: bool) -> relax.Expr:
    """x[:, …, index] = values; for one vector of integers in the tensor's own memory, where it is a state."""
    shape = shape_of(x)
    given = [axis for axis, index in enumerate(indices) if index is not None]
    if accumulate or len(given) != 1 or not _is_vector(indices[given[0]]):
        values = cast(importer, values, dtype_of(x))
        return importer.emit(index_put(importer.emit, x, indices, values, accumulate, importer.label))
    (axis,) = given
    index = indices[axis]
    wanted = (*shape[:axis], shape_of(index)[0], *shape[axis + 1 :])
    rows = values if shape_of(values) == wanted else importer.emit(relax.op.broadcast_to(values, wanted))
    return _written(importer, x, rows, index, axis, negative=True)


def _is_vector(index: relax.Expr) -> bool:
    return len(shape_of(index)) == 1 and str(index.ty.dtype).startswith(("int", "uint"))


_REDUCTIONS = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}
_OF_BOOL = {"sum": "max", "prod": "min", "amax": "max", "amin": "min"}
_SUMMED_AS = {"float16": "float32", "bool": "uint8"}


@converter("aten.scatter_reduce.two")
def _scatter_reduce(
    importer: Any, x: relax.Expr, axis: int, index: relax.Expr, source: relax.Expr, reduce: str, include_self: bool
) -> relax.Expr:
    """source[i, …] at x[index[i, …], …], added, multiplied, averaged or the extreme of all that has one place, together
    with what x has there if `include_self`. Means of integers are rounded down."""
    shape, ends, dtype = shape_of(x), shape_of(index), dtype_of(x)
    if not shape:  # as of vectors of one element
        x, index, source = (reshape(importer, value, (1,)) for value in (x, index, source))
        vector = importer.emit(_scatter_reduce(importer, x, 0, index, source, reduce, include_self))
        return reshape(importer, vector, ())
    axis %= len(shape)
    places = cast(importer, checked_indices(importer.emit, index, shape[axis], importer.label), "int64")
    part = importer.emit(relax.op.strided_slice(source, list(range(len(ends))), [0] * len(ends), list(ends)))

    def scattered(target: relax.Expr, values: relax.Expr, how: str) -> relax.Expr:
        dtype = dtype_of(target)
        target, values = (cast(importer, value, _SUMMED_AS.get(dtype, dtype)) for value in (target, values))
        return cast(importer, importer.emit(relax.op.scatter_elements(target, places, values, axis, how)), dtype)

    def filled(dims: Sequence[int], value: Any) -> relax.Expr:
        return importer.emit(relax.op.broadcast_to(constant(np.asarray(value, dtype)), list(dims)))

    one, zero = filled(ends, 1), filled(shape, 0)
    if not include_self:
        is_written = importer.emit(relax.op.not_equal(scattered(zero, one, "update"), zero))
        x = importer.emit(relax.op.where(is_written, filled(shape, _neutral(reduce, dtype)), x))
    result = scattered(x, part, (_OF_BOOL if dtype == "bool" else _REDUCTIONS)[reduce])
    if reduce != "mean":
        return result
    count = scattered(filled(shape, 1 if include_self else 0), one, "add")
    count = importer.emit(relax.op.maximum(count, filled(shape, 1)))
    return relax.op.divide(result, count) if dtype.startswith("float") else relax.op.floor_divide(result, count)


def _neutral(reduce: str, dtype: str) -> Any:
    """The number that changes no result of this reduction."""
    if dtype == "bool":
        return reduce in ("prod", "amin")
    if reduce not in ("amax", "amin"):
        return 1 if reduce == "prod" else 0
    low, high = (-np.inf, np.inf) if dtype.startswith("float") else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return low if reduce == "amax" else high


@converter("aten.slice_scatter.default")
def _slice_scatter(
    importer: Any, x: relax.Expr, source: relax.Expr, dim: int, start: Any, end: Any, step: Any
) -> relax.Expr:
    """x[…, start:end:step, …] = source"""
    shape = shape_of(x)
    axis = dim % len(shape)
    if any(isinstance(value, relax.Expr) for value in (start, end, step)):
        raise UnsupportedOperatorError("slice_scatter at positions computed from data; use index_copy instead")
    places = range(*slice(start, sys.maxsize if end is None else end, step).indices(shape[axis]))
    if len(places) == shape[axis]:
        return source
    check_elements((len(places),), "the positions", "folded")
    return qnn.write_rows(x, source, constant(np.asarray(places, np.int64)), axis)


@converter("aten.select_scatter.default")
def _select_scatter(importer: Any, x: relax.Expr, source: relax.Expr, dim: int, index: int) -> relax.Expr:
    """x[…, index, …] = source"""
    shape = shape_of(x)
    axis = dim % len(shape)
    row = reshape(importer, source, (*shape[:axis], 1, *shape[axis + 1 :]))
    return qnn.write_rows(x, row, constant(np.asarray([index % shape[axis]], np.int64)), axis)


@converter("aten.im2col.default")
def _unfold(importer: Any, x: relax.Expr, *window: Any) -> relax.Expr:
    """window: kernel, dilation, padding, stride"""
    return importer.emit(unfold(importer.emit, x, *(static(sizes) for sizes in window)))


@converter("aten.unfold.default")
def _windows(importer: Any, x: relax.Expr, axis: int, size: int, step: int) -> relax.Expr:
    """(…, n, …) → (…, windows, …, size): windows along an axis, each `step` behind the one before it, whose elements
    are along a new last axis."""
    rank = len(shape_of(x))
    if not rank:
        raise UnsupportedOperatorError("windows of a scalar are not supported")
    axis %= rank
    starts = np.arange(0, shape_of(x)[axis] - size + 1, step)
    check_elements((len(starts), size), "the places in all windows", "folded")
    places = starts[:, None] + np.arange(size)
    taken = importer.emit(relax.op.take(x, constant(places), axis=axis, mode="clip"))
    order = [one for one in range(rank + 1) if one != axis + 1]
    return relax.op.permute_dims(taken, [*order, axis + 1])


@converter("aten.col2im.default")
def _fold(importer: Any, x: relax.Expr, size: Any, *window: Any) -> relax.Expr:
    """size: of the image; window: kernel, dilation, padding, stride"""
    return importer.emit(fold(importer.emit, x, static(size), *(static(sizes) for sizes in window)))

"""Elements of a tensor replaced at places that others name: aten::index_put, for both importers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ... import op as qnn
from ...errors import UnsupportedOperatorError
from ...op.base import constant, shape_of
from ..run_time import checked_indices
from .indexing import Emit, given_first, integers, wide


def index_put(
    emit: Emit,
    data: relax.Expr,
    indices: Sequence[relax.Expr | None],
    values: relax.Expr,
    accumulate: bool,
    label: str,
) -> relax.Expr:
    """x[indices] = values, or +=; an index that is None stands for a whole axis.

    Supported: tensors of integers, and one mask of the first axes. Raises UnsupportedOperatorError for others.
    """
    masks = [one for one in indices if one is not None and str(one.ty.dtype) == "bool"]
    if masks and len(masks) == sum(one is not None for one in indices):
        return _masked(emit, data, indices, values, accumulate, label)
    given = integers(indices)
    shape = shape_of(data)
    order = given_first(given, len(shape))
    first, count = order.index(min(given)), len(given)
    where = np.broadcast_shapes(*(shape_of(one) for one in given.values()))
    sizes = [shape[axis] for axis in order]
    rows = emit(relax.op.broadcast_to(values, [*sizes[:first], *where, *sizes[first + count :]]))
    if first:  # the indexed axes come first, as scatter_nd wants them
        span = range(first, first + len(where))
        moved = [*span, *(axis for axis in range(len(shape_of(rows))) if axis not in span)]
        rows = emit(relax.op.permute_dims(rows, moved))
    order = [*given, *(axis for axis in range(len(shape)) if axis not in given)]
    if order != sorted(order):
        data = emit(relax.op.permute_dims(data, order))
    places = [
        emit(relax.op.broadcast_to(wide(emit, checked_indices(emit, one, shape[axis], label, True)), list(where)))
        for axis, one in given.items()
    ]
    stacked = emit(relax.op.stack(places, -1))
    if accumulate and str(data.ty.dtype) == "bool":  # true where any of them is
        data, rows = (emit(relax.op.astype(value, "uint8")) for value in (data, rows))
        result = relax.op.astype(emit(relax.op.scatter_nd(data, stacked, rows, "max")), "bool")
    else:
        result = relax.op.scatter_nd(data, stacked, rows, "add" if accumulate else "update")
    back = [int(axis) for axis in np.argsort(order)]
    return result if back == sorted(back) else relax.op.permute_dims(emit(result), back)


def _masked(
    emit: Emit,
    data: relax.Expr,
    indices: Sequence[relax.Expr | None],
    values: relax.Expr,
    accumulate: bool,
    label: str,
) -> relax.Expr:
    """x[mask] = values, for a mask of the first axes: one row of values for all, or one for each element selected.

    The k-th selected element takes row k, and there must be as many rows as it selects.
    """
    if len(indices) != 1 or indices[0] is None:
        raise UnsupportedOperatorError("index_put with a mask of other than the first axes; use torch.where")
    shape, mask = shape_of(data), indices[0]
    rest, rows = shape[len(shape_of(mask)) :], shape_of(values)
    if len(rows) <= len(rest) or rows[0] == 1:
        row = rows[1:] if len(rows) > len(rest) else rows
        chosen = emit(relax.op.broadcast_to(emit(relax.op.reshape(values, row)), list(shape)))
    else:
        chosen = emit(relax.op.broadcast_to(values, [rows[0], *rest]))
        chosen = emit(relax.op.reshape(_spread(emit, mask, chosen, label), list(shape)))
    if accumulate:
        chosen = emit(relax.op.add(data, chosen))
    return _where(emit, mask, chosen, data)


def _spread(emit: Emit, mask: relax.Expr, rows: relax.Expr, label: str) -> relax.Expr:
    """(elements of the mask, …): row k at the place of its k-th true element, any row elsewhere. There must be as many
    rows as true elements, which is checked."""
    flat = emit(relax.op.astype(emit(relax.op.reshape(mask, [-1])), "int64"))
    length = shape_of(rows)[0]
    last = emit(relax.op.subtract(emit(relax.op.sum(flat)), constant(np.int64(1))))
    last = emit(qnn.check_bounds(last, length - 1, length - 1, label))
    places = emit(relax.op.subtract(emit(relax.op.cumsum(flat, 0)), constant(np.int64(1))))
    return emit(relax.op.take(rows, emit(relax.op.minimum(places, last)), axis=0, mode="clip"))


def _where(emit: Emit, mask: relax.Expr, one: relax.Expr, other: relax.Expr) -> relax.Expr:
    """Rows of two tensors of one shape, chosen by a mask of the first axes."""
    shape = shape_of(other)
    tall = emit(relax.op.reshape(mask, [*shape_of(mask), *[1] * (len(shape) - len(shape_of(mask)))]))
    return relax.op.where(emit(relax.op.broadcast_to(tall, list(shape))), one, other)

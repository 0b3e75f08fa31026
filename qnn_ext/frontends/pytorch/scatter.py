"""Elements of a tensor replaced at places that others name: aten::index_put, for both importers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax

from ...errors import UnsupportedOperatorError
from ...op.base import shape_of
from ..run_time import checked_indices

Emit = Callable[[relax.Expr], relax.Expr]


def index_put(
    emit: Emit,
    data: relax.Expr,
    indices: Sequence[relax.Expr | None],
    values: relax.Expr,
    accumulate: bool,
    label: str,
) -> relax.Expr:
    """x[indices] = values, or +=; an index that is None stands for a whole axis.

    Supported: tensors of integers for axes that follow each other; one mask with a single value. Raises
    UnsupportedOperatorError for others: how many elements a mask selects depends on the data.
    """
    given = {axis: index for axis, index in enumerate(indices) if index is not None}
    dtypes = {str(index.ty.dtype) for index in given.values()}
    if dtypes == {"bool"}:
        return _masked(emit, data, given, values, accumulate)
    if not given or not all(dtype.startswith(("int", "uint")) for dtype in dtypes):
        raise UnsupportedOperatorError(f"index_put with indices of dtypes {', '.join(sorted(dtypes)) or 'none'}")
    first, count = min(given), len(given)
    if sorted(given) != list(range(first, first + count)):
        raise UnsupportedOperatorError(f"index_put along the axes {sorted(given)}, which do not follow each other")
    shape = shape_of(data)
    where = np.broadcast_shapes(*(shape_of(index) for index in given.values()))
    before, after = shape[:first], shape[first + count :]
    rows = emit(relax.op.broadcast_to(values, [*before, *where, *after]))
    # The indexed axes first, as scatter_nd wants them
    axes = [*range(first, first + count), *range(first), *range(first + count, len(shape))]
    moved = [*range(first, first + len(where)), *range(first), *range(first + len(where), len(shape_of(rows)))]
    if first:
        data, rows = emit(relax.op.permute_dims(data, axes)), emit(relax.op.permute_dims(rows, moved))
    places = [
        emit(relax.op.broadcast_to(_wide(emit, checked_indices(emit, index, shape[axis], label, True)), list(where)))
        for axis, index in sorted(given.items())
    ]
    stacked = emit(relax.op.stack(places, -1))
    result = relax.op.scatter_nd(data, stacked, rows, "add" if accumulate else "update")
    return relax.op.permute_dims(emit(result), [int(axis) for axis in np.argsort(axes)]) if first else result


def _wide(emit: Emit, indices: relax.Expr) -> relax.Expr:
    return indices if str(indices.ty.dtype) == "int64" else emit(relax.op.astype(indices, "int64"))


def _masked(
    emit: Emit, data: relax.Expr, given: dict[int, relax.Expr], values: relax.Expr, accumulate: bool
) -> relax.Expr:
    """x[mask] = value, for a mask of the first axes."""
    shape, first = shape_of(data), min(given)
    if len(given) > 1 or first or int(np.prod(shape_of(values), dtype=np.int64)) != 1:
        raise UnsupportedOperatorError(
            "index_put with a mask and several values: how many it selects depends on the data; use torch.where"
        )
    mask = given[first]
    rank = len(shape_of(mask))
    wide = emit(relax.op.reshape(mask, [*shape_of(mask), *[1] * (len(shape) - rank)]))
    value = emit(relax.op.reshape(values, []))
    if accumulate:
        value = emit(relax.op.add(data, value))
    return relax.op.where(emit(relax.op.broadcast_to(wide, list(shape))), value, data)

"""Elements of a tensor at places that others name, aten::index, for both importers; `scatter.py` replaces them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tvm import relax

from ...errors import UnsupportedOperatorError
from ...op.base import constant, shape_of
from ..run_time import checked_indices

Emit = Callable[[relax.Expr], relax.Expr]


def elements_at(emit: Emit, data: relax.Expr, indices: Sequence[relax.Expr | None], label: str) -> relax.Expr:
    """x[indices], with tensors of int32 or int64 that broadcast to one shape W; None stands for a whole axis.

    W takes the place of the indexed axes where these follow each other; otherwise it comes first, then the other axes.
    """
    given = integers(indices)
    shape = shape_of(data)
    order = given_first(given, len(shape))
    first = order.index(min(given))
    if order != sorted(order):
        data = emit(relax.op.permute_dims(data, order))
        shape = shape_of(data)
    places = [checked_indices(emit, one, shape[first + i], label, True) for i, one in enumerate(given.values())]
    if len(places) == 1:
        return relax.op.take(data, places[0], axis=first, mode="clip")
    lengths = shape[first : first + len(places)]
    merged = [*shape[:first], int(np.prod(lengths, dtype=np.int64)), *shape[first + len(places) :]]
    flat = wide(emit, places[0])
    for place, length in zip(places[1:], lengths[1:], strict=True):
        flat = emit(relax.op.multiply(flat, constant(np.int64(length))))
        flat = emit(relax.op.add(flat, wide(emit, place)))
    return relax.op.take(emit(relax.op.reshape(data, merged)), flat, axis=first, mode="clip")


def integers(indices: Sequence[relax.Expr | None]) -> dict[int, relax.Expr]:
    """Axis → tensor of integers, in ascending order. Raises UnsupportedOperatorError for other tensors."""
    given = {axis: one for axis, one in enumerate(indices) if one is not None}
    kinds = sorted({str(one.ty.dtype) for one in given.values()})
    if not given or not set(kinds) <= {"int32", "int64"}:
        raise UnsupportedOperatorError(
            f"indices of dtypes {', '.join(kinds) or 'none'}; tensors of int32 and int64 are supported, and one mask"
        )
    return given


def given_first(given: Mapping[int, relax.Expr], rank: int) -> list[int]:
    """The order of axes in which the indexed ones are together: as they are, or first."""
    axes = sorted(given)
    if axes == list(range(axes[0], axes[0] + len(axes))):
        return list(range(rank))
    return [*axes, *(axis for axis in range(rank) if axis not in given)]


def wide(emit: Emit, indices: relax.Expr) -> relax.Expr:
    """Indices as int64."""
    return indices if str(indices.ty.dtype) == "int64" else emit(relax.op.astype(indices, "int64"))

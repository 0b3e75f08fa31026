"""Sums of floats in the order in which PyTorch adds them.

It adds up sixteen rows one after the other, and then such sums. Where it does not go through blocks of columns, the
rows are dealt to four sums first; those that lie side by side in memory to as many as a vector has floats before.
Source: `cascade_sum` of PyTorch's SumKernel.cpp, whose vectors have 8 floats, over what TensorIterator makes of the
dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import pairwise

from tvm import relax

from ....op.base import shape_of
from ....op.compound import permute, reshape

MOST_ROWS = 256
"""Of more rows PyTorch also adds up sums of sums."""

_RUN = 16
_LANES = 4
_VECTOR = 8

Emit = Callable[[relax.Expr], relax.Var]


def ordered_sum(x: relax.Expr, strides: Sequence[int], axes: Sequence[int], emit: Emit) -> relax.Expr | None:
    """Σ over `axes` of a float tensor that PyTorch has in memory with these strides, without those axes; None where the
    order of its sums is not described here."""
    shape = shape_of(x)
    long = [axis for axis in range(len(shape)) if shape[axis] != 1]
    summed = sorted((axis for axis in long if axis in axes), key=lambda axis: -strides[axis])
    kept = [axis for axis in long if axis not in axes]
    rows = math.prod(shape[axis] for axis in summed)
    if not 1 < rows <= MOST_ROWS or not all(_adjoin(shape, strides, *pair) for pair in pairwise(summed)):
        return None
    first = len(kept)
    while first and (first == len(kept) or _adjoin(shape, strides, *kept[first - 1 : first + 1])):
        first -= 1
    outer, inner = kept[:first], kept[first:]
    columns = math.prod(shape[axis] for axis in inner)
    alone = [axis for axis in range(len(shape)) if axis not in long]
    ordered = permute(x, [*alone, *outer, *summed, *inner], emit)
    matrices = reshape(ordered, (math.prod(shape[axis] for axis in outer), rows, columns), emit)
    step, along = strides[summed[-1]], strides[inner[-1]] if inner else 0
    if step == 1 and rows >= _VECTOR:
        sums = _in_vectors(matrices, emit)
    elif along == 1 and columns >= _VECTOR:
        sums = _in_blocks(matrices, _LANES * _VECTOR, emit)
    elif step < along:
        sums = _in_lanes(matrices, emit)
    else:
        sums = _in_blocks(matrices, _LANES, emit)
    return reshape(sums, [shape[axis] for axis in range(len(shape)) if axis not in axes], emit)


def _adjoin(shape: Sequence[int], strides: Sequence[int], before: int, after: int) -> bool:
    """Whether two dimensions can be passed through as one."""
    return strides[before] == strides[after] * shape[after]


# ---- sums over the second of three dimensions --------------------------------------------------------------------


def _in_blocks(x: relax.Expr, block: int, emit: Emit) -> relax.Expr:
    """(outer, rows, columns) to (outer, columns): whole blocks of columns row by row."""
    columns = shape_of(x)[2]
    whole = columns - columns % block
    parts = [
        total(_slice(x, 2, begin, end, emit), emit)
        for total, begin, end in ((_row_by_row, 0, whole), (_in_lanes, whole, columns))
        if begin < end
    ]
    return parts[0] if len(parts) == 1 else emit(relax.op.concat(parts, 1))


def _row_by_row(x: relax.Expr, emit: Emit) -> relax.Expr:
    outer, rows, columns = shape_of(x)
    whole = rows // _RUN
    parts = []
    if rows % _RUN:
        parts.append(_sequential(_slice(x, 1, whole * _RUN, rows, emit), 1, emit))
    if whole:
        runs = reshape(_slice(x, 1, 0, whole * _RUN, emit), (outer, whole, _RUN, columns), emit)
        parts.append(_sequential(_sequential(runs, 2, emit), 1, emit))
    return _added(parts, emit)


def _in_lanes(x: relax.Expr, emit: Emit) -> relax.Expr:
    """Rows are dealt to four sums; those left over are added to the first one, then the others."""
    lanes, rest = _dealt(x, _LANES, _row_by_row, emit)
    return _flat(_added([*lanes[:1], *rest, *lanes[1:]], emit), emit)


def _in_vectors(x: relax.Expr, emit: Emit) -> relax.Expr:
    """Rows are dealt to the lanes of a vector; those left over are added first."""
    lanes, rest = _dealt(x, _VECTOR, _in_lanes, emit)
    return _flat(_added([*rest, *lanes], emit), emit)


def _dealt(
    x: relax.Expr, count: int, total: Callable[[relax.Expr, Emit], relax.Expr], emit: Emit
) -> tuple[list[relax.Expr], list[relax.Expr]]:
    """Sums by `total` of every `count`th row, from the first `count` rows on, and the rows left over."""
    outer, rows, columns = shape_of(x)
    dealt = rows - rows % count
    rest = [_slice(x, 1, row, row + 1, emit) for row in range(dealt, rows)]
    if not dealt:
        return [], rest
    wide = reshape(_slice(x, 1, 0, dealt, emit), (outer, dealt // count, count * columns), emit)
    sums = reshape(total(wide, emit), (outer, count, columns), emit)
    return [_slice(sums, 1, lane, lane + 1, emit) for lane in range(count)], rest


def _flat(x: relax.Expr, emit: Emit) -> relax.Expr:
    outer, _, columns = shape_of(x)
    return reshape(x, (outer, columns), emit)


def _sequential(x: relax.Expr, axis: int, emit: Emit) -> relax.Expr:
    """Σ along an axis, from its beginning to its end, without that axis."""
    shape = shape_of(x)
    total = _added([_slice(x, axis, place, place + 1, emit) for place in range(shape[axis])], emit)
    return reshape(total, (*shape[:axis], *shape[axis + 1 :]), emit)


def _added(parts: Sequence[relax.Expr], emit: Emit) -> relax.Expr:
    return reduce(lambda total, part: emit(relax.op.add(total, part)), parts)


def _slice(x: relax.Expr, axis: int, begin: int, end: int, emit: Emit) -> relax.Expr:
    whole = (begin, end) == (0, shape_of(x)[axis])
    return x if whole else emit(relax.op.strided_slice(x, [axis], [begin], [end]))

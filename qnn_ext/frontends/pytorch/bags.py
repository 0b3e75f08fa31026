"""Bags of rows: consecutive rows that are summed, averaged, or of which the largest values are taken."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...limits import check_elements
from ...op.base import constant, shape_of
from ...passes.rewrite import Emit

_MEAN, _MAX = 1, 2  # PyTorch's numbers of what becomes of a bag; 0 is the sum


def members(emit: Emit, offsets: relax.Expr, count: int, closed: bool) -> relax.Expr:
    """Which of `count` rows each bag has: bool (bags, count).

    offsets: int (bags,), the first row of each bag, which goes on to the next one's; closed: whether a last offset says
    where the last bag ends, which otherwise has all rows that are left
    """
    starts = emit(relax.op.astype(offsets, "int64"))
    if not closed:
        starts = emit(relax.op.concat([starts, constant(np.asarray([count], np.int64))]))
    bags = shape_of(starts)[0] - 1

    def column(first: int) -> relax.Expr:
        return emit(relax.op.reshape(emit(relax.op.strided_slice(starts, [0], [first], [first + bags])), [bags, 1]))

    places = constant(np.arange(count, dtype=np.int64)[None])
    begun, ended = emit(relax.op.greater_equal(places, column(0))), emit(relax.op.less(places, column(1)))
    return emit(relax.op.logical_and(begun, ended))


def sums(emit: Emit, rows: relax.Expr, inside: relax.Expr, weights: relax.Expr | None) -> relax.Expr:
    """The sum of each bag's rows, each times its weight if there are any: (bags, width). Rows must be finite.

    rows: float32 (count, width); inside: see `members`; weights: float32 (count,)
    """
    factors = constant(np.float32(1)) if weights is None else weights
    chosen = emit(relax.op.where(inside, factors, constant(np.zeros((), np.float32))))
    return emit(relax.op.matmul(chosen, rows))


def without(emit: Emit, inside: relax.Expr, indices: relax.Expr, padding: int | None) -> relax.Expr:
    """`inside` without the rows whose index is `padding`, which PyTorch has as None or −1 where there is none."""
    if padding is None or padding < 0:
        return inside
    counts = emit(relax.op.not_equal(indices, constant(np.asarray(padding, str(indices.ty.dtype)))))
    return emit(relax.op.logical_and(inside, counts))


def reduced(emit: Emit, rows: relax.Expr, inside: relax.Expr, mode: int, weights: relax.Expr | None) -> relax.Expr:
    """Of the rows in each bag the sum, each times its weight if there are any, the mean or the largest values: 0 of a
    bag without rows."""
    if mode == _MAX:
        return _largest(emit, rows, inside)
    total = sums(emit, rows, inside, weights)
    if mode != _MEAN:
        return total
    sizes = emit(relax.op.sum(emit(relax.op.astype(inside, "float32")), [1], keepdims=True))
    return emit(relax.op.divide(total, emit(relax.op.maximum(sizes, constant(np.float32(1))))))


def _largest(emit: Emit, rows: relax.Expr, inside: relax.Expr) -> relax.Expr:
    (bags, count), width = shape_of(inside), shape_of(rows)[1]
    check_elements((bags, count, width))
    member = emit(relax.op.reshape(inside, [bags, count, 1]))
    chosen = emit(relax.op.where(member, rows, constant(np.float32(-np.inf))))
    sizes = emit(relax.op.sum(emit(relax.op.astype(inside, "int32")), [1], keepdims=True))
    empty = emit(relax.op.equal(sizes, constant(np.int32(0))))
    return emit(relax.op.where(empty, constant(np.float32(0)), emit(relax.op.max(chosen, [1]))))

"""Det and Inverse of small matrices: an LU decomposition with pivots, in the steps of ONNX Runtime's Eigen."""

from __future__ import annotations

from functools import reduce
from math import prod

import numpy as np
from tvm import relax

from ....op import compound
from ....op.base import constant
from ..node import Node
from ..registry import MICROSOFT, converter
from .arithmetic import minus, number, over, times

LARGEST = 8
"""Rows of a matrix: as many steps are written out as its cube has."""


@converter("Det", since=11)
def det(node: Node) -> relax.Expr:
    """The determinant of each matrix: the product of the pivots, negative for an odd number of swaps."""
    *batch, size = _square(node)
    rows, _, sign = _decomposed(node, size, None)
    pivots = [_column(node, row, place) for place, row in enumerate(rows)]
    product = times(node, reduce(lambda a, b: times(node, a, b), pivots), sign)
    return compound.reshape(product, tuple(batch), node.emit)


@converter("Inverse", domain=MICROSOFT)
def inverse(node: Node) -> relax.Expr:
    """The inverse of each matrix: its decomposition, applied to the rows of the identity."""
    *_, size = _square(node)
    identity = [constant(np.eye(size, dtype=np.float32)[None, place]) for place in range(size)]
    rows, results, _ = _decomposed(node, size, identity)
    for place in reversed(range(size)):
        for behind in range(place + 1, size):
            step = times(node, results[behind], _column(node, rows[place], behind))
            results[place] = minus(node, results[place], step)
        results[place] = times(node, results[place], over(node, number(1), _column(node, rows[place], place)))
    return compound.reshape(node.emit(relax.op.stack(results, 1)), node.shape(0), node.emit)


def _square(node: Node) -> tuple[int, ...]:
    """The batch and the size of the matrices."""
    shape = node.shape(0)
    if len(shape) < 2 or shape[-1] != shape[-2] or 0 in shape:
        raise node.malformed(f"the input must have square matrices, found shape {shape}")
    if node.dtype(0) != "float32" or shape[-1] > LARGEST:
        raise node.unsupported(
            f"matrices of {shape[-1]} rows of {node.dtype(0)}; supported: float32, up to {LARGEST} rows"
        )
    return shape[:-1]


def _column(node: Node, row: relax.Expr, place: int) -> relax.Expr:
    """One element of each row, (batch, 1)."""
    return node.emit(relax.op.strided_slice(row, [1], [place], [place + 1]))


def _decomposed(
    node: Node, size: int, results: list[relax.Expr] | None
) -> tuple[list[relax.Expr], list[relax.Expr], relax.Expr]:
    """The upper triangular rows (batch, size), the rows of `results` after the same steps, and 1 or −1 for the swaps.

    The pivot of a column is the first of its largest elements; nothing is subtracted if that is 0, as all others are.
    """
    count = prod(node.shape(0)[:-2])
    data = compound.reshape(node.input(0), (count, size, size), node.emit)
    rows = [
        compound.reshape(node.emit(relax.op.strided_slice(data, [1], [place], [place + 1])), (count, size), node.emit)
        for place in range(size)
    ]
    carried, sign = list(results or ()), constant(np.ones((count, 1), np.float32))
    for step in range(size):
        rows, carried, sign = _swapped(node, rows, carried, sign, step)
        pivot = _column(node, rows[step], step)
        divisor = node.emit(relax.op.where(node.emit(relax.op.equal(pivot, number(0))), number(1), pivot))
        for below in range(step + 1, size):
            factor = over(node, _column(node, rows[below], step), divisor)
            rows[below] = minus(node, rows[below], times(node, factor, rows[step]))
            if carried:
                carried[below] = minus(node, carried[below], times(node, factor, carried[step]))
    return rows, carried, sign


def _swapped(
    node: Node, rows: list[relax.Expr], carried: list[relax.Expr], sign: relax.Expr, step: int
) -> tuple[list[relax.Expr], list[relax.Expr], relax.Expr]:
    """The row with the largest element of a column at the place of this step, in both lists."""
    best, largest = rows[step], node.emit(relax.op.abs(_column(node, rows[step], step)))
    follower = carried[step] if carried else None
    rows, carried = list(rows), list(carried)
    first, first_of_carried = rows[step], follower
    is_largest: list[relax.Expr] = []  # whether each row below is the one
    for below in range(step + 1, len(rows)):
        size = node.emit(relax.op.abs(_column(node, rows[below], step)))
        larger = node.emit(relax.op.greater(size, largest))
        largest = node.emit(relax.op.where(larger, size, largest))
        is_largest = [
            node.emit(relax.op.logical_and(one, node.emit(relax.op.logical_not(larger)))) for one in is_largest
        ]
        is_largest.append(larger)
    for below, chosen in enumerate(is_largest, step + 1):
        best = node.emit(relax.op.where(chosen, rows[below], best))
        rows[below] = node.emit(relax.op.where(chosen, first, rows[below]))
        sign = node.emit(relax.op.where(chosen, times(node, sign, number(-1)), sign))
        if carried:
            follower = node.emit(relax.op.where(chosen, carried[below], follower))
            carried[below] = node.emit(relax.op.where(chosen, first_of_carried, carried[below]))
    rows[step] = best
    if carried:
        carried[step] = follower
    return rows, carried, sign

"""TE compute of qnn.value_range: ranges of pieces, in vectors and in parallel, then the range of these ranges.

The maximum is −min(−x), so that both ends are one reduction with an axis of two: a piece stays in the first cache for
the second of them, and memory is read once.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import te, tirx

from ...numerics.extremes import smallest
from ..schedule_util import largest_divisor
from .operands import Constants, Operand
from .stages import stages

LANES = 64  # extremes side by side, in several registers
LAST = 16  # of them before the end
STEPS = range(8, 65)  # vectors in a piece

Expr = Any


@stages("qnn.value_range")
def value_range(constants: Constants, out_shape: tuple[int, ...], data: Operand) -> te.Tensor:
    """The least value and the greatest, side by side."""
    values = data.tensor if data.tensor is not None else constants.add(data.value)
    sizes = [int(size) for size in values.shape]
    vectors, rest = divmod(prod(sizes), LANES)

    def value(end: Expr, position: Expr) -> Expr:
        return values(*_indices(position, sizes)) * _sign(end)

    parts = []
    if vectors:
        steps = largest_divisor(vectors, STEPS[-1])
        steps = steps if steps in STEPS else vectors
        pieces = vectors // steps
        step, piece, group, lane = (te.reduce_axis((0, size), "k") for size in (steps, pieces, LANES // LAST, LAST))
        of_pieces = te.compute(
            (pieces, 2, LANES),
            lambda p, end, i: smallest(value(end, (p * steps + step) * LANES + i), axis=step),
            name="ends_of_pieces",
        )
        of_lanes = te.compute((2, LANES), lambda end, i: smallest(of_pieces(piece, end, i), axis=piece), name="lanes")
        of_groups = te.compute(
            (2, LAST), lambda end, i: smallest(of_lanes(end, group * LAST + i), axis=group), name="groups"
        )
        parts.append(te.compute((2,), lambda end: smallest(of_groups(end, lane), axis=lane), name="ends"))
    if rest:
        last = te.reduce_axis((0, rest), "k")
        parts.append(te.compute((2,), lambda end: smallest(value(end, vectors * LANES + last), axis=last), name="rest"))

    def result(end: Expr) -> Expr:
        found = parts[0](end) if len(parts) == 1 else tirx.min(parts[0](end), parts[1](end))
        return found * _sign(end)

    return te.compute(out_shape, result, name="value_range")


def _sign(end: Expr) -> Expr:
    """1 for the least value, −1 for the greatest."""
    return (1 - 2 * end).astype("float32")


def _indices(position: Expr, sizes: list[int]) -> list[Expr]:
    """The indices of the element at a position in memory."""
    indices = []
    for axis in range(len(sizes)):
        inner = prod(sizes[axis + 1 :])
        index = tirx.floordiv(position, inner) if inner > 1 else position
        indices.append(tirx.floormod(index, sizes[axis]) if axis else index)
    return indices

"""The largest or the smallest float of each row, in vectors.

TE would reduce rows one element after the other, or in lanes only where their number divides the row. A maximum may be
taken in any order, and of an element twice: the last vector overlaps the previous one. NaN is beyond all numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...targets.features import current_backend, current_registers
from .nest import memory, nest, number
from .operands import Expr

_LEAST_LANES = 4
_SIDE_BY_SIDE = 4  # registers, so that one comparison need not wait for the one before it


def has_vectors(dtype: str, length: int) -> bool:
    """Whether rows of so many elements fill vectors, which GPUs do not have."""
    wide = not current_backend().grid and current_registers().lanes(32) >= _LEAST_LANES
    return wide and dtype == "float32" and length >= _LEAST_LANES


def row_extremes(x: te.Tensor, largest: bool) -> te.Tensor:
    """float32 (rows): the extreme of each row of x, float32 (rows, length)."""
    rows, length = (int(size) for size in x.shape)
    body = partial(_nest, rows=rows, length=length, largest=largest)
    return nest([rows], [x], body, dtype="float32", name="row_extremes")


def _nest(ins: Sequence[Any], outs: Sequence[Any], rows: int, length: int, largest: bool) -> Any:
    values, results = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
    extreme = tirx.max if largest else tirx.min
    loop = T.parallel if rows * length >= current_backend().sharing.position_elements else T.serial
    width = _SIDE_BY_SIDE * current_registers().lanes(32)
    while width > length:
        width //= 2
    lanes = _lanes(number(0), width)
    with IRBuilder() as builder, loop(0, rows) as row:
        best = memory([width], "float32")
        best[lanes] = values[row, lanes]

        def take(start: Expr) -> None:
            best[lanes] = extreme(best[lanes], values[row, _lanes(start, width)])

        if (whole := length // width) > 1:
            with T.serial(1, whole) as piece:
                take(piece * width)
        if length % width:
            take(number(length - width))
        results[row] = _folded(best, width, extreme)
    return builder.get()


def _lanes(start: Expr, width: int) -> Expr:
    """The positions of so many neighbours."""
    return tirx.Ramp(start, 1, width)


def _folded(values: Any, width: int, extreme: Callable[[Expr, Expr], Expr]) -> Expr:
    """The extreme of a vector, repeatedly of its halves."""
    while width > 1:
        vector = values[_lanes(number(0), width)]
        width //= 2
        halves = [tirx.Shuffle([vector], [*range(start, start + width)]) for start in (0, width)]
        values = memory([width], "float32")
        values[_lanes(number(0), width) if width > 1 else 0] = extreme(*halves)
    return values[0]

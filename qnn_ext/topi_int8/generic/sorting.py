"""The order of a row's elements as loop nests.

All keep equal elements in their original order. Rows are independent. NaN is larger than all numbers, as in NumPy and
PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...numerics.tir import is_number
from .nest import memory, nest, number, variable

Expr = Any

_FEW = 16
"""Up to so many places are filled by insertion, with at most that many comparisons for each element."""

_SHARE = 2
"""If no more than one in so many elements is kept, they are kept in a heap: one comparison for each element that comes
after them all, 2·log₂ k for others. Otherwise all elements are merged, with log₂ n comparisons for each, and memory for
2·n positions."""


def sorted_positions(x: te.Tensor, axis: int, descending: bool, count: int) -> te.Tensor:
    """int32: for each of the first `count` places along the sorted axis, the position of its element."""
    shape = [int(size) for size in x.shape]
    axis %= len(shape)
    outer, length = [size for number, size in enumerate(shape) if number != axis], shape[axis]
    places = [count if number == axis else size for number, size in enumerate(shape)]
    selecting = _by_heap if _SHARE * count <= length else _by_merging
    fill = _by_insertion if count <= _FEW else selecting

    def body(ins: list[Any], outs: list[Any]) -> Any:
        values, out = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
        with IRBuilder() as builder, T.parallel(0, prod(outer)) as row:
            at = _along(row, outer, axis)

            def is_before(one: Expr, two: Expr) -> Expr:
                less, more = (values[at(place)] for place in ((two, one) if descending else (one, two)))
                if not str(x.dtype).startswith("float"):
                    return less < more
                # TVM makes "less < more" of "not less >= more", whatever NaN is
                return tirx.Select(is_number(more), less < more, is_number(less))

            fill(is_before, _Line(out, at), length, count)
        return builder.get()

    return nest(places, [x], body, dtype="int32", name="sorted_positions")


def _along(row: Expr, outer: list[int], axis: int) -> Callable[[Expr], tuple[Expr, ...]]:
    """The indices of a row's elements by their positions."""
    indices: list[Expr] = []
    rest = row
    for size in reversed(outer):
        divisor = number(max(size, 1))  # without elements there are no rows
        indices.insert(0, tirx.floormod(rest, divisor))
        rest = tirx.floordiv(rest, divisor)
    return lambda position: (*indices[:axis], position, *indices[axis:])


class _Line:
    """A row of a tensor of positions."""

    def __init__(self, buffer: Any, at: Callable[[Expr], tuple[Expr, ...]]) -> None:
        self._buffer, self._at = buffer, at

    def __getitem__(self, place: Expr) -> Expr:
        return self._buffer[self._at(place)]

    def __setitem__(self, place: Expr, position: Expr) -> None:
        self._buffer[self._at(place)] = position


def _by_insertion(is_before: Callable[[Expr, Expr], Expr], out: _Line, length: int, count: int) -> None:
    """Each element that comes before the last one kept takes its place among those."""
    kept, place = variable(), variable()
    kept[0] = number(0)
    with T.serial(0, length) as position:
        place[0] = kept[0]
        with T.If(kept[0] == count), T.Then(), T.If(is_before(position, out[count - 1])), T.Then():
            place[0] = number(count - 1)
        with T.If(place[0] < count), T.Then():
            last = variable()
            last[0] = place[0]
            place[0] = number(0)
            with T.serial(0, last[0]) as other, T.If(tirx.Not(is_before(position, out[other]))), T.Then():
                place[0] = place[0] + 1
            with T.serial(0, last[0] - place[0]) as moved:
                out[last[0] - moved] = out[last[0] - moved - 1]
            out[place[0]] = position
            kept[0] = tirx.min(kept[0] + 1, number(count))


def _by_heap(is_before: Callable[[Expr, Expr], Expr], out: _Line, length: int, count: int) -> None:
    """The best elements so far are a heap with the last of them in its first place, which an element that comes before
    it takes over. In the end, the first place goes behind the others until none is left."""

    def follows(one: Expr, two: Expr) -> Expr:
        """Whether an element comes after another one, by their positions if they are equal."""
        return tirx.any(is_before(two, one), tirx.all(tirx.Not(is_before(one, two)), one > two))

    with T.serial(0, count) as place:
        out[place] = place
    with T.serial(0, count // 2) as behind:
        _sift(follows, out, number(count // 2 - 1) - behind, number(count))
    with T.serial(0, length - count) as rest, T.If(is_before(rest + count, out[0])), T.Then():
        out[0] = rest + count
        _sift(follows, out, number(0), number(count))
    with T.serial(0, count - 1) as behind:
        end, last = number(count - 1) - behind, variable()
        last[0] = out[end]
        out[end] = out[0]
        out[0] = last[0]
        _sift(follows, out, number(0), end)


def _sift(follows: Callable[[Expr, Expr], Expr], heap: _Line, place: Expr, size: Expr) -> None:
    """Move the element at `place` of a heap down, until it follows those below it."""
    moved, hole, child = variable(), variable(), variable()
    moved[0], hole[0] = heap[place], place
    child[0] = 2 * place + 1
    with T.While(child[0] < size):
        with T.If(child[0] + 1 < size), T.Then(), T.If(follows(heap[child[0] + 1], heap[child[0]])), T.Then():
            child[0] = child[0] + 1
        with T.If(follows(heap[child[0]], moved[0])):
            with T.Then():
                heap[hole[0]] = heap[child[0]]
                hole[0] = child[0]
                child[0] = 2 * child[0] + 1
            with T.Else():
                child[0] = size
    heap[hole[0]] = moved[0]


def _by_merging(is_before: Callable[[Expr, Expr], Expr], out: _Line, length: int, count: int) -> None:
    """Runs of 1, 2, 4 … sorted elements are merged in pairs, from one half of a buffer into the other."""
    runs = memory([2, length], scope="global")
    left, right, takes_right = (variable() for _ in range(3))
    passes = (length - 1).bit_length()
    with T.serial(0, length) as position:
        runs[0, position] = position
    with T.serial(0, passes) as done:
        source = tirx.bitwise_and(done, number(1))
        size = tirx.shift_left(number(1), done)
        pairs = tirx.shift_right(number(length - 1), done + 1) + 1
        with T.serial(0, pairs) as pair:
            start = pair * size * 2
            middle, end = (tirx.min(start + size * many, number(length)) for many in (1, 2))
            left[0], right[0] = start, middle
            with T.serial(0, end - start) as place:
                takes_right[0] = number(0)
                with T.If(right[0] < end), T.Then(), T.If(left[0] < middle):
                    with T.Then():
                        first, second = runs[source, left[0]], runs[source, right[0]]
                        takes_right[0] = is_before(second, first).astype("int32")
                    with T.Else():
                        takes_right[0] = number(1)
                with T.If(takes_right[0] == 1):
                    with T.Then():
                        runs[1 - source, start + place] = runs[source, right[0]]
                        right[0] = right[0] + 1
                    with T.Else():
                        runs[1 - source, start + place] = runs[source, left[0]]
                        left[0] = left[0] + 1
    with T.serial(0, count) as place:
        out[place] = runs[passes % 2, place]

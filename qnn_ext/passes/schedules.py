"""Schedules of kernels, found once for all that need the same one.

Layers of the same shape have different scales and zero points, and a schedule need not know them. Of several kernels
that are equal but for such numbers, the first is scheduled as it is. For the second, a kernel is scheduled that has
marks in place of the numbers. If it becomes what the first has become, once that one's numbers are put back, it serves
all the others too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import ScheduleError

from ..numerics.immediates import Immediate, mapped
from ..numerics.saturate import is_small

Step = Callable[[tirx.PrimFunc], tirx.PrimFunc]

_MARKS = {"int16": 20_011, "uint16": 20_011, "float32": 4096.5}
_SMALL, _LARGE = 1_000_003, 1_000_000_007
_STEP = 7
"""Marks start at these values; numbers of other dtypes have none."""


class Schedules:
    """The scheduled functions of kernels so far."""

    def __init__(self) -> None:
        self._equal: dict[Any, tirx.PrimFunc] = {}
        self._alike: dict[Any, _Alike] = {}

    def scheduled(self, way: str, function: tirx.PrimFunc, step: Step) -> tirx.PrimFunc:
        """What `step` makes of a function, or would: of functions that are equal but for numbers only if it has to.

        way: what else the result depends on
        """
        same = way, _key(function)
        if same not in self._equal:
            marked, numbers = _marked(function)
            alike = self._alike.setdefault((way, _key(marked)), _Alike())
            self._equal[same] = alike.scheduled(function, marked, numbers, step)
        return self._equal[same]


class _Alike:
    """Functions that are equal but for numbers."""

    def __init__(self) -> None:
        self._first: tuple[list[Immediate], tirx.PrimFunc] | None = None
        self._marked: tirx.PrimFunc | None = None
        self._tried = False

    def scheduled(
        self, function: tirx.PrimFunc, marked: tirx.PrimFunc, numbers: list[Immediate], step: Step
    ) -> tirx.PrimFunc:
        if self._first is None:
            result = step(function)
            self._first = numbers, result
            return result
        if not self._tried:
            self._tried = True
            self._marked = _template(marked, *self._first, step)
        return step(function) if self._marked is None else _with_numbers(self._marked, numbers)


def _template(
    marked: tirx.PrimFunc, numbers: list[Immediate], expected: tirx.PrimFunc, step: Step
) -> tirx.PrimFunc | None:
    """The scheduled function with marks, unless it says something else with the numbers in their place, or a mark does
    not fit into the type that its number is cast to."""
    try:
        result = step(marked)
    except (ScheduleError, ValueError):
        return None
    return result if tvm_ffi.structural_equal(_with_numbers(result, numbers), expected) else None


def _key(function: tirx.PrimFunc) -> tvm_ffi.StructuralKey:
    return tvm_ffi.StructuralKey(function)  # type: ignore[call-arg]


def _marked(function: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[Immediate]]:
    """The function with marks in place of its numbers, and these."""
    numbers: list[Immediate] = []

    def mark(number: Immediate) -> Immediate:
        value = _mark(number, len(numbers))
        if value is None:
            return number
        numbers.append(number)
        return type(number)(number.ty, value)

    return function.with_body(mapped(function.body, mark)), numbers


def _mark(number: Immediate, index: int) -> float | None:
    """The value of the mark for a number, which is like it in what decides on code."""
    dtype = str(number.ty.dtype)
    if dtype in ("int32", "int64"):
        return (_SMALL if is_small(number) else _LARGE) + _STEP * index
    first = _MARKS.get(dtype)
    return None if first is None or index > 1000 else first + _STEP * index


def _with_numbers(marked: tirx.PrimFunc, numbers: list[Immediate]) -> tirx.PrimFunc:
    """The function with numbers in place of the marks for them."""
    places = {_mark(number, index): number for index, number in enumerate(numbers)}

    def replaced(value: Immediate) -> Immediate:
        number = places.get(value.value)
        return number if number is not None and str(number.ty) == str(value.ty) else value

    return marked.with_body(tvm_ffi.structural_map(marked.body, ((tirx.IntImm, tirx.FloatImm), replaced)))

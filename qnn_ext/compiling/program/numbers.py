"""Kernels that differ only in numbers share one function, which reads those numbers from an operand.

Layers of the same shape have different scales and zero points. As immediates these would make each layer a function of
its own, which takes longer to lower and to compile than anything else in a build. So where kernels of a program are
equal but for numbers that values are computed with, the numbers that differ become loads from a vector of constants.
LLVM moves these loads out of loops; floats on most CPUs are loads in any case.

What kernels have in common stays as it is, and so do kernels without others like them. Which numbers may be replaced at
all: `numerics.immediates`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx

from ...numerics.annotations import JOIN, NUMBERS, SLICE, WRITES
from ...numerics.immediates import Immediate, mapped
from ...numerics.saturate import LEAST_LARGE, is_small, small
from .graph import Graph
from .phases import computation
from .storage import Storage

Functions = Mapping[ir.GlobalVar, tirx.PrimFunc]
Expr = Any

_BLANK = 2  # no number that stays


def share_numbers(graph: Graph, functions: Functions) -> dict[ir.GlobalVar, tirx.PrimFunc]:
    """Let steps whose kernels differ only in numbers call one function each, to which every step gives its own numbers
    as another operand. Returns the functions that the steps now call."""
    distinct: dict[tvm_ffi.StructuralKey, list[ir.GlobalVar]] = defaultdict(list)
    for var in dict.fromkeys(step.kernel for step in graph.steps):
        if not any(note in (functions[var].attrs or {}) for note in (JOIN, SLICE, WRITES)):
            distinct[computation(functions[var])].append(var)
    alike: dict[tvm_ffi.StructuralKey, list[tuple[list[ir.GlobalVar], list[Immediate]]]] = defaultdict(list)
    for same in distinct.values():
        blank, numbers = _without_numbers(functions[same[0]])
        if numbers:
            alike[computation(blank)].append((same, numbers))
    result = dict(functions)
    operands: dict[ir.GlobalVar, tuple[ir.GlobalVar, Storage]] = {}
    for group in alike.values():
        if len(group) > 1:
            _share(group, result, operands)
    for index, step in enumerate(graph.steps):
        if step.kernel in operands:
            kernel, operand = operands[step.kernel]
            graph.steps[index] = replace(step, kernel=kernel, reads=(operand, *step.reads))
    return result


def _share(
    group: Iterable[tuple[list[ir.GlobalVar], list[Immediate]]],
    functions: dict[ir.GlobalVar, tirx.PrimFunc],
    operands: dict[ir.GlobalVar, tuple[ir.GlobalVar, Storage]],
) -> None:
    """Make the first one's function that of all kernels that are equal but for numbers; for each, note that and its
    numbers."""
    kernels, numbers = zip(*group, strict=True)
    columns: dict[tuple[str, tuple[int, ...]], int] = {}
    places: list[int | None] = []
    for values in zip(*numbers, strict=True):
        column = str(values[0].ty.dtype), tuple(map(_bits, values))
        places.append(columns.setdefault(column, len(columns)) if len(set(column[1])) > 1 else None)
    shared = kernels[0][0]
    functions[shared] = _with_operand(functions[shared], places, len(columns))
    rows = np.array([bits for _, bits in columns], np.int32).T
    for same, row in zip(kernels, rows, strict=True):
        operand = Storage(row.nbytes, np.ascontiguousarray(row))
        operands.update((kernel, (shared, operand)) for kernel in same)


def _without_numbers(function: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[Immediate]]:
    """The function with one number in place of all that could be read from an operand, and these."""
    found: list[Immediate] = []

    def blank(number: Immediate) -> Expr:
        found.append(number)
        if isinstance(number, tirx.FloatImm):
            return tirx.FloatImm(number.ty, float(_BLANK))
        return tirx.IntImm(number.ty, _BLANK if is_small(number) else LEAST_LARGE)

    return function.with_body(mapped(function.body, blank)), found


def _with_operand(function: tirx.PrimFunc, places: Sequence[int | None], size: int) -> tirx.PrimFunc:
    """The function that reads numbers from an operand before its others.

    places: for each number, in order, where it is there; None for those that stay
    size:   how many there are
    """
    operand = tirx.decl_buffer((size,), "int32", "numbers", layout=None)
    remaining = iter(places)

    def read(number: Immediate) -> Expr:
        place = next(remaining)
        return number if place is None else _read(operand[place], number)

    body = mapped(function.body, read)
    return tirx.PrimFunc([operand, *function.params], body, function.ret_type, function.attrs).with_attr(NUMBERS, True)


def _bits(number: Immediate) -> int:
    """A number as an operand has it."""
    return int(np.float32(number.value).view(np.int32) if isinstance(number, tirx.FloatImm) else number.value)


def _read(value: Expr, number: Immediate) -> Expr:
    """A number back from its bits."""
    dtype = str(number.ty.dtype)
    if isinstance(number, tirx.FloatImm):
        return tirx.reinterpret(dtype, value)
    if dtype == "int32":
        return small(value) if is_small(number) else value
    return tirx.Cast(dtype, value)

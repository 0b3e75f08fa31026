"""Tensors inside others: a concatenation's operands are written directly into its result, slices are read in place.

A part that is not contiguous, such as some channels of each pixel, has rows apart: kernels write or read them with a
stride. Tensors that cannot be parts are copied.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import MatchBufferRegion

from ...numerics.annotations import JOIN, SLICE, UNALIGNED
from .graph import Graph
from .phases import Lowered
from .storage import ALIGNMENT, Storage

ADDRESSES = ("tirx.address_of", "tirx.tvm_access_ptr")
Functions = dict[ir.GlobalVar, tirx.PrimFunc]


def without_copies(graph: Graph, functions: Mapping[ir.GlobalVar, tirx.PrimFunc], lowered: Lowered) -> Functions:
    """Turn storages into parts of others where that saves copies; returns the functions that the steps now call."""
    return _Parts(graph, functions, lowered).functions


@dataclass(frozen=True)
class _Rows:
    """A part whose rows are apart: their number, and the bytes of a row and from one to the next."""

    count: int
    run: int
    pitch: int

    @property
    def span(self) -> int:
        """Bytes from the first to the last."""
        return (self.count - 1) * self.pitch + self.run


class _Parts:
    """Decides which storages become parts; joins from the last on, so that what is joined again is already a part."""

    def __init__(self, graph: Graph, functions: Mapping[ir.GlobalVar, tirx.PrimFunc], lowered: Lowered) -> None:
        self._steps = graph.steps
        self._lowered = lowered
        self.functions: Functions = dict(functions)
        self._outputs = set(graph.outputs)
        self._wholes = {storage.whole for storage in graph.storages()}
        self._apart: dict[Storage, _Rows] = {}
        self._known_divisions: dict[tirx.PrimFunc, int] = {}
        self._readers: dict[Storage, list[int]] = defaultdict(list)
        for index, step in enumerate(self._steps):
            for storage in dict.fromkeys(step.reads):
                self._readers[storage].append(index)
        self._writers = {storage: index for index, step in enumerate(self._steps) for storage in step.writes}
        self._joins = [index for index in range(len(self._steps)) if JOIN in self._notes(index)]
        copies = {index: self._join(index) for index in reversed(self._joins)}
        for index in range(len(self._steps)):
            if SLICE in self._notes(index):
                self._slice(index, *map(int, self._notes(index)[SLICE]))
        for index, numbers in copies.items():
            self._call(index, self._copying(index, numbers))
        for index, step in enumerate(self._steps):
            if not all(map(self._is_aligned, (*step.reads, *step.writes))):
                function = self._function(index).with_attr(UNALIGNED, True)
                self._call(index, function)

    def _function(self, index: int) -> tirx.PrimFunc:
        return self.functions[self._steps[index].kernel]

    def _notes(self, index: int) -> Mapping[str, Any]:
        return self._function(index).attrs or {}

    def _call(self, index: int, function: tirx.PrimFunc) -> None:
        """Make a step call a different function."""
        before = self._steps[index].kernel
        kernel = ir.GlobalVar(f"{before.name_hint}_at{index}")
        self.functions[kernel] = function
        self._steps[index] = replace(self._steps[index], kernel=kernel)

    def _rows(self, storage: Storage, count: int) -> _Rows:
        """How `count` rows of a tensor lie in memory."""
        if storage in self._apart:
            return self._apart[storage]
        return _Rows(count, storage.size // count, storage.size // count)

    def _is_aligned(self, storage: Storage) -> bool:
        return storage.is_aligned and (storage not in self._apart or self._apart[storage].pitch % ALIGNMENT == 0)

    # ---- concatenation -------------------------------------------------------------------------------------------

    def _join(self, index: int) -> list[int]:
        """Make the operands of a concatenation parts of its result; returns those that must be copied."""
        (whole,), rows = self._steps[index].writes, self._joined_rows(index)
        start, copied = 0, []
        for number, part in enumerate(self._steps[index].reads if rows else ()):
            run = self._rows(part, rows).run
            if run and not self._becomes_part(part, whole, rows, start, index):
                copied.append(number)
            start += run
        return copied

    def _becomes_part(self, part: Storage, whole: Storage, rows: int, start: int, index: int) -> bool:
        writer, loop = self._writers.get(part), self._steps[index].loop
        if part.array is not None or part.whole is not None or writer is None or self._steps[writer].loop is not loop:
            return False
        others = [reader for reader in self._readers[part] if reader != index]
        layout = replace(self._rows(part, rows), pitch=self._rows(whole, rows).pitch)
        if rows > 1 and not self._set_apart(part, layout, [writer, *others]):
            return False
        part.become_part(whole, start)
        return True

    def _joined_rows(self, index: int) -> int:
        """The number of rows that a concatenation joins."""
        shape = self._function(index).params[-1].ty.shape
        return prod(int(size) for size in shape[: int(self._notes(index)[JOIN])])

    def _copying(self, index: int, numbers: Sequence[int]) -> tirx.PrimFunc:
        """A concatenation's function that only copies some operands."""
        function, step, rows = self._function(index), self._steps[index], self._joined_rows(index)
        dtype = str(function.params[-1].ty.dtype)
        flat = [
            tirx.decl_buffer((storage.size // _itemsize(param),), dtype, param.name, layout=None)
            for storage, param in zip((*step.reads, *step.writes), function.params, strict=True)
        ]
        start, copies = 0, []
        for number, part in enumerate(step.reads if rows else ()):
            source = self._rows(part, rows)
            if number in numbers:
                copies.append(_copy(flat[number], flat[-1], source, self._rows(step.writes[0], rows).pitch, start))
            start += source.run
        body = tirx.SeqStmt(copies) if len(copies) > 1 else (copies or [tirx.Evaluate(0)])[0]
        return tirx.PrimFunc(flat, body, function.ret_type, function.attrs)

    # ---- slices --------------------------------------------------------------------------------------------------

    def _slice(self, index: int, first: int, rows: int, pitch: int) -> None:
        """Let a slice be read in place. first, pitch: its first element, and the elements between its rows' starts"""
        (source,), (result,) = self._steps[index].reads, self._steps[index].writes
        size = _itemsize(self._function(index).params[0])
        start, layout = first * size, _Rows(rows, result.size // rows, pitch * size)
        if source.array is not None or result.whole is not None or source.root[0].is_updated:
            return
        if source in self._apart:
            around = self._apart[source]
            if pitch * size != around.run:  # a row of it is not in a row of the source
                return
            start, layout = start // around.run * around.pitch + start % around.run, replace(layout, pitch=around.pitch)
        if rows > 1 and not self._set_apart(result, layout, self._readers[result]):
            return
        result.become_part(source, start)
        self._call(index, self._function(index).with_body(tirx.Evaluate(0)))

    # ---- parts whose rows are apart ------------------------------------------------------------------------------

    def _set_apart(self, part: Storage, rows: _Rows, users: Sequence[int]) -> bool:
        """Make steps write and read a part with its rows apart; returns whether all of them can."""
        if part in self._outputs or part in self._wholes:
            return False
        joins = [index for index in users if index in self._joins]
        if any(self._joined_rows(index) != rows.count for index in joins):
            return False
        changed: dict[int, tirx.PrimFunc] = {}
        for index in users:
            if index not in joins:  # these copy rows from and to where they are
                variant = self._with_rows(index, part, rows)
                if variant is None:
                    return False
                changed[index] = variant
        for index, function in changed.items():
            self._call(index, function)
        self._apart[part] = rows
        part.size = rows.span
        return True

    def _with_rows(self, index: int, part: Storage, rows: _Rows) -> tirx.PrimFunc | None:
        """The function of a step for a part with its rows apart; None if that would be slower, or impossible."""
        step, function = self._steps[index], self._function(index)
        variant: tirx.PrimFunc | None = function
        for number, storage in enumerate((*step.reads, *step.writes)):
            if storage is part and variant is not None:
                variant = _with_rows(variant, number, rows)
        if variant is None:
            return None
        divisions = self._divisions(variant)
        return variant if divisions == 0 or divisions <= self._divisions(function) else None

    def _divisions(self, function: tirx.PrimFunc) -> int:
        """The number of divisions in a function's indices: more if a loop crosses from one row to the next."""
        if function not in self._known_divisions:
            kernel = ir.GlobalVar("kernel")
            (lowered,) = self._lowered.of({kernel: function}).values()
            found: list[Any] = []
            for kind in (tirx.FloorDiv, tirx.FloorMod):
                tvm_ffi.structural_walk(lowered.body, (kind, lambda node: found.append(node)))
            self._known_divisions[function] = len(found)
        return self._known_divisions[function]


def _itemsize(buffer: tirx.Var) -> int:
    return tvm_ffi.dtype(str(buffer.ty.dtype)).itemsize


def _with_rows(function: tirx.PrimFunc, number: int, rows: _Rows) -> tirx.PrimFunc | None:
    """`function` with the rows of a parameter apart; None if its code relies on a compact tensor."""
    param = function.params[number]
    shape = [int(size) for size in param.ty.shape]
    axis = next((axis for axis in range(len(shape) + 1) if prod(shape[:axis]) == rows.count), None)
    if axis is None or _is_addressed(function, param, axis):
        return None
    strides = [prod(shape[after + 1 :]) for after in range(len(shape))]
    run, step = prod(shape[axis:]), rows.pitch // _itemsize(param)
    strides[:axis] = [stride // run * step for stride in strides[:axis]]
    apart = tirx.decl_buffer(shape, str(param.ty.dtype), param.name, strides=strides, layout=None)
    params = [apart if other.same_as(param) else other for other in function.params]
    body = tvm_ffi.structural_map(function.body, (tirx.Var, lambda var: apart if var.same_as(param) else var))
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs)


def _is_addressed(function: tirx.PrimFunc, param: tirx.Var, axis: int) -> bool:
    """Whether a function takes the address of a parameter, or accesses more than one row of it in another shape.

    axis: the first one within rows
    """
    found: list[Any] = []

    def look(call: ir.Call) -> None:
        if getattr(call.op, "name", "") in ADDRESSES:
            tvm_ffi.structural_walk(
                call.args, (tirx.Var, lambda var: found.append(var) if var.same_as(param) else None)
            )

    def look_at(match: MatchBufferRegion) -> None:
        if match.source.source.same_as(param) and any(int(part.extent) != 1 for part in match.source.region[:axis]):
            found.append(match)

    tvm_ffi.structural_walk(function.body, (ir.Call, look))
    tvm_ffi.structural_walk(function.body, (MatchBufferRegion, look_at))
    return bool(found)


def _copy(part: tirx.Var, whole: tirx.Var, rows: _Rows, pitch: int, start: int) -> tirx.Stmt:
    """whole[row · pitch + start + column] = part[row · rows.pitch + column], all in bytes"""
    size = _itemsize(whole)
    run = rows.run // size
    lanes = run & -run
    while lanes * size > ALIGNMENT:
        lanes //= 2
    row, column = tirx.Var("row", "int32"), tirx.Var("column", "int32")

    def place(pitch: int, start: int) -> Any:
        index = row * (pitch // size) + start // size + column * lanes
        return tirx.Ramp(index, 1, lanes) if lanes > 1 else index

    store = tirx.BufferStore(whole, part[place(rows.pitch, 0)], [place(pitch, start)])
    inner = tirx.For(column, 0, run // lanes, tirx.ForKind.SERIAL, store)
    return tirx.For(row, 0, rows.count, tirx.ForKind.PARALLEL, inner)

"""Tensors inside others: a concatenation's operands are written directly into its result, slices are read in place.

A part that is not contiguous, such as some channels of each pixel, is written by a kernel with a strided result.
Tensors that cannot be parts are copied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import MatchBufferRegion
from tvm.target import Target

from ...numerics.annotations import JOIN, SLICE, UNALIGNED
from .graph import Graph
from .phases import lower_kernels
from .storage import ALIGNMENT, Loop, Storage

ADDRESSES = ("tirx.address_of", "tirx.tvm_access_ptr")
Functions = dict[ir.GlobalVar, tirx.PrimFunc]


def without_copies(graph: Graph, functions: Mapping[ir.GlobalVar, tirx.PrimFunc], target: Target) -> Functions:
    """Turn storages into parts of others where that saves copies; returns the functions that the steps now call."""
    return _Parts(graph, functions, target).functions


class _Parts:
    def __init__(self, graph: Graph, functions: Mapping[ir.GlobalVar, tirx.PrimFunc], target: Target) -> None:
        self._steps = graph.steps
        self._target = target
        self.functions: Functions = dict(functions)
        self._outputs = set(graph.outputs)
        self._reads = Counter(storage for step in self._steps for storage in step.reads)
        self._writers = {storage: index for index, step in enumerate(self._steps) for storage in step.writes}
        for index, step in enumerate(self._steps):
            attributes = functions[step.kernel].attrs
            if attributes and JOIN in attributes:
                self._join(index, int(attributes[JOIN]))
            elif attributes and SLICE in attributes:
                self._slice(index, int(attributes[SLICE]))
        for index, step in enumerate(self._steps):
            if not all(storage.is_aligned for storage in (*step.reads, *step.writes)):
                function = self.functions[step.kernel].with_attr(UNALIGNED, True)
                self._call(index, function)

    def _call(self, index: int, function: tirx.PrimFunc) -> None:
        """Make a step call a different function."""
        before = self._steps[index].kernel
        kernel = ir.GlobalVar(f"{before.name_hint}_at{index}")
        self.functions[kernel] = function
        self._steps[index] = replace(self._steps[index], kernel=kernel)

    # ---- concatenation -------------------------------------------------------------------------------------------

    def _join(self, index: int, axis: int) -> None:
        step = self._steps[index]
        (whole,) = step.writes
        function = self.functions[step.kernel]
        rows = prod(int(size) for size in function.params[-1].ty.shape[:axis])
        if rows == 0 or sum(part.size for part in step.reads) != whole.size:
            return
        start, copied = 0, []
        for number, part in enumerate(step.reads):
            run = part.size // rows
            if run and not self._becomes_part(part, whole, rows, start, step.loop):
                copied.append((number, run, start))
            start += run
        self._call(index, _copying(function, rows, copied))

    def _becomes_part(self, part: Storage, whole: Storage, rows: int, start: int, loop: Loop | None) -> bool:
        writer = self._writers.get(part)
        if part.array is not None or part.whole is not None or writer is None or self._steps[writer].loop is not loop:
            return False
        if rows > 1:
            run, pitch = part.size // rows, whole.size // rows
            if part in self._outputs or self._reads[part] != 1:
                return False  # other steps expect it to be contiguous
            if any(size % ALIGNMENT for size in (start, run, pitch)) or not self._write_rows(writer, part, rows, pitch):
                return False
            part.size += (rows - 1) * (pitch - run)
        part.become_part(whole, start)
        return True

    def _write_rows(self, index: int, part: Storage, rows: int, pitch: int) -> bool:
        """Make a step write the rows of a result `pitch` bytes apart; returns whether it can."""
        step = self._steps[index]
        function = self.functions[step.kernel]
        result = function.params[len(step.reads) + step.writes.index(part)]
        variant = _with_rows(function, result, rows, pitch)
        if variant is None or self._divisions(variant) > self._divisions(function):
            return False
        self._call(index, variant)
        return True

    def _divisions(self, function: tirx.PrimFunc) -> int:
        """The number of divisions in a function's indices: more if a loop crosses from one row to the next."""
        kernel = ir.GlobalVar("kernel")
        (lowered,) = lower_kernels({kernel: function}, self._target).values()
        found: list[Any] = []
        for kind in (tirx.FloorDiv, tirx.FloorMod):
            tvm_ffi.structural_walk(lowered.body, (kind, lambda node: found.append(node)))
        return len(found)

    # ---- slices --------------------------------------------------------------------------------------------------

    def _slice(self, index: int, element: int) -> None:
        step = self._steps[index]
        (source,), (result,) = step.reads, step.writes
        if source.array is None and result.whole is None:
            function = self.functions[step.kernel]
            result.become_part(source, element * _itemsize(function.params[0]))
            self._call(index, function.with_body(tirx.Evaluate(0)))


def _itemsize(buffer: tirx.Var) -> int:
    return tvm_ffi.dtype(str(buffer.ty.dtype)).itemsize


def _with_rows(function: tirx.PrimFunc, result: tirx.Var, rows: int, pitch: int) -> tirx.PrimFunc | None:
    """`function` with the rows of a result `pitch` bytes apart; None if its code relies on a compact result."""
    attributes, shape = function.attrs, [int(size) for size in result.ty.shape]
    axis = next((axis for axis in range(len(shape) + 1) if prod(shape[:axis]) == rows), None)
    if axis is None or (attributes and (JOIN in attributes or SLICE in attributes)) or _is_addressed(function, result):
        return None
    strides = [prod(shape[after + 1 :]) for after in range(len(shape))]
    run, step = prod(shape[axis:]), pitch // _itemsize(result)
    strides[:axis] = [stride // run * step for stride in strides[:axis]]
    apart = tirx.decl_buffer(shape, str(result.ty.dtype), result.name, strides=strides, layout=None)
    params = [apart if param.same_as(result) else param for param in function.params]
    body = tvm_ffi.structural_map(function.body, (tirx.Var, lambda var: apart if var.same_as(result) else var))
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs)


def _is_addressed(function: tirx.PrimFunc, result: tirx.Var) -> bool:
    """Whether a function takes the address of a result or accesses it in another shape."""
    found: list[Any] = []

    def look(node: Any) -> None:
        tvm_ffi.structural_walk(node, (tirx.Var, lambda var: found.append(var) if var.same_as(result) else None))

    def look_at(call: ir.Call) -> None:
        if getattr(call.op, "name", "") in ADDRESSES:
            look(call.args)

    tvm_ffi.structural_walk(function.body, (ir.Call, look_at))
    tvm_ffi.structural_walk(function.body, (MatchBufferRegion, lambda match: look(match.source)))
    return bool(found)


def _copying(function: tirx.PrimFunc, rows: int, parts: Sequence[tuple[int, int, int]]) -> tirx.PrimFunc:
    """A concatenation's function that only copies some operands: (index, bytes per row, offset in a row) for each."""
    dtype = str(function.params[-1].ty.dtype)
    size = tvm_ffi.dtype(dtype).itemsize
    flat = [
        tirx.decl_buffer((prod(int(extent) for extent in param.ty.shape),), dtype, param.name, layout=None)
        for param in function.params
    ]
    pitch = int(flat[-1].ty.shape[0]) // rows
    copies = [_copy(flat[number], flat[-1], rows, run // size, start // size, pitch) for number, run, start in parts]
    body = tirx.SeqStmt(copies) if len(copies) > 1 else (copies or [tirx.Evaluate(0)])[0]
    return tirx.PrimFunc(flat, body, function.ret_type, function.attrs)


def _copy(part: tirx.Var, whole: tirx.Var, rows: int, run: int, start: int, pitch: int) -> tirx.Stmt:
    """whole[row, start : start + run] = part[row]"""
    lanes = run & -run
    while lanes * _itemsize(whole) > ALIGNMENT:
        lanes //= 2
    row, column = tirx.Var("row", "int32"), tirx.Var("column", "int32")

    def place(first: Any) -> Any:
        return tirx.Ramp(first + column * lanes, 1, lanes) if lanes > 1 else first + column

    store = tirx.BufferStore(whole, part[place(row * run)], [place(row * pitch + start)])
    inner = tirx.For(column, 0, run // lanes, tirx.ForKind.SERIAL, store)
    return tirx.For(row, 0, rows, tirx.ForKind.PARALLEL, inner)

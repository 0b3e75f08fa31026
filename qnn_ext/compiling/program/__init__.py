"""A whole model as one compiled function, if its graph allows it: no virtual machine between kernels, one workspace for
all tensors, at most one parallel region per call. Constants are in a single array next to the code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.target import Target

from ...errors import LimitError
from ...limits import current, exceeded
from ...numerics.annotations import without_names
from ...running.model import Layout
from ...running.workers import USE
from ..watch import timed
from ..workers import SYMBOL, exposed
from .emit import HEADER, MEMORY, PROGRAM, SHARE, emit, header_bytes, scratch_storages
from .graph import Graph, NotStraightError, read_graph
from .memory import pack, place
from .objects import WORTHWHILE, DividedProgram, Kept
from .parts import without_copies
from .phases import lower_kernels
from .sharing import share_out
from .storage import Storage

__all__ = ["Kept", "NotStraightError", "Program", "compile_program"]


@dataclass(frozen=True)
class Program:
    """The executable, which contains `program`; the weights, all constants of the model; and its memory layout.

    live: bytes of feature maps and scratch buffers in memory while each kernel of the model runs
    """

    executable: Any  # of TVM, or a DividedProgram
    weights: np.ndarray
    layout: Layout
    live: list[int]


def compile_program(mod: IRModule, target: Target, asked: bool, kept: Kept | None = None) -> Program:
    """A lowered module as one program. Raises NotStraightError if its graph does not allow that.

    asked: whether the target's number of threads was asked for, see `sharing`
    kept: where the kernels' code is kept if the program is linked at once
    """
    graph = read_graph(mod)
    functions = graph.functions | {step.kernel: mod[step.kernel] for step in graph.kernels}
    functions = without_copies(graph, functions, target)
    same = _distinct(functions)
    graph.steps = [replace(step, kernel=same[step.kernel]) for step in graph.steps]
    functions = {step.kernel: functions[step.kernel] for step in graph.steps}
    kernels, tasks = share_out(graph, lower_kernels(functions, target), target, asked)
    scratch = scratch_storages(graph, kernels)
    storages = graph.storages()
    weights = pack(storage for storage in storages if storage.array is not None)
    for storage in graph.inputs:
        storage.used_at(len(graph.steps))  # a later call may reuse the same values
    tensors = [storage for storage in storages if storage.array is None]
    buffers = [item for items in scratch for item in items]
    workspace = place([*tensors, *buffers], header_bytes(graph), tasks)
    if workspace > current().workspace and tasks > 1:
        workspace = place([*tensors, *buffers], header_bytes(graph))  # as for one task: slower, but smaller
    if workspace > current().workspace:
        raise LimitError(f"{exceeded('workspace', workspace, _needs(graph, scratch))}; a smaller batch takes less")
    program = emit(graph, kernels, scratch, workspace, weights.size, target)
    executable = _executable(program, target, kept)
    layout = Layout(
        workspace=workspace,
        weights=weights.size,
        tasks=tasks,
        steps=len(graph.kernels),
        stamps=HEADER,
        inputs=tuple(storage.offset for storage in graph.inputs),
        outputs=tuple((int(storage.array is not None), storage.offset) for storage in graph.outputs),
    )
    return Program(executable, weights, layout, _live(graph, tensors, scratch))


def _executable(program: IRModule, target: Target, kept: Kept | None) -> Any:
    called = {
        var: function
        for var, function in program.functions_items()
        if var.name_hint not in (SHARE, *_EXPORTED) and SYMBOL not in function.attrs
    }
    if kept is None or len(called) < WORTHWHILE:
        return timed("machine code", lambda: tvm.compile(program, target, tir_pipeline=PIPELINE))
    return DividedProgram(program, called, target, PIPELINE, kept)


def _live(graph: Graph, tensors: Sequence[Storage], scratch: Sequence[Sequence[Storage]]) -> list[int]:
    """Bytes in use at each step that is a kernel of the model."""
    steps = len(graph.steps)
    change = np.zeros(steps + 1, np.int64)
    for storage in tensors:
        if storage.whole is None and storage.first <= storage.last:
            change[min(max(storage.first, 0), steps)] += storage.size
            change[min(storage.last + 1, steps)] -= storage.size
    alive = np.cumsum(change[:-1])
    return [
        int(alive[index]) + sum(one.size for one in scratch[index])
        for index, step in enumerate(graph.steps)
        if not step.own
    ]


def _needs(graph: Graph, scratch: Sequence[Sequence[Storage]]) -> str:
    """The step with most bytes in use and the largest tensors then, by the kernels that write them, for a message."""
    writers = {storage.root[0]: step.kernel.name_hint for step in reversed(graph.steps) for storage in step.writes}
    tensors = dict.fromkeys(storage.root[0] for storage in graph.storages() if storage.array is None)
    used = [
        [*(one for one in tensors if one.first <= index <= one.last), *buffers] for index, buffers in enumerate(scratch)
    ]
    most = max(range(len(used)), key=lambda index: sum(one.size for one in used[index]))
    largest = sorted(used[most], key=lambda one: -one.size)[:3]
    texts = [
        f"{one.size:,} " + ("of scratch" if one in scratch[most] else f"for '{writers.get(one, 'an input')}'")
        for one in largest
    ]
    total = sum(one.size for one in used[most])
    step = graph.steps[most].kernel.name_hint
    return f"the model, with {total:,} bytes in use when '{step}' runs ({', '.join(texts)}, …),"


def _distinct(functions: Mapping[ir.GlobalVar, tirx.PrimFunc]) -> dict[ir.GlobalVar, ir.GlobalVar]:
    """For each kernel, the first with the same computation: repeated layers and steps of recurrent ones share code."""
    first: dict[tvm_ffi.StructuralKey, ir.GlobalVar] = {}
    return {var: first.setdefault(_computation(function), var) for var, function in functions.items()}


def _computation(function: tirx.PrimFunc) -> tvm_ffi.StructuralKey:
    return tvm_ffi.StructuralKey(without_names(function))  # type: ignore[call-arg]


_EXPORTED = PROGRAM, MEMORY, USE

PIPELINE = "qnn_ext_program"
"""TVM's name for the remaining lowering of a program, whose functions are already flat."""


@tvm.transform.module_pass(opt_level=0)
def _keep_private(mod: IRModule, _context: tvm.transform.PassContext) -> IRModule:
    """Keep kernels private: TVM makes a single kernel the entry point, but only `_EXPORTED` are called from outside."""
    functions = {
        var: function if var.name_hint in _EXPORTED else _private(function) for var, function in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs)


def _private(function: tirx.PrimFunc) -> tirx.PrimFunc:
    return function.without_attr("global_symbol").without_attr("tirx.is_entry_func")


@tirx.transform.prim_func_pass(opt_level=0)
def _expose(function: tirx.PrimFunc, _mod: IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    return exposed(function)


def _pipeline() -> tuple:
    passes = [
        _keep_private,
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        _expose,
    ]
    _, host, device = tirx.get_tir_pipeline("default")
    return tvm.transform.Sequential(passes), host, device


tirx.compilation_pipeline.register_tir_pipeline(PIPELINE, _pipeline)

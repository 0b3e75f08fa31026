"""A whole model as one compiled function, where its graph allows: no virtual machine between kernels, one workspace for
all tensors, at most one parallel region a call. Constants lie beside the code, in one array.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.target import Target

from ..limits import check
from ..passes.fuse import COMPOSITE, LAYER
from ..topi_int8.schedule_util import num_threads
from .emit import HEADER, MEMORY, PROGRAM, emit, header_bytes, scratch_storages
from .graph import Graph, read_graph
from .memory import pack, place
from .parts import without_copies
from .phases import lower_kernels
from .sharing import share_out


@dataclass(frozen=True)
class Program:
    """The executable, which holds `program`; the weights, all constants of the model; and where its workspace holds
    what: the fields of `layout` are

    workspace: bytes, aligned like a storage; weights: bytes
    tasks:     the most tasks that the program is made for, 1 if it has nothing to share
    steps:     how many kernels it calls; stamps: offset of the times before each of them and at the end
    inputs:    offset of each; outputs: (0, offset in the workspace) or (1, offset in the weights) of each
    """

    executable: tvm.runtime.Executable
    weights: np.ndarray
    layout: dict[str, Any]


def compile_program(mod: IRModule, target: Target) -> Program | None:
    """A lowered module as one program; None where its graph does not allow that."""
    graph = read_graph(mod)
    if graph is None or not graph.steps:
        return None
    functions = without_copies(graph, {step.kernel: mod[step.kernel] for step in graph.steps}, target)
    same = _distinct(functions)
    graph.steps = [replace(step, kernel=same[step.kernel]) for step in graph.steps]
    functions = {step.kernel: functions[step.kernel] for step in graph.steps}
    kernels, tasks = share_out(graph, lower_kernels(functions, target), num_threads(target))
    scratch = scratch_storages(graph, kernels)
    storages = graph.storages()
    weights = pack(storage for storage in storages if storage.array is not None)
    for storage in graph.inputs:
        storage.used_at(len(graph.steps))  # a later call may run on the same values again
    tensors = [storage for storage in storages if storage.array is None]
    buffers = [item for items in scratch for item in items]
    workspace = place([*tensors, *buffers], header_bytes(len(graph.steps)), tasks)
    _check_workspace(graph, workspace)
    program = emit(graph, kernels, scratch, workspace, weights.size, target)
    executable = tvm.compile(program, target, tir_pipeline=PIPELINE)
    layout = {
        "workspace": workspace,
        "weights": weights.size,
        "tasks": tasks,
        "steps": len(graph.steps),
        "stamps": HEADER,
        "inputs": [storage.offset for storage in graph.inputs],
        "outputs": [(int(storage.array is not None), storage.offset) for storage in graph.outputs],
    }
    return Program(executable, weights, layout)


def _check_workspace(graph: Graph, workspace: int) -> None:
    """Raises LimitError, with the kernel that writes most, when the tensors take more memory than they may."""
    largest = max(graph.steps, key=lambda step: sum(storage.size for storage in step.writes))
    check("workspace", workspace, f"the model, most of it for the result of '{largest.kernel.name_hint}',")


def _distinct(functions: Mapping[ir.GlobalVar, tirx.PrimFunc]) -> dict[ir.GlobalVar, ir.GlobalVar]:
    """For each kernel the first that computes the same: repeated layers and the steps of recurrent ones share code."""
    first: dict[tvm_ffi.StructuralKey, ir.GlobalVar] = {}
    return {var: first.setdefault(_computation(function), var) for var, function in functions.items()}


def _computation(function: tirx.PrimFunc) -> tvm_ffi.StructuralKey:
    for name in ("global_symbol", LAYER, COMPOSITE):
        function = function.without_attr(name)
    return tvm_ffi.StructuralKey(function)  # type: ignore[call-arg]


PIPELINE = "qnn_ext_program"
"""TVM's name of the lowering that is left for a program: its functions are flat already."""


@tvm.transform.module_pass(opt_level=0)
def _keep_private(mod: IRModule, _context: tvm.transform.PassContext) -> IRModule:
    """TVM makes a lone kernel the entry; only the program and what tells its memory are called from outside."""
    functions = {
        var: function if var.name_hint in (PROGRAM, MEMORY) else _private(function)
        for var, function in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs)


def _private(function: tirx.PrimFunc) -> tirx.PrimFunc:
    return function.without_attr("global_symbol").without_attr("tirx.is_entry_func")


def _pipeline() -> tuple:
    passes = [
        _keep_private,
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
    ]
    _, host, device = tirx.get_tir_pipeline("default")
    return tvm.transform.Sequential(passes), host, device


tirx.compilation_pipeline.register_tir_pipeline(PIPELINE, _pipeline)

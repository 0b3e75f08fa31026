"""A whole model as one compiled function, if its graph allows it: no virtual machine between kernels, one workspace for
all tensors, at most one parallel region per call. Constants are in a single array next to the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import tvm
import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.target import Target

from ...limits import check
from ...numerics.annotations import without_names
from ...running.model import Layout
from .emit import HEADER, MEMORY, PROGRAM, emit, header_bytes, scratch_storages
from .graph import Graph, NotStraightError, read_graph
from .memory import pack, place
from .parts import without_copies
from .phases import lower_kernels
from .sharing import share_out

__all__ = ["NotStraightError", "Program", "compile_program"]


@dataclass(frozen=True)
class Program:
    """The executable, which contains `program`; the weights, all constants of the model; and its memory layout."""

    executable: tvm.runtime.Executable
    weights: np.ndarray
    layout: Layout


def compile_program(mod: IRModule, target: Target) -> Program:
    """A lowered module as one program. Raises NotStraightError if its graph does not allow that."""
    graph = read_graph(mod)
    functions = graph.functions | {step.kernel: mod[step.kernel] for step in graph.kernels}
    functions = without_copies(graph, functions, target)
    same = _distinct(functions)
    graph.steps = [replace(step, kernel=same[step.kernel]) for step in graph.steps]
    functions = {step.kernel: functions[step.kernel] for step in graph.steps}
    kernels, tasks = share_out(graph, lower_kernels(functions, target), target)
    scratch = scratch_storages(graph, kernels)
    storages = graph.storages()
    weights = pack(storage for storage in storages if storage.array is not None)
    for storage in graph.inputs:
        storage.used_at(len(graph.steps))  # a later call may reuse the same values
    tensors = [storage for storage in storages if storage.array is None]
    buffers = [item for items in scratch for item in items]
    workspace = place([*tensors, *buffers], header_bytes(graph), tasks)
    _check_workspace(graph, workspace)
    program = emit(graph, kernels, scratch, workspace, weights.size, target)
    executable = tvm.compile(program, target, tir_pipeline=PIPELINE)
    layout = Layout(
        workspace=workspace,
        weights=weights.size,
        tasks=tasks,
        steps=len(graph.kernels),
        stamps=HEADER,
        inputs=tuple(storage.offset for storage in graph.inputs),
        outputs=tuple((int(storage.array is not None), storage.offset) for storage in graph.outputs),
    )
    return Program(executable, weights, layout)


def _check_workspace(graph: Graph, workspace: int) -> None:
    """Raises LimitError, with the kernel that writes most, if the tensors take more memory than allowed."""
    largest = max(graph.kernels, key=lambda step: sum(storage.root[0].size for storage in step.writes))
    check("workspace", workspace, f"the model, most of it for the result of '{largest.kernel.name_hint}',")


def _distinct(functions: Mapping[ir.GlobalVar, tirx.PrimFunc]) -> dict[ir.GlobalVar, ir.GlobalVar]:
    """For each kernel, the first with the same computation: repeated layers and steps of recurrent ones share code."""
    first: dict[tvm_ffi.StructuralKey, ir.GlobalVar] = {}
    return {var: first.setdefault(_computation(function), var) for var, function in functions.items()}


def _computation(function: tirx.PrimFunc) -> tvm_ffi.StructuralKey:
    return tvm_ffi.StructuralKey(without_names(function))  # type: ignore[call-arg]


PIPELINE = "qnn_ext_program"
"""TVM's name for the remaining lowering of a program, whose functions are already flat."""


@tvm.transform.module_pass(opt_level=0)
def _keep_private(mod: IRModule, _context: tvm.transform.PassContext) -> IRModule:
    """Keep kernels private: TVM makes a single kernel the entry point, but only `program` and MEMORY are called from
    outside."""
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

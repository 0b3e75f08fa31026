"""A whole model as one compiled function, where its graph allows: no virtual machine between kernels, one workspace for
all tensors, at most one parallel region a call.

The library then holds `program` and, through TVM's virtual machine, `weights`: all constants of the model in one array.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax, tirx
from tvm.target import Target

from ..op.base import constant
from .emit import HEADER, PROGRAM, emit, header_bytes, scratch_storages
from .graph import read_graph
from .memory import pack, place
from .phases import lower_kernels, most_tasks, split


@dataclass(frozen=True)
class Program:
    """The executable, and where its workspace holds what: the fields of `layout` are

    workspace: bytes, aligned like a storage
    tasks:     the most tasks that the program is made for, 1 if it has nothing to share
    steps:     how many kernels it calls; stamps: offset of the times before each of them and at the end
    inputs:    offset of each; outputs: (0, offset in the workspace) or (1, offset in the weights) of each
    """

    executable: tvm.runtime.Executable
    layout: dict[str, Any]


def compile_program(mod: IRModule, target: Target) -> Program | None:
    """A lowered module as one program; None where its graph does not allow that."""
    graph = read_graph(mod)
    if graph is None or not graph.steps:
        return None
    functions = {step.kernel: mod[step.kernel] for step in graph.steps}
    lowered = lower_kernels(functions, target)
    kernels = {var: split(function, most_tasks(target)) for var, function in lowered.items()}
    scratch = scratch_storages(graph, kernels)
    storages = graph.storages()
    weights = pack(storage for storage in storages if storage.array is not None)
    for storage in graph.inputs:
        storage.used_at(len(graph.steps))  # a later call may run on the same values again
    tensors = [storage for storage in storages if storage.array is None]
    workspace = place([*tensors, *(item for items in scratch for item in items)], header_bytes(len(graph.steps)))
    program = emit(graph, kernels, scratch, workspace, weights.size, target)
    executable = tvm.compile(_with_weights(program, weights), target, tir_pipeline=PIPELINE)
    threaded = any(phase.parallel for kernel in kernels.values() for phase in kernel.phases)
    layout = {
        "workspace": workspace,
        "tasks": most_tasks(target) if threaded else 1,
        "steps": len(graph.steps),
        "stamps": HEADER,
        "inputs": [storage.offset for storage in graph.inputs],
        "outputs": [(int(storage.array is not None), storage.offset) for storage in graph.outputs],
    }
    return Program(executable, layout)


def _with_weights(program: IRModule, weights: np.ndarray) -> IRModule:
    builder = relax.BlockBuilder(program)
    with builder.function("weights", []):
        with builder.dataflow():
            result = builder.emit_output(constant(weights))
        builder.emit_func_output(result)
    return builder.get()


PIPELINE = "qnn_ext_program"
"""TVM's name of the lowering that is left for a program: its functions are flat already."""


@tvm.transform.module_pass(opt_level=0)
def _keep_private(mod: IRModule, _context: tvm.transform.PassContext) -> IRModule:
    """Relax makes every function public, TVM a lone kernel the entry; only the program is called from outside."""
    functions = {
        var: function if var.name_hint == PROGRAM else _private(function) for var, function in mod.functions_items()
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

"""Whether several threads are worth their cost: for a program as a whole, for a kernel in the virtual machine."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import IRModule, ir, tirx
from tvm.target import Target

from ..topi_int8.schedule_util import num_threads
from ..topi_int8.threads import serial_body
from .cost import LAUNCH, nanoseconds
from .graph import Graph
from .phases import Kernel, split


def share_out(
    graph: Graph, functions: Mapping[ir.GlobalVar, tirx.PrimFunc], tasks: int
) -> tuple[dict[ir.GlobalVar, Kernel], int]:
    """The phases of the graph's kernels, and for how many tasks: one where sharing would save less than it costs."""
    kernels = {var: split(function, tasks) for var, function in functions.items()}
    if tasks == 1 or sum(kernels[step.kernel].saved(tasks) for step in graph.steps) > LAUNCH:
        return kernels, tasks
    return {var: split(function, 1) for var, function in functions.items()}, 1


def launch_where_worthwhile(mod: IRModule, target: Target) -> IRModule:
    """For the virtual machine, where each parallel loop is a launch of its own: functions that would save less by it
    than it costs are made serial."""

    tasks = num_threads(target)

    def chosen(function: tirx.PrimFunc) -> tirx.PrimFunc:
        saved = nanoseconds(function.body) * (1 - 1 / tasks)
        return function if saved > LAUNCH else function.with_body(serial_body(function.body))

    functions = {
        var: chosen(function) if isinstance(function, tirx.PrimFunc) else function
        for var, function in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

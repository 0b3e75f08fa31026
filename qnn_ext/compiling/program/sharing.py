"""Whether multithreading is worth its cost: for a program as a whole, or in the virtual machine for each kernel."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tvm import IRModule, ir, tirx
from tvm.target import Target

from ...targets.backend import threads_of
from ...targets.features import sharing_of
from ...topi_int8.threads import serial_body
from .cost import UNKNOWN, nanoseconds
from .graph import Graph, Step
from .phases import Kernel, split
from .storage import path_of


def share_out(
    graph: Graph, functions: Mapping[ir.GlobalVar, tirx.PrimFunc], target: Target
) -> tuple[dict[ir.GlobalVar, Kernel], int]:
    """The phases of the graph's kernels and the number of tasks: 1 if multithreading would save less than it costs."""
    tasks, sharing = threads_of(target.attrs), sharing_of(target)
    kernels = {var: split(function, tasks, sharing.meeting) for var, function in functions.items()}
    saved = sum(kernels[step.kernel].saved(tasks, sharing.meeting) * _rounds(step) for step in graph.steps)
    if tasks == 1 or saved > sharing.launch:
        return kernels, tasks
    return {var: split(function, 1, sharing.meeting) for var, function in functions.items()}, 1


def _rounds(step: Step) -> int:
    """How often a step runs; a loop with a condition may end at any time."""
    return prod(loop.trips if loop.condition is None else min(loop.trips, UNKNOWN) for loop in path_of(step.loop))


def launch_where_worthwhile(mod: IRModule, target: Target) -> IRModule:
    """For the virtual machine, where each parallel loop is a separate launch: functions in which that would save less
    than it costs become serial."""

    tasks, launch = threads_of(target.attrs), sharing_of(target).launch

    def chosen(function: tirx.PrimFunc) -> tirx.PrimFunc:
        saved = nanoseconds(function.body) * (1 - 1 / tasks)
        return function if saved > launch else function.with_body(serial_body(function.body))

    functions = {
        var: chosen(function) if isinstance(function, tirx.PrimFunc) else function
        for var, function in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

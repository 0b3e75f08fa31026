"""Whether multithreading is worth its cost: for a program as a whole, or in the virtual machine for each kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

from tvm import IRModule, ir, tirx
from tvm.target import Target

from ...running.kernels import Kernel as CalledKernel
from ...targets.backend import threads_of
from ...targets.features import sharing_of
from ...topi_int8.threads import serial_body
from .cost import UNKNOWN, nanoseconds
from .graph import Graph, Step
from .phases import Kernel, split
from .storage import path_of


def least_saving(target: Target, asked: bool) -> float:
    """The nanoseconds that several threads must save a model to be used.

    asked: whether the number of threads was asked for; otherwise small models stay on one
    """
    sharing = sharing_of(target)
    return sharing.launch if asked else sharing.unasked


def share_out(
    graph: Graph, functions: Mapping[ir.GlobalVar, tirx.PrimFunc], target: Target, least: float, meeting: float
) -> tuple[dict[ir.GlobalVar, Kernel], int]:
    """The phases of the graph's kernels and the number of tasks: 1 if multithreading would save less than it must.

    least:   the nanoseconds that it must save
    meeting: the nanoseconds that tasks take to wait for each other
    """
    tasks = threads_of(target.attrs)
    kernels = {var: split(function, tasks, meeting) for var, function in functions.items()}
    saved = sum(kernels[step.kernel].saved(tasks, meeting) * _rounds(step) for step in graph.steps)
    if tasks == 1 or saved > least:
        return kernels, tasks
    return {var: split(function, 1, meeting) for var, function in functions.items()}, 1


def _rounds(step: Step) -> int:
    """How often a step runs; a loop with a condition may end at any time."""
    return prod(loop.trips if loop.condition is None else min(loop.trips, UNKNOWN) for loop in path_of(step.loop))


def launch_where_worthwhile(mod: IRModule, target: Target, called: Sequence[CalledKernel], asked: bool) -> IRModule:
    """For the virtual machine, where each parallel loop is a separate launch: functions in which that would save less
    than it costs become serial, and all of them if together they would save the model less than they must.

    called: the calls of the functions
    """
    tasks, launch = threads_of(target.attrs), sharing_of(target).launch
    kernels = {var: function for var, function in mod.functions_items() if isinstance(function, tirx.PrimFunc)}
    saved = {var: nanoseconds(function.body) * (1 - 1 / tasks) for var, function in kernels.items()}
    worthwhile = {var for var, nanos in saved.items() if nanos > launch}
    calls = Counter(kernel.symbol for kernel in called)
    if sum(saved[var] * calls[var.name_hint] for var in worthwhile) <= least_saving(target, asked):
        worthwhile = set()
    serial = {
        var: function.with_body(serial_body(function.body))
        for var, function in kernels.items()
        if var not in worthwhile
    }
    return IRModule({**dict(mod.functions_items()), **serial}, attrs=mod.attrs, global_infos=mod.global_infos)

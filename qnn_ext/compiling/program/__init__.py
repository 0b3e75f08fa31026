"""A whole model as one compiled function, if its graph allows it: no virtual machine between kernels, one workspace for
all tensors, at most one parallel region per call. Constants are in a single array next to the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, tirx
from tvm.target import Target

from ...running.model import Layout
from ...running.workers import USE
from ...targets.features import generating, sharing_of
from ..watch import timed
from ..workers import SYMBOL, exposed
from .emit import MEMORY, PROGRAM, SHARE, emit, header_bytes
from .graph import NotStraightError
from .objects import WORTHWHILE, DividedProgram, Kept
from .planning import Plan, plan
from .sharing import least_saving

__all__ = ["Kept", "NotStraightError", "Program", "compile_programs"]


@dataclass(frozen=True)
class Program:
    """The executable, which contains `program`; the weights, all constants of the model; and its memory layout.

    live: bytes of feature maps and scratch buffers in memory while each kernel of the model runs
    """

    executable: Any  # of TVM, or a DividedProgram; None where none was wanted
    weights: np.ndarray
    layout: Layout
    live: list[int]


def compile_programs(
    mods: Sequence[IRModule], target: Target, asked: bool, kept: Kept | None = None, code: bool = True, states: int = 0
) -> list[Program]:
    """Lowered modules as one program each, over the same weights, and with their states at the same places. Raises
    NotStraightError if a graph does not allow that.

    asked: whether the target's number of threads was asked for, see `sharing`
    kept: where the kernels' code is kept if the program is linked at once
    code: whether machine code is generated; otherwise the programs have no executable
    states: how many of the last inputs are states
    """
    saving, meeting = least_saving(target, asked), sharing_of(target).meeting
    plans = plan(mods, target, header_bytes, saving, meeting, states=states)
    weights = plans[0].constants.array()
    return [
        Program(_coded(one, target, kept) if code else None, weights, one.layout, one.live)  # all share one array
        for one in plans
    ]


def _coded(planned: Plan, target: Target, kept: Kept | None) -> Any:
    layout = planned.layout
    program = emit(planned.graph, planned.kernels, planned.scratch, layout.workspace, layout.weights, target)
    return _executable(program, target, kept)


def _executable(program: IRModule, target: Target, kept: Kept | None) -> Any:
    target = generating(target)
    called = {
        var: function
        for var, function in program.functions_items()
        if var.name_hint not in (SHARE, *_EXPORTED) and SYMBOL not in function.attrs
    }
    if kept is None or len(called) < WORTHWHILE:
        return timed("machine code", lambda: tvm.compile(program, target, tir_pipeline=PIPELINE))
    return DividedProgram(program, called, target, PIPELINE, kept)


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

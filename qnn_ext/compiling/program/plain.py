"""A program as ordinary C functions in an object file, which needs neither TVM's runtime nor a C library.

`PREFIX_run(workspace, weights, launcher)` runs the model on the calling thread. Where work is worth sharing out it
calls `LAUNCH(launcher, segment)`, which the caller of the code provides: that has `PREFIX_segment(workspace, weights,
segment, task, tasks)` called for every task, in any order and on any threads, and returns when all are done. So a task
never waits for another one, and any thread pool will do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.target import Target
from tvm.tirx.build import codegen_build

from ...errors import QnnError
from ...processes.apart import Crashed, apart
from ...running.model import Layout, target_name
from ...targets.backend import THREADS, threads_of
from ...targets.elf import Object
from ...targets.features import backend_of, generating, sharing_of
from ...targets.names import description_of
from ..workers import SYMBOL, exposed
from .barriers import barriers
from .emit import HEADER, INT, Call, Emitter, below, calls_of, in_a_row, int32, is_parallel
from .graph import Graph
from .planning import plan
from .storage import Loop, aligned


@dataclass(frozen=True)
class PlainProgram:
    """A model's code for one target. shared: whether it calls `launch`, for parts that several threads can share."""

    code: bytes
    weights: np.ndarray
    layout: Layout
    shared: bool


def compile_plain(
    mod: IRModule, target: Target, prefix: str, launch: str, threads: int = 1, lent: int = 0, states: int = 0
) -> PlainProgram:
    """A lowered module as functions whose names start with `prefix`. Raises NotStraightError if it cannot be one
    function, and LimitError.

    launch:  the name of the function that it calls to share out work
    threads: the most tasks of a segment, no more than the module was lowered for
    lent:    how many of the inputs a call may overwrite
    states:  how many of the last inputs are states that may be updated in their own memory
    """
    attributes = {**description_of(target), THREADS: min(threads, threads_of(target.attrs))}
    target = Target(attributes)
    started = sharing_of(target).launch  # each segment is a launch of its own
    (planned,) = plan([mod], target, plain_header_bytes, started, started, lent=lent, states=states)
    layout = planned.layout
    calls, functions = calls_of(planned.graph, planned.kernels, planned.scratch)
    emitter = _PlainEmitter(calls, layout.workspace, layout.weights, target)
    module = emitter.plain_module(functions, prefix, launch)
    return PlainProgram(object_of(module, target), planned.constants.array(), layout, emitter.shared)


def plain_header_bytes(graph: Graph, _: Target) -> int:
    """Bytes at the start of the workspace: `HEADER` for the caller, then the rounds of the loops that are running."""
    loops = {loop for step in graph.steps if step.loop is not None for loop in step.loop.path}
    return aligned(HEADER + 8 * len(loops))


def data_object(path: Path, symbol: str, target: Target) -> bytes:
    """An object file with the bytes of a file as constants that start at a symbol."""
    quoted = str(path.absolute()).replace("\\", "\\\\").replace('"', '\\"')
    lines = [
        '.section .rodata,"a",%progbits',
        f".balign {HEADER}",
        f".globl {symbol}",
        f".type {symbol}, %object",
        f"{symbol}:",
        f'.incbin "{quoted}"',
        f".size {symbol}, . - {symbol}",
        ".text",
    ]
    assembly = "\n".join(f'module asm "{_in_llvm(line)}"' for line in lines)
    body = tirx.AttrStmt(0, "pragma_import_llvm", assembly, tirx.Evaluate(0))
    function = _exposed_function([], [body], f"{symbol}_object")  # code generation wants one
    return object_of(
        tirx.transform.BindTarget(target.with_host(target))(IRModule({ir.GlobalVar("data"): function})), target
    )


def _in_llvm(text: str) -> str:
    """A string as LLVM's assembly quotes it."""
    return "".join(c if c.isprintable() and c not in '"\\' else "".join(f"\\{b:02x}" for b in c.encode()) for c in text)


_UNWINDER = "__aeabi_unwind_cpp_pr0"
"""What 32-bit ARM's tables for exceptions name, and what brings C++'s unwinder into a program; no code calls it."""


def object_of(module: IRModule, target: Target) -> bytes:
    """The object file of flat functions. Raises QnnError if LLVM dies of them."""
    passes, finish, _ = tirx.get_tir_pipeline(PIPELINE)
    with target, tempfile.TemporaryDirectory(prefix="qnn-ext-") as folder:
        lowered = finish()(passes(module))
        path = Path(folder) / "code.o"

        def generated() -> bytes:
            codegen_build(lowered, generating(target)).write_to_file(str(path), "o")
            return path.read_bytes()

        try:
            content = apart(generated)
        except Crashed as error:
            raise QnnError(_crash(target, error)) from None
    return Object(content).without_need_of(_UNWINDER)


def _crash(target: Target, error: Crashed) -> str:
    attributes = description_of(target)
    said = [line for line in error.said.splitlines() if "LLVM ERROR" in line]
    how = f"{error.how}: {said[-1].strip()}" if said else error.how
    return (
        f"LLVM crashed ({how}) when it generated the code for {target_name(attributes)}: please report this model; "
        f"code for fewer features, as of {backend_of(target).baseline}, may do until then"
    )


def _exposed_function(params: Sequence[tirx.Var], body: Sequence[tirx.Stmt], symbol: str) -> tirx.PrimFunc:
    attrs = ir.make_node("ir.DictAttrs", **{SYMBOL: symbol, "tirx.noalias": True})
    return tirx.PrimFunc([*params], tirx.SeqStmt([*body, tirx.Return(int32(0))]), INT, attrs=attrs)


def _with_name(kernel: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    """A kernel whose function in the object file has a name that tells it from others."""

    def named(stmt: tirx.AttrStmt) -> tirx.AttrStmt:
        return tirx.AttrStmt(stmt.node, stmt.attr_key, name, stmt.body) if stmt.attr_key == "compute_scope" else stmt

    return kernel.with_body(tvm_ffi.structural_map(kernel.body, (tirx.AttrStmt, named)))


class _PlainEmitter(Emitter):
    """Writes what the calling thread does into one function, and the segments that it shares out into another."""

    def plain_module(self, functions: dict[ir.GlobalVar, tirx.PrimFunc], prefix: str, launch: str) -> IRModule:
        """The functions of a program, and what they call."""
        self.shared, self._threaded = self._threaded, False  # nobody meets: segments end before anything else starts
        self._launch_symbol, self._launcher = launch, tirx.Var("launcher", "handle")
        self._segments: list[list[Call]] = []
        self._places: dict[Loop, int] = {}  # of the rounds of loops, among the words of the header
        functions = {var: _with_name(function, var.name_hint) for var, function in functions.items()}
        added = {ir.GlobalVar("plain_run"): self._run_function(f"{prefix}_run")}
        if self.shared:
            added[ir.GlobalVar("plain_segment")] = self._segment_function(f"{prefix}_segment")
        return tirx.transform.BindTarget(self._target.with_host(self._target))(IRModule({**functions, **added}))

    def _run_function(self, symbol: str) -> tirx.PrimFunc:
        pointers, declared = self._memory_of()
        self._divided = False
        statements = self._divide(self._statements())
        counters = [tirx.AllocBuffer(counter) for counter in self._counters.values()]
        return _exposed_function([*pointers, self._launcher], [*declared, *counters, *statements], symbol)

    def _segment_function(self, symbol: str) -> tirx.PrimFunc:
        pointers, declared = self._memory_of()
        index = tirx.Var("segment", "int32")
        self._numbers = {loop: self._stamps[int32(place)] for loop, place in self._places.items()}
        cases = [
            tirx.IfThenElse(tirx.EQ(index, int32(number)), in_a_row([self._own_share(call) for call in calls]), None)
            for number, calls in enumerate(self._segments)
        ]
        return _exposed_function([*pointers, index, self._task, self._tasks], [*declared, *cases], symbol)

    def _own_share(self, call: Call) -> tirx.Stmt:
        args = [*map(self._address, call.storages), self._task, self._tasks, self._task]
        return tirx.Evaluate(ir.Call(call.symbol, args, ret_ty=INT))

    def _measuring(self, stmt: tirx.Stmt) -> list[tirx.Stmt]:
        return []

    def _run(self, calls: Sequence[Call], loop: Loop | None) -> Iterator[tirx.Stmt]:
        """Calls within `loop`. Segments read the number of its rounds from the workspace."""
        if loop is not None and is_parallel(calls):
            place = self._places.setdefault(loop, HEADER // 8 + len(self._places))
            yield tirx.BufferStore(self._stamps, self._numbers[loop], [int32(place)])
        for inner, group in groupby(calls, lambda call: below(call.loop, loop)):
            if inner is not None:
                yield from self._repeat(inner, list(group), False)
                continue
            for parallel, run in groupby(group, lambda call: call.access.parallel):
                some = [call for call in run if call.phase is not None]
                yield from self._shared_out(some) if parallel else map(self._called, some)

    def _called(self, call: Call) -> tirx.Stmt:
        return tirx.Evaluate(ir.Call(call.symbol, [*map(self._address, call.storages)], ret_ty=INT))

    def _shared_out(self, calls: Sequence[Call]) -> Iterator[tirx.Stmt]:
        """Parallel calls in segments, one for those that need not wait for each other."""
        for call, meet in zip(calls, barriers([call.access for call in calls]), strict=True):
            if meet or call is calls[0]:
                self._segments.append([])
                number = int32(len(self._segments) - 1)
                yield tirx.Evaluate(tirx.call_extern("int32", self._launch_symbol, self._launcher, number))
            self._segments[-1].append(call)


PIPELINE = "qnn_ext_plain"
"""TVM's name for the remaining lowering of a plain program."""


@tirx.transform.prim_func_pass(opt_level=0)
def _expose(function: tirx.PrimFunc, _mod: IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    return exposed(function)


@tirx.transform.prim_func_pass(opt_level=0)
def _hide(function: tirx.PrimFunc, _mod: IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    return function.without_attr("global_symbol").without_attr("tirx.is_entry_func")


def _pipeline() -> tuple:
    passes = [_hide, tirx.transform.SplitHostDevice(), tirx.transform.MakePackedAPI(), _expose]
    _, host, device = tirx.get_tir_pipeline("default")
    return tvm.transform.Sequential(passes), host, device


tirx.compilation_pipeline.register_tir_pipeline(PIPELINE, _pipeline)

"""The program: one function that runs all kernels of a model over one workspace, on one or several threads.

`program(workspace, weights, tasks, profile)` calls `share(…, task, tasks)` for every task, through TVM's thread pool if
there are several. Each share runs its part of every kernel and waits at the barriers from `barriers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import IRModule, ir, tirx
from tvm.target import Target

from ...targets.backend import threads_of
from ...targets.features import backend_of
from .barriers import Access, Range, barriers
from .graph import Graph, Step, Storage
from .memory import aligned
from .phases import Kernel, Phase, pointer_var
from .support import BARRIER, CLOCK, support_ir

PROGRAM = "program"
"""Name of the function in the library."""

MEMORY = "program_memory"
"""Name of the function that returns the sizes `program` was compiled for: `program_memory(int64[2])` writes the bytes
of workspace and weights. `artifact` compares them with a file's description."""

HEADER = 64
"""Bytes before the time stamps: the barrier's counter has its own cache line."""

MANY = 1 << 12  # more than any number of threads
TOGETHER = 256  # statements per function: LLVM's time grows with their square
INT = ir.PrimType("int32")


@dataclass(frozen=True)
class Call:
    """One phase of one step, with the storages of its pointers; `first`: it starts a kernel. A kernel with nothing left
    to do has one call without a phase."""

    symbol: ir.GlobalVar | None
    phase: Phase | None
    storages: tuple[Storage, ...]
    access: Access
    first: bool


def header_bytes(steps: int) -> int:
    """Bytes at the start of the workspace: the barrier's counter, then the times before each step and at the end."""
    return aligned(HEADER + 8 * (steps + 1))


def scratch_storages(graph: Graph, kernels: Mapping[ir.GlobalVar, Kernel]) -> list[list[Storage]]:
    """For each step, the storages of its kernel's scratch buffers."""
    return [
        [Storage(size, first=index, last=index) for size in kernels[step.kernel].scratch]
        for index, step in enumerate(graph.steps)
    ]


def emit(
    graph: Graph,
    kernels: Mapping[ir.GlobalVar, Kernel],
    scratch: Sequence[Sequence[Storage]],
    workspace: int,
    weights: int,
    target: Target,
) -> IRModule:
    """The program of a planned graph as flat functions, `program` and what it calls."""
    functions: dict[ir.GlobalVar, tirx.PrimFunc] = {}
    symbols: dict[tuple[ir.GlobalVar, int], ir.GlobalVar] = {}
    for var, kernel in kernels.items():
        for index, phase in enumerate(kernel.phases):
            name = var.name_hint if len(kernel.phases) == 1 else f"{var.name_hint}_part{index}"
            symbols[var, index] = ir.GlobalVar(name)
            functions[symbols[var, index]] = phase.function
    calls = [
        call for step, extra in zip(graph.steps, scratch, strict=True) for call in _calls(step, extra, kernels, symbols)
    ]
    return _Emitter(calls, workspace, weights, target).module(functions)


def _calls(
    step: Step,
    scratch: Sequence[Storage],
    kernels: Mapping[ir.GlobalVar, Kernel],
    symbols: Mapping[tuple[ir.GlobalVar, int], ir.GlobalVar],
) -> Iterator[Call]:
    storages = [*step.reads, *step.writes, *scratch]
    written = {*step.writes, *scratch}
    for index, phase in enumerate(kernels[step.kernel].phases):
        used = [storages[pointer] for pointer in phase.pointers]
        reads = tuple(_range(storage) for storage in used if storage.array is None)
        writes = tuple(_range(storage) for storage in used if storage in written)
        access = Access(phase.parallel, reads, writes)
        yield Call(symbols[step.kernel, index], phase, tuple(used), access, index == 0)
    if not kernels[step.kernel].phases:
        yield Call(None, None, (), Access(False, (), ()), True)


def _range(storage: Storage) -> Range:
    return storage.offset, storage.offset + storage.size


def _int32(value: int) -> tirx.IntImm:
    return tirx.IntImm("int32", value)


def _in_a_row(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    return tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]


class _Emitter:
    def __init__(self, calls: Sequence[Call], workspace: int, weights: int, target: Target) -> None:
        self._calls = calls
        self._threaded = any(call.phase is not None and call.phase.parallel for call in calls)
        self._sizes = workspace, weights
        self._target = target
        self._most_tasks = threads_of(target.attrs)

    def module(self, functions: dict[ir.GlobalVar, tirx.PrimFunc]) -> IRModule:
        share, program = ir.GlobalVar("share"), ir.GlobalVar(PROGRAM)
        functions = {**functions, share: self._share(), program: self._program(share)}
        functions[ir.GlobalVar(MEMORY)] = self._memory()
        return tirx.transform.BindTarget(self._target.with_host(self._target))(IRModule(functions))

    # ---- what one task does --------------------------------------------------------------------------------------

    def _share(self) -> tirx.PrimFunc:
        """All statements; those of a long program are divided into consecutive functions."""
        pointers = [pointer_var(name, "uint8") for name in ("workspace_p", "weights_p")]
        names = zip(("workspace", "weights"), self._sizes, strict=True)
        self._bytes = [tirx.decl_buffer((size,), "uint8", name, layout=None) for name, size in names]
        self._stamps = tirx.decl_buffer((HEADER // 8 + self._steps + 1,), "int64", "stamps", layout=None)
        self._task, self._tasks, self._profile = (tirx.Var(name, "int32") for name in ("task", "tasks", "profile"))
        declared = [tirx.DeclBuffer(buffer, data=p) for buffer, p in zip(self._bytes, pointers, strict=True)]
        declared.append(tirx.DeclBuffer(self._stamps, data=pointers[0]))
        statements = list(self._statements())
        attributes: dict[str, Any] = {}
        if len(statements) > TOGETHER:
            parts = (statements[start : start + TOGETHER] for start in range(0, len(statements), TOGETHER))
            statements = [tirx.AttrStmt(0, "compute_scope", "share_part", _in_a_row(part)) for part in parts]
            attributes = {"tirx.noalias": True}  # without it LLVM would merge the parts again
        body = tirx.SeqStmt([*declared, *statements, tirx.Return(_int32(0))])
        params = [*pointers, self._task, self._tasks, self._profile]
        return tirx.PrimFunc(params, body, INT, attrs=ir.make_node("ir.DictAttrs", **attributes))

    @property
    def _steps(self) -> int:
        return sum(call.first for call in self._calls)

    def _statements(self) -> Iterator[tirx.Stmt]:
        step = 0
        for call, meet in zip(self._calls, barriers([call.access for call in self._calls]), strict=True):
            if meet:
                yield self._meet()
            if call.first:
                yield tirx.IfThenElse(self._profile > 0, self._stamp(step), None)
                step += 1
            if call.phase is not None:
                yield self._call(call, call.phase)
        last = [self._meet(), self._stamp(step)] if self._threaded else [self._stamp(step)]
        yield tirx.IfThenElse(self._profile > 0, _in_a_row(last), None)

    def _call(self, call: Call, phase: Phase) -> tirx.Stmt:
        args: list[Any] = [self._address(storage) for storage in call.storages]
        if phase.parallel:
            return tirx.Evaluate(ir.Call(call.symbol, [*args, self._task, self._tasks], ret_ty=INT))
        run = tirx.Evaluate(ir.Call(call.symbol, args, ret_ty=INT))
        return tirx.IfThenElse(tirx.EQ(self._task, _int32(0)), run, None) if self._threaded else run

    def _address(self, storage: Storage) -> ir.Expr:
        buffer = self._bytes[0 if storage.array is None else 1]
        return tirx.address_of(buffer[tirx.IntImm("int64", storage.offset)])

    def _meet(self) -> tirx.Stmt:
        counter = tirx.address_of(self._bytes[0][tirx.IntImm("int64", 0)])
        return tirx.Evaluate(tirx.call_extern("void", BARRIER, counter, self._tasks))

    def _stamp(self, index: int) -> tirx.Stmt:
        now = tirx.call_extern("int64", CLOCK)
        store = tirx.BufferStore(self._stamps, now, [_int32(HEADER // 8 + index)])
        return tirx.IfThenElse(tirx.EQ(self._task, _int32(0)), store, None)

    # ---- all tasks -----------------------------------------------------------------------------------------------

    def _program(self, share: ir.GlobalVar) -> tirx.PrimFunc:
        workspace, weights = (tirx.Var(name, "handle") for name in ("workspace", "weights"))
        tasks, profile = tirx.Var("tasks", "int32"), tirx.Var("profile", "int32")
        counter = tirx.decl_buffer((1,), "int32", "counter", layout=None)

        def run(task: Any, count: Any) -> tirx.Stmt:
            return tirx.Evaluate(ir.Call(share, [workspace, weights, task, count, profile], ret_ty=INT))

        alone = run(_int32(0), _int32(1))
        body: tirx.Stmt = alone
        if self._threaded:
            body = tirx.SeqStmt(
                [
                    tirx.DeclBuffer(counter, data=workspace),
                    tirx.BufferStore(counter, _int32(0), [_int32(0)]),
                    tirx.IfThenElse(tirx.EQ(tasks, _int32(1)), alone, self._launch(run)),
                ]
            )
        body = tirx.AttrStmt(0, "pragma_import_llvm", self._support(), body)
        attrs = {"global_symbol": PROGRAM, "tirx.noalias": True}
        return tirx.PrimFunc([workspace, weights, tasks, profile], body, attrs=ir.make_node("ir.DictAttrs", **attrs))

    def _memory(self) -> tirx.PrimFunc:
        result = tirx.Var("result", "handle")
        sizes = tirx.decl_buffer((2,), "int64", "sizes", layout=None)
        stores = [
            tirx.BufferStore(sizes, tirx.IntImm("int64", size), [_int32(index)])
            for index, size in enumerate(self._sizes)
        ]
        body = tirx.SeqStmt([tirx.DeclBuffer(sizes, data=result), *stores])
        attrs = {"global_symbol": MEMORY, "tirx.noalias": True}
        return tirx.PrimFunc([result], body, attrs=ir.make_node("ir.DictAttrs", **attrs))

    def _launch(self, run: Any) -> tirx.Stmt:
        """Every task of TVM's thread pool runs its share; tasks beyond the program's maximum do nothing.

        In TIR a task knows neither its number nor how many were launched. But a strided parallel loop starts at the one
        and steps by the other, so the last index it reaches and its number of iterations give both: with two extents,
        there are two equations last = task + tasks * (count - 1). LLVM turns the two loops into four formulas.
        """
        seen = tirx.decl_buffer((4,), "int32", "seen", layout=None)
        body: list[tirx.Stmt] = [tirx.AllocBuffer(seen)]
        body += [tirx.BufferStore(seen, _int32(0), [_int32(i)]) for i in range(4)]
        for last, extent in ((0, MANY), (2, 2 * MANY)):
            index, count = tirx.Var("index", "int32"), last + 1
            note = [
                tirx.BufferStore(seen, index, [_int32(last)]),
                tirx.BufferStore(seen, seen[_int32(count)] + 1, [_int32(count)]),
            ]
            body.append(tirx.For(index, _int32(0), _int32(extent), tirx.ForKind.PARALLEL, tirx.SeqStmt(note)))
        launched, task = tirx.Var("launched", "int32"), tirx.Var("task", "int32")
        last, count, last2, count2 = (seen[_int32(i)] for i in range(4))
        body.append(tirx.Bind(launched, tirx.truncdiv(last2 - last, count2 - count)))
        body.append(tirx.Bind(task, last - launched * (count - 1)))
        most = _int32(self._most_tasks)
        body.append(tirx.IfThenElse(task < most, run(task, tirx.min(launched, most)), None))
        stmt: tirx.Stmt = tirx.SeqStmt(body)
        for pragma in ("pragma_parallel_stride_pattern", "pragma_parallel_launch_point"):
            stmt = tirx.AttrStmt(0, pragma, _int32(1), stmt)
        return stmt

    def _support(self) -> str:
        triple = str(self._target.attrs.get("mtriple", ""))
        return support_ir(backend_of(self._target), "windows" in triple)

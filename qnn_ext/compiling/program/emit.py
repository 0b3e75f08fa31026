"""The program: one function that runs all kernels of a model over one workspace, on one or several threads.

`program(workspace, weights, tasks, profile)` calls `share(…, task, tasks)` for every task, through TVM's thread pool if
there are several. Each share runs its part of every kernel and waits at the barriers from `barriers`. Long phases have
more parts than there are tasks: a task that is done takes over parts of others, whose cores may be slower or busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tvm import IRModule, ir, tirx
from tvm.target import Target

from ...targets.backend import threads_of
from ...targets.features import backend_of, sharing_of
from ..workers import system_of, use_workers
from .barriers import Access, Range, barriers
from .graph import Graph, Step
from .phases import IMPORT, Kernel, Phase, pointer_var
from .storage import Loop, Storage, Where, aligned, path_of
from .support import CLAIM, CLAIMS, CLOCK, MEET, clock_ir, support_functions

PROGRAM = "program"
"""Name of the function in the library."""

SHARE = "share"
"""Name of the function that does one task's share."""

MEMORY = "program_memory"
"""Name of the function that returns the sizes `program` was compiled for: `program_memory(int64[2])` writes the bytes
of workspace and weights. `artifact` compares them with a file's description."""

HEADER = 64
"""Bytes before the time stamps: the barrier's counters, of arrivals and of sleepers, have their own cache line."""

PARTS = 8
"""The most parts of a phase for each task."""

MANY = 1 << 12  # more than any number of threads
TOGETHER = 512  # statements per function: LLVM's time grows with their square, but it merges shorter ones again
INT = ir.PrimType("int32")


@dataclass(frozen=True)
class Call:
    """One phase of one step, with the storages of its pointers; `first`: it starts a kernel of the model. A kernel with
    nothing left to do has one call without a phase. loop: the innermost loop that it is in."""

    symbol: ir.GlobalVar | None
    phase: Phase | None
    storages: tuple[Storage, ...]
    access: Access
    first: bool
    loop: Loop | None


def header_bytes(graph: Graph, target: Target) -> int:
    """Bytes at the start of the workspace: the barrier's counter, then the times before each kernel and at the end.
    With loops, also the time that each kernel took so far, and when the last one ended. Then the claims of all tasks.
    """
    return _claims_start(graph) + CLAIMS * threads_of(target.attrs)


def _claims_start(graph: Graph) -> int:
    kernels = graph.kernels
    sums = len(kernels) + 1 if any(step.loop for step in kernels) else 0
    return aligned(HEADER + 8 * (len(kernels) + 1 + sums))


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
    calls, functions = calls_of(graph, kernels, scratch)
    return Emitter(calls, workspace, weights, target).module(functions, _claims_start(graph))


def calls_of(
    graph: Graph, kernels: Mapping[ir.GlobalVar, Kernel], scratch: Sequence[Sequence[Storage]]
) -> tuple[list[Call], dict[ir.GlobalVar, tirx.PrimFunc]]:
    """The calls of a planned graph, in order, and the functions that they call."""
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
    return calls, functions


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
        yield Call(symbols[step.kernel, index], phase, tuple(used), access, index == 0 and not step.own, step.loop)
    if not kernels[step.kernel].phases:
        yield Call(None, None, (), Access(False, (), ()), True, step.loop)


def _range(storage: Storage) -> Range:
    """The bytes that a storage takes, in some round."""
    if storage.moves:
        storage, _ = storage.root
    return storage.offset, storage.offset + storage.size


def int32(value: int) -> tirx.IntImm:
    return tirx.IntImm("int32", value)


def int64(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)


def below(loop: Loop | None, outer: Loop | None) -> Loop | None:
    """The loop directly in `outer` that a call in `loop` is in; None if it is in none."""
    path = path_of(loop)[len(path_of(outer)) :]
    return path[0] if path else None


def is_parallel(calls: Iterable[Call]) -> bool:
    return any(call.access.parallel for call in calls)


def _access(calls: Sequence[Call]) -> Access:
    """How calls access memory together."""
    reads = dict.fromkeys(one for call in calls for one in call.access.reads)
    writes = dict.fromkeys(one for call in calls for one in call.access.writes)
    return Access(is_parallel(calls), tuple(reads), tuple(writes))


def in_a_row(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    return tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]


class Emitter:
    """Writes a list of calls as functions."""

    def __init__(self, calls: Sequence[Call], workspace: int, weights: int, target: Target) -> None:
        self._calls = calls
        self._threaded = any(call.phase is not None and call.phase.parallel for call in calls)
        self._sizes = workspace, weights
        self._target = target
        self._most_tasks = threads_of(target.attrs)
        self._task, self._tasks, self._profile = (tirx.Var(name, "int32") for name in ("task", "tasks", "profile"))
        self._claimed = self._most_claimed = 0  # phases in parts since the last barrier, and at most
        self._counters: dict[Loop, tirx.Var] = {}
        self._numbers: dict[Loop, Any] = {}
        self._support = {name: ir.GlobalVar(name) for name in (MEET, CLAIM)}

    def module(self, functions: dict[ir.GlobalVar, tirx.PrimFunc], claims: int) -> IRModule:
        """The program's functions. claims: where those of all tasks are in the workspace"""
        self._claims = claims
        share, program = ir.GlobalVar(SHARE), ir.GlobalVar(PROGRAM)
        functions = {**functions, share: self._share(), program: self._program(share)}
        functions[ir.GlobalVar(MEMORY)] = self._memory()
        if self._threaded:
            added = support_functions(backend_of(self._target), system_of(self._target))
            functions.update((self._support[name], function) for name, function in added.items())
            functions.update(use_workers(self._target))
        return tirx.transform.BindTarget(self._target.with_host(self._target))(IRModule(functions))

    # ---- what one task does --------------------------------------------------------------------------------------

    def _share(self) -> tirx.PrimFunc:
        """All statements; those of a long program are divided into consecutive functions."""
        pointers, declared = self._memory_of()
        self._divided = False
        statements = self._divide(self._statements())
        # without it LLVM would merge the parts again
        attributes: dict[str, Any] = {"tirx.noalias": True} if self._divided else {}
        counters = [tirx.AllocBuffer(counter) for counter in self._counters.values()]
        body = tirx.SeqStmt([*declared, *counters, *statements, tirx.Return(int32(0))])
        params = [*pointers, self._task, self._tasks, self._profile]
        return tirx.PrimFunc(params, body, INT, attrs=ir.make_node("ir.DictAttrs", **attributes))

    def _memory_of(self) -> tuple[list[tirx.Var], list[tirx.Stmt]]:
        """The parameters that a function starts with, addresses of workspace and weights, and their declarations."""
        pointers = [pointer_var(name, "uint8") for name in ("workspace_p", "weights_p")]
        names = zip(("workspace", "weights"), self._sizes, strict=True)
        self._bytes = [tirx.decl_buffer((size,), "uint8", name, layout=None) for name, size in names]
        self._stamps = tirx.decl_buffer((HEADER // 8 + 2 * self._steps + 2,), "int64", "stamps", layout=None)
        declared = [tirx.DeclBuffer(buffer, data=p) for buffer, p in zip(self._bytes, pointers, strict=True)]
        return pointers, [*declared, tirx.DeclBuffer(self._stamps, data=pointers[0])]

    @property
    def _steps(self) -> int:
        return sum(call.first for call in self._calls)

    def _divide(self, statements: Sequence[tirx.Stmt]) -> list[tirx.Stmt]:
        """Statements that LLVM can take in reasonable time; loops remain where they are."""
        if len(statements) <= TOGETHER:
            return list(statements)
        self._divided = True
        result: list[tirx.Stmt] = []
        for is_loop, group in groupby(statements, lambda stmt: isinstance(stmt, (tirx.For, tirx.While))):
            run = list(group)
            if is_loop:
                result += run
                continue
            parts = (run[start : start + TOGETHER] for start in range(0, len(run), TOGETHER))
            result += [tirx.AttrStmt(0, "compute_scope", "share_part", in_a_row(part)) for part in parts]
        return result

    def _statements(self) -> list[tirx.Stmt]:
        self._step = 0
        statements = list(self._run(self._calls, None))
        if self._threaded:  # TVM, which waits for all tasks too, yields without end
            statements.append(self._meet())
        return [*statements, *self._measuring(self._stamp(self._step))]

    def _run(self, calls: Sequence[Call], loop: Loop | None) -> Iterator[tirx.Stmt]:
        """Calls within `loop`, those in loops inside of it as well. A loop with parallel phases starts and ends every
        round with all tasks together."""
        units = [(inner, list(group)) for inner, group in groupby(calls, lambda call: below(call.loop, loop))]
        straight: list[tuple[Loop | None, list[Call]]] = []
        for inner, group in units:
            if inner is not None and is_parallel(group):
                yield from self._straight(straight)
                straight = []
                yield self._meet()
                yield from self._repeat(inner, group, True)
            else:
                straight += [(None, [call]) for call in group] if inner is None else [(inner, group)]
        yield from self._straight(straight)

    def _straight(self, units: Sequence[tuple[Loop | None, list[Call]]]) -> Iterator[tirx.Stmt]:
        """Calls, and loops that only the first task runs, with the barriers that they need."""
        for (loop, calls), meet in zip(units, barriers([_access(calls) for _, calls in units]), strict=True):
            if meet:
                yield self._meet()
            if loop is not None:
                yield from self._repeat(loop, calls, False)
                continue
            (call,) = calls
            if call.first:
                yield from self._measuring(self._begin(call.loop))
                self._step += 1
            if call.phase is not None:
                yield self._call(call, call.phase)

    # ---- loops ---------------------------------------------------------------------------------------------------

    def _repeat(self, loop: Loop, calls: Sequence[Call], parallel: bool) -> Iterator[tirx.Stmt]:
        """A loop over calls, and what measures their time."""
        first = self._step
        count = sum(call.first for call in calls)
        if loop.outer is None and count:
            yield from self._measuring(self._alone(self._clear_sums(first, count)))
        body: list[tirx.Stmt] = []
        number: Any = tirx.Var("round", "int64")
        if loop.condition is not None:
            self._counters[loop] = tirx.decl_buffer((1,), "int64", "rounds", layout=None)
            number = self._counters[loop][int32(0)]
            yield tirx.BufferStore(self._counters[loop], int64(0), [int32(0)])
        self._numbers[loop] = number
        body += self._run(calls, loop)
        if count:
            body += self._measuring(self._alone(self._add_time(self._step - 1)))
        if loop.condition is not None:
            body.append(tirx.BufferStore(self._counters[loop], number + int64(1), [int32(0)]))
        if parallel:
            body.append(self._meet())
        # The last one stays in this function: the loop's own end, which follows it, takes its debug location.
        stmt = in_a_row([*self._divide(body[:-1]), *body[-1:]])
        if loop.condition is None:
            stmt = tirx.For(number, int64(0), int64(loop.trips), tirx.ForKind.SERIAL, stmt)
        else:
            going = self._bytes[0][int64(loop.condition.offset) + self._moved(loop, Where.OLD, aligned(1))]
            stmt = tirx.While(tirx.all(number < int64(loop.trips), going != tirx.IntImm("uint8", 0)), stmt)
        yield stmt if parallel else self._alone(stmt)
        if loop.outer is None and count:
            yield from self._measuring(self._alone(self._stamps_from_sums(first, count)))

    def _moved(self, loop: Loop, where: Where, stride: int) -> ir.Expr:
        """The bytes by which something moves after the rounds of a loop that were completed."""
        number = self._numbers[loop]
        if where in (Where.FORWARDS, Where.BACKWARDS):
            return (number if where is Where.FORWARDS else int64(loop.trips - 1) - number) * int64(stride)
        if where is Where.NEW:
            number = number + int64(1)
        return tirx.bitwise_and(number, int64(1)) * int64(stride)

    def _alone(self, stmt: tirx.Stmt) -> tirx.Stmt:
        """What only the first task does."""
        return tirx.IfThenElse(tirx.EQ(self._task, int32(0)), stmt, None) if self._threaded else stmt

    # ---- the time that kernels take ------------------------------------------------------------------------------

    def _measuring(self, stmt: tirx.Stmt) -> list[tirx.Stmt]:
        """What is done only where times are wanted."""
        return [tirx.IfThenElse(self._profile > 0, stmt, None)]

    def _begin(self, loop: Loop | None) -> tirx.Stmt:
        """The time stamp before a kernel; in a loop, the time since the last one goes to the kernel before."""
        if loop is None:
            return self._stamp(self._step)
        return self._alone(self._add_time(max(self._step - 1, 0)))

    def _sum(self, index: int) -> int:
        """Where the time that a kernel took so far is among the stamps; after those of all kernels, the last time."""
        return HEADER // 8 + self._steps + 1 + index

    def _clear_sums(self, first: int, count: int) -> tirx.Stmt:
        sums = [tirx.BufferStore(self._stamps, int64(0), [int32(self._sum(first + i))]) for i in range(count)]
        now = tirx.Var("now", "int64")
        places = (HEADER // 8 + first, self._sum(self._steps))
        stores = [tirx.BufferStore(self._stamps, now, [int32(place)]) for place in places]
        return tirx.SeqStmt([*sums, tirx.Bind(now, tirx.call_extern("int64", CLOCK)), *stores])

    def _add_time(self, kernel: int) -> tirx.Stmt:
        now, place, last = tirx.Var("now", "int64"), int32(self._sum(kernel)), int32(self._sum(self._steps))
        passed = self._stamps[place] + (now - self._stamps[last])
        return tirx.SeqStmt(
            [
                tirx.Bind(now, tirx.call_extern("int64", CLOCK)),
                tirx.BufferStore(self._stamps, passed, [place]),
                tirx.BufferStore(self._stamps, now, [last]),
            ]
        )

    def _stamps_from_sums(self, first: int, count: int) -> tirx.Stmt:
        """Time stamps as if each kernel had run once, for as long as it took in all rounds."""
        return in_a_row(
            [
                tirx.BufferStore(
                    self._stamps,
                    self._stamps[int32(HEADER // 8 + kernel)] + self._stamps[int32(self._sum(kernel))],
                    [int32(HEADER // 8 + kernel + 1)],
                )
                for kernel in range(first, first + count)
            ]
        )

    # ---- calls ---------------------------------------------------------------------------------------------------

    def _call(self, call: Call, phase: Phase) -> tirx.Stmt:
        args: list[Any] = [self._address(storage) for storage in call.storages]
        if not phase.parallel:
            return self._alone(tirx.Evaluate(ir.Call(call.symbol, args, ret_ty=INT)))

        def run(part: Any, parts: Any) -> tirx.Stmt:
            return tirx.Evaluate(ir.Call(call.symbol, [*args, part, parts, self._task], ret_ty=INT))

        parts = self._parts(phase)
        return run(self._task, self._tasks) if parts == 1 else self._claiming(run, parts)

    def _parts(self, phase: Phase) -> int:
        """The number of parts of each task; 1 if it does its share of the phase and no more."""
        if self._claimed == CLAIMS // 8:
            return 1
        tasks = self._most_tasks
        long = int(phase.cost / tasks / sharing_of(self._target).part)
        return max(1, min(PARTS, phase.iterations // tasks, long))

    def _claiming(self, run: Callable[[Any, Any], tirx.Stmt], parts: int) -> tirx.Stmt:
        """What one task does of a phase: a part after the other, while there are any."""
        claims = tirx.address_of(self._bytes[0][int64(self._claims + 8 * self._claimed)])
        self._claimed += 1
        self._most_claimed = max(self._most_claimed, self._claimed)
        part = tirx.decl_buffer((1,), "int32", "part", layout=None)
        place = tirx.address_of(part[int32(0)])
        claim = self._supported(CLAIM, self._counter(), claims, self._task, self._tasks, int32(parts), place)
        body = tirx.SeqStmt([run(part[int32(0)], self._tasks * int32(parts)), claim])
        return tirx.SeqStmt([tirx.AllocBuffer(part), claim, tirx.While(part[int32(0)] >= 0, body)])

    def _address(self, storage: Storage) -> ir.Expr:
        buffer = self._bytes[0 if storage.array is None else 1]
        place: ir.Expr = int64(storage.offset)
        for move in storage.moves:
            place = place + self._moved(move.loop, move.where, move.stride)
        return tirx.address_of(buffer[place])

    def _meet(self) -> tirx.Stmt:
        self._claimed = 0
        return self._supported(MEET, self._counter(), self._tasks)

    def _supported(self, name: str, *args: ir.Expr) -> tirx.Stmt:
        return tirx.Evaluate(ir.Call(self._support[name], args, ret_ty=INT))

    def _counter(self) -> ir.Expr:
        """Where the barrier's counters are."""
        return tirx.address_of(self._bytes[0][int64(0)])

    def _stamp(self, index: int) -> tirx.Stmt:
        now = tirx.call_extern("int64", CLOCK)
        store = tirx.BufferStore(self._stamps, now, [int32(HEADER // 8 + index)])
        return tirx.IfThenElse(tirx.EQ(self._task, int32(0)), store, None)

    # ---- all tasks -----------------------------------------------------------------------------------------------

    def _program(self, share: ir.GlobalVar) -> tirx.PrimFunc:
        workspace, weights = (tirx.Var(name, "handle") for name in ("workspace", "weights"))
        tasks, profile = tirx.Var("tasks", "int32"), tirx.Var("profile", "int32")
        counter = tirx.decl_buffer((2,), "int32", "counter", layout=None)  # and the number of sleepers

        def run(task: Any, count: Any) -> tirx.Stmt:
            return tirx.Evaluate(ir.Call(share, [workspace, weights, task, count, profile], ret_ty=INT))

        alone = run(int32(0), int32(1))
        body: tirx.Stmt = alone
        if self._threaded:
            body = tirx.SeqStmt(
                [
                    tirx.DeclBuffer(counter, data=workspace),
                    *(tirx.BufferStore(counter, int32(0), [int32(index)]) for index in range(2)),
                    *self._clear_claims(workspace),
                    tirx.IfThenElse(tirx.EQ(tasks, int32(1)), alone, self._launch(run)),
                ]
            )
        body = tirx.AttrStmt(0, IMPORT, clock_ir(backend_of(self._target)), body)
        attrs = {"global_symbol": PROGRAM, "tirx.noalias": True}
        return tirx.PrimFunc([workspace, weights, tasks, profile], body, attrs=ir.make_node("ir.DictAttrs", **attrs))

    def _clear_claims(self, workspace: tirx.Var) -> list[tirx.Stmt]:
        if not self._most_claimed:
            return []
        first, each = self._claims // 8, CLAIMS // 8
        words = tirx.decl_buffer((first + each * self._most_tasks,), "int64", "words", layout=None)
        task = tirx.Var("task", "int32")
        stores = [tirx.BufferStore(words, int64(-1), [first + task * each + i]) for i in range(self._most_claimed)]
        loop = tirx.For(task, int32(0), int32(self._most_tasks), tirx.ForKind.SERIAL, in_a_row(stores))
        return [tirx.DeclBuffer(words, data=workspace), loop]

    def _memory(self) -> tirx.PrimFunc:
        result = tirx.Var("result", "handle")
        sizes = tirx.decl_buffer((2,), "int64", "sizes", layout=None)
        stores = [
            tirx.BufferStore(sizes, tirx.IntImm("int64", size), [int32(index)])
            for index, size in enumerate(self._sizes)
        ]
        body = tirx.SeqStmt([tirx.DeclBuffer(sizes, data=result), *stores])
        attrs = {"global_symbol": MEMORY, "tirx.noalias": True}
        return tirx.PrimFunc([result], body, attrs=ir.make_node("ir.DictAttrs", **attrs))

    def _launch(self, run: Any) -> tirx.Stmt:
        """Every task that is launched runs its share; tasks beyond the program's maximum do nothing.

        In TIR a task knows neither its number nor how many were launched. But a strided parallel loop starts at the one
        and steps by the other, so the last index it reaches and its number of iterations give both: with two extents,
        there are two equations last = task + tasks * (count - 1). LLVM turns the two loops into four formulas.
        """
        seen = tirx.decl_buffer((4,), "int32", "seen", layout=None)
        body: list[tirx.Stmt] = [tirx.AllocBuffer(seen)]
        body += [tirx.BufferStore(seen, int32(0), [int32(i)]) for i in range(4)]
        for last, extent in ((0, MANY), (2, 2 * MANY)):
            index, count = tirx.Var("index", "int32"), last + 1
            note = [
                tirx.BufferStore(seen, index, [int32(last)]),
                tirx.BufferStore(seen, seen[int32(count)] + 1, [int32(count)]),
            ]
            body.append(tirx.For(index, int32(0), int32(extent), tirx.ForKind.PARALLEL, tirx.SeqStmt(note)))
        launched, task = tirx.Var("launched", "int32"), tirx.Var("task", "int32")
        last, count, last2, count2 = (seen[int32(i)] for i in range(4))
        body.append(tirx.Bind(launched, tirx.truncdiv(last2 - last, count2 - count)))
        body.append(tirx.Bind(task, last - launched * (count - 1)))
        most = int32(self._most_tasks)
        body.append(tirx.IfThenElse(task < most, run(task, tirx.min(launched, most)), None))
        stmt: tirx.Stmt = tirx.SeqStmt(body)
        for pragma in ("pragma_parallel_stride_pattern", "pragma_parallel_launch_point"):
            stmt = tirx.AttrStmt(0, pragma, int32(1), stmt)
        return stmt

"""What makes compiled code run its parallel loops on the threads of `qnn_ext.running.workers`: LLVM IR that takes the
place of TVM's launch, and the exported function that puts it there. Code for other systems than Linux has none of it,
and code that nobody calls that function of runs on TVM's threads.
"""

from __future__ import annotations

import sys
from typing import TypeAlias

from tvm import ir, tirx
from tvm.target import Target

from ..running.workers import ASLEEP, JOB, MOST, OWNERS, SLOT, SLOTS, STATE, USE, WAITING
from ..targets.backend import Backend
from ..targets.features import backend_of

SPINS = 100
"""Spins of a nanosecond each while waiting for a thread that is about to arrive; then `Backend.pauses` with a pause
each. After that the thread probably has no core, so the waiting one gives up its own. On Linux it sleeps: an idle core
takes over threads that wait for another core, and one that wakes up soon runs again, whereas one that yields comes
after a whole turn of whatever else runs there, milliseconds later."""

SYSCALL = "declare {long} @syscall({long}, ...)"
# The operations of futex(2): 128 is FUTEX_WAIT_PRIVATE, which compares and sleeps in one step; 129 FUTEX_WAKE_PRIVATE.
SLEEP = "%slept = call {long} ({long}, ...) @syscall({long} {futex}, ptr {word}, i32 128, i32 {value}, ptr null)"
WAKE = "%woken = call {long} ({long}, ...) @syscall({long} {futex}, ptr {word}, i32 129, i32 2147483647)"

# A word has one writer and one reader. The reader says that it will sleep before it looks at the word for the last
# time, and the writer looks whether it does after it has written, all in one order (seq_cst).
_WORDS = """
define internal void @qnn_await(ptr %word, i32 %value, ptr %asleep) noinline nounwind {{
entry:
  br label %check
check:
  %spin = phi i32 [ 0, %entry ], [ %count, %wait ], [ %count, %pause ], [ {most}, %sleep ]
  %now = load atomic i32, ptr %word acquire, align 4
  %same = icmp eq i32 %now, %value
  br i1 %same, label %wait, label %done
wait:
  %count = add i32 %spin, 1
  %short = icmp ult i32 %count, {spins}
  br i1 %short, label %check, label %longer
longer:
  %brief = icmp ult i32 %count, {most}
  br i1 %brief, label %pause, label %sleep
pause:
  {pause}
  br label %check
sleep:
  store atomic i32 1, ptr %asleep seq_cst, align 4
  {sleep}
  store atomic i32 0, ptr %asleep seq_cst, align 4
  br label %check
done:
  ret void
}}

define internal void @qnn_change(ptr %word, i32 %value, ptr %asleep) nounwind {{
  store atomic i32 %value, ptr %word seq_cst, align 4
  %sleeps = load atomic i32, ptr %asleep seq_cst, align 4
  %awake = icmp eq i32 %sleeps, 0
  br i1 %awake, label %done, label %wake
wake:
  {wake}
  br label %done
done:
  ret void
}}
{declare_pause}
{declare_syscall}
"""

_JOB = "%qnn_job = type { i32, i32, ptr, ptr, ptr }"  # task, its result, function, group, data
_GROUP = "%qnn_group = type { ptr, i32 }"  # TVM's TVMParallelGroupEnv: nothing, number of tasks

_WORKER = """
define i32 @qnn_work(ptr %slot) nounwind {{
entry:
  %state = getelementptr i8, ptr %slot, i32 {STATE}
  %asleep = getelementptr i8, ptr %slot, i32 {ASLEEP}
  %waiting = getelementptr i8, ptr %slot, i32 {WAITING}
  %job = getelementptr i8, ptr %slot, i32 {JOB}
  %result = getelementptr %qnn_job, ptr %job, i32 0, i32 1
  %place = getelementptr %qnn_job, ptr %job, i32 0, i32 2
  br label %next
next:
  call void @qnn_await(ptr %state, i32 0, ptr %asleep)
  %todo = load %qnn_job, ptr %job
  %task = extractvalue %qnn_job %todo, 0
  %function = extractvalue %qnn_job %todo, 2
  %group = extractvalue %qnn_job %todo, 3
  %data = extractvalue %qnn_job %todo, 4
  %status = call i32 %function(i32 %task, ptr %group, ptr %data)
  store i32 %status, ptr %result
  call void @qnn_change(ptr %state, i32 0, ptr %waiting)
  br label %next
}}
"""

# The workers of the calling thread are those that it owns: `qnn_owned` finds the next.
_LAUNCH = """
@__TVMBackendParallelLaunch = linkonce dllexport global ptr null, align 8
@qnn_workers = internal global ptr null
declare ptr @pthread_self()
declare i32 @qnn_worker(ptr)
declare i32 @qnn_launch(ptr, ptr, i32)

define internal i32 @qnn_owned(ptr %workers, i32 %first, ptr %self) nounwind {{
entry:
  %started = load atomic i32, ptr %workers acquire, align 4
  br label %check
check:
  %index = phi i32 [ %first, %entry ], [ %next, %other ]
  %more = icmp ult i32 %index, %started
  br i1 %more, label %look, label %none
look:
  %offset = mul i32 %index, 8
  %before = add i32 %offset, {OWNERS}
  %place = getelementptr i8, ptr %workers, i32 %before
  %owner = load atomic ptr, ptr %place monotonic, align 8
  %mine = icmp eq ptr %owner, %self
  br i1 %mine, label %found, label %other
other:
  %next = add i32 %index, 1
  br label %check
found:
  ret i32 %index
none:
  ret i32 {MOST}
}}

define internal ptr @qnn_slot(ptr %workers, i32 %index) nounwind {{
  %offset = mul i32 %index, {SLOT}
  %place = add i32 %offset, {SLOTS}
  %slot = getelementptr i8, ptr %workers, i32 %place
  ret ptr %slot
}}

define i32 @qnn_start(ptr %function, ptr %data, i32 %asked) nounwind {{
entry:
  %group = alloca %qnn_group
  %workers = load ptr, ptr @qnn_workers
  %self = call ptr @pthread_self()
  %all = icmp eq i32 %asked, 0
  %most = select i1 %all, i32 {MOST}, i32 %asked
  %first = call i32 @qnn_owned(ptr %workers, i32 0, ptr %self)
  br label %count
count:
  %tasks = phi i32 [ 1, %entry ], [ %more, %counted ]
  %seen = phi i32 [ %first, %entry ], [ %further, %counted ]
  %owned = icmp ult i32 %seen, {MOST}
  %wanted = icmp ult i32 %tasks, %most
  %goes = and i1 %owned, %wanted
  br i1 %goes, label %counted, label %ready
counted:
  %more = add i32 %tasks, 1
  %beyond = add i32 %seen, 1
  %further = call i32 @qnn_owned(ptr %workers, i32 %beyond, ptr %self)
  br label %count
ready:
  %number = getelementptr %qnn_group, ptr %group, i32 0, i32 1
  store ptr null, ptr %group
  store i32 %tasks, ptr %number
  %job0 = insertvalue %qnn_job zeroinitializer, ptr %function, 2
  %job1 = insertvalue %qnn_job %job0, ptr %group, 3
  %job2 = insertvalue %qnn_job %job1, ptr %data, 4
  br label %start
start:
  %task = phi i32 [ 1, %ready ], [ %after, %started ]
  %worker = phi i32 [ %first, %ready ], [ %follows, %started ]
  %left = icmp ult i32 %task, %tasks
  br i1 %left, label %started, label %run
started:
  %slot = call ptr @qnn_slot(ptr %workers, i32 %worker)
  %job = getelementptr i8, ptr %slot, i32 {JOB}
  %todo = insertvalue %qnn_job %job2, i32 %task, 0
  store %qnn_job %todo, ptr %job
  %state = getelementptr i8, ptr %slot, i32 {STATE}
  %asleep = getelementptr i8, ptr %slot, i32 {ASLEEP}
  call void @qnn_change(ptr %state, i32 1, ptr %asleep)
  %after = add i32 %task, 1
  %past = add i32 %worker, 1
  %follows = call i32 @qnn_owned(ptr %workers, i32 %past, ptr %self)
  br label %start
run:
  %own = call i32 %function(i32 0, ptr %group, ptr %data)
  br label %join
join:
  %status = phi i32 [ %own, %run ], [ %both, %joined ]
  %running = phi i32 [ 1, %run ], [ %rest, %joined ]
  %busy = phi i32 [ %first, %run ], [ %later, %joined ]
  %open = icmp ult i32 %running, %tasks
  br i1 %open, label %joined, label %done
joined:
  %slot2 = call ptr @qnn_slot(ptr %workers, i32 %busy)
  %state2 = getelementptr i8, ptr %slot2, i32 {STATE}
  %waiting = getelementptr i8, ptr %slot2, i32 {WAITING}
  call void @qnn_await(ptr %state2, i32 1, ptr %waiting)
  %job3 = getelementptr i8, ptr %slot2, i32 {JOB}
  %result = getelementptr %qnn_job, ptr %job3, i32 0, i32 1
  %status2 = load i32, ptr %result
  %both = or i32 %status, %status2
  %rest = add i32 %running, 1
  %beside = add i32 %busy, 1
  %later = call i32 @qnn_owned(ptr %workers, i32 %beside, ptr %self)
  br label %join
done:
  ret i32 %status
}}

define i64 @qnn_use_workers(i64 %address) nounwind {{
  %workers = inttoptr i64 %address to ptr
  store ptr %workers, ptr @qnn_workers
  store ptr @qnn_launch, ptr @__TVMBackendParallelLaunch
  %entry = ptrtoint ptr @qnn_worker to i64
  ret i64 %entry
}}
"""


def system_of(target: Target) -> str:
    """The operating system that a target's code is for, as `sys.platform` names it; empty if none that is known."""
    triple = str(target.attrs.get("mtriple", ""))
    systems = {"linux": "linux", "windows": "win32"}
    return next((system for part, system in systems.items() if part in triple), "") if triple else sys.platform


def sleeps(backend: Backend, system: str) -> bool:
    """Whether threads sleep while they wait: there is a futex."""
    return system == "linux" and backend.futex is not None


Functions: TypeAlias = dict[ir.GlobalVar, tirx.PrimFunc]


def use_workers(target: Target) -> Functions:
    """The function `USE`, to be compiled with what it is for, and what it needs; nothing where there cannot be one.
    `USE(int64[1])` takes the address of the workers' memory, and leaves in its place that of what a worker runs.

    TVM inlines the functions of imported IR. Those whose addresses are taken are TIR, therefore, and around them.
    """
    backend = backend_of(target)
    if not sleeps(backend, system_of(target)):
        return {}
    place = tirx.Var("place", "handle")
    value = tirx.decl_buffer((1,), "int64", "value", layout=None)
    zero = tirx.IntImm("int32", 0)
    store = tirx.BufferStore(value, tirx.call_extern("int64", "qnn_use_workers", value[zero]), [zero])
    body = tirx.SeqStmt([tirx.DeclBuffer(value, data=place), store])
    body = tirx.AttrStmt(0, "pragma_import_llvm", _workers_ir(backend), body)
    attrs = ir.make_node("ir.DictAttrs", **{"global_symbol": USE, "tirx.noalias": True})
    return {
        ir.GlobalVar(USE): tirx.PrimFunc([place], body, attrs=attrs),
        **_around("qnn_worker", "qnn_work", slot="handle"),
        **_around("qnn_launch", "qnn_start", function="handle", data="handle", asked="int32"),
    }


def _around(name: str, inlined: str, **params: str) -> Functions:
    """A function that is C's, not TVM's, around one of imported IR."""
    values = [tirx.Var(param, dtype) for param, dtype in params.items()]
    status = tirx.Var("status", "int32")
    called = tirx.Bind(status, tirx.call_extern("int32", inlined, *values))
    good = tirx.AssertStmt(tirx.EQ(status, tirx.IntImm("int32", 0)), "RuntimeError", ["a parallel task failed"])
    body = tirx.SeqStmt([called, good, tirx.Return(tirx.IntImm("int32", 0))])
    attrs = ir.make_node("ir.DictAttrs", **{SYMBOL: name})
    return {ir.GlobalVar(name): tirx.PrimFunc(values, body, ir.PrimType("int32"), attrs=attrs)}


SYMBOL = "qnn_ext.symbol"
"""Attribute of a function that `exposed` makes visible for other code under this name."""


def hidden(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """For the start of a pipeline, which would change how a visible function is called, see `exposed`."""
    return function if SYMBOL not in function.attrs else function.without_attr("global_symbol")


def exposed(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """For the end of a pipeline."""
    return function if SYMBOL not in function.attrs else function.with_attr("global_symbol", function.attrs[SYMBOL])


def _workers_ir(backend: Backend) -> str:
    assert backend.futex is not None
    long, futex = backend.futex
    pause, declare_pause = backend.pause
    words = _WORDS.format(
        spins=SPINS,
        most=SPINS + backend.pauses,
        pause=pause,
        declare_pause=declare_pause,
        sleep=SLEEP.format(long=long, futex=futex, word="%word", value="%value"),
        wake=WAKE.format(long=long, futex=futex, word="%word"),
        declare_syscall=SYSCALL.format(long=long),
    )
    places = dict(
        STATE=STATE, ASLEEP=ASLEEP, WAITING=WAITING, JOB=JOB, MOST=MOST, OWNERS=OWNERS, SLOT=SLOT, SLOTS=SLOTS
    )
    return "\n".join([_JOB, _GROUP, words, _WORKER.format(**places), _LAUNCH.format(**places)])

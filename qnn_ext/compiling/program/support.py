"""The few functions that TIR cannot express, in LLVM IR: what tasks meet at, share work by, and measure time with."""

from __future__ import annotations

from tvm import ir, tirx

from ...targets.backend import Backend
from ..workers import SLEEP, SPINS, SYSCALL, WAKE, sleeps
from .phases import IMPORT

MEET = "meet"
"""(counters, task count): wait until all tasks have arrived. `counters` are two int32 that start at zero: of arrivals,
and of tasks that sleep until the others arrive."""

CLAIM = "claim"
"""(counters of the barrier, claims, task, task count, parts of a task, place): store the next part of a phase for this
task in the int32 at `place`, -1 if none is left. Each task has parts of its own, and gets one after another of them,
then those that others have not begun. `claims` are an int64 for each task, `CLAIMS` bytes apart, that start at -1. Two
phases without a barrier in between need different ones; after a barrier they can be used again."""

CLAIMS = 64
"""Bytes of the claims of one task, which has a cache line for those of all phases between two barriers."""

CLOCK = "qnn_clock"
"""() -> int64 ticks, steady and shared by all cores."""

# Each arrival increments the counter; every task except the last of its round waits until the round is complete. The
# last one looks at the number of sleepers after its arrival, and a sleeper at the counter after it has counted itself,
# all in one order (seq_cst): so the former sees the sleeper, or the latter finds a new value and does not sleep. Where
# there is nothing to sleep on, a task that waits longer yields in each round.
_BARRIER = """
define void @qnn_barrier(ptr %counter, i32 %tasks) nounwind {{
entry:
  %sleepers = getelementptr i32, ptr %counter, i32 1
  %before = atomicrmw add ptr %counter, i32 1 seq_cst
  %round = udiv i32 %before, %tasks
  %next = add i32 %round, 1
  %full = mul i32 %next, %tasks
  %after = add i32 %before, 1
  %last = icmp eq i32 %after, %full
  br i1 %last, label %complete, label %check
complete:
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %none = icmp eq i32 %asleep, 0
  br i1 %none, label %done, label %wake
wake:
  {wake}
  br label %done
check:
  %spin = phi i32 [ 0, %entry ], [ %count, %wait ], [ %count, %pause ], [ %count, %rest ]
  %now = load atomic i32, ptr %counter acquire, align 4
  %missing = icmp ult i32 %now, %full
  br i1 %missing, label %wait, label %done
wait:
  %count = add i32 %spin, 1
  %short = icmp ult i32 %count, {spins}
  br i1 %short, label %check, label %longer
longer:
  %brief = icmp ult i32 %count, {most}
  br i1 %brief, label %pause, label %rest
pause:
  {pause}
  br label %check
rest:
  {rest}
  br label %check
done:
  ret void
}}
"""

_SLEEP = f"""%counted = atomicrmw add ptr %sleepers, i32 1 seq_cst
  {SLEEP}
  %left = atomicrmw sub ptr %sleepers, i32 1 seq_cst"""

# A claim holds the number of barriers before a phase, and how many parts of it were given away. Where the number is
# another one, it is of an earlier phase, as nobody has passed the next barrier yet: no part of this one is given away.
_CLAIM = f"""
define i32 @qnn_claim(ptr %counter, ptr %claims, i32 %task, i32 %tasks, i32 %parts) nounwind {{
entry:
  %arrived = load atomic i32, ptr %counter acquire, align 4
  %barriers = udiv i32 %arrived, %tasks
  %wide = zext i32 %barriers to i64
  %begin = shl i64 %wide, 32
  br label %ask
ask:
  %asked = phi i32 [ 0, %entry ], [ %more, %ended ]
  %others = icmp ult i32 %asked, %tasks
  br i1 %others, label %look, label %none
look:
  %sum = add i32 %task, %asked
  %owner = urem i32 %sum, %tasks
  %offset = mul i32 %owner, {CLAIMS}
  %claim = getelementptr i8, ptr %claims, i32 %offset
  %first = load atomic i64, ptr %claim monotonic, align 8
  br label %check
check:
  %seen = phi i64 [ %first, %look ], [ %now, %take ]
  %high = and i64 %seen, -4294967296
  %begun = icmp eq i64 %high, %begin
  %next = select i1 %begun, i64 %seen, i64 %begin
  %given = trunc i64 %next to i32
  %left = icmp ult i32 %given, %parts
  br i1 %left, label %take, label %ended
take:
  %after = add i64 %next, 1
  %result = cmpxchg ptr %claim, i64 %seen, i64 %after monotonic monotonic
  %now = extractvalue {{ i64, i1 }} %result, 0
  %taken = extractvalue {{ i64, i1 }} %result, 1
  br i1 %taken, label %found, label %check
ended:
  %more = add i32 %asked, 1
  br label %ask
found:
  %before = mul i32 %owner, %parts
  %part = add i32 %before, %given
  ret i32 %part
none:
  ret i32 -1
}}
"""

_YIELD = "%ignored = call i32 @sched_yield()", "declare i32 @sched_yield()"

_CLOCK = """
define i64 @qnn_clock() nounwind {{
  %ticks = call i64 @llvm.{counter}()
  ret i64 %ticks
}}
declare i64 @llvm.{counter}()
"""


def clock_ir(backend: Backend) -> str:
    """The LLVM IR of `CLOCK`."""
    return _CLOCK.format(counter=backend.clock)


def support_functions(backend: Backend, system: str) -> dict[str, tirx.PrimFunc]:
    """`MEET` and `CLAIM` for a family of CPUs. They are functions around those of imported IR, which TVM inlines
    wherever they are called: a long program waits a thousand times.

    system: the operating system, as `sys.platform` names it
    """
    counters, claims, place = (tirx.Var(name, "handle") for name in ("counters", "claims", "place"))
    task, tasks, parts = (tirx.Var(name, "int32") for name in ("task", "tasks", "parts"))
    part, zero = tirx.decl_buffer((1,), "int32", "part", layout=None), tirx.IntImm("int32", 0)
    met = tirx.Evaluate(tirx.call_extern("void", "qnn_barrier", counters, tasks))
    claimed = tirx.call_extern("int32", "qnn_claim", counters, claims, task, tasks, parts)
    stored = tirx.SeqStmt([tirx.DeclBuffer(part, data=place), tirx.BufferStore(part, claimed, [zero])])
    return {
        MEET: _around(_barrier_ir(backend, system), [counters, tasks], met),
        CLAIM: _around(_CLAIM, [counters, claims, task, tasks, parts, place], stored),
    }


def _around(imported: str, params: list[tirx.Var], body: tirx.Stmt) -> tirx.PrimFunc:
    body = tirx.SeqStmt([tirx.AttrStmt(0, IMPORT, imported, body), tirx.Return(tirx.IntImm("int32", 0))])
    return tirx.PrimFunc(params, body, ir.PrimType("int32"))


def _barrier_ir(backend: Backend, system: str) -> str:
    pause, declare_pause = backend.pause
    wake = ""
    if sleeps(backend, system):
        assert backend.futex is not None
        long, futex = backend.futex
        words = {"long": long, "futex": futex, "word": "%counter", "value": "%now"}
        rest, wake, declare_rest = (text.format(**words) for text in (_SLEEP, WAKE, SYSCALL))
    elif system == "win32":  # it has no sched_yield
        rest, declare_rest = pause, ""
    else:
        rest, declare_rest = _YIELD
    barrier = _BARRIER.format(spins=SPINS, most=SPINS + backend.pauses, pause=pause, rest=rest, wake=wake)
    return "\n".join([barrier, declare_pause, declare_rest])

"""The few functions that TIR cannot express, in LLVM IR: a barrier between tasks and a clock."""

from __future__ import annotations

from ...targets.backend import Backend
from ..workers import SLEEP, SPINS, SYSCALL, WAKE, sleeps

BARRIER = "qnn_barrier"
"""(counters, task count): wait until all tasks have arrived. `counters` are two int32 that start at zero: of arrivals,
and of tasks that sleep until the others arrive."""

CLOCK = "qnn_clock"
"""() -> int64 ticks, steady and shared by all cores."""

# Each arrival increments the counter; every task except the last of its round waits until the round is complete. The
# last one looks at the number of sleepers after its arrival, and a sleeper at the counter after it has counted itself,
# all in one order (seq_cst): so the former sees the sleeper, or the latter finds a new value and does not sleep. Where
# there is nothing to sleep on, a task that waits longer yields in each round.
_BARRIER = """
define void @qnn_barrier(ptr %counter, i32 %tasks) noinline nounwind {{
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

_YIELD = "%ignored = call i32 @sched_yield()", "declare i32 @sched_yield()"

_CLOCK = """
define i64 @qnn_clock() nounwind {{
  %ticks = call i64 @llvm.{counter}()
  ret i64 %ticks
}}
declare i64 @llvm.{counter}()
"""


def support_ir(backend: Backend, system: str) -> str:
    """The LLVM IR of the helpers for a family of CPUs.

    system: the operating system, as `sys.platform` names it
    """
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
    return "\n".join([barrier, declare_pause, declare_rest, _CLOCK.format(counter=backend.clock)])

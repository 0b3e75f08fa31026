"""The few functions that TIR cannot express, in LLVM IR: a barrier between tasks and a clock."""

from __future__ import annotations

from ...targets.backend import Backend

BARRIER = "qnn_barrier"
"""(counter, task count): wait until all tasks have arrived. `counter` is an int32 that starts at zero."""

CLOCK = "qnn_clock"
"""() -> int64 ticks, steady and shared by all cores."""

SPINS, PAUSES = 100, 400
"""Spins while waiting for tasks that are about to arrive: SPINS of a nanosecond each, then PAUSES with a pause of 10 to
90 ns each. After that, each round yields the core to other threads: the missing task may be waiting for one."""

# Each arrival increments the counter; every task except the last of its round waits until the round is complete.
_BARRIER = """
define void @qnn_barrier(ptr %counter, i32 %tasks) noinline nounwind {{
entry:
  %before = atomicrmw add ptr %counter, i32 1 acq_rel
  %round = udiv i32 %before, %tasks
  %next = add i32 %round, 1
  %full = mul i32 %next, %tasks
  br label %check
check:
  %spin = phi i32 [ 0, %entry ], [ %count, %wait ], [ %count, %pause ], [ %count, %offer ]
  %now = load atomic i32, ptr %counter acquire, align 4
  %missing = icmp ult i32 %now, %full
  br i1 %missing, label %wait, label %done
wait:
  %count = add i32 %spin, 1
  %short = icmp ult i32 %count, {spins}
  br i1 %short, label %check, label %longer
longer:
  %brief = icmp ult i32 %count, {most}
  br i1 %brief, label %pause, label %offer
pause:
  {pause}
  br label %check
offer:
  {offer}
  br label %check
done:
  ret void
}}
"""

_CLOCK = """
define i64 @qnn_clock() nounwind {{
  %ticks = call i64 @llvm.{counter}()
  ret i64 %ticks
}}
declare i64 @llvm.{counter}()
"""

_OFFER = ("%ignored = call i32 @sched_yield()", "declare i32 @sched_yield()")


def support_ir(backend: Backend, windows: bool) -> str:
    """The LLVM IR of the helpers for a family of CPUs."""
    pause, declare_pause = backend.pause
    offer, declare_offer = (pause, "") if windows else _OFFER  # Windows has no sched_yield
    barrier = _BARRIER.format(spins=SPINS, most=SPINS + PAUSES, pause=pause, offer=offer)
    return "\n".join([barrier, declare_pause, declare_offer, _CLOCK.format(counter=backend.clock)])

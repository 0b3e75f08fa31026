"""The threads that kernels run on, and how many of them a call gets: `workers`, or for libraries that cannot use these
one of TVM's pools for each Python thread that runs a model.

Threads that wait for each other at barriers are worth it only while each has a core. So engines share the cores of
their process: a call gets those that no other call runs on, nor is about to. What other processes take is felt: an
engine measures its calls and takes fewer threads where these are faster, see `ThreadCount`.

A fork does not copy the threads of TVM's pool, and TVM does not notice: a parallel kernel would wait for them for ever.
So a forked process restarts its thread's pool. That destroys the condition variables that the threads waited on, and
in C destroying one never returns if a thread slept on it at the fork. So the pool is also restarted right before the
fork: new threads stay awake for 300,000 yields, unless the machine is busy. Then forks with such a pool may take
minutes, for which the old threads yield before they end, or hang. Workers need none of that, so only libraries that
cannot use workers have a pool in a thread that lives on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol, TypeVar

from .. import tvm_runtime
from ..processes import forking
from ..processes.cores import default_threads, idle_seconds
from .workers import workers_for

_Result = TypeVar("_Result")

_pool = threading.local()  # size: threads that this thread's pool uses; 0 if it is new, absent if there is none
_taken: list[None] = []  # one for each thread of all calls that run in this process
_expected: dict[int, tuple[int, float]] = {}  # threads of each Python thread's next call, and until when it may begin
_taking = threading.Lock()  # taken only within a call, and a fork waits for calls

_PAUSE = 0.01
"""Seconds, at most, for which the cores of a call that ran beside others are kept for the next one of the same Python
thread; no longer than the call took. Else the others would take them between two calls, and all would wait."""


class Threads(Protocol):
    """Where the threads of calls come from. Its methods are called by one thread at a time."""

    def take(self, count: int) -> Sequence[int]:
        """Let kernels that the calling thread calls run on so many threads beside it. Returns what `give` wants."""

    def give(self, taken: Sequence[int]) -> None:
        """End that."""


class _NoThreads:
    """For code that runs on the calling thread only. It starts no pool of TVM's, whose threads a fork would meet."""

    def take(self, count: int) -> Sequence[int]:
        return ()

    def give(self, taken: Sequence[int]) -> None:
        pass


class _TvmThreads:
    """TVM's pool of the calling thread."""

    def take(self, count: int) -> Sequence[int]:
        use_tvm_threads(count + 1)
        return ()

    def give(self, taken: Sequence[int]) -> None:
        pass


def threads_for(library: Any, most: int) -> Threads:
    """The threads that a library's code, made for at most so many, runs on from now on."""
    if most == 1:
        return _NoThreads()
    with _taking:
        return workers_for(library) or _TvmThreads()


@contextmanager
def on_threads(threads: Threads, count: int) -> Iterator[None]:
    """A context in which compiled code that this thread calls runs on so many threads, whatever else runs."""
    with _taking:
        taken = threads.take(count - 1)
    try:
        yield
    finally:
        with _taking:
            threads.give(taken)


def on_own_pool(function: Callable[[], _Result]) -> _Result:
    """The result of a function that uses TVM's threads. A new thread calls it, with which its pool ends."""
    from concurrent.futures import ThreadPoolExecutor  # never needed to run a model

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def use_tvm_threads(count: int) -> None:
    """Let kernels that this thread calls run on `count` threads of TVM's, until the thread ends."""
    if getattr(_pool, "size", None) != count:
        tvm_runtime.get_function("runtime.config_threadpool")(1, count)
        _pool.size = count


def on_one_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call compiled code that runs on one thread."""
    _taken.append(None)
    try:
        return function(*args)
    finally:
        _taken.pop()


def _awaited(now: float) -> int:
    """The threads of calls that are about to begin."""
    for caller in [caller for caller, (_, until) in _expected.items() if until < now]:
        del _expected[caller]
    return sum(count for count, _ in _expected.values())


_CALLS = 16
"""Calls that a mean is of."""

_TRIAL = 0.02, 0.2
"""A trial lasts at least so many seconds, a few turns of other processes on the core; long calls need not be _CALLS."""

_EARLY = 4
"""Calls after which a trial that is slower is given up, or after the least seconds of a trial; before, only if it is
far slower: by more than waking threads takes, and _FAR times as long."""

_FAR, _WAKING = 3.0, 0.0005
_SURPRISE = 1.25
"""Calls that take so many times as long as usual start a trial at once."""

_SHORTEST, _LONGEST = 0.05, 2.0
"""Seconds from one trial to the next: first, and at most. After each trial that was slower the time doubles."""

_LOOK = 0.1
"""Seconds after which an engine that could grow looks how busy the machine is: several ticks of its clock."""

_SELDOM = 10.0
"""Seconds after which more threads are tried although no core looks idle: the others may give way."""

_PATIENCE = 50
"""From a trial that was slower to the next, at least so many times its cost: trials take at most 2 % of the time. The
first one, which may cost a call, waits so many calls, or _LONGEST."""


class ThreadCount:
    """How many threads the next call of an engine runs on: the fastest number, at most as many as there are free cores.

    The number starts at `most`. From time to time a few calls run on half or twice as many threads, and the number
    stays if they were faster than the calls before. This is how a busy machine is noticed: there, two threads that wait
    for each other take longer than one. More are tried as soon as cores become idle, and seldom while none is.

    most:    no call gets more
    threads: where they come from
    idle:    the seconds that cores were idle, all together
    """

    def __init__(
        self,
        most: int,
        threads: Threads,
        clock: Callable[[], float] = perf_counter,
        idle: Callable[[], float | None] = idle_seconds,
    ) -> None:
        self._most, self._threads, self._clock, self._idle = most, threads, clock, idle
        self._cores = default_threads()
        self._count = most  # the fastest so far
        self._wanted = most  # by the next call: another number during a trial
        self._mean = self._usual = 0.0  # seconds of a call on `_count` threads: of the last ones; at the last decision
        self._calls = -1  # that the mean is of, at most _CALLS; the first one, which is slower, does not count
        self._tried, self._spent, self._worst = 0, 0.0, 0.0  # calls of a trial, their seconds, those of the slowest
        self._interval = _SHORTEST
        self._wait = 0.0  # seconds from the last decision to the next trial, 0 before the first call that counts
        self._since = self._busy = 0.0  # the last decision, and seconds of calls after it
        self._upwards = False
        self._repaid = 0.0  # seconds from the last decision until its trial has cost little enough
        self._looked: tuple[float, float, float] | None = None  # when idle cores were looked for; `_idle`, `_busy` then
        self._crowded = False  # whether too few were found

    def run(self, function: Callable[[int], Any]) -> Any:
        """Call a function of the number of threads, on so many."""
        me, begin = threading.get_ident(), self._clock()
        with _taking:
            _expected.pop(me, None)
            beside = bool(_taken)
            count = max(1, min(self._wanted, self._cores - len(_taken) - _awaited(begin)))
            _taken.extend([None] * count)
            helping = self._threads.take(count - 1)
        end = begin
        try:
            begin = self._clock()
            result = function(count)
            end = self._clock()
        finally:
            with _taking:
                self._threads.give(helping)
                del _taken[-count:]
                if beside or _taken:
                    _expected[me] = count, end + min(end - begin, _PAUSE)
        if count == self._wanted and self._most > 1:
            self._learn(end - begin, end)
        return result

    def _learn(self, seconds: float, now: float) -> None:
        """Note how long a call took."""
        if self._wanted != self._count:
            self._judge(seconds, now)
            return
        self._busy += seconds
        self._calls = min(self._calls + 1, _CALLS)
        self._mean += (seconds - self._mean) / max(1, self._calls)
        if self._calls < _CALLS:
            self._usual = self._mean
        if self._calls == 1 and not self._wait:
            self._decided(now, min(max(_SHORTEST, _PATIENCE * self._mean), _LONGEST))
        surprised = self._mean > _SURPRISE * self._usual
        if surprised or (self._wait and self._calls > 1 and self._is_due(now)):
            self._try_another(surprised)

    def _is_due(self, now: float) -> bool:
        """Whether it is time for a trial. Fewer are tried for a share of the calls' own time, more also after a pause:
        the machine may be idle by then."""
        if not self._may_grow():
            return self._busy >= self._wait
        waited = now - self._since
        is_due = waited >= self._wait
        if self._looked is None:
            self._look(now)
        if self._looked is None:
            return is_due
        if now - self._looked[0] < _LOOK:
            return False
        before, crowded = self._looked, self._crowded
        self._look(now)
        seconds, idle, busy = (new - old for new, old in zip(self._looked, before, strict=True))
        idle -= self._count * max(0.0, seconds - busy)  # between calls, this engine's own cores may be idle
        self._crowded = idle < 0.5 * (self._more() - self._count) * seconds
        if self._crowded:
            return waited >= max(self._wait, _SELDOM)
        return is_due or (crowded and waited >= self._repaid)

    def _look(self, now: float) -> None:
        idle = self._idle()
        self._looked = None if idle is None else (now, idle, self._busy)

    def _more(self) -> int:
        return min(2 * self._count, self._most)

    def _decided(self, now: float, wait: float) -> None:
        """Wait so many seconds for the next trial."""
        self._since, self._busy, self._wait = now, 0.0, wait
        self._looked = None

    def _may_grow(self) -> bool:
        """Whether the next trial is one of more threads: every other one."""
        return self._count == 1 or (self._count < self._most and not self._upwards)

    def _try_another(self, fewer: bool) -> None:
        self._upwards = self._count == 1 or (self._may_grow() and not fewer)
        self._wanted = self._more() if self._upwards else self._count // 2
        self._tried, self._spent, self._worst = 0, 0.0, 0.0

    def _judge(self, seconds: float, now: float) -> None:
        """Note how long a call of a trial took; end the trial if that shows which number is faster."""
        self._tried += 1
        self._spent += seconds
        self._worst = max(self._worst, seconds)
        ends = self._spent >= _TRIAL[self._tried < _CALLS]
        if self._spent > self._bearable(ends):
            self._repaid = _PATIENCE * (self._spent - self._mean * self._tried)
            self._interval = min(2 * self._interval, _LONGEST)
            self._wanted = self._count
        elif ends:
            self._repaid, self._interval = 0.0, _SHORTEST
            self._count, self._mean = self._wanted, self._spent / self._tried
        else:
            return
        self._usual = self._mean
        self._decided(now, max(self._interval, self._repaid))

    def _bearable(self, ends: bool) -> float:
        """The most seconds of a trial so far that is not slower."""
        if ends or (self._tried == 1 and self._spent >= _TRIAL[0]):
            return self._mean * self._tried
        if self._tried < _EARLY and self._spent < _TRIAL[0]:
            return self._mean * _FAR + _WAKING
        return self._mean * (self._tried - 1) + self._worst  # the slowest call may have been interrupted


def _restart() -> None:
    """Restart this thread's pool of TVM's, if it has one."""
    if hasattr(_pool, "size"):
        tvm_runtime.symbol("_ZN3tvm7runtime9threading15ResetThreadPoolEv")()  # tvm::runtime::threading::ResetThreadPool
        _pool.size = 0


forking.around(_restart)

"""The threads that kernels run on, and how many of them a call gets: `workers`, or for libraries that cannot use these
one of TVM's pools for each Python thread that runs a model.

Threads that wait for each other at barriers are worth it only while each has a core. So engines share the cores of
their process: a call gets those that no other call runs on. What other processes take cannot be seen, but felt: an
engine measures its calls and takes fewer threads where these are faster, see `ThreadCount`.

A fork does not copy the threads of TVM's pool, and TVM does not notice: a parallel kernel would wait for them for ever.
So a forked process restarts its thread's pool. That destroys the condition variables that the threads waited on, and
in C destroying one never returns if a thread slept on it at the fork. So the pool is also restarted right before the
fork: new threads stay awake for a while. Workers need none of that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol

from .. import tvm_runtime
from ..processes import forking
from ..processes.cores import default_threads
from .workers import workers_for

_pool = threading.local()  # size: threads that this thread's pool uses; 0 if it is new, absent if there is none
_taken: list[None] = []  # one for each thread of all calls that run in this process
_taking = threading.Lock()  # taken only within a call, and a fork waits for calls


class Threads(Protocol):
    """Where the threads of calls come from. Its methods are called by one thread at a time."""

    def take(self, count: int) -> Sequence[int]:
        """Let kernels that the calling thread calls run on so many threads beside it. Returns what `give` wants."""

    def give(self, taken: Sequence[int]) -> None:
        """End that."""


class _TvmThreads:
    """TVM's pool of the calling thread."""

    def take(self, count: int) -> Sequence[int]:
        use_tvm_threads(count + 1)
        return ()

    def give(self, taken: Sequence[int]) -> None:
        pass


def threads_for(library: Any) -> Threads:
    """The threads that a library's parallel code runs on from now on."""
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


def use_tvm_threads(count: int) -> None:
    """Let kernels that this thread calls run on `count` threads of TVM's."""
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


_CALLS = 16
"""Calls that a mean is of."""

_TRIAL = 0.02, 0.2
"""A trial lasts at least so many seconds, a few turns of other processes on the core; long calls need not be _CALLS."""

_EARLY = 4
"""Calls after which a trial that is slower is given up, or after the least seconds of a trial; before, only if it takes
_FAR times as long."""

_FAR = 8.0
_SURPRISE = 1.25
"""Calls that take so many times as long as usual start a trial at once."""

_SHORTEST, _LONGEST = 0.05, 2.0
"""Seconds from one trial to the next: first, and at most. After each trial the time doubles."""

_PATIENCE = 50
"""From a trial that was slower to the next, at least so many times its cost: trials take at most 2 % of the time. The
first one, which may cost a call, waits so many calls, or _LONGEST."""


class ThreadCount:
    """How many threads the next call of an engine runs on: the fastest number, at most as many as there are free cores.

    The number starts at `most`. From time to time a few calls run on half or twice as many threads, and the number
    stays if they were faster than the calls before. This is how a busy machine is noticed: there, two threads that wait
    for each other take longer than one.

    most:    no call gets more
    threads: where they come from
    """

    def __init__(self, most: int, threads: Threads, clock: Callable[[], float] = perf_counter) -> None:
        self._most, self._threads, self._clock = most, threads, clock
        self._cores = default_threads()
        self._count = most  # the fastest so far
        self._wanted = most  # by the next call: another number during a trial
        self._mean = self._usual = 0.0  # seconds of a call on `_count` threads: of the last ones; at the last decision
        self._calls = -1  # that the mean is of, at most _CALLS; the first one, which is slower, does not count
        self._tried, self._spent = 0, 0.0  # calls of a trial, and their seconds
        self._interval = _SHORTEST
        self._wait = 0.0  # seconds from the last decision to the next trial, 0 before the first call that counts
        self._since = self._busy = 0.0  # the last decision, and seconds of calls after it
        self._upwards = False

    def run(self, function: Callable[[int], Any]) -> Any:
        """Call a function of the number of threads, on so many."""
        with _taking:
            count = max(1, min(self._wanted, self._cores - len(_taken)))
            _taken.extend([None] * count)
            helping = self._threads.take(count - 1)
        try:
            begin = self._clock()
            result = function(count)
            end = self._clock()
        finally:
            with _taking:
                self._threads.give(helping)
                del _taken[-count:]
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
        # Fewer are tried for a share of the calls' own time, more also after a pause: the machine may be idle by then
        waited = now - self._since if self._may_grow() else self._busy
        if surprised or (self._wait and waited >= self._wait and self._calls > 1):
            self._try_another(surprised)

    def _decided(self, now: float, wait: float) -> None:
        """Wait so many seconds for the next trial."""
        self._since, self._busy, self._wait = now, 0.0, wait

    def _may_grow(self) -> bool:
        """Whether the next trial is one of more threads: every other one."""
        return self._count == 1 or (self._count < self._most and not self._upwards)

    def _try_another(self, fewer: bool) -> None:
        self._upwards = self._count == 1 or (self._may_grow() and not fewer)
        self._wanted = min(2 * self._count, self._most) if self._upwards else self._count // 2
        self._tried, self._spent = 0, 0.0

    def _judge(self, seconds: float, now: float) -> None:
        """Note how long a call of a trial took; end the trial if that shows which number is faster."""
        self._tried += 1
        self._spent += seconds
        decided = self._tried >= _EARLY or self._spent >= _TRIAL[0]
        bearable = self._mean * (self._tried if decided else _FAR)
        cost = 0.0
        if self._spent > bearable:
            cost = self._spent - self._mean * self._tried
            self._wanted = self._count
        elif self._spent < _TRIAL[self._tried < _CALLS]:
            return
        else:
            self._count, self._mean = self._wanted, self._spent / self._tried
        self._usual = self._mean
        self._interval = min(2 * self._interval, _LONGEST)
        self._decided(now, max(self._interval, _PATIENCE * cost))


def _restart() -> None:
    """Restart this thread's pool of TVM's, if it has one."""
    if hasattr(_pool, "size"):
        tvm_runtime.symbol("_ZN3tvm7runtime9threading15ResetThreadPoolEv")()  # tvm::runtime::threading::ResetThreadPool
        _pool.size = 0


forking.around(_restart)

"""Threads of this process that compiled code runs on beside the one that calls it, shared by all engines.

Such a thread, a worker, never runs Python: it waits in compiled code for work of the Python thread that owns it at the
time, for some 50 µs awake and then asleep. It is started when a call first needs it, and ends with the process. A
forked process has none of its parent's workers, and starts its own: nothing of theirs is to be ended or destroyed.

What workers run is part of every library with parallel code (`qnn_ext.compiling.workers`); they stay in the first one
that was used, which is therefore never unloaded. Libraries without it, for other systems than Linux or from before,
run on TVM's threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from .. import tvm_runtime
from ..processes import forking

USE = "use_workers"
"""Name of the function that makes a library run on workers: `USE(int64[1])` takes the address of the memory below, and
leaves in its place that of the function that a worker runs."""

# The memory that workers and compiled code share. First the number of workers started, then the owner of each, the
# thread that it works for, then a slot for each, in cache lines of its own.
MOST = 1024
OWNERS = 64
SLOTS = OWNERS + 8 * MOST
SLOT = 128
# In a slot: whether the worker has a job, whether it sleeps until it has one, whether its owner sleeps until it has
# none, and the job.
STATE, ASLEEP, WAITING, JOB = 0, 4, 8, 64

_FAULTS = {signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}
"""Signals that a worker gets: those that it causes itself."""

_SIGNALS = ctypes.c_ulong * 32  # C's sigset_t, or more


class Workers:
    """The workers of this process; `workers()` returns them. Called by one thread at a time."""

    def __init__(self) -> None:
        self._c = ctypes.CDLL(None)
        self._c.calloc.restype = ctypes.c_void_p
        memory = self._c.calloc(ctypes.c_size_t(1), ctypes.c_size_t(SLOTS + SLOT * (MOST + 1)))
        if memory is None:
            raise MemoryError
        self._address = memory + -memory % SLOT  # never freed, as workers read it to the end
        self._started = ctypes.c_int32.from_address(self._address)
        self._owners = (ctypes.c_int64 * MOST).from_address(self._address + OWNERS)
        self._most = tvm_runtime.most_threads() - 1  # beside the calling thread
        self._function: int | None = None
        self._free: dict[frozenset[int], list[int]] = {}  # by the cores that they may run on
        self._here = threading.local()  # free: those that may run on the same cores as this thread

    def serve(self, library: Any, use: Callable[..., Any]) -> None:
        """Have a library, whose function USE is given, run on workers."""
        place = ctypes.c_int64(self._address)
        use(ctypes.c_void_p(ctypes.addressof(place)))
        if self._function is None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))  # never unloaded, not even when Python ends
            self._function = place.value

    def take(self, count: int) -> list[int]:
        """Have the calling thread own so many workers, or fewer if there are no more."""
        taken: list[int] = []
        if count > 0:
            owner, free = threading.get_ident(), self._free_here()
            while len(taken) < min(count, self._most):
                index = free.pop() if free else self._start()
                if index is None:
                    break
                self._owners[index] = owner
                taken.append(index)
        return taken

    def give(self, taken: Sequence[int]) -> None:
        """Return workers that the calling thread took."""
        for index in reversed(taken):
            self._owners[index] = 0
            self._free_here().append(index)

    def forget(self) -> None:
        """In a forked process, which has none of them."""
        ctypes.memset(self._address, 0, SLOTS + SLOT * self._started.value)
        self._free, self._here = {}, threading.local()

    def _free_here(self) -> list[int]:
        free: list[int] | None = getattr(self._here, "free", None)
        if free is None:  # a worker may run on the same cores as the thread that starts it
            free = self._here.free = self._free.setdefault(frozenset(os.sched_getaffinity(0)), [])
        return free

    def _start(self) -> int | None:
        """Start another one and return its number; None if the system does not allow it."""
        index = self._started.value
        if index == MOST:
            return None
        # First: interrupted at any point, by Ctrl-C for example, this leaves at worst a number without a worker.
        self._started.value = index + 1
        blocked, before, thread = _SIGNALS(), _SIGNALS(), ctypes.c_ulong()
        self._c.sigfillset(blocked)  # Python's handlers are for its own threads
        for fault in _FAULTS:
            self._c.sigdelset(blocked, fault)
        self._c.pthread_sigmask(signal.SIG_BLOCK, blocked, before)
        slot = ctypes.c_void_p(self._address + SLOTS + SLOT * index)
        failed = self._c.pthread_create(ctypes.byref(thread), None, ctypes.c_void_p(self._function), slot)
        self._c.pthread_sigmask(signal.SIG_SETMASK, before, None)
        if failed:
            return None
        self._c.pthread_setname_np(thread, b"qnn_ext worker")
        self._c.pthread_detach(thread)
        return index


@cache
def workers() -> Workers:
    """Those of this process. The first call must be in the only thread that calls it."""
    found = Workers()
    forking.afterwards(found.forget)
    return found


def workers_for(library: Any) -> Workers | None:
    """The workers, which from now on run the parallel code of a library; None if it runs on TVM's threads."""
    try:
        use = library.get_function(USE, query_imports=True)
    except AttributeError:
        return None
    workers().serve(library, use)
    return workers()

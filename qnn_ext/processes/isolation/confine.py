"""Limits, enforced by the operating system, that a process sets on itself before it handles an untrusted file."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import tempfile
from contextlib import suppress
from types import ModuleType

resource: ModuleType | None
try:
    import resource
except ImportError:  # Windows
    resource = None

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_STACK = 16 << 20  # bytes for the stack of a thread and what its allocator sets aside
_MAPPINGS = 4 << 30  # bytes of address space for mapped files and memory that is only reserved


def confine(memory: int, cpu_seconds: float, threads: int) -> None:
    """Limit this process: from now on it may grow by `memory` bytes, use `cpu_seconds` of CPU time in all its threads
    together, write no file and leave no core dump. If the operating system lacks one of the limits, the others still
    hold; memory is limited only on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if resource is None:
        return
    tempfile.gettempdir()  # finding it writes a file, and some modules do that when imported
    limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": 0, "RLIMIT_CPU": math.ceil(cpu_seconds) + 1}
    used = _used()
    if used is not None:
        growth = memory + _STACK * threads
        limits |= {"RLIMIT_AS": used[0] + growth + _MAPPINGS, "RLIMIT_DATA": used[1] + growth}
    for name, limit in limits.items():
        _lower(resource, getattr(resource, name, None), limit)


def _lower(system: ModuleType, which: int | None, limit: int) -> None:
    if which is None:
        return
    _, hard = system.getrlimit(which)
    limit = limit if hard == system.RLIM_INFINITY else min(limit, hard)
    with suppress(ValueError, OSError):  # this system has the limit only in name
        system.setrlimit(which, (limit, limit))


def _used() -> tuple[int, int] | None:
    """Bytes of address space and of private writable memory of this process; None if the system does not report
    them."""
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = [int(field) for field in file.read().split()]
    except OSError:
        return None
    page = os.sysconf("SC_PAGE_SIZE")
    return pages[0] * page, pages[5] * page


def die_with(parent: int) -> None:
    """End this process when the thread that forked it ends, or at once if process `parent` has already ended. Linux."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)

"""Locks that a forked process finds free: a fork waits until nobody has them.

`os.fork` copies the thread that calls it and none of the others; what another holds at that moment stays held in the
child for ever. So the forking thread takes every lock first, and both processes let go of them. Nobody is in the midst
of a call then, and what the locks protect is whole in the child. What else a fork needs runs right beside it: `around`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

_ORDER = ("engine", "compiling", "stderr", "starting")
"""Who holds a lock may wait for one of a later kind, never of an earlier one or the same."""

_locks: dict[str, weakref.WeakSet[threading.Lock]] = {kind: weakref.WeakSet() for kind in _ORDER}
_forking = threading.Lock()
_taken: list[threading.Lock] = []  # by the thread that forks


def lock(kind: str) -> threading.Lock:
    """A new lock of one of the kinds above."""
    made = threading.Lock()
    _locks[kind].add(made)
    return made


class _LastLock:
    """Free for the thread that ends Python; every other one waits for the end of the process."""

    def __init__(self, taken: Any) -> None:
        self._taken, self._thread = taken, threading.get_ident()

    def __enter__(self) -> None:
        if threading.get_ident() != self._thread:
            self._taken.acquire()

    def __exit__(self, *_: object) -> None:
        pass


def last(lock: threading.Lock) -> Any:
    """In place of a lock when Python ends. A daemon thread that comes back from C++ then is ended by Python in a way
    that C++ takes for an error, and aborts: so its call is waited for, and it makes no further one."""
    lock.acquire(timeout=_LONGEST)
    _locks["engine"].discard(lock)  # no fork waits for it
    return _LastLock(lock)


_LONGEST = 10.0  # seconds


_around: list[Callable[[], None]] = []


def around(function: Callable[[], None]) -> None:
    """Have a function called by a thread that forks, right before it does, and first of all in the new process."""
    _around.append(function)


def _take() -> None:
    _forking.acquire()
    _taken.append(_forking)
    for kind in _ORDER:
        for one in list(_locks[kind]):
            one.acquire()
            _taken.append(one)
    for function in _around:
        function()


def _let_go() -> None:
    while _taken:
        _taken.pop().release()


def _begin() -> None:
    for function in _around:
        function()
    _let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take, after_in_parent=_let_go, after_in_child=_begin)

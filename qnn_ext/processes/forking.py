"""Locks that are free in a forked process: a fork waits until no thread holds them.

`os.fork` copies only the thread that calls it; a lock that another thread holds at that moment stays held in the child
for ever. So the forking thread first takes every lock, and both processes release them. At that point no thread is in
the middle of a call, and what the locks protect is consistent in the child. `around` and `afterwards` add
other work that a fork needs.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

_ORDER = ("engine", "compiling", "stderr", "starting")
"""A thread that holds a lock may wait for one of a later kind, never for one of an earlier or the same kind."""

_locks: dict[str, weakref.WeakSet[threading.Lock]] = {kind: weakref.WeakSet() for kind in _ORDER}
_forking = threading.Lock()
_taken: list[threading.Lock] = []  # by the forking thread


def lock(kind: str) -> threading.Lock:
    """A new lock of one of the kinds above."""
    made = threading.Lock()
    _locks[kind].add(made)
    return made


class _LastLock:
    """A lock that is free for the thread that ends Python; every other thread waits on it until the process ends."""

    def __init__(self, taken: Any) -> None:
        self._taken, self._thread = taken, threading.get_ident()

    def __enter__(self) -> None:
        if threading.get_ident() != self._thread:
            self._taken.acquire()

    def __exit__(self, *_: object) -> None:
        pass


def last(lock: threading.Lock) -> Any:
    """Replaces a lock when Python ends. A daemon thread that then returns from C++ is ended by Python in a way that C++
    takes for an error and aborts on: so wait for its current call, and let it make no further one."""
    lock.acquire(timeout=_LONGEST)
    _locks["engine"].discard(lock)  # no fork waits for it
    return _LastLock(lock)


_LONGEST = 10.0  # seconds


_around: list[Callable[[], None]] = []
_after: list[Callable[[], None]] = []


def around(function: Callable[[], None]) -> None:
    """Have the forking thread call a function right before the fork, and first thing in the new process."""
    _around.append(function)


def afterwards(function: Callable[[], None]) -> None:
    """Have the new process call a function after a fork, before it runs anything else."""
    _after.append(function)


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
    for function in (*_around, *_after):
        function()
    _let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take, after_in_parent=_let_go, after_in_child=_begin)

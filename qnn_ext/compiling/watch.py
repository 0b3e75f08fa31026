"""Who watches a build is told of each of its passes: what goes in, what comes out, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from tvm import IRModule

Result = TypeVar("Result")


class Watcher(Protocol):
    """Is told of builds inside of `watching`. The body of a loop goes through the passes on its own, after the rest."""

    def begins(self, name: str) -> None:
        """A pass begins, or whatever else takes time: "program", "machine code"."""

    def ended(self, name: str, seconds: float, before: IRModule | None, after: IRModule | None) -> None:
        """It is done; before, after: what it changed, if it is a pass on modules."""

    def progressed(self, share: float) -> None:
        """This share of what began is done."""


_watcher: ContextVar[Watcher | None] = ContextVar("qnn_ext_watcher", default=None)


@contextmanager
def watching(watcher: Watcher | None) -> Iterator[None]:
    """A context in which the builds of this thread are watched; None: by nobody."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def applied(change: Callable[[IRModule], IRModule], mod: IRModule, name: str = "") -> IRModule:
    """`change(mod)`, a pass, watched under its name."""
    watcher = _watcher.get()
    if watcher is None:
        return change(mod)
    name = name or _name(change)
    watcher.begins(name)
    started = time.perf_counter()
    result = change(mod)
    watcher.ended(name, time.perf_counter() - started, mod, result)
    return result


def timed(name: str, work: Callable[[], Result]) -> Result:
    """`work()`, which takes time and is no pass, watched."""
    watcher = _watcher.get()
    if watcher is None:
        return work()
    watcher.begins(name)
    started = time.perf_counter()
    result = work()
    watcher.ended(name, time.perf_counter() - started, None, None)
    return result


def progressed(share: float) -> None:
    """Tell who watches this thread's build that so much of what began is done."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher.progressed(share)


def _name(change: Any) -> str:
    if hasattr(change, "info"):  # a pass of TVM
        return str(change.info.name)
    return str(getattr(change, "__name__", "") or change.func.__name__)

"""Settings that hold within a `with` statement, in one thread."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Scopes(threading.local, Generic[T]):
    """The settings of the `with` statements that a thread is in; each thread has its own."""

    def __init__(self) -> None:
        self._stack: list[T] = []

    @property
    def innermost(self) -> T | None:
        """The settings that hold now; None outside of any."""
        return self._stack[-1] if self._stack else None

    def enter(self, settings: T) -> None:
        self._stack.append(settings)

    def leave(self) -> None:
        self._stack.pop()

"""What the façades of other runtimes share: errors, and engines for the shapes that a caller gives."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from ..building import build
from ..errors import InputError, ModelFormatError, QnnError
from ..module import QnnModule
from ..running.engine import Engine

T = TypeVar("T")
Shapes = Mapping[str, tuple[int, ...]]

_MOST_ENGINES = 8
"""Engines kept for different shapes; the one that was not used for longest is dropped."""


class InvalidArgument(InputError, ValueError):
    """A call's argument does not fit the model. Also a ValueError, which the other runtimes raise."""


class InvalidModel(ModelFormatError, ValueError):
    """The model cannot be opened or is damaged. Also a ValueError, which the other runtimes raise."""


class NotReady(QnnError, RuntimeError):
    """A call came before the one that it needs. Also a RuntimeError, which the other runtimes raise."""


class IgnoredOptionWarning(UserWarning):
    """An option of another runtime that has no effect here."""


def ignored(option: str, reason: str) -> None:
    """Warn that an option has no effect."""
    warnings.warn(f"{option} has no effect in qnn_ext: {reason}", IgnoredOptionWarning, stacklevel=3)


class Recent(Generic[T]):
    """What was made for the keys used last."""

    def __init__(self) -> None:
        self._made: OrderedDict[Hashable, T] = OrderedDict()

    def of(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made for the key; it is made now if it is not there. Raises what `make` raises."""
        value = self._made.pop(key) if key in self._made else make()
        self._made[key] = value
        if len(self._made) > _MOST_ENGINES:
            self._made.popitem(last=False)
        return value


class Engines:
    """The engines of one model, each compiled for the shapes of its inputs when they are first asked for.

    imported: input name → shape, {} for the declared ones → the module
    """

    def __init__(self, imported: Callable[[Shapes], QnnModule], num_threads: int | None) -> None:
        self._imported, self._num_threads = imported, num_threads
        self._engines: Recent[Engine] = Recent()

    def of(self, shapes: Shapes) -> Engine:
        """The engine for these shapes, {} for the declared ones. Raises what the import and `build` raise."""
        key = tuple(sorted(shapes.items()))
        return self._engines.of(key, lambda: build(self._imported(shapes), num_threads=self._num_threads))

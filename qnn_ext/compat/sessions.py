"""What the façades of ONNX Runtime and LiteRT share: their errors, and engines for the shapes that a caller gives."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping

from ..building import build
from ..errors import InputError, ModelFormatError, QnnError
from ..module import QnnModule
from ..running.engine import Engine

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


class Engines:
    """The engines of one model, each compiled for the shapes of its inputs when they are first asked for.

    imported: input name → shape, {} for the declared ones → the module
    """

    def __init__(self, imported: Callable[[Shapes], QnnModule], num_threads: int | None) -> None:
        self._imported, self._num_threads = imported, num_threads
        self._engines: OrderedDict[tuple[tuple[str, tuple[int, ...]], ...], Engine] = OrderedDict()

    def of(self, shapes: Shapes) -> Engine:
        """The engine for these shapes, {} for the declared ones. Raises what the import and `build` raise."""
        key = tuple(sorted(shapes.items()))
        engine = self._engines.pop(key, None)
        if engine is None:
            engine = build(self._imported(shapes), num_threads=self._num_threads)
        self._engines[key] = engine
        if len(self._engines) > _MOST_ENGINES:
            self._engines.popitem(last=False)
        return engine

"""The program's own functions, which copy or clear tensors without regard to their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from .storage import ALIGNMENT

_RUN = 1 << 14
"""Bytes that are worth a task's while."""


def copying(size: int) -> tirx.PrimFunc:
    """(source, target): copies `size` bytes."""
    source, target = _bytes("source", size), _bytes("target", size)
    return _by_vectors(size, [source, target], lambda place: tirx.BufferStore(target, source[place], [place]))


def collecting(size: int) -> tirx.PrimFunc:
    """The same by the first task alone: only that one may know how many rounds a loop took, and so where the source
    is."""
    source, target = _bytes("source", size), _bytes("target", size)
    return _by_vectors(size, [source, target], lambda place: tirx.BufferStore(target, source[place], [place]), size)


def filling(size: int) -> tirx.PrimFunc:
    """(target): sets `size` bytes to zero."""
    target = _bytes("target", size)

    def clear(place: Any) -> tirx.Stmt:
        zero = tirx.IntImm("uint8", 0)
        lanes = int(place.lanes) if isinstance(place, tirx.Ramp) else 1
        return tirx.BufferStore(target, tirx.Broadcast(zero, lanes) if lanes > 1 else zero, [place])

    return _by_vectors(size, [target], clear)


def _bytes(name: str, size: int) -> tirx.Var:
    return tirx.decl_buffer((size,), "uint8", name, layout=None)


def _by_vectors(
    size: int, params: list[tirx.Var], store: Callable[[Any], tirx.Stmt], most: int = _RUN
) -> tirx.PrimFunc:
    """A loop over vectors, as long as a power of two that divides the size, in runs for different tasks."""
    lanes = min(size & -size, ALIGNMENT)
    count = size // lanes
    runs = next((runs for runs in range(min(count, -(-size // most)), 0, -1) if count % runs == 0), 1)
    run, vector = tirx.Var("run", "int64"), tirx.Var("vector", "int64")
    first = (run * (count // runs) + vector) * lanes
    body = store(tirx.Ramp(first, tirx.IntImm("int64", 1), lanes) if lanes > 1 else first)
    zero = tirx.IntImm("int64", 0)
    inner = tirx.For(vector, zero, tirx.IntImm("int64", count // runs), tirx.ForKind.SERIAL, body)
    return tirx.PrimFunc(params, tirx.For(run, zero, tirx.IntImm("int64", runs), tirx.ForKind.PARALLEL, inner))

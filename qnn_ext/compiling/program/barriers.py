"""Where the tasks of a program must wait for each other: between a phase and a later one that uses the same memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Range = tuple[int, int]  # first byte and the byte after the last, in the workspace

MOST_COMPARED = 64
"""Phases that one is compared with. After more there is always a barrier, which is cheaper than comparing all pairs."""


@dataclass(frozen=True)
class Access:
    """How a phase accesses the workspace; `parallel` phases run on all tasks, the others on the first."""

    parallel: bool
    reads: tuple[Range, ...]
    writes: tuple[Range, ...]


def barriers(phases: Sequence[Access]) -> list[bool]:
    """For each phase, whether there must be a barrier before it.

    Two phases of the first task are in order anyway. Otherwise, without a barrier in between, no phase may read or
    write a byte that another phase has written, nor write a byte that another phase has read.
    """
    result = []
    alone: list[Access] = []  # since the last barrier
    shared: list[Access] = []
    for phase in phases:
        others = [*alone, *shared] if phase.parallel else shared
        meet = len(others) > MOST_COMPARED or any(_conflict(other, phase) for other in others)
        if meet:
            alone, shared = [], []
        (shared if phase.parallel else alone).append(phase)
        result.append(meet)
    return result


def _conflict(first: Access, second: Access) -> bool:
    return (
        _overlap(first.writes, second.reads)
        or _overlap(first.writes, second.writes)
        or _overlap(first.reads, second.writes)
    )


def _overlap(first: Iterable[Range], second: Sequence[Range]) -> bool:
    return any(a < d and c < b for a, b in first for c, d in second)

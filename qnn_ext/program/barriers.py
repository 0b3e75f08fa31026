"""Where the tasks of a program must wait for each other: between a phase and a later one that touches its memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Range = tuple[int, int]  # first byte and the byte after the last, in the workspace


@dataclass(frozen=True)
class Access:
    """What a phase does to the workspace; `parallel` phases run on all tasks, the others on the first."""

    parallel: bool
    reads: tuple[Range, ...]
    writes: tuple[Range, ...]


def barriers(phases: Sequence[Access]) -> list[bool]:
    """For each phase whether the tasks must meet before it.

    Two phases of the first task are in order anyway. Otherwise no byte may be read or written before the tasks have met
    that another phase wrote since they last did, nor be written that another phase read.
    """
    result = []
    since: list[Access] = []
    for phase in phases:
        meet = any((phase.parallel or other.parallel) and _conflict(other, phase) for other in since)
        if meet:
            since = []
        since.append(phase)
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

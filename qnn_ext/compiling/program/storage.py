"""The memory of a program's tensors, and how addresses in loops depend on the round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

ALIGNMENT = 64
"""Bytes: every storage starts at a cache line, which is also the size of the longest vector."""


@dataclass(eq=False)
class Loop:
    """Steps that run again and again.

    trips:     the number of rounds, the most of them with a condition
    outer:     the loop around it
    condition: two bytes in turn, as of a state: whether there is another round
    used:      storages from outside that its steps use, which must live as long as it runs
    """

    trips: int
    outer: Loop | None = None
    condition: Storage | None = None
    used: list[Storage] = field(default_factory=list)

    @property
    def path(self) -> tuple[Loop, ...]:
        """The loops around it and itself, from the outermost on."""
        return (*path_of(self.outer), self)


def path_of(loop: Loop | None) -> tuple[Loop, ...]:
    """The loops that something in `loop` is in, from the outermost on."""
    return loop.path if loop is not None else ()


class Where(Enum):
    """How a part's place in its whole follows from the number of rounds n that were completed.

    FORWARDS:  n parts from the start
    BACKWARDS: n parts from the last one
    OLD, NEW:  of two parts, the one that holds a state before the round, and after it
    """

    FORWARDS = "forwards"
    BACKWARDS = "backwards"
    OLD = "old"
    NEW = "new"


@dataclass(frozen=True)
class Move:
    """A part's place in its whole changes from round to round, by `stride` bytes."""

    loop: Loop
    where: Where
    stride: int


@dataclass(eq=False)
class Storage:
    """Memory of one tensor; a reshape shares its operand's memory.

    size:        bytes from the first to the last
    array:       the values of a constant
    whole:       the storage that it is a part of, from byte `start` on, or from where `move` says
    loop:        the innermost loop whose every round makes it anew
    first, last: the first and last step that uses it; inputs live from step -1, outputs until the number of steps
    is_updated:  whether later values of it are written into it while others may still be parts of it
    offset:      bytes from the start of its region, without moves, set by planning
    """

    size: int
    array: np.ndarray | None = None
    whole: Storage | None = None
    start: int = 0
    move: Move | None = None
    loop: Loop | None = None
    first: int = 1 << 30
    last: int = -1
    is_updated: bool = False
    offset: int = -1

    def used_at(self, step: int) -> None:
        self.first, self.last = min(self.first, step), max(self.last, step)
        if self.whole is not None:
            self.whole.used_at(step)

    def become_part(self, whole: Storage, start: int, move: Move | None = None) -> None:
        """Become a part of `whole`, which then lives at least as long."""
        self.whole, self.start, self.move = whole, start, move
        whole.used_at(self.first)
        whole.used_at(self.last)

    def part(self, size: int, start: int, move: Move | None = None, loop: Loop | None = None) -> Storage:
        """A part of this storage."""
        return Storage(size, self.array, self, start, move, loop)

    @property
    def chain(self) -> Iterator[Storage]:
        """The storage and those that it is a part of."""
        storage: Storage | None = self
        while storage is not None:
            yield storage
            storage = storage.whole

    @property
    def root(self) -> tuple[Storage, int]:
        """The outermost storage, and where in it this one starts, without moves."""
        chain = list(self.chain)
        return chain[-1], sum(storage.start for storage in chain)

    @property
    def moves(self) -> list[Move]:
        """The moves of the storage and of those that it is a part of."""
        return [storage.move for storage in self.chain if storage.move is not None]

    @property
    def is_aligned(self) -> bool:
        """Whether it starts at a cache line in every round."""
        return self.root[1] % ALIGNMENT == 0 and all(move.stride % ALIGNMENT == 0 for move in self.moves)


def aligned(size: int) -> int:
    """`size` rounded up to whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT

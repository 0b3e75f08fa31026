"""Operators whose results nothing reads. Importers leave them out before converting anything: they are no part of the
module, whether they are supported or not, and neither are their run-time checks. A framework that runs them may refuse
values that the module takes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def needed(
    operators: Sequence[T],
    wanted: Iterable[Hashable],
    reads: Callable[[T], Iterable[Hashable]],
    writes: Callable[[T], Iterable[Hashable]],
    acts: Callable[[T], bool] = lambda operator: False,
) -> list[T]:
    """The operators, in their order, that the wanted values depend on; acts: whether an operator is needed anyway."""
    writers: dict[Hashable, list[int]] = {}
    for index, operator in enumerate(operators):
        for value in writes(operator):
            writers.setdefault(value, []).append(index)
    found: set[int] = set()
    pending = [index for index, operator in enumerate(operators) if acts(operator)]
    pending += [index for value in wanted for index in writers.get(value, ())]
    while pending:
        index = pending.pop()
        if index not in found:
            found.add(index)
            pending += [writer for value in reads(operators[index]) for writer in writers.get(value, ())]
    return [operator for index, operator in enumerate(operators) if index in found]

"""Operators whose results nothing reads, and those that stand before what they read. Importers leave the former out
before converting anything: they are no part of the module, whether they are supported or not, and neither are their
run-time checks. A framework that runs them may refuse values that the module takes.
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


def in_order(
    operators: Sequence[T],
    reads: Callable[[T], Iterable[Hashable]],
    writes: Callable[[T], Iterable[Hashable]],
) -> list[T]:
    """The operators with each behind what it reads, otherwise in their order; those of a circle stay where they are."""
    writer = {value: index for index, operator in reversed(list(enumerate(operators))) for value in writes(operator)}
    result, seen = [], set()
    for first in range(len(operators)):
        path = [] if first in seen else [(first, iter(reads(operators[first])))]
        seen.add(first)
        while path:
            index, values = path[-1]
            before = next((writer[value] for value in values if writer.get(value, index) not in seen), None)
            if before is None:
                result.append(operators[index])
                path.pop()
            else:
                seen.add(before)
                path.append((before, iter(reads(operators[before]))))
    return result

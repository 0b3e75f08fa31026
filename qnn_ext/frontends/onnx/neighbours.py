"""Which operators write and read the values of a graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from .reader import Operator, values_read


class Neighbours:
    """The operators of a graph by the names of their values.

    writers: name -> the operator that computes it
    readers: name -> those that read it
    outputs: what the graph returns
    """

    def __init__(self, operators: Sequence[Operator] = (), outputs: Sequence[str] = ()) -> None:
        self.writers: dict[str, Operator] = {}
        self.readers: dict[str, list[Operator]] = defaultdict(list)
        self.outputs = frozenset(outputs)
        for operator in operators:
            self.writers.update((name, operator) for name in operator.outputs)
            for name in values_read(operator):
                self.readers[name].append(operator)

    def only_reader(self, name: str) -> Operator | None:
        """The one operator that reads a value which the graph does not return; None if there are more or none."""
        readers = self.readers[name]
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

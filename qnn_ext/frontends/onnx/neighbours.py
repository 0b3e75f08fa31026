"""Which operators write and read the values of a graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

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

    def all_come_from(self, wanted: str, through: Mapping[str, slice], name: str) -> bool:
        """Whether all operators that a value comes from are of the type `wanted`, with none behind them but those of
        the types `through`; the slice says which inputs of these are tensors to go back to."""
        pending, seen = [name], {name}
        while pending:
            writer = self.writers.get(pending.pop())
            if writer is None or writer.op_type not in {wanted, *through}:
                return False
            if writer.op_type != wanted:
                sources = set(writer.inputs[through[writer.op_type]]) - seen
                pending += sources
                seen |= sources
        return True

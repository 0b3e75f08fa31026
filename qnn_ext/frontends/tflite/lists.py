"""Lists of a WHILE's body: tensors that rounds read and write slice by slice, at the position of a counter.

TensorFlow's converter turns a list into a tensor with a leading axis, reading into GATHER, and writing into the
concatenation of what comes before, the new slice, and what comes after, or into DYNAMIC_UPDATE_SLICE. Read in the order
of the rounds, a list is a sequence of the loop, and written in that order it is an output: no round copies all of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .reader import Operator, Subgraph

SET_ITEM = ("TensorListSetItem", "FlexTensorListSetItem")
_GET_ITEM = ("TensorListGetItem", "FlexTensorListGetItem")
_SIZES = ("SHAPE", "TensorListLength", "FlexTensorListLength")
_SAME = ("RESHAPE", "EXPAND_DIMS", "SQUEEZE", "CAST")  # of a single integer


@dataclass(frozen=True)
class Position:
    """A tensor's value plus a number; without a tensor, the number."""

    tensor: int | None
    offset: int


@dataclass(frozen=True)
class Write:
    """A list with one slice replaced.

    source: the list before; position: of the slice; item: the slice; leading: whether it has the leading axis
    operators: those that only this takes part in
    """

    source: int
    position: Position
    item: int
    leading: bool
    operators: frozenset[int]


class Lists:
    """What a subgraph does to lists.

    writes: result -> how it was written
    """

    def __init__(self, graph: Subgraph) -> None:
        self.graph = graph
        self.producers = {output: operator for operator in graph.operators for output in operator.outputs}
        self.readers: dict[int, list[Operator]] = defaultdict(list)
        for operator in graph.operators:
            for tensor in operator.inputs:
                self.readers[tensor].append(operator)
        found = ((operator, self._write(operator)) for operator in graph.operators)
        self.writes = {operator.outputs[0]: write for operator, write in found if write is not None}

    def position(self, tensor: int) -> Position | None:
        """An index as an input of the graph, or a constant, plus a constant."""
        elements = self._elements(tensor)
        return elements[0] if elements is not None and len(elements) == 1 else None

    def _elements(self, tensor: int) -> list[Position] | None:
        """The elements of an integer vector; None if they are not that simple."""
        data = self.graph.tensors[tensor].data
        if data is not None:
            return [Position(None, int(value)) for value in data.reshape(-1)] if data.dtype.kind in "iu" else None
        operator = self.producers.get(tensor)
        if operator is None:
            return [Position(tensor, 0)] if tensor in self.graph.inputs else None
        if operator.name in _SAME:
            return self._elements(operator.inputs[0])
        if operator.name in ("PACK", "CONCATENATION"):
            parts = [self._elements(part) for part in operator.inputs]
            return None if any(part is None for part in parts) else [one for part in parts for one in part or ()]
        if operator.name == "ADD":
            return self._sum(operator)
        return None

    def _sum(self, operator: Operator) -> list[Position] | None:
        one, other = (self.position(tensor) for tensor in operator.inputs)
        if one is None or other is None or (one.tensor is not None and other.tensor is not None):
            return None
        return [Position(one.tensor if one.tensor is not None else other.tensor, one.offset + other.offset)]

    # ---- writes --------------------------------------------------------------------------------------------------

    def _write(self, operator: Operator) -> Write | None:
        if operator.name == "DYNAMIC_UPDATE_SLICE":
            return self._update(operator)
        if operator.name in SET_ITEM and len(operator.inputs) == 3:
            source, index, item = operator.inputs
            position = self.position(index)
            found = self._only_for({operator.index}, item)
            return None if position is None else Write(source, position, item, False, found)
        if operator.name != "CONCATENATION" or len(operator.inputs) != 3 or operator.options["axis"] != 0:
            return None
        before, item, after = operator.inputs
        slices = [self.producers.get(tensor) for tensor in (before, after)]
        if any(part is None or part.name != "SLICE" for part in slices):
            return None
        first, last = (part for part in slices if part is not None)
        source = first.inputs[0]
        begins, sizes = ([self._elements(part.inputs[i]) for part in (first, last)] for i in (1, 2))
        if last.inputs[0] != source or not all((*begins, *sizes)):
            return None
        (begin, end), (size, rest) = begins, sizes
        assert begin and end and size and rest
        position = size[0]
        whole = all(element == Position(None, 0) for element in (*begin, *end[1:]))
        open_ended = all(element == Position(None, -1) for element in rest[:1])
        full = all(self._is_full(source, axis, part[axis]) for part in (size, rest) for axis in range(1, len(part)))
        if not (whole and open_ended and full and end[0] == Position(position.tensor, position.offset + 1)):
            return None
        return Write(source, position, item, True, self._only_for({operator.index, first.index, last.index}, item))

    def _is_full(self, tensor: int, axis: int, size: Position) -> bool:
        shape = self.graph.tensors[tensor].shape
        return size == Position(None, -1) or (axis < len(shape) and size == Position(None, shape[axis]))

    def _update(self, operator: Operator) -> Write | None:
        source, item, start = operator.inputs
        begin = self._elements(start)
        shapes = [self.graph.tensors[tensor].shape for tensor in (source, item)]
        if not begin or len(shapes[1]) != len(shapes[0]) or shapes[1][:1] != (1,) or shapes[1][1:] != shapes[0][1:]:
            return None
        if any(element != Position(None, 0) for element in begin[1:]):
            return None
        return Write(source, begin[0], item, True, self._only_for({operator.index}, item))

    def _only_for(self, operators: set[int], item: int) -> frozenset[int]:
        """These operators, and those whose results only they read, but for what computes the item."""
        found = set(operators)
        for operator in reversed(self.graph.operators):
            readers = [reader for output in operator.outputs for reader in self.readers[output]]
            kept = any(output in (*self.graph.outputs, item) for output in operator.outputs)
            if readers and not kept and all(reader.index in found for reader in readers):
                found.add(operator.index)
        return frozenset(found)


@dataclass(frozen=True)
class Roles:
    """What the variables of a WHILE are to its body, by their positions.

    fixed:    those that never change
    counters: those that go up by one in each round -> their first value
    outputs:  lists that each round writes at a counter's position -> (write, position in the first round)
    slices:   result of a GATHER -> (the fixed variable, or None for a constant, and the constant; position in the first
              round)
    """

    fixed: frozenset[int]
    counters: dict[int, int]
    outputs: dict[int, tuple[Write, int]]
    slices: dict[int, tuple[int, int]]


def roles_of(lists: Lists, condition: Subgraph, initial: Mapping[int, np.ndarray]) -> Roles:
    """initial: the first values of variables that are constant"""
    body = lists.graph
    pairs = list(zip(body.inputs, body.outputs, strict=True))
    fixed = frozenset(i for i, (before, after) in enumerate(pairs) if before == after)
    counters = {
        i: int(initial[i].reshape(-1)[0])
        for i, (before, after) in enumerate(pairs)
        if i in initial
        and initial[i].size == 1
        and initial[i].dtype.kind in "iu"
        and before != after
        and lists.position(after) == Position(before, 1)
    }
    number = {before: i for i, (before, _) in enumerate(pairs)}

    def first(position: Position | None) -> int | None:
        """Where it is in the first round, if it then follows a counter."""
        counter = None if position is None or position.tensor is None else number.get(position.tensor)
        return counters[counter] + position.offset if counter in counters and position is not None else None

    outputs = {}
    for i, (before, after) in enumerate(pairs):
        write = lists.writes.get(after)
        start = first(write.position) if write is not None else None
        if write is None or start is None or write.source != before:
            continue
        others = [reader for reader in lists.readers[before] if reader.index not in write.operators]
        tested = any(condition.inputs[i] in operator.inputs for operator in condition.operators)
        unread = not lists.readers[after] and body.outputs.count(after) == 1
        if unread and not tested and all(reader.name in _SIZES for reader in others):
            outputs[i] = write, start
    slices = {}
    for operator in body.operators:
        if not _reads_slice(operator):
            continue
        source, index = operator.inputs[:2]
        start = first(lists.position(index)) if not body.tensors[index].shape else None
        known = body.tensors[source].is_constant or number.get(source) in fixed
        if start is not None and known:
            slices[operator.index] = source, start
    return Roles(fixed, counters, outputs, slices)


def _reads_slice(operator: Operator) -> bool:
    if operator.name in _GET_ITEM:
        return len(operator.inputs) > 1
    return operator.name == "GATHER" and operator.options["axis"] == 0 and operator.options["batch_dims"] == 0

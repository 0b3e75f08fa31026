"""States of loops that every round only appends to by a Concat, as lists of results in scripted models: what the rounds
append becomes an output of theirs, so that no state grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from ...op import compound
from ...op.base import normalize_axis, shape_of
from .neighbours import Neighbours
from .node import Node
from .reader import Operator, Subgraph, copies
from .sequences import TensorSequence


@dataclass(frozen=True)
class Collected:
    """A loop's body without such states.

    body: it has what is appended to each of them as its last outputs
    axes: index of the state -> the axis along which it grows, in order
    """

    body: Subgraph
    axes: dict[int, int]

    def joined(self, node: Node, initial: relax.Expr, rounds: relax.Expr, index: int) -> relax.Expr:
        """The state after the loop, from what each round has appended, (rounds, …)."""
        trips, *shape = shape_of(rounds)
        axis = normalize_axis(self.axes[index], len(shape))
        order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1)]
        moved = compound.permute(rounds, order, node.emit)
        appended = compound.reshape(moved, (*shape[:axis], trips * shape[axis], *shape[axis + 1 :]), node.emit)
        if not shape_of(initial)[axis]:
            return appended
        return node.emit(relax.op.concat([initial, appended], axis))


def collecting(body: Subgraph, states: Sequence[Any]) -> Collected | None:
    """The body without such states; None if it has none.

    states: what they are at first
    """
    graph = Neighbours(body.operators, body.outputs)
    joins = [_appending(body, graph, index, state) for index, state in enumerate(states)]
    found = {index: join for index, join in enumerate(joins) if join is not None}
    if not found:
        return None
    axes = {index: int(join.attributes.get("axis", 0)) for index, join in found.items()}
    empty = {join: f"no elements of {join.inputs[0]}" for join in found.values()}  # they must have the others' shape
    shorter = {join: replace(join, inputs=(empty[join], *join.inputs[1:])) for join in found.values()}
    inputs = [name for place, name in enumerate(body.inputs) if place - 2 not in found]
    outputs = [name for place, name in enumerate(body.outputs) if place - 1 not in found]
    return Collected(
        replace(
            body,
            operators=tuple(shorter.get(operator, operator) for operator in body.operators),
            constants=body.constants | {empty[found[index]]: _empty(states[index], axes[index]) for index in found},
            inputs=tuple(inputs),
            outputs=(*outputs, *(operator.outputs[0] for operator in found.values())),
        ),
        axes,
    )


def _empty(state: relax.Expr, axis: int) -> np.ndarray:
    """A tensor like a state, but without elements along an axis."""
    shape = list(shape_of(state))
    shape[normalize_axis(axis, len(shape))] = 0
    return np.zeros(shape, str(state.ty.dtype))


def _appending(body: Subgraph, graph: Neighbours, index: int, state: Any) -> Operator | None:
    """The Concat that appends to a state, if that is all that becomes of the state in a round."""
    name, end, join = body.inputs[2 + index], body.outputs[1 + index], None
    if isinstance(state, TensorSequence):
        return None
    while join is None or name != end:
        reader = graph.only_reader(name)
        if reader is None:
            return None
        appends = reader.op_type == "Concat" and not reader.domain and reader.inputs.index(name) == 0
        if join is None and appends and len(reader.inputs) > 1:
            join = reader
        elif not copies(reader, str(state.ty.dtype)):
            return None
        name = reader.outputs[0]
    return join if body.outputs.count(end) == 1 and not graph.readers[end] else None

"""IF, WHILE, CALL, STABLEHLO_CASE and STABLEHLO_COMPOSITE: operators with subgraphs of their own, which use nothing but
their inputs and the model's variables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import relax

from ....limits import charge
from ....op import check_bounds
from ....op.base import constant, constant_value
from ....op.loop import MOST_TRIPS
from ...loops import UnknownRoundsError, branch, check_states, loop
from ..integers import require_dtype, scalar
from ..lists import Lists, Position, Roles, Write, roles_of
from ..node import Node, shape_of
from ..reader import Subgraph
from ..registry import converter
from .shape import reshape


def _subgraph(node: Node, option: str, inputs: int, outputs: int) -> Subgraph:
    """The subgraph that an option names."""
    return _checked(node, int(node.options[option]), inputs, outputs)


def _checked(node: Node, index: int, inputs: int, outputs: int) -> Subgraph:
    """The subgraph of an index, which must have so many inputs and outputs."""
    graphs = node.assembly.model.subgraphs
    if not 0 < index < len(graphs):
        raise node.malformed(f"there is no subgraph {index} to run")
    graph = graphs[index]
    if len(graph.inputs) != inputs or len(graph.outputs) != outputs:
        raise node.malformed(
            f"subgraph {index} has {len(graph.inputs)} inputs and {len(graph.outputs)} outputs; expected {inputs} and "
            f"{outputs}"
        )
    return graph


def _condition(node: Node, value: relax.Expr) -> relax.Expr:
    if str(value.ty.dtype) != "bool" or shape_of(value) not in ((), (1,)):
        raise node.malformed(f"the condition must be a bool scalar, found {value.ty.dtype} of shape {shape_of(value)}")
    return value if shape_of(value) == () else node.emit(relax.op.reshape(value, ()))


@converter("IF", max_version=1)
def convert_if(node: Node) -> list[relax.Expr]:
    """One of two subgraphs. A constant condition chooses now."""
    values = [node.input(index) for index in range(1, node.input_count)]
    graphs = [
        _subgraph(node, option, len(values), len(node.operator.outputs))
        for option in ("then_subgraph_index", "else_subgraph_index")
    ]
    condition = _condition(node, node.input(0))
    known = constant_value(condition)
    if known is not None:
        return _run(node, graphs[0] if known else graphs[1], values)
    return _choose(node, [condition], graphs, values)


@converter("STABLEHLO_CASE", max_version=1)
def convert_case(node: Node) -> list[relax.Expr]:
    """The subgraph of a number that is the first input; of one out of range, the last. A constant chooses now."""
    values = [node.input(index) for index in range(1, node.input_count)]
    branches = node.options["branch_subgraph_indices"]
    if not branches:
        raise node.malformed("it has no branches")
    graphs = [_checked(node, index, len(values), len(node.operator.outputs)) for index in branches]
    require_dtype(node, node.dtype(0), "int32")
    number = reshape(node, node.input(0), ())
    known = constant_value(number)
    if known is not None:
        return _run(node, graphs[int(known) if 0 <= known < len(graphs) else -1], values)
    conditions = [node.emit(relax.op.equal(number, scalar(index))) for index in range(len(graphs) - 1)]
    return _choose(node, conditions, graphs, values)


def _choose(
    node: Node, conditions: Sequence[relax.Expr], graphs: Sequence[Subgraph], values: Sequence[relax.Expr]
) -> list[relax.Expr]:
    """The results of the first subgraph whose condition is true; of the last one, which has none, if none is."""
    variables = node.assembly.variables

    def first(names: list[str], start: int) -> list[relax.Expr]:
        """Those of the subgraphs from `start` on, and the variables after them."""
        if start == len(conditions):
            return result(names, start)
        return branch(node, conditions[start], partial(result, names, start), partial(first, names, start + 1))

    def result(names: list[str], index: int) -> list[relax.Expr]:
        with variables.apart(names) as after:
            return [*_run(node, graphs[index], values), *after()]

    def convert(names: list[str]) -> list[relax.Expr]:
        results = first(names, 0)
        variables.values.update(zip(names, results[len(node.operator.outputs) :], strict=True))
        return results[: len(node.operator.outputs)]

    return variables.carried(convert)


@converter("STABLEHLO_COMPOSITE", max_version=1)
def convert_composite(node: Node) -> list[relax.Expr]:
    """What its subgraph computes; the name says what a runtime may compute instead."""
    values = [node.input(index) for index in range(node.input_count)]
    graph = _subgraph(node, "decomposition_subgraph_index", len(values), len(node.operator.outputs))
    return _run(node, graph, values)


@converter("CALL", max_version=1)
def convert_call(node: Node) -> list[relax.Expr]:
    """What a subgraph computes."""
    values = [node.input(index) for index in range(node.input_count)]
    return _run(node, _subgraph(node, "subgraph", len(values), len(node.operator.outputs)), values)


def _run(node: Node, graph: Subgraph, values: Sequence[relax.Expr]) -> list[relax.Expr]:
    """A subgraph's results, run once by a node."""
    with node.assembly.variables.owned(graph.index):
        return node.assembly.run_graph(graph, values, {})


@converter("WHILE", max_version=1)
def convert_while(node: Node) -> list[relax.Expr]:
    """A body that is run on its own results while a condition on them is true."""
    values = [node.input(index) for index in range(node.input_count)]
    body = _subgraph(node, "body_subgraph_index", len(values), len(values))
    condition = _subgraph(node, "cond_subgraph_index", len(values), 1)
    if len(node.operator.outputs) != len(values):
        raise node.malformed(f"has {len(values)} inputs and {len(node.operator.outputs)} outputs")
    known = {index: array for index, value in enumerate(values) if (array := constant_value(value)) is not None}
    lists = Lists(body)
    roles = roles_of(lists, condition, known)
    plain = Roles(roles.fixed, {}, {}, {})
    variables = node.assembly.variables
    with variables.owned(condition.index, body.index):
        try:
            return variables.carried(lambda names: _While(node, condition, lists, roles, values, names).results())
        except UnknownRoundsError:
            return variables.carried(lambda names: _While(node, condition, lists, plain, values, names).results())


class _ElementsFound(Exception):
    """A round writes elements of this shape into a list that was reserved for elements of unknown shape."""

    def __init__(self, variable: int, shape: Sequence[int]) -> None:
        super().__init__()
        self.variable, self.shape = variable, shape


class _While:
    """One conversion, with lists as sequences and outputs as far as `roles` says, and with these model's variables as
    states."""

    def __init__(
        self,
        node: Node,
        condition: Subgraph,
        lists: Lists,
        roles: Roles,
        values: Sequence[relax.Expr],
        variables: Sequence[str],
    ) -> None:
        self._node = node
        self._variables = variables
        self._condition, self._lists, self._roles = condition, lists, roles
        self._values = list(values)
        self._states = [i for i in range(len(values)) if i not in roles.fixed and i not in roles.outputs]

    def results(self) -> list[relax.Expr]:
        while True:  # at most once more for each list
            try:
                return self._converted()
            except _ElementsFound as found:
                self._values[found.variable] = _with_elements(self._values[found.variable], found.shape)

    def _converted(self) -> list[relax.Expr]:
        node, values, variables = self._node, self._values, self._node.assembly.variables
        condition = self._goes_on(values)
        states, outputs = loop(
            node,
            self._round,
            [*(values[i] for i in self._states), *(variables.values[name] for name in self._variables)],
            [self._sequence(*place) for place in self._roles.slices.values()],
            MOST_TRIPS,
            condition=condition,
            whole=True,
        )
        variables.values.update(zip(self._variables, states[len(self._states) :], strict=True))
        results = list(values)
        for i, state in zip(self._states, states, strict=False):
            results[i] = state
        for (i, (_, first)), stacked in zip(self._roles.outputs.items(), outputs, strict=True):
            results[i] = self._placed(values[i], stacked, first)
        return results

    def _goes_on(self, values: Sequence[relax.Expr]) -> relax.Expr:
        (result,) = self._node.assembly.run_graph(self._condition, values, {})
        return _condition(self._node, result)

    def _round(self, states: list[relax.Expr], slices: list[relax.Expr]) -> tuple[Any, ...]:
        variables, count = self._node.assembly.variables, len(self._states)
        with variables.apart(self._variables, states[count:]) as after:
            condition, new, outputs = self._body(states[:count], slices)
            return condition, [*new, *after()], outputs

    def _body(self, states: list[relax.Expr], slices: list[relax.Expr]) -> tuple[Any, ...]:
        node, body = self._node, self._lists.graph
        values = list(self._values)
        for i, state in zip(self._states, states, strict=True):
            values[i] = state
        found = dict(zip(self._roles.slices, slices, strict=True))
        given: dict[int, Any] = {index: lambda _, part=part: part for index, part in found.items()}
        skipped = {index for write, _ in self._roles.outputs.values() for index in write.operators}
        given |= dict.fromkeys(skipped, None)
        for result, write in self._lists.writes.items():
            operator = self._lists.producers[result].index
            if operator not in skipped:
                given |= dict.fromkeys(write.operators, None)
                given[operator] = partial(self._replaced, write)
        wanted = [after for i, after in enumerate(body.outputs) if i not in self._roles.outputs]
        items = [write.item for write, _ in self._roles.outputs.values()]
        results = node.assembly.run_graph(body, values, given, [*wanted, *items])
        new = dict(zip((i for i in range(len(values)) if i not in self._roles.outputs), results, strict=False))
        values = [new.get(i, value) for i, value in enumerate(values)]
        check_states(states, [values[i] for i in self._states])
        outputs = [
            node.emit(relax.op.reshape(item, shape_of(item)[1:])) if write.leading else item
            for (write, _), item in zip(self._roles.outputs.values(), results[len(wanted) :], strict=True)
        ]
        return self._goes_on(values), [values[i] for i in self._states], outputs

    def _sequence(self, source: int, first: int) -> relax.Expr:
        """The slices that the rounds read, from the first on."""
        body = self._lists.graph
        data = body.tensors[source].data
        whole = constant(data) if data is not None else self._values[body.inputs.index(source)]
        length = shape_of(whole)[0]
        if not 0 <= first <= length:
            raise self._node.malformed(f"slice {first} of a list of {length}")
        return self._part(whole, first, length)

    def _placed(self, before: relax.Expr, stacked: relax.Expr, first: int) -> relax.Expr:
        """A list with the slices that the rounds wrote, from the first on."""
        length, count = shape_of(before)[0], shape_of(stacked)[0]
        if not 0 <= first <= length - count:
            raise self._node.malformed(f"slices {first} to {first + count - 1} of a list of {length}")
        if count == length:
            return stacked
        if _is_unknown(shape_of(before), shape_of(stacked)[1:]):
            before = _with_elements(before, shape_of(stacked)[1:])
        parts = [self._part(before, 0, first), stacked, self._part(before, first + count, length)]
        return self._node.emit(relax.op.concat([part for part in parts if shape_of(part)[0]], 0))

    def _part(self, value: relax.Expr, begin: int, end: int) -> relax.Expr:
        if (begin, end) == (0, shape_of(value)[0]):
            return value
        return self._node.emit(relax.op.strided_slice(value, [0], [begin], [end]))

    def _replaced(self, write: Write, value: Any) -> relax.Expr:
        """A list with a slice replaced, wherever it is. value: tensor -> its value in the body"""
        node, before, item = self._node, value(write.source), value(write.item)
        shape, inputs = shape_of(before), self._lists.graph.inputs
        element = shape_of(item)[1:] if write.leading else shape_of(item)
        if write.source in inputs and _is_unknown(shape, element):
            raise _ElementsFound(inputs.index(write.source), element)
        if shape[0] == 1 and write.position == Position(None, 0):
            return node.emit(relax.op.reshape(item, shape))
        index: relax.Expr = constant(np.int32(0)) if write.position.tensor is None else value(write.position.tensor)
        index = node.emit(relax.op.astype(node.emit(relax.op.reshape(index, ())), "int64"))
        index = node.emit(relax.op.add(index, constant(np.int64(write.position.offset))))
        index = node.emit(check_bounds(index, 0, shape[0] - 1, node.label))
        places = np.arange(shape[0], dtype=np.int64).reshape(-1, *[1] * (len(shape) - 1))
        here = node.emit(relax.op.equal(constant(places), index))
        return node.emit(relax.op.where(here, node.emit(relax.op.reshape(item, (1, *shape[1:]))), before))


def _is_unknown(shape: Sequence[int], element: Sequence[int]) -> bool:
    """Whether a list of this shape was reserved for elements of which only some dimensions, or none, were known."""
    dims = shape[1:]
    open_dims = len(dims) == len(element) and all(dim in (0, size) for dim, size in zip(dims, element, strict=True))
    return tuple(dims) != tuple(element) and (not dims or open_dims)


def _with_elements(reserved: relax.Expr, element: Sequence[int]) -> relax.Expr:
    """A reserved list, of zeros, once the shape of its elements is known."""
    shape = (shape_of(reserved)[0], *element)
    charge(shape)
    return constant(np.zeros(shape, str(reserved.ty.dtype)))

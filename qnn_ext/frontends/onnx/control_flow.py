"""If, Loop, Scan and SequenceMap: nodes with graphs of their own, which may use every value around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import relax

from ...errors import ModelFormatError, QnnError
from ...limits import check
from ...op.base import constant, constant_value, shape_of
from ...op.loop import MOST_TRIPS
from ..bounded_values import bounds_of
from ..loops import ChangingStateError, RunTimeSizeError, UnknownRoundsError, branch, loop
from ..recurrent import stacked
from ..sized_shapes import emptied
from ..sizes import Size
from .collected import Collected, collecting
from .node import Node
from .reader import Subgraph
from .sequences import LoopSequenceError, TensorSequence, appended, extended, only_tensors

Run = Callable[[Subgraph, Sequence[relax.Expr]], list[relax.Expr]]
"""Converts a graph with these inputs; returns its outputs."""
Read = Callable[[str], Subgraph]
"""The graph in an attribute. Raises ModelFormatError if there is none."""

TRUE = constant(np.bool_(True))


def convert_if(node: Node, read: Read, run: Run) -> list[relax.Expr]:
    """One of two graphs. A constant condition chooses now, and the other graph is not even read."""
    condition = node.input(0)
    known = constant_value(condition)
    if known is not None:
        return _wanted(node, run(read("then_branch" if known.reshape(-1)[:1].any() else "else_branch"), []))
    graphs = [read("then_branch"), read("else_branch")]
    found = _without_elements(node, run, graphs)
    if found is not None:
        return found
    then, otherwise = (partial(_branch, node, run, graph) for graph in graphs)
    return branch(node, _scalar(node, condition, "bool"), then, otherwise)


def _without_elements(node: Node, run: Run, graphs: Sequence[Subgraph]) -> list[relax.Expr] | None:
    """The results of one graph, where the other one's are constants without elements, as if there are no boxes: then
    these results have the size 0. None for other graphs, and where no size depends on data."""
    sizes, known = node.assembly.builder.sizes, node.assembly.constants
    if sizes.none:
        return None
    for index, graph in enumerate(graphs):
        inside = {*graph.constants, *known, *(name for one in graph.operators for name in one.outputs)}
        if not all(name in inside for one in graph.operators for name in (*one.inputs, *graph.outputs) if name):
            continue
        nothing = _wanted(node, run(graph, []))
        values = [None if isinstance(one, TensorSequence) else constant_value(one) for one in nothing]
        if any(value is None or value.size for value in values):
            continue
        empty = _scalar(node, node.input(0), "bool")
        empty = node.emit(relax.op.logical_not(empty)) if index else empty
        others = _branch(node, run, graphs[1 - index])
        return [
            emptied(sizes, one, value.shape, empty)
            for one, value in zip(others, values, strict=True)
            if value is not None
        ]
    return None


def _branch(node: Node, run: Run, graph: Subgraph) -> list[relax.Expr]:
    return only_tensors(_wanted(node, run(graph, [])), "the result of a branch chosen at run time")


def _wanted(node: Node, results: Sequence[relax.Expr]) -> list[relax.Expr]:
    if len(results) < len(node.outputs):
        raise ModelFormatError(f"has {len(node.outputs)} outputs, but its branch has {len(results)}")
    return list(results[: len(node.outputs)])


def convert_loop(node: Node, read: Read, run: Run) -> list[relax.Expr]:
    """A body that takes (round, condition, states) and returns (condition, states, outputs). It is written out round by
    round where a state changes its shape, or a sequence is read that grows: every round is another function then; and
    where a size is known only at run time. A state that rounds only append to is no state but an output of theirs."""
    body, states = read("body"), [node.input(index) for index in range(2, len(node.inputs))]
    try:
        return _repeated(node, body, states, run)
    except (ChangingStateError, RunTimeSizeError, LoopSequenceError) as error:
        collected = collecting(body, states)
        if collected is None:
            return _written_out(node, body, run, error)
        try:
            return _collected(node, collected, states, run)
        except (ChangingStateError, RunTimeSizeError, LoopSequenceError):
            return _written_out(node, body, run, error)


def _collected(node: Node, collected: Collected, states: Sequence[Any], run: Run) -> list[relax.Expr]:
    """A loop with states that rounds only append to: what they append is stacked, and joined afterwards."""
    kept = [state for index, state in enumerate(states) if index not in collected.axes]
    results = _repeated(node, collected.body, kept, run)
    final = {index: results.pop() for index in reversed(collected.axes)}
    others = iter(results)
    return [
        collected.joined(node, states[index], final[index], index) if index in final else next(others)
        for index in range(len(states))
    ] + list(others)


def _repeated(node: Node, body: Subgraph, states: Sequence[Any], run: Run) -> list[relax.Expr]:
    """The loop as one operator."""
    count = len(states)
    if len(body.inputs) != count + 2 or len(body.outputs) < count + 1:
        raise ModelFormatError(
            f"has {count} states, but its body has {len(body.inputs)} inputs and {len(body.outputs)} outputs"
        )
    most = _scalar(node, node.input(0), "int64") if node.has_input(0) else None
    going = _scalar(node, node.input(1), "bool") if node.has_input(1) else TRUE
    trips = MOST_TRIPS if most is None else constant_value(most)
    if trips is None:  # known at run time
        going = _both(node, going, node.emit(relax.op.less(constant(np.int64(0)), most)))
    limit = most if trips is None else None

    sequences = {index: state for index, state in enumerate(states) if isinstance(state, TensorSequence)}
    fixed = {index for index in sequences if _is_unchanged(body, index)}
    tensors = [index for index in range(count) if index not in sequences]
    more: dict[int, int] = {}  # how many stacked outputs each sequence has, one or none
    conditional: list[bool] = []  # whether a round may end the loop

    def one_round(current: list[relax.Expr], _: list[relax.Expr]) -> tuple[Any, ...]:
        *values, number = current
        given: dict[int, Any] = dict(zip(tensors, values, strict=True))
        given |= {
            index: state if index in fixed else TensorSequence(state=object()) for index, state in sequences.items()
        }
        condition, *results = run(body, [number, TRUE, *(given[index] for index in range(count))])
        added = {index: appended(node, given[index].state, results[index]) for index in sequences if index not in fixed}
        more.update({index: len(parts) for index, parts in added.items()})
        after = node.emit(relax.op.add(number, constant(np.int64(1))))
        condition = _scalar(node, condition, "bool")
        known = constant_value(condition)
        conditional.append(known is None or not known)
        if limit is not None:
            condition = _both(node, condition, node.emit(relax.op.less(after, limit)))
        new = only_tensors([results[index] for index in tensors], "a state that was a tensor")
        outputs = only_tensors(results[count:], "an output of every round")
        return condition, [*new, after], [*outputs, *(part for parts in added.values() for part in parts)]

    start = constant(np.int64(0))
    bounded = MOST_TRIPS if trips is None else max(int(trips), 0)
    initial = [*(states[index] for index in tensors), start]
    try:
        final, outputs = loop(node, one_round, initial, [], bounded, condition=going, whole=True)
    except UnknownRoundsError as error:
        found = None if most is None else _most_rounds(node, most)
        if more or found is None:
            raise UnknownRoundsError(f"{error}; limit it in the model, as by Clip or Min") from None
        largest = max(found.most if isinstance(found, Size) else found, 1)
        final, outputs = loop(node, one_round, initial, [], largest, condition=going)
        sizes = node.assembly.builder.sizes
        rounds = sizes.size(final[-1], largest, node.label)
        if isinstance(found, Size) and not conditional[-1] and not node.has_input(1):
            rounds = found
        outputs = [sizes.set(output, {0: rounds}) for output in outputs]
    ends: dict[int, Any] = {**sequences, **dict(zip(tensors, final, strict=False))}
    for index in reversed([index for index in more if more[index]]):
        ends[index] = extended(node, sequences[index], outputs.pop())
    return [*(ends[index] for index in range(count)), *outputs]


def _most_rounds(node: Node, most: relax.Expr) -> int | Size | None:
    """The number of rounds where it is a size, else the most there may be; None if they are not known."""
    sizes = node.assembly.builder.sizes
    elements = sizes.elements(most)
    if elements is not None:
        return elements.reshape(-1)[0]
    bounds = bounds_of(sizes.builder, most)
    return None if bounds is None or bounds[1] >= MOST_TRIPS else bounds[1]


def _written_out(node: Node, body: Subgraph, run: Run, reason: QnnError) -> list[relax.Expr]:
    """The rounds one after another. Raises `reason`, with what would help, if their number is unknown."""
    values: list[Any] = [node.input(index) for index in range(2, len(node.inputs))]
    count = len(values)
    rounds: list[list[relax.Expr]] = []
    most = constant_value(node.input(0)) if node.has_input(0) else np.int64(MOST_TRIPS)
    going = node.input(1) if node.has_input(1) else TRUE
    while True:
        known = constant_value(going)
        if known is None or most is None:
            raise type(reason)(f"{reason}: that is supported only if the number of rounds is known at import")
        if not known or len(rounds) >= most:
            break
        check("unrolled", len(rounds) + 1, f"{node.label}: a loop written out, as a round is unlike the others,")
        number = constant(np.int64(len(rounds)))
        condition, *results = run(body, [number, TRUE, *values])
        going, values = _scalar(node, condition, "bool"), results[:count]
        rounds.append(only_tensors(results[count:], "an output of every round"))
    if not rounds and len(body.outputs) > count + 1:
        raise reason
    return [*values, *(stacked(node.emit, list(outputs), 0) for outputs in zip(*rounds, strict=True))]


def _is_unchanged(body: Subgraph, state: int) -> bool:
    """Whether a loop's body returns a state as it is."""
    copies = [operator for operator in body.operators if operator.op_type == "Identity"]
    copied = {
        result: value for operator in copies for result, value in zip(operator.outputs, operator.inputs, strict=False)
    }
    name = body.outputs[1 + state]
    for _ in copied:
        name = copied.get(name, name)
    return name == body.inputs[2 + state]


def _both(node: Node, one: relax.Expr, other: relax.Expr) -> relax.Expr:
    """one and other; constants are not computed with."""
    if one is TRUE or (constant_value(one) is not None and constant_value(one)):
        return other
    return node.emit(relax.op.logical_and(one, other))


def _scalar(node: Node, value: relax.Expr, dtype: str) -> relax.Expr:
    """A scalar, which models may also give as a vector of one element."""
    if str(value.ty.dtype) != dtype or shape_of(value) not in ((), (1,)):
        raise ModelFormatError(f"takes a {dtype} scalar, found {value.ty.dtype} of shape {shape_of(value)}")
    return value if shape_of(value) == () else node.emit(relax.op.reshape(value, ()))


def convert_scan(node: Node, read: Read, run: Run) -> list[relax.Expr]:
    """A body that takes (states, slices) and returns (states, outputs)."""
    only_tensors(node.inputs, "an input of Scan")
    return _scan_of_batches(node, read, run) if node.opset < 9 else _scan(node, read, run)


def _scan(node: Node, read: Read, run: Run) -> list[relax.Expr]:
    body, values = read("body"), [node.input(index) for index in range(len(node.inputs))]
    sequences = int(node.attribute("num_scan_inputs", 0))
    states = len(values) - sequences
    outputs = len(body.outputs) - states
    _check_scan(body, len(values), sequences, states)
    axes = _flags(node, "scan_input_axes", sequences)
    moved = [_moved(node, value, axis, 0) for value, axis in zip(values[states:], axes, strict=True)]
    final, whole = loop(
        node,
        lambda current, slices: _split(run(body, [*current, *slices]), states),
        values[:states],
        moved,
        _length(moved),
        backwards_in=[bool(flag) for flag in _flags(node, "scan_input_directions", sequences)],
        backwards_out=[bool(flag) for flag in _flags(node, "scan_output_directions", outputs)],
    )
    placed = zip(whole, _flags(node, "scan_output_axes", outputs), strict=True)
    return [*final, *(_moved(node, value, 0, axis) for value, axis in placed)]


def _scan_of_batches(node: Node, read: Read, run: Run) -> list[relax.Expr]:
    """Version 8: every input and output has a batch axis first, and the samples are independent."""
    body, values = read("body"), [node.input(index) for index in range(1, len(node.inputs))]
    sequences = int(node.attribute("num_scan_inputs", 0))
    states = len(values) - sequences
    _check_scan(body, len(values), sequences, states)
    flags = _flags(node, "directions", sequences)
    if any(len(shape_of(value)) < 1 + (index >= states) for index, value in enumerate(values)):
        raise ModelFormatError("inputs of version 8 have a batch axis, and sequences an axis after it")
    batch, length = _length(values), _length(values[states:], 1)
    if node.has_input(0) and any(found != length for found in node.integers(0)):
        raise node.unsupported("sequences of different lengths")

    def sample(_: list[relax.Expr], parts: list[relax.Expr]) -> tuple[list[relax.Expr], list[relax.Expr]]:
        final, whole = loop(
            node,
            lambda current, slices: _split(run(body, [*current, *slices]), states),
            parts[:states],
            parts[states:],
            length,
            backwards_in=[bool(flag) for flag in flags],
        )
        return [], [*final, *whole]

    return loop(node, sample, [], values, batch)[1]


def _check_scan(body: Subgraph, values: int, sequences: int, states: int) -> None:
    if not 0 < sequences <= values or len(body.inputs) != values or len(body.outputs) < states:
        raise ModelFormatError(
            f"has {values} inputs, of which {sequences} are scanned, but its body has {len(body.inputs)} inputs and "
            f"{len(body.outputs)} outputs"
        )


def _flags(node: Node, name: str, count: int) -> list[int]:
    """An attribute with an integer for each of `count` inputs or outputs, by default 0."""
    found = node.attribute(name) or [0] * count
    if len(found) != count:
        raise ModelFormatError(f"attribute {name} has {len(found)} entries for {count} values")
    return [int(entry) for entry in found]


def _length(sequences: Sequence[relax.Expr], axis: int = 0) -> int:
    """The length of the sequences, which must be the same."""
    lengths = {shape_of(sequence)[axis] for sequence in sequences}
    if len(lengths) != 1:
        raise ModelFormatError(f"the scanned inputs have different lengths: {sorted(lengths)}")
    return lengths.pop()


def _moved(node: Node, value: relax.Expr, source: int, target: int) -> relax.Expr:
    """A tensor with an axis moved elsewhere."""
    rank = len(shape_of(value))
    if not rank or not all(-rank <= axis < rank for axis in (source, target)):
        raise ModelFormatError(f"axis {source or target} is out of range for shape {shape_of(value)}")
    order = [axis for axis in range(rank) if axis != source % rank]
    order.insert(target % rank, source % rank)
    return value if order == sorted(order) else node.emit(relax.op.permute_dims(value, order))


def _split(results: list[relax.Expr], states: int) -> tuple[list[relax.Expr], list[relax.Expr]]:
    results = only_tensors(results, "a result of Scan's body")
    return results[:states], results[states:]


def convert_sequence_map(node: Node, read: Read, run: Run) -> list[Any]:
    """A graph for each tensor of a sequence, with those of others at the same place and with tensors for all places:
    sequences of the results."""
    count = len(node.inputs)
    inputs = [node.input(index) for index in range(count)]
    if not inputs or not isinstance(inputs[0], TensorSequence):
        raise ModelFormatError("the first input must be a sequence")
    first, *others = [one for one in inputs if isinstance(one, TensorSequence)]
    if any(one.state is not None for one in (first, *others)):
        raise LoopSequenceError("a sequence that a loop appends to, read in that loop")
    if any(one.length != first.length for one in others):
        raise ModelFormatError("the sequences have different lengths")
    items = [one.items(node) if isinstance(one, TensorSequence) else [one] * first.length for one in inputs]
    graph = read("body")
    if len(graph.inputs) != count:
        raise ModelFormatError(f"its body has {len(graph.inputs)} inputs, found {count}")
    rounds = [run(graph, list(values)) for values in zip(*items, strict=True)]
    by_output = zip(*(only_tensors(results, "a result of the body") for results in rounds), strict=True)
    return [TensorSequence(tuple(values)) for values in by_output] or [TensorSequence()] * len(graph.outputs)


CONTROL_FLOW: dict[str, Callable[[Node, Read, Run], list[relax.Expr]]] = {
    "If": convert_if,
    "Loop": convert_loop,
    "Scan": convert_scan,
    "SequenceMap": convert_sequence_map,
}

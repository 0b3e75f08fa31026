"""LSTM, GRU and RNN, and what DynamicQuantizeLSTM shares with them: operands, options, directions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from tvm import relax

from ....limits import charge, check_elements
from ....op import compound
from ....op.base import constant, shape_of
from ... import recurrent
from ...run_time import checked_indices
from ..node import Node
from ..registry import converter
from .activations import activation_functions
from .arithmetic import number, plus, times

# Positions of inputs that LSTM, GRU and RNN have in common
X, W, R, BIAS, LENGTHS, HIDDEN, MEMORY, PEEPHOLES = range(8)
_DIRECTIONS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
_GATES = {"LSTM": "iofc", "GRU": "zrh", "RNN": "h", "DynamicQuantizeLSTM": "iofc"}
_USUAL = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
    "DynamicQuantizeLSTM": ("Sigmoid", "Tanh", "Tanh"),
}
_OF_GRU = {"sigmoid": "gru_logistic", "tanh": "gru_tanh"}
_STATES = {"LSTM": (HIDDEN, MEMORY), "DynamicQuantizeLSTM": (HIDDEN, MEMORY)}


@dataclass(frozen=True)
class Products:
    """The products of one direction, without biases.

    inputs:    the data (steps · batch, depth) -> (steps · batch, gates · hidden)
    recurrent: (first, last) -> the function h -> h · R of the gates first ≤ k < last
    """

    inputs: recurrent.Function
    recurrent: Callable[[int, int], recurrent.Function]


@dataclass(frozen=True)
class Layer:
    """The checked operands of a recurrent node.

    data: (steps, batch, depth); states: each (directions, batch, hidden); bias: (directions, 2 · gates · hidden)
    """

    node: Node
    data: relax.Expr
    hidden: int
    backwards: list[bool]
    states: list[relax.Expr]
    bias: relax.Expr | None
    peepholes: relax.Expr | None
    lengths: relax.Expr | None
    activations: list[recurrent.Function]

    @property
    def order(self) -> str:
        return _GATES[self.node.op_type]

    def run(self, products: Callable[[int], Products]) -> list[relax.Expr]:
        """The node's outputs, from the products of each direction.

        Y (steps, directions, batch, hidden), Y_h and Y_c (directions, batch, hidden); batch first with layout 1.
        """
        node, emit = self.node, self.node.emit
        steps, batch, depth = shape_of(self.data)
        flat = compound.reshape(self.data, (steps * batch, depth), emit)
        kept, finals = [], []
        for index, backwards in enumerate(self.backwards):
            made = products(index)
            cell, bias = self._cell(index, made)
            inputs = made.inputs(flat) if bias is None else plus(node, made.inputs(flat), bias)
            inputs = compound.reshape(inputs, (steps, batch, len(self.order) * self.hidden), emit)
            states = [self._of_sequences(recurrent.part_of(node.emit, state, index)) for state in self.states]
            outputs, last = recurrent.over_time(
                node,
                cell,
                inputs,
                states,
                backwards=backwards,
                lengths=self.lengths,
                together=node.op_type == "DynamicQuantizeLSTM",
                keep=node.has_output(0),
            )
            kept.append(outputs)
            finals.append(last)
        results = [recurrent.stacked(emit, parts, 0) for parts in zip(*finals, strict=True)]
        if not node.has_output(0):
            return [constant(np.zeros((), node.dtype(X))), *map(self._batch_first, results)]
        first = self.node.attribute("layout", 0) == 1
        sequence = recurrent.stacked(emit, [part for part in kept if part is not None], 1)
        sequence = emit(relax.op.permute_dims(sequence, [2, 0, 1, 3])) if first else sequence
        return [sequence, *map(self._batch_first, results)]

    def _of_sequences(self, state: relax.Expr) -> relax.Expr:
        """An initial state (batch, hidden): zero for an empty sequence, as in ONNX Runtime."""
        if self.lengths is None:
            return state
        column = compound.reshape(self.lengths, (shape_of(self.lengths)[0], 1), self.node.emit)
        empty = self.node.emit(relax.op.equal(column, number(0, "int32")))
        return self.node.emit(relax.op.where(empty, number(0, str(state.ty.dtype)), state))

    def _batch_first(self, state: relax.Expr) -> relax.Expr:
        return compound.permute(state, [1, 0, 2], self.node.emit) if self.node.attribute("layout", 0) == 1 else state

    def _cell(self, index: int, products: Products) -> tuple[recurrent.Cell, relax.Expr | None]:
        """The cell of a direction, and the bias that is added to X·W; those of LSTM and GRU ONNX Runtime adds last."""
        node = self.node
        gates = recurrent.Gates(node, self.order, partial(times, node))
        own, past = self._biases(index)
        if node.op_type == "GRU":
            return self._gru(index, gates, products, own, past), None
        bias = None if own is None or past is None else plus(node, own, past)
        if node.op_type == "RNN":
            (sigma,) = self._functions(index)
            return recurrent.Rnn(gates, products.recurrent(0, 1), sigma, self._clip), bias
        sigma, gamma, eta = self._functions(index)
        cell = recurrent.Lstm(
            gates,
            products.recurrent(0, 4),
            sigma,
            gamma,
            eta,
            clip=self._clip,
            peepholes=self._peepholes(index),
            bias={} if bias is None else self._by_gate(bias, self.order),
            coupled=bool(node.attribute("input_forget", 0)),
        )
        return cell, None

    def _gru(
        self, index: int, gates: recurrent.Gates, products: Products, own: relax.Expr | None, past: relax.Expr | None
    ) -> recurrent.Gru:
        """The cell of a GRU. With linear_before_reset, r multiplies h·R_h with its bias."""
        node, size = self.node, self.hidden
        sigma, reset, gamma = self._functions(index)
        has_bias = own is not None and past is not None
        if not node.attribute("linear_before_reset", 0):
            bias = self._by_gate(plus(node, own, past), self.order) if has_bias else {}
            candidate = products.recurrent(2, 3)
            before = products.recurrent(0, 2)
            return recurrent.Gru(gates, before, sigma, gamma, self._clip, candidate, reset=reset, bias=bias)
        whole = products.recurrent(0, 3)
        if not has_bias:
            return recurrent.Gru(gates, whole, sigma, gamma, self._clip, reset=reset)
        inner = np.arange(3 * size) >= 2 * size
        outside, inside = (times(node, past, constant(mask.astype(node.dtype(X)))) for mask in (~inner, inner))
        bias = self._by_gate(plus(node, own, outside), self.order)
        biased = partial(self._with_bias, whole, inside)
        return recurrent.Gru(gates, biased, sigma, gamma, self._clip, reset=reset, bias=bias)

    def _with_bias(self, product: recurrent.Function, bias: relax.Expr, hidden: relax.Expr) -> relax.Expr:
        return plus(self.node, product(hidden), bias)

    def _functions(self, index: int) -> list[recurrent.Function]:
        """The activations of a direction; of a GRU those of z, r and h, the latter two in ONNX Runtime's other way."""
        count = len(_USUAL[self.node.op_type])
        own = slice(index * count, (index + 1) * count)
        if self.node.op_type != "GRU":
            return self.activations[own]
        others = activation_functions(self.node, _USUAL["GRU"] * len(self.backwards), _OF_GRU)
        return [self.activations[own][0], *others[own]]

    @property
    def _clip(self) -> recurrent.Function | None:
        bound = self.node.attribute("clip", 0.0)
        return (lambda value: self.node.emit(relax.op.clip(value, -bound, bound))) if bound else None

    def _biases(self, index: int) -> tuple[relax.Expr | None, relax.Expr | None]:
        """The biases of the input and of the recurrence."""
        if self.bias is None:
            return None, None
        both, size = recurrent.part_of(self.node.emit, self.bias, index), len(self.order) * self.hidden
        return columns(self.node, both, 0, size), columns(self.node, both, size, 2 * size)

    def _peepholes(self, index: int) -> dict[str, relax.Expr]:
        if self.peepholes is None:
            return {}
        return self._by_gate(recurrent.part_of(self.node.emit, self.peepholes, index), "iof")

    def _by_gate(self, vector: relax.Expr, order: str) -> dict[str, relax.Expr]:
        """The part of each gate of a vector that has them in this order."""
        size = self.hidden
        return {gate: columns(self.node, vector, k * size, (k + 1) * size) for k, gate in enumerate(order)}


@converter("LSTM", "GRU", "RNN")
def recurrent_layer(node: Node) -> list[relax.Expr]:
    """A recurrent layer in float, forward, in reverse or both.

    X (steps, batch, depth), W (directions, gates·hidden, depth), R (directions, gates·hidden, hidden),
    B (directions, 2·gates·hidden) the biases of W and of R; sequence_lens (batch,): the outputs beyond are zero, and
    the last states are those of each sequence's own end. Raises ModelFormatError where shapes contradict each other.
    """
    layer = read_layer(node, transposed=False)

    def products(index: int) -> Products:
        inputs, past = (
            _transposed(node, recurrent.part_of(node.emit, node.input(position), index)) for position in (W, R)
        )
        size = layer.hidden

        def with_state(first: int, last: int) -> recurrent.Function:
            whole = (last - first) * size == shape_of(past)[1]
            matrix = past if whole else node.emit(relax.op.strided_slice(past, [1], [first * size], [last * size]))
            return partial(_product, node, matrix)

        return Products(partial(_product, node, inputs), with_state)

    return layer.run(products)


# ---- operands ----------------------------------------------------------------------------------------------------


def read_layer(node: Node, transposed: bool) -> Layer:
    """The operands of a node, checked.

    transposed: W is (directions, depth, gates · hidden) and R (directions, hidden, gates · hidden)
    """
    direction = node.attribute("direction", "forward")
    if direction not in _DIRECTIONS:
        raise node.malformed(f"direction must be one of {', '.join(_DIRECTIONS)}, found {direction!r}")
    layout = node.attribute("layout", 0)
    if layout not in (0, 1):
        raise node.malformed(f"layout must be 0 or 1, found {layout}")
    for position, name in ((X, "X"), (W, "W"), (R, "R")):
        if len(node.shape(position)) != 3:
            raise node.malformed(f"{name} must have 3 dimensions, found shape {node.shape(position)}")
    backwards = _DIRECTIONS[direction]
    data = compound.permute(node.input(X), [1, 0, 2], node.emit) if layout else node.input(X)
    steps, batch, depth = shape_of(data)
    gates, count = len(_GATES[node.op_type]), len(backwards)
    hidden = node.attribute("hidden_size", node.shape(R)[1 if transposed else 2])
    if hidden < 1:
        raise node.malformed(f"hidden_size must be at least 1, found {hidden}")

    def check(position: int, name: str, *expected: int) -> relax.Expr:
        if node.shape(position) != expected:
            raise node.malformed(
                f"{name} has shape {node.shape(position)}, but {expected} follows from X, hidden_size {hidden} and "
                f"direction {direction}"
            )
        if position not in (W, R) and node.dtype(position) != node.dtype(X):
            raise node.malformed(f"{name} is {node.dtype(position)}, but X is {node.dtype(X)}")
        return node.input(position)

    for position, name, extent in ((W, "W", depth), (R, "R", hidden)):
        inner = (extent, gates * hidden) if transposed else (gates * hidden, extent)
        check(position, name, count, *inner)

    def state(position: int, name: str) -> relax.Expr:
        if not node.has_input(position):
            shape = check_elements((count, batch, hidden), name, "folded")
            charge(shape)
            return constant(np.zeros(shape, node.dtype(X)))
        if layout:
            return compound.permute(check(position, name, batch, count, hidden), [1, 0, 2], node.emit)
        return check(position, name, count, batch, hidden)

    names = {HIDDEN: "initial_h", MEMORY: "initial_c"}
    states = [state(position, names[position]) for position in _STATES.get(node.op_type, (HIDDEN,))]
    bias = check(BIAS, "B", count, 2 * gates * hidden) if node.has_input(BIAS) else None
    holes = check(PEEPHOLES, "P", count, 3 * hidden) if len(states) > 1 and node.has_input(PEEPHOLES) else None
    if node.attribute("clip", 0.0) < 0:
        raise node.malformed(f"clip must not be negative, found {node.attribute('clip')}")
    return Layer(
        node, data, hidden, backwards, states, bias, holes, _lengths(node, steps, batch),
        activation_functions(node, _USUAL[node.op_type] * count),
    )  # fmt: skip


def _lengths(node: Node, steps: int, batch: int) -> relax.Expr | None:
    """The lengths of the sequences, None if they are all whole."""
    if not node.has_input(LENGTHS):
        return None
    if node.shape(LENGTHS) != (batch,) or node.dtype(LENGTHS) != "int32":
        raise node.malformed(
            f"sequence_lens must be int32 of shape ({batch},), found {node.dtype(LENGTHS)} of {node.shape(LENGTHS)}"
        )
    if node.is_constant(LENGTHS) and (node.constant(LENGTHS) == steps).all():
        return None
    return checked_indices(node.emit, node.input(LENGTHS), steps + 1, f"{node.label}: sequence_lens")


def columns(node: Node, vector: relax.Expr, begin: int, end: int) -> relax.Expr:
    """vector[begin:end]"""
    return node.emit(relax.op.strided_slice(vector, [0], [begin], [end]))


def _product(node: Node, matrix: relax.Expr, value: relax.Expr) -> relax.Expr:
    return node.emit(relax.op.matmul(value, matrix))


def _transposed(node: Node, matrix: relax.Expr) -> relax.Expr:
    return compound.permute(matrix, [1, 0], node.emit)

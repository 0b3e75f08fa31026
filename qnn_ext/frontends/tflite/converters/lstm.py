"""LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM and BIDIRECTIONAL_SEQUENCE_LSTM: the roles of their tensors, and the loop over
time.

The arithmetic of one step is in `lstm_integer` and `lstm_float`; both follow the same equations, with σ = sigmoid:

    i, f, o = σ(W·x + R·h + P∘c + b)    g = tanh(W·x + R·h + b)    each optionally layer-normalized before its bias
    c' = f∘c + i∘g, clipped             h' = project(o∘tanh(c')), clipped; P∘c' for o
    CIFG: i = 1 − f
"""

from __future__ import annotations

from typing import Protocol

from tvm import relax

from ...loops import loop
from ..node import Node, shape_of
from ..registry import converter
from .lstm_basic import basic_step
from .lstm_float import FloatCell, Matrix
from .lstm_integer import IntegerCell
from .lstm_layer import Layer, input_weights, read_layer
from .sequences import exchanged, is_time_major, merged, plus_crossed, products, renumbered, sources, steps_first
from .shape import reshape


class Cell(Protocol):
    """The arithmetic of an LSTM."""

    def input_products(self, rows: relax.Expr) -> relax.Expr:
        """W·x of all gates for every row of x: (rows, depth) -> (rows, gates · cells)."""
        ...

    def step(self, products: relax.Expr, hidden: relax.Expr, cell: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
        """(h', c') from the input products of one time step (batch, gates · cells) and the states."""
        ...


@converter("LSTM", max_version=4)
def convert_lstm(node: Node) -> relax.Expr | list[relax.Expr]:
    """One step: x (batch, depth), the states in the two variable tensors; or, of the basic kind, inputs and outputs."""
    if len(node.shape(0)) != 2:
        raise node.malformed(f"the input must have 2 dimensions, found shape {node.shape(0)}")
    if node.options["kernel_type"] == "BASIC":
        return basic_step(node)
    layer = read_layer(node)
    if node.dtype(0) == "int16":
        raise node.unsupported("a single step of int16, which LiteRT has no kernel for; int8 and float32 are supported")
    cell = IntegerCell(node, layer) if layer.integer else FloatCell(node, layer)
    rows = node.emit(cell.input_products(node.input(0)))
    outputs = _over_time(node, layer, cell, reshape(node, rows, [1, *shape_of(rows)]))
    return reshape(node, outputs, [node.shape(0)[0], layer.outputs])


@converter("UNIDIRECTIONAL_SEQUENCE_LSTM", max_version=5)
def convert_unidirectional_sequence_lstm(node: Node) -> relax.Expr:
    """The states are kept in the two variable tensors."""
    time_major = is_time_major(node)
    layer = read_layer(node)
    cell = IntegerCell(node, layer) if layer.integer else FloatCell(node, layer)
    outputs = _over_time(node, layer, cell, products(cell.input_products, node, steps_first(node, 0, time_major)))
    return exchanged(node, outputs, time_major)


@converter("BIDIRECTIONAL_SEQUENCE_LSTM", max_version=3)
def convert_bidirectional_sequence_lstm(node: Node) -> list[relax.Expr]:
    """Two layers, the second from the last step to the first; with `merge_outputs` their outputs are joined. LiteRT's
    kernels are float and hybrid.

    Inputs: 17 operands of each layer, in the order of UNIDIRECTIONAL_SEQUENCE_LSTM, their states, and an auxiliary
    input, see `sources`
    """
    if node.input_count != 48:
        raise node.malformed(f"a bidirectional LSTM has 48 inputs, found {node.input_count}")
    time_major, outputs = is_time_major(node), []
    sequences = sources(node, auxiliary=39, weights=40, time_major=time_major)
    for backwards, (first, states, weights) in enumerate(((1, 35, 40), (18, 37, 44))):
        operands = [sequences.own[backwards], *range(first, first + 17), states, states + 1]
        direction = renumbered(node, operands)
        layer = read_layer(direction)
        cell = FloatCell(direction, layer)
        own = products(cell.input_products, node, steps_first(node, operands[0], time_major))
        if sequences.crossed is not None:
            matrix = Matrix(node, [weights + input_weights(gate) - 1 for gate in layer.gates])
            own = plus_crossed(node, own, matrix, sequences.crossed)
        outputs.append(exchanged(node, _over_time(direction, layer, cell, own, bool(backwards)), time_major))
    return merged(node, outputs)


def _over_time(node: Node, layer: Layer, cell: Cell, own: relax.Expr, backwards: bool = False) -> relax.Expr:
    """h of all steps (time, batch, outputs) from the input's part of their gates."""
    batch, (hidden, memory) = shape_of(own)[1], node.operator.inputs[18:20]
    initial = [
        node.assembly.read_variable(index, (batch, size))
        for index, size in ((hidden, layer.outputs), (memory, layer.cells))
    ]

    def step(states: list[relax.Expr], slices: list[relax.Expr]) -> tuple[list[relax.Expr], list[relax.Expr]]:
        new = cell.step(slices[0], *states)
        return [*new], [new[0]]

    states, (outputs,) = loop(
        node, step, initial, [own], shape_of(own)[0], backwards_in=[backwards], backwards_out=[backwards]
    )
    for index, state in zip((hidden, memory), states, strict=True):
        node.assembly.write_variable(index, state)
    return outputs

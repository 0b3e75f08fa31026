"""UNIDIRECTIONAL_SEQUENCE_LSTM: the roles of its tensors, and the loop over time.

The arithmetic of one step is in `lstm_integer` and `lstm_float`; both follow the same equations, with σ = sigmoid:

    i, f, o = σ(W·x + R·h + P∘c + b)    g = tanh(W·x + R·h + b)    each optionally layer-normalized before its bias
    c' = f∘c + i∘g, clipped             h' = project(o∘tanh(c')), clipped; P∘c' for o
    CIFG: i = 1 − f
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tvm import relax

from ...loops import loop
from ..node import Node, shape_of
from ..registry import converter
from .lstm_float import FloatCell
from .lstm_integer import IntegerCell
from .lstm_layer import read_layer
from .shape import reshape


class Cell(Protocol):
    """The arithmetic of an LSTM."""

    def input_products(self, rows: relax.Expr) -> relax.Expr:
        """W·x of all gates for every row of x: (rows, depth) -> (rows, gates · cells)."""
        ...

    def step(self, products: relax.Expr, hidden: relax.Expr, cell: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
        """(h', c') from the input products of one time step (batch, gates · cells) and the states."""
        ...


@dataclass(frozen=True)
class Sequence:
    """The sizes of the input: (batch, time, depth), or (time, batch, depth) when time-major."""

    batch: int
    time: int
    depth: int
    time_major: bool


@converter("UNIDIRECTIONAL_SEQUENCE_LSTM", max_version=5)
def convert_unidirectional_sequence_lstm(node: Node) -> relax.Expr:
    """The states are kept in the two variable tensors."""
    sequence, layer = _sequence(node), read_layer(node)
    cell = IntegerCell(node, layer) if layer.integer else FloatCell(node, layer)
    hidden = node.assembly.read_variable(node.operator.inputs[18], (sequence.batch, layer.outputs))
    state = node.assembly.read_variable(node.operator.inputs[19], (sequence.batch, layer.cells))

    def step(states: list[relax.Expr], slices: list[relax.Expr]) -> tuple[list[relax.Expr], list[relax.Expr]]:
        new = cell.step(slices[0], *states)
        return [*new], [new[0]]

    (hidden, state), (outputs,) = loop(node, step, [hidden, state], [_products(node, cell, sequence)], sequence.time)
    node.assembly.write_variable(node.operator.inputs[18], hidden)
    node.assembly.write_variable(node.operator.inputs[19], state)
    return outputs if sequence.time_major else _exchanged(node, outputs)


def _sequence(node: Node) -> Sequence:
    shape, time_major = node.shape(0), bool(node.options["time_major"])
    if len(shape) != 3 or 0 in shape:
        raise node.malformed(f"the input must have 3 dimensions, found shape {shape}")
    time, batch = shape[:2] if time_major else (shape[1], shape[0])
    return Sequence(batch, time, shape[2], time_major)


def _products(node: Node, cell: Cell, sequence: Sequence) -> relax.Expr:
    """The input's contribution to the gates, computed for all steps at once: (time, batch, gates · cells)."""
    data = node.input(0) if sequence.time_major else _exchanged(node, node.input(0))
    rows = reshape(node, data, [sequence.time * sequence.batch, sequence.depth])
    products = cell.input_products(rows)
    return reshape(node, products, [sequence.time, sequence.batch, int(products.ty.shape[1])])


def _exchanged(node: Node, data: relax.Expr) -> relax.Expr:
    """With its first two axes, batch and time, exchanged."""
    first, second, depth = shape_of(data)
    if 1 in (first, second):
        return reshape(node, data, [second, first, depth])
    return node.emit(relax.op.permute_dims(data, [1, 0, 2]))

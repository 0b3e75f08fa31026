"""UNIDIRECTIONAL_SEQUENCE_LSTM: the roles of its tensors, and unrolling over time.

The arithmetic of one step is in `lstm_integer` and `lstm_float`; both follow the same equations, with σ = sigmoid:

    i, f, o = σ(W·x + R·h + P∘c + b)    g = tanh(W·x + R·h + b)    each optionally layer-normalized before its bias
    c' = f∘c + i∘g, clipped             h' = project(o∘tanh(c')), clipped; P∘c' for o
    CIFG: i = 1 − f
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tvm import relax

from ....limits import check
from ..node import Node
from ..registry import converter
from .lstm_float import FloatCell
from .lstm_integer import IntegerCell
from .lstm_layer import Layer, read_layer
from .shape import block, reshape


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
    """Unrolled over time. The states are kept in the two variable tensors."""
    sequence, layer = _sequence(node), read_layer(node)
    cell = IntegerCell(node, layer) if layer.integer else FloatCell(node, layer)
    hidden = node.assembly.read_variable(node.operator.inputs[18], (sequence.batch, layer.outputs))
    state = node.assembly.read_variable(node.operator.inputs[19], (sequence.batch, layer.cells))
    outputs = []
    for products in _products_by_step(node, cell, sequence):
        hidden, state = cell.step(products, hidden, state)
        outputs.append(hidden)
    node.assembly.write_variable(node.operator.inputs[18], hidden)
    node.assembly.write_variable(node.operator.inputs[19], state)
    return _stack(node, outputs, sequence, layer)


def _sequence(node: Node) -> Sequence:
    shape, time_major = node.shape(0), bool(node.options["time_major"])
    if len(shape) != 3 or 0 in shape:
        raise node.malformed(f"the input must have 3 dimensions, found shape {shape}")
    time, batch = shape[:2] if time_major else (shape[1], shape[0])
    check(
        "unrolled", time, f"{node.label}: the sequence (or run it in shorter pieces: the states are kept between calls)"
    )
    return Sequence(batch, time, shape[2], time_major)


def _products_by_step(node: Node, cell: Cell, sequence: Sequence) -> list[relax.Expr]:
    """The input's contribution to the gates, computed for all steps at once, then split."""
    data = node.input(0)
    if not sequence.time_major and sequence.batch > 1:
        data = node.emit(relax.op.permute_dims(data, [1, 0, 2]))
    rows = reshape(node, data, [sequence.time * sequence.batch, sequence.depth])
    products = cell.input_products(rows)
    step = sequence.batch
    return [block(node, products, [0], [t * step], [(t + 1) * step], [1]) for t in range(sequence.time)]


def _stack(node: Node, outputs: list[relax.Expr], sequence: Sequence, layer: Layer) -> relax.Expr:
    """The hidden states of all steps along the time axis."""
    axis = 0 if sequence.time_major else 1
    shape = [1, sequence.batch, layer.outputs] if sequence.time_major else [sequence.batch, 1, layer.outputs]
    parts = [reshape(node, hidden, shape) for hidden in outputs]
    return node.emit(relax.op.concat(parts, axis=axis)) if len(parts) > 1 else parts[0]

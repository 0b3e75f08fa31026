"""LSTM, GRU and RNN as PyTorch, MXNet and cuDNN define them: layers on layers, in one or both directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import relax

from ..errors import ModelFormatError
from ..op import compound
from ..op.base import shape_of
from . import recurrent
from .recurrent import Emitter, Function, States

_STATES = {"lstm": 2}  # h and c; the others have h


@dataclass(frozen=True)
class Products:
    """The products of a cell, with their biases, on tensors of any rank.

    inputs:    x -> x · W_ihᵀ + b_ih
    recurrent: h -> h · W_hhᵀ + b_hh
    project:   o·tanh(c) -> the narrower h, None if it is h
    """

    inputs: Function
    recurrent: Function
    project: Function | None = None


@dataclass(frozen=True)
class Options:
    """The options of a layer."""

    layers: int
    bidirectional: bool
    batch_first: bool

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1


def cell_of(
    node: Emitter,
    kind: str,
    products: Products,
    times: Callable[[relax.Expr, relax.Expr], relax.Expr] | None = None,
) -> recurrent.Cell:
    """The cell of "lstm", "gru", "rnn_tanh" or "rnn_relu".

    times: how a product is written that a sum follows
    """

    def function(operator: Function) -> Function:
        return lambda value: node.emit(operator(value))

    times = times or (lambda a, b: node.emit(relax.op.multiply(a, b)))
    sigmoid, tanh = function(relax.op.sigmoid), function(relax.op.tanh)
    if kind == "lstm":
        gates = recurrent.Gates(node, "ifco", times)
        return recurrent.Lstm(gates, products.recurrent, sigmoid, tanh, tanh, project=products.project)
    if kind == "gru":
        gates = recurrent.Gates(node, "rzh", times)
        return recurrent.Gru(gates, products.recurrent, sigmoid, tanh, difference=True)
    activation = tanh if kind == "rnn_tanh" else function(relax.op.nn.relu)
    return recurrent.Rnn(recurrent.Gates(node, "h", times), products.recurrent, activation)


def run_layers(
    node: Emitter,
    kind: str,
    sequence: relax.Expr,
    states: Sequence[relax.Expr],
    products: Sequence[Products],
    options: Options,
    times: Callable[[relax.Expr, relax.Expr], relax.Expr] | None = None,
    lengths: relax.Expr | None = None,
    alone: bool = False,
) -> list[relax.Expr]:
    """The hidden states of the last layer for all steps, and the last states (layers · directions, batch, size).

    sequence: (steps, batch, depth), or (batch, steps, depth) with `batch_first`, as is the result
    states:   the initial ones
    products: one for each layer and direction, directions innermost
    lengths, alone: as in `over_time`; the sequence's values beyond the lengths may be anything
    """
    emit = node.emit
    if len(states) != _STATES.get(kind, 1) or any(shape_of(state)[0] != len(products) for state in states):
        raise ModelFormatError(f"the states have shapes {[shape_of(state) for state in states]}")
    if options.batch_first:
        sequence = compound.permute(sequence, [1, 0, 2], emit)
    finals: list[States] = []
    for layer in range(options.layers):
        outputs = []
        for direction in range(options.directions):
            index = layer * options.directions + direction
            initial = [recurrent.part_of(emit, state, index) for state in states]
            cell = cell_of(node, kind, products[index], times)
            inputs = products[index].inputs(sequence)
            output, last = recurrent.over_time(
                node, cell, inputs, initial, backwards=direction == 1, lengths=lengths, alone=alone
            )
            finals.append(last)
            outputs.append(output)
        sequence = outputs[0] if len(outputs) == 1 else emit(relax.op.concat(outputs, 2))
    if options.batch_first:
        sequence = compound.permute(sequence, [1, 0, 2], emit)
    return [sequence, *(recurrent.stacked(emit, parts, 0) for parts in zip(*finals, strict=True))]


# ---- float ---------------------------------------------------------------------------------------------------------


def run_float_layers(
    node: Emitter,
    kind: str,
    sequence: relax.Expr,
    states: Sequence[relax.Expr],
    parameters: Sequence[relax.Expr],
    has_biases: bool,
    options: Options,
    lengths: relax.Expr | None = None,
) -> list[relax.Expr]:
    """As `run_layers`, with the weights of each layer and direction in PyTorch's order: w_ih, w_hh, the biases if there
    are any, w_hr if the hidden state is projected. Raises ModelFormatError for another number of them."""
    cells = options.layers * options.directions
    usual = 4 if has_biases else 2
    count = len(parameters) // max(cells, 1)
    if len(parameters) != count * cells or count not in ((usual, usual + 1) if kind == "lstm" else (usual,)):
        raise ModelFormatError(f"a {kind} of {cells} cells cannot have {len(parameters)} weights and biases")
    products = []
    for index in range(cells):
        w_ih, w_hh, *rest = parameters[index * count : (index + 1) * count]
        b_ih, b_hh = rest[:2] if has_biases else (None, None)
        project = _linear(node, rest[-1], None) if count > usual else None
        products.append(float_products(node, w_ih, w_hh, b_ih, b_hh, project))
    return run_layers(node, kind, sequence, states, products, options, lengths=lengths)


def float_products(
    node: Emitter,
    w_ih: relax.Expr,
    w_hh: relax.Expr,
    b_ih: relax.Expr | None,
    b_hh: relax.Expr | None,
    project: Function | None = None,
) -> Products:
    """The products of one cell in float."""
    return Products(_linear(node, w_ih, b_ih), _linear(node, w_hh, b_hh), project)


def _linear(node: Emitter, weight: relax.Expr, bias: relax.Expr | None) -> Function:
    """x -> x · weightᵀ + bias, along the last axis; the weight is transposed here, outside of any loop."""
    matrix = compound.permute(weight, [1, 0], node.emit)

    def product(value: relax.Expr) -> relax.Expr:
        *lead, depth = shape_of(value)
        flat = compound.reshape(value, (math.prod(lead), depth), node.emit)
        result = node.emit(relax.op.matmul(flat, matrix))
        result = result if bias is None else node.emit(relax.op.add(result, bias))
        return compound.reshape(result, (*lead, shape_of(matrix)[1]), node.emit)

    return product

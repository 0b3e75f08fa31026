"""RNN: layers of LSTM, GRU or RNN cells in float, whose weights are one vector, and what Gluon writes around it."""

from __future__ import annotations

from math import prod

import numpy as np
from tvm import relax

from ....limits import charge, check_elements
from ....op import compound
from ....op.base import constant, shape_of
from ...recurrent_layers import Options, run_float_layers
from ..node import Node
from ..reader import DTYPES
from ..registry import converter

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@converter("RNN")
def convert_rnn(node: Node) -> list[relax.Expr]:
    """Layers on layers, in one or both directions.

    Inputs: data (steps, batch, depth), parameters, state (layers · directions, batch, size), for an LSTM its memory of
    that shape. The parameters are W (gates · size, depth) and R (gates · size, size) of each layer and direction,
    directions innermost, then the biases of W and of R in that order. Gates: i, f, g, o, or r, z, n.

    Outputs: (steps, batch, directions · size); with state_outputs the last states, too. Raises ModelFormatError where
    shapes contradict each other.
    """
    kind = node.choice("mode", "", *_GATES)
    for key in ("projection_size", "lstm_state_clip_min", "lstm_state_clip_max"):
        if node.has(key):
            raise node.unsupported(f"{key}={node.text(key)}")
    if node.flag("use_sequence_length"):
        raise node.unsupported("use_sequence_length=True; pad the sequences to the same length")
    options = Options(node.integer("num_layers"), node.flag("bidirectional"), batch_first=False)
    size = node.integer("state_size")
    if len(node.shape(0)) != 3 or 0 in node.shape(0) or size < 1 or options.layers < 1:
        raise node.malformed(
            f"data of shape {node.shape(0)} for {options.layers} layers of size {size}; expected (steps, batch, depth)"
        )
    states = [_state(node, index, options, size) for index in range(2, 4 if kind == "lstm" else 3)]
    parameters = _parameters(node, _GATES[kind] * size, size, options)
    results = run_float_layers(node, kind, node.input(0), states, parameters, True, options)
    return results if node.flag("state_outputs") else results[:1]


def _parameters(node: Node, rows: int, size: int, options: Options) -> list[relax.Expr]:
    """W, R and their biases of each layer and direction in turn."""
    cells = options.layers * options.directions
    depths = [node.shape(0)[2] if layer == 0 else options.directions * size for layer in range(options.layers)]
    matrices = [(rows, columns) for depth in depths for _ in range(options.directions) for columns in (depth, size)]
    shapes: list[tuple[int, ...]] = [*matrices, *[(rows,)] * (2 * cells)]
    total = sum(map(prod, shapes))
    if node.shape(1) != (total,):
        raise node.malformed(f"the parameters have shape {node.shape(1)}, but {total} numbers follow from the data")
    parts, first = [], 0
    for shape in shapes:
        last = first + prod(shape)
        part = node.emit(relax.op.strided_slice(node.input(1), [0], [first], [last]))
        parts.append(compound.reshape(part, shape, node.emit))
        first = last
    weights, biases = parts[: 2 * cells], parts[2 * cells :]
    return [part for k in range(0, 2 * cells, 2) for part in (weights[k], weights[k + 1], biases[k], biases[k + 1])]


def _state(node: Node, index: int, options: Options, size: int) -> relax.Expr:
    """An initial state. Gluon leaves the batch of its zeros open, as 0."""
    expected = (options.layers * options.directions, node.shape(0)[1], size)
    found = node.shape(index)
    if found == (expected[0], 0, size):
        charge(check_elements(expected, "the state", "folded"))
        return constant(np.zeros(expected, node.dtype(index)))
    if found != expected:
        raise node.malformed(f"input {index} has shape {found}, but {expected} follows from the data")
    return node.input(index)


@converter("_rnn_param_concat")
def convert_parameters(node: Node) -> relax.Expr:
    """The vectors of weights and biases, one after the other."""
    if node.integer("dim", 1) != 0 or not node.inputs or any(len(shape_of(part)) != 1 for part in node.inputs):
        raise node.malformed(f"joins shapes {[shape_of(part) for part in node.inputs]} along {node.integer('dim', 1)}")
    return relax.op.concat(node.inputs, 0)


@converter("_zeros", "_ones")
def convert_filled(node: Node) -> relax.Expr:
    """A tensor of zeros or ones; a dimension that MXNet infers from its readers is 0."""
    shape = check_elements(node.integers("shape", ()), "the tensor", "folded")
    charge(shape)
    dtype = node.text("dtype", "float32")
    if dtype not in {str(np.dtype(known)) for known in DTYPES.values()}:
        raise node.unsupported(f"dtype {dtype}")
    return constant((np.ones if node.operator.op == "_ones" else np.zeros)(shape, dtype))

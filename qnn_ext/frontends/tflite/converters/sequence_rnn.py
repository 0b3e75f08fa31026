"""RNN, UNIDIRECTIONAL_SEQUENCE_RNN and BIDIRECTIONAL_SEQUENCE_RNN: h' = activation(b + W·x + R·h), once or over time,
float and hybrid."""

from __future__ import annotations

from tvm import relax

from ... import recurrent
from ..node import Node, shape_of
from ..registry import converter
from .lstm_float import Matrix, activation_of
from .sequences import exchanged, is_time_major, merged, plus_crossed, products, renumbered, sources, steps_first
from .shape import reshape

_DATA, _INPUT, _RECURRENT, _BIAS, _STATE = range(5)


@converter("RNN", max_version=3)
def convert_rnn(node: Node) -> relax.Expr:
    """One step: x (batch, depth), the hidden state in a variable tensor."""
    if len(node.shape(_DATA)) != 2:
        raise node.malformed(f"the input must have 2 dimensions, found shape {node.shape(_DATA)}")
    batch, depth = node.shape(_DATA)
    own = _products(node, reshape(node, node.input(_DATA), [1, batch, depth]))
    return reshape(node, _over_time(node, own), [batch, shape_of(own)[2]])


@converter("UNIDIRECTIONAL_SEQUENCE_RNN", max_version=3)
def convert_sequence_rnn(node: Node) -> relax.Expr:
    """The hidden state is kept in the variable tensor. With int8 weights, x and h are quantized at run time.

    Input (batch, steps, depth), or (steps, batch, depth) if time-major; W (units, depth), R (units, units), b (units,)
    """
    time_major = is_time_major(node)
    return exchanged(node, _over_time(node, _products(node, steps_first(node, _DATA, time_major))), time_major)


@converter("BIDIRECTIONAL_SEQUENCE_RNN", max_version=3)
def convert_bidirectional_sequence_rnn(node: Node) -> list[relax.Expr]:
    """Two layers, the second from the last step to the first; with `merge_outputs` their outputs are joined.

    Inputs: x; W, R, b and the state of each layer; an auxiliary input and its weights, see `sources`
    """
    if node.input_count != 12:
        raise node.malformed(f"a bidirectional RNN has 12 inputs, found {node.input_count}")
    time_major, outputs = is_time_major(node), []
    sequences = sources(node, auxiliary=9, weights=10, time_major=time_major)
    for backwards, first in enumerate((1, 5)):
        direction = renumbered(node, [sequences.own[backwards], *range(first, first + 4)])
        own = _products(direction, steps_first(direction, _DATA, time_major))
        if sequences.crossed is not None:
            own = plus_crossed(node, own, Matrix(node, [10 + backwards]), sequences.crossed)
        outputs.append(exchanged(node, _over_time(direction, own, bool(backwards)), time_major))
    return merged(node, outputs)


def _products(node: Node, steps: relax.Expr) -> relax.Expr:
    """b + W·x of all steps, (steps, batch, depth) → (steps, batch, units)."""
    data, weights = node.shape(_DATA), node.shape(_INPUT)
    units = node.shape(_BIAS)[0] if len(node.shape(_BIAS)) == 1 else 0
    if not units or weights != (units, data[-1]) or node.shape(_RECURRENT) != (units, units):
        raise node.malformed(
            f"input {data}, weights {weights} and {node.shape(_RECURRENT)} and bias {node.shape(_BIAS)} do not match"
        )
    if not node.has_input(_STATE) or not node.tensor(_STATE).is_variable:
        raise node.malformed("the hidden state must be a variable tensor")
    for index in (_DATA, _BIAS, _STATE):
        if node.dtype(index) != "float32":
            raise node.unsupported(f"input {index} of dtype {node.dtype(index)}")
    matrix = Matrix(node, [_INPUT])
    return products(lambda rows: relax.op.add(node.input(_BIAS), matrix.product(rows)), node, steps)


def _over_time(node: Node, own: relax.Expr, backwards: bool = False) -> relax.Expr:
    """h of all steps, (steps, batch, units)."""
    _, batch, units = shape_of(own)
    gates = recurrent.Gates(node, "h", lambda a, b: node.emit(relax.op.multiply(a, b)))
    activate = activation_of(node, node.options["fused_activation_function"])
    cell = recurrent.Rnn(gates, Matrix(node, [_RECURRENT]).product, lambda value: node.emit(activate(value)))
    variable = node.operator.inputs[_STATE]
    hidden = node.assembly.read_variable(variable, (batch, units))
    outputs, (last,) = recurrent.over_time(node, cell, own, [hidden], backwards=backwards)
    assert outputs is not None
    node.assembly.write_variable(variable, last)
    return outputs

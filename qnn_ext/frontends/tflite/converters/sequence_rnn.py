"""UNIDIRECTIONAL_SEQUENCE_RNN: h' = activation(b + W·x + R·h) over time, float and hybrid."""

from __future__ import annotations

from tvm import relax

from ... import recurrent
from ..node import Node
from ..registry import converter
from .lstm_float import Matrix, activation_of
from .shape import reshape

_DATA, _INPUT, _RECURRENT, _BIAS, _STATE = range(5)


@converter("UNIDIRECTIONAL_SEQUENCE_RNN", max_version=3)
def convert_sequence_rnn(node: Node) -> relax.Expr:
    """The hidden state is kept in the variable tensor. With int8 weights, x and h are quantized at run time.

    Input (batch, steps, depth), or (steps, batch, depth) if time-major; W (units, depth), R (units, units), b (units,)
    """
    data, time_major = node.shape(_DATA), bool(node.options["time_major"])
    if len(data) != 3 or 0 in data:
        raise node.malformed(f"the input must have 3 dimensions, found shape {data}")
    steps, batch = data[:2] if time_major else (data[1], data[0])
    weights, units = node.shape(_INPUT), node.shape(_BIAS)[0] if len(node.shape(_BIAS)) == 1 else 0
    if not units or weights != (units, data[2]) or node.shape(_RECURRENT) != (units, units):
        raise node.malformed(
            f"input {data}, weights {weights} and {node.shape(_RECURRENT)} and bias {node.shape(_BIAS)} do not match"
        )
    if not node.has_input(_STATE) or not node.tensor(_STATE).is_variable:
        raise node.malformed("the hidden state must be a variable tensor")
    for index in (_DATA, _BIAS, _STATE):
        if node.dtype(index) != "float32":
            raise node.unsupported(f"input {index} of dtype {node.dtype(index)}")
    sequence = _exchanged(node, node.input(_DATA), time_major)
    own = Matrix(node, [_INPUT]).product(reshape(node, sequence, [steps * batch, data[2]]))
    own = reshape(node, node.emit(relax.op.add(node.input(_BIAS), own)), [steps, batch, units])
    gates = recurrent.Gates(node, "h", lambda a, b: node.emit(relax.op.multiply(a, b)))
    activate = activation_of(node, node.options["fused_activation_function"])
    cell = recurrent.Rnn(gates, Matrix(node, [_RECURRENT]).product, lambda value: node.emit(activate(value)))
    variable = node.operator.inputs[_STATE]
    hidden = node.assembly.read_variable(variable, (batch, units))
    outputs, (last,) = recurrent.over_time(node, cell, own, [hidden])
    assert outputs is not None
    node.assembly.write_variable(variable, last)
    return _exchanged(node, outputs, time_major)


def _exchanged(node: Node, value: relax.Expr, time_major: bool) -> relax.Expr:
    """Between the operator's order and (steps, batch, …)."""
    return value if time_major else node.emit(relax.op.permute_dims(value, [1, 0, 2]))

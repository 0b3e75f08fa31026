"""The basic kind of LSTM: one step, whose states are inputs and outputs, in float32 or with uint8 activations, as
TensorFlow 1 exports it. It converts no operators.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from .... import op as qnn
from ....numerics import gemmlowp16
from ....op.base import constant
from ....qparams import QParams
from ..node import Node
from .lstm_float import Matrix
from .shape import block

_Q15 = 2.0**-15
_GATE_SCALE = 2.0**-12
_STATE_SCALE = 2.0**-11
_BYTES = ("uint8", "uint8", "uint8", "int32", "int16")
_ACTIVATION = (2.0**-7, 128)  # scale and zero point


def basic_step(node: Node) -> list[relax.Expr]:
    """h' and c' from x, h, one matrix and bias for the gates i, g, f, o of [x, h], and c; and what LiteRT's kernel
    computes on the way: [x, h] and the sums of the gates."""
    if node.input_count != 5:
        raise node.malformed(f"a basic LSTM has 5 inputs, found {node.input_count}")
    (batch, depth), (_, units) = node.shape(0), (node.shape(1) if len(node.shape(1)) == 2 else (0, 0))
    expected = [(batch, depth), (batch, units), (4 * units, depth + units), (4 * units,), (batch, units)]
    found = [node.shape(index) for index in range(5)]
    if found != expected or not units:
        raise node.malformed(f"the shapes {', '.join(map(str, found))} of a basic LSTM's inputs do not match")
    dtypes = tuple(node.dtype(index) for index in range(5))
    if dtypes not in (("float32",) * 5, _BYTES):
        raise node.unsupported(f"a basic LSTM of {', '.join(dtypes)}; supported: float32, or {', '.join(_BYTES)}")
    joined = node.emit(relax.op.concat([node.input(0), node.input(1)], 1))
    return (_in_integers if dtypes == _BYTES else _in_floats)(node, joined, units)


def _gates(node: Node, sums: relax.Expr, units: int) -> list[relax.Expr]:
    return [block(node, sums, [1], [k * units], [(k + 1) * units], [1]) for k in range(4)]


def _in_floats(node: Node, joined: relax.Expr, units: int) -> list[relax.Expr]:
    emit, op = node.emit, relax.op
    sums = emit(op.add(Matrix(node, [2]).product(joined), node.input(3)))
    i, g, f, o = _gates(node, sums, units)
    added = emit(op.multiply(emit(op.sigmoid(i)), emit(op.tanh(g))))
    state = emit(op.add(added, emit(op.multiply(emit(op.sigmoid(f)), node.input(4)))))
    return [emit(op.multiply(emit(op.sigmoid(o)), emit(op.tanh(state)))), state, joined, sums]


def _in_integers(node: Node, joined: relax.Expr, units: int) -> list[relax.Expr]:
    """Gates are Q3.12 before and Q0.15 after their activation, the state is Q4.11; every product rounds by itself."""
    emit, weights = node.emit, node.qparams(2)
    for index in (0, 1):
        _require(node, node.qparams(index), _ACTIVATION, f"input {index}")
    _require(node, node.qparams(4), (_STATE_SCALE, 0), "the state")
    acc = emit(qnn.dense(joined, node.input(2), _ACTIVATION[1], weights.zero_point, 1.0, 1.0))
    acc = emit(relax.op.add(acc, node.input(3)))
    factor = np.float64(np.float32(node.qparams(3).scale)) / _GATE_SCALE
    sums = emit(qnn.requantize(acc, factor, 0, np.float64(1), 0, rounding="TFLITE", out_dtype="int16"))

    def product(one: relax.Expr, two: relax.Expr, scales: tuple[float, float, float]) -> relax.Expr:
        first, second, result = scales
        args = (one, two, first, 0, second, 0, result, 0)
        return emit(qnn.mul(*args, rounding="TONEAREST", out_dtype="int16"))

    def shifted(value: relax.Expr, target: tuple[float, int], dtype: str) -> relax.Expr:
        return emit(qnn.requantize(value, _Q15, 0, *target, rounding="TONEAREST", out_dtype=dtype))

    logistic, tanh = constant(gemmlowp16.logistic_table()), constant(gemmlowp16.tanh_table(3))
    i, g, f, o = (
        emit(qnn.table(gate, tanh if k == 1 else logistic)) for k, gate in enumerate(_gates(node, sums, units))
    )
    added = shifted(product(i, g, (_Q15, _Q15, _Q15)), (_STATE_SCALE, 0), "int16")
    kept = product(f, node.input(4), (_Q15, _STATE_SCALE, _STATE_SCALE))
    equal = (_STATE_SCALE, 0) * 3
    state = emit(qnn.add(added, kept, *equal, rounding="TONEAREST", out_dtype="int16"))
    hidden = product(o, emit(qnn.table(state, constant(gemmlowp16.tanh_table(4)))), (_Q15, _Q15, _Q15))
    return [shifted(hidden, _ACTIVATION, "uint8"), state, joined, sums]


def _require(node: Node, qparams: QParams, wanted: tuple[float, int], what: str) -> None:
    if qparams.per_channel or (float(qparams.scale), int(qparams.zero_point)) != wanted:
        raise node.unsupported(
            f"{what} of a basic LSTM with {qparams}; it must have scale {wanted[0]} and zero point {wanted[1]}"
        )

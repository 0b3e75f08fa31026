"""DynamicQuantizeLSTM of com.microsoft: 8-bit weights, activations quantized at run time, all steps unrolled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from ....limits import check
from ....op import compound
from ....op.base import constant, shape_of
from ..node import Node
from ..registry import MICROSOFT, converter
from .arithmetic import matmul, plus, times
from .integer import quantize_dynamically
from .microsoft_matmul import to_float


@dataclass(frozen=True)
class _Weights:
    """One matrix (K, 4·hidden) of one direction, its columns in gate order i, o, f, c."""

    matrix: relax.Expr
    scale: relax.Expr
    zero_point: relax.Expr

    def product(self, node: Node, data: relax.Expr) -> relax.Expr:
        """Data quantized as a whole, times the matrix, in float32."""
        found = quantize_dynamically(node, data)
        scale = times(node, found.scale, self.scale)
        acc = matmul(node, found.data, self.matrix, found.zero_point, self.zero_point)
        return to_float(node, acc, scale, None)


@converter("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(node: Node) -> list[relax.Expr]:
    """An LSTM whose inputs and hidden states are quantized to uint8 before each product with 8-bit weights.

    The inputs of all steps share one scale, the hidden states have one per step, as in ONNX Runtime. ONNX Runtime
    approximates sigmoid and tanh, so a state may land in the neighbouring quantization step.
    """
    _check(node)
    length, batch, _ = node.shape(0)
    hidden = node.attribute("hidden_size", node.shape(2)[1])
    directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    sequences, last_h, last_c = [], [], []
    for index, backwards in enumerate(directions[node.attribute("direction", "forward")]):
        steps, h, c = _direction(node, index, backwards, (length, batch, hidden))
        sequences.append(node.emit(relax.op.stack(steps, axis=0)))
        last_h.append(h)
        last_c.append(c)
    return [node.emit(relax.op.stack(parts, axis=axis)) for parts, axis in ((sequences, 1), (last_h, 0), (last_c, 0))]


def _check(node: Node) -> None:
    for index, name in ((4, "sequence_lens"), (7, "peepholes P")):
        if node.has_input(index):
            raise node.unsupported(f"the input {name}")
    activations = [str(name).lower() for name in node.attribute("activations", [])]
    usual = ["sigmoid", "tanh", "tanh"]
    if activations not in ([], usual, usual * 2):
        raise node.unsupported(f"activations {activations}; supported: Sigmoid, Tanh, Tanh")
    if node.attribute("clip", 0.0) or node.attribute("input_forget", 0):
        raise node.unsupported("the attributes clip and input_forget")
    if node.attribute("direction", "forward") not in ("forward", "reverse", "bidirectional"):
        raise node.malformed(f"unknown direction {node.attribute('direction')!r}")
    if len(node.shape(0)) != 3 or len(node.shape(1)) != 3 or len(node.shape(2)) != 3:
        raise node.malformed(f"X {node.shape(0)}, W {node.shape(1)} and R {node.shape(2)} must have 3 dimensions")
    check("unrolled", node.shape(0)[0], "the sequence")


def _direction(
    node: Node, index: int, backwards: bool, sizes: tuple[int, int, int]
) -> tuple[list[relax.Expr], relax.Expr, relax.Expr]:
    """Hidden states in the order of the sequence, the last hidden state and the last cell state."""
    length, batch, hidden = sizes
    inputs, recurrent = _weights(node, 1, 8, index), _weights(node, 2, 10, index)
    bias = _bias(node, index, hidden)
    flat = compound.reshape(node.input(0), (length * batch, node.shape(0)[2]), node.emit)
    gates = plus(node, inputs.product(node, flat), bias)
    h, c = (_initial(node, state, index, (batch, hidden)) for state in (5, 6))
    steps: dict[int, relax.Expr] = {}
    for step in reversed(range(length)) if backwards else range(length):
        own = node.emit(relax.op.strided_slice(gates, [0], [step * batch], [(step + 1) * batch]))
        h, c = _cell(node, plus(node, own, recurrent.product(node, h)), c, hidden)
        steps[step] = h
    return [steps[step] for step in range(length)], h, c


def _cell(node: Node, gates: relax.Expr, c: relax.Expr, hidden: int) -> tuple[relax.Expr, relax.Expr]:
    """c' = f·c + i·g, h' = o·tanh(c') from the pre-activations of the four gates."""
    i, o, f, g = (node.emit(relax.op.strided_slice(gates, [1], [k * hidden], [(k + 1) * hidden])) for k in range(4))
    i, o, f = (node.emit(relax.op.sigmoid(gate)) for gate in (i, o, f))
    c = plus(node, times(node, f, c), times(node, i, node.emit(relax.op.tanh(g))))
    return times(node, o, node.emit(relax.op.tanh(c))), c


def _of_direction(node: Node, value: relax.Expr, index: int) -> relax.Expr:
    """value[index] along the first axis."""
    part = node.emit(relax.op.strided_slice(value, [0], [index], [index + 1]))
    return compound.reshape(part, shape_of(value)[1:], node.emit)


def _weights(node: Node, matrix: int, parameters: int, index: int) -> _Weights:
    """The matrix of one direction with its parameters: (directions) or (directions, 4·hidden)."""

    def parameter(position: int, dtype: str) -> relax.Expr:
        value = constant(node.constant(position).astype(dtype))
        return _of_direction(node, value, index) if shape_of(value) else value

    data = constant(node.constant(matrix)[index])
    return _Weights(data, parameter(parameters, "float32"), parameter(parameters + 1, "int32"))


def _bias(node: Node, index: int, hidden: int) -> relax.Expr:
    """The biases of the input and of the recurrence, added."""
    if not node.has_input(3):
        return constant(np.zeros(4 * hidden, np.float32))
    both = _of_direction(node, node.input(3), index)
    halves = [node.emit(relax.op.strided_slice(both, [0], [k * 4 * hidden], [(k + 1) * 4 * hidden])) for k in (0, 1)]
    return plus(node, *halves)


def _initial(node: Node, position: int, index: int, shape: tuple[int, int]) -> relax.Expr:
    if not node.has_input(position):
        return constant(np.zeros(shape, np.float32))
    return _of_direction(node, node.input(position), index)

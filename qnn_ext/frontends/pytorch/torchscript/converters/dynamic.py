"""Dynamically quantized layers: int8 (or float16) weights, float activations."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from .....errors import UnsupportedOperatorError
from .....op.base import constant, shape_of
from .....op.compound import reshape
from ..dynamic import dynamic_linear
from ..formulas import f32, rounded_product
from ..node import Node
from ..packed import unpack_linear
from ..registry import converter
from ..values import array_of, plain


@converter("quantized::linear_dynamic", "quantized::linear_relu_dynamic")
def _linear_dynamic(node: Node) -> relax.Expr:
    weights = unpack_linear(node["W_prepack"])
    result = dynamic_linear(node, node.expr("X"), weights, bool(node.get("reduce_range", False)))
    return relax.op.nn.relu(result) if "relu" in node.kind else result


@converter("quantized::linear_dynamic_fp16", "quantized::linear_relu_dynamic_fp16")
def _linear_half(node: Node) -> relax.Expr:
    """float16 weights: a float32 product."""
    weight, bias = node["W_prepack"].unpack()
    node.note("its weights are float16: the layer is not an integer product in PyTorch either")
    result = _half_linear(node, node.expr("X"), weight, bias)
    return relax.op.nn.relu(result) if "relu" in node.kind else result


def _half_linear(node: Node, value: relax.Expr, weight: Any, bias: Any) -> relax.Expr:
    matrix = array_of(weight).astype(f32).T
    result = node.emit(relax.op.matmul(value, constant(np.ascontiguousarray(matrix))))
    return result if bias is None else node.emit(relax.op.add(result, constant(array_of(bias).astype(f32))))


# ---- recurrent layers --------------------------------------------------------------------------------------------


class _Cell:
    """The two products of a recurrent cell: with the input and with the hidden state."""

    def __init__(self, node: Node, parameters: Any) -> None:
        self._node = node
        kind, tensors, _, numbers, packed = parameters.__getstate__()[0]
        self.reduce_range = bool(numbers[0]) if numbers else False
        if kind == "quantized_dynamic":
            self._weights = [unpack_linear(item) for item in packed]
        elif kind == "quantized_fp16":
            self._half = [(item.unpack()[0], bias) for item, bias in zip(packed, tensors, strict=True)]
        else:
            raise UnsupportedOperatorError(
                f"recurrent cells of kind {kind} are not supported; supported: dynamic int8 and float16"
            )
        self._kind = kind
        if kind == "quantized_fp16":
            node.note("its weights are float16: the layer is not an integer product in PyTorch either")

    def input(self, value: relax.Expr) -> relax.Expr:
        return self._product(0, value)

    def hidden(self, value: relax.Expr) -> relax.Expr:
        return self._product(1, value)

    def _product(self, index: int, value: relax.Expr) -> relax.Expr:
        if self._kind == "quantized_fp16":
            return _half_linear(self._node, value, *self._half[index])
        return dynamic_linear(self._node, value, self._weights[index], self.reduce_range)


def _step(node: Node, sequence: relax.Expr, index: int) -> relax.Expr:
    """One time step of a (T, N, C) sequence."""
    part = node.emit(relax.op.strided_slice(sequence, axes=[0], begin=[index], end=[index + 1]))
    return reshape(part, shape_of(sequence)[1:], node.emit)


def _stack(node: Node, steps: list[relax.Expr]) -> relax.Expr:
    parts = [reshape(step, (1, *shape_of(step)), node.emit) for step in steps]
    return parts[0] if len(parts) == 1 else node.emit(relax.op.concat(parts, 0))


def _gates(node: Node, value: relax.Expr, count: int) -> list[relax.Expr]:
    size = shape_of(value)[1] // count
    return [
        node.emit(relax.op.strided_slice(value, axes=[1], begin=[i * size], end=[(i + 1) * size])) for i in range(count)
    ]


def _lstm_step(node: Node, cell: _Cell, projected: relax.Expr, state: list[relax.Expr]) -> list[relax.Expr]:
    """c' = σ(f)·c + σ(i)·tanh(g), h' = σ(o)·tanh(c')."""
    emit, op = node.emit, relax.op
    hidden, memory = state
    i, f, g, o = _gates(node, emit(op.add(projected, cell.hidden(hidden))), 4)
    kept = rounded_product(node, emit(op.sigmoid(f)), memory)
    new = rounded_product(node, emit(op.sigmoid(i)), emit(op.tanh(g)))
    memory = emit(op.add(kept, new))
    return [emit(op.multiply(emit(op.sigmoid(o)), emit(op.tanh(memory)))), memory]


def _gru_step(node: Node, cell: _Cell, projected: relax.Expr, state: list[relax.Expr]) -> list[relax.Expr]:
    """r = σ(..), z = σ(..), n = tanh(x_n + r·h_n), h' = (h − n)·z + n."""
    emit, op = node.emit, relax.op
    (hidden,) = state
    x_r, x_z, x_n = _gates(node, projected, 3)
    h_r, h_z, h_n = _gates(node, cell.hidden(hidden), 3)
    reset, update = emit(op.sigmoid(emit(op.add(x_r, h_r)))), emit(op.sigmoid(emit(op.add(x_z, h_z))))
    new = emit(op.tanh(emit(op.add(x_n, rounded_product(node, reset, h_n)))))
    return [emit(op.add(rounded_product(node, emit(op.subtract(hidden, new)), update), new))]


def _recurrent(node: Node, state_names: list[Any], step: Any) -> list[relax.Expr]:
    """All layers and directions of a sequence. The input's product covers the whole sequence, so with one scale."""
    if "data" in node.arguments:
        raise node.unsupported("packed sequences; pad them to the same length")
    if node["train"] and float(node["dropout"]):
        raise node.unsupported("dropout between layers in training mode; call model.eval() before exporting it")
    sequence = node.expr("input")
    if node["batch_first"]:
        sequence = node.emit(relax.op.permute_dims(sequence, [1, 0, 2]))
    directions = 2 if node["bidirectional"] else 1
    cells = [_Cell(node, plain(parameters)) for parameters in node["params"]]
    finals: list[list[relax.Expr]] = []
    for layer in range(int(node["num_layers"])):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            state = [_step(node, state_of, index) for state_of in state_names]
            projected = cells[index].input(sequence)
            length = shape_of(sequence)[0]
            order = range(length) if direction == 0 else reversed(range(length))
            steps: dict[int, relax.Expr] = {}
            for time in order:
                state = step(node, cells[index], _step(node, projected, time), state)
                steps[time] = state[0]
            finals.append(state)
            outputs.append(_stack(node, [steps[time] for time in range(length)]))
        sequence = outputs[0] if directions == 1 else node.emit(relax.op.concat(outputs, 2))
    if node["batch_first"]:
        sequence = node.emit(relax.op.permute_dims(sequence, [1, 0, 2]))
    return [sequence, *(_stack(node, [state[i] for state in finals]) for i in range(len(state_names)))]


@converter("aten::quantized_lstm")
def _lstm(node: Node) -> list[relax.Expr]:
    node.note("the gates of the recurrent layer are float in PyTorch, its products are integer")
    return _recurrent(node, [node.to_expr(value) for value in node.raw("hx")], _lstm_step)


@converter("aten::quantized_gru")
def _gru(node: Node) -> list[relax.Expr]:
    node.note("the gates of the recurrent layer are float in PyTorch, its products are integer")
    return _recurrent(node, [node.expr("hx")], _gru_step)

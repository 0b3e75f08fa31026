"""One LSTM step in float32, with float or with int8 (hybrid) weights. It converts no operators.

Hybrid: the input, the hidden state and the projected vector are quantized at run time, one row per batch entry.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op.base import constant
from ..node import ACTIVATION_RANGES, Node, shape_of
from . import lstm_layer
from .hybrid import dequantize_accumulator, quantize_rows
from .lstm_layer import Layer
from .shape import block

EPSILON = 1e-8  # added to the variance


class Matrix:
    """A weight matrix (N, K), float32, or int8 with one scale per row."""

    def __init__(self, node: Node, indices: list[int]) -> None:
        """The inputs `indices`, concatenated along the rows."""
        self.node = node
        values = np.concatenate([node.constant(index) for index in indices])
        self.scale = None
        if values.dtype == np.int8:
            if any(np.any(node.qparams(index).zero_point) for index in indices):
                raise node.unsupported("weights with a zero point; only symmetric int8 weights are supported")
            scales = [np.broadcast_to(node.qparams(i).scale, node.shape(i)[0]) for i in indices]
            self.scale = np.concatenate(scales).astype(np.float32)
        elif values.dtype != np.float32:
            raise node.unsupported(f"weights of dtype {values.dtype}")
        self.values = values

    def product(self, rows: relax.Expr) -> relax.Expr:
        """rows · matrixᵀ in float32."""
        node = self.node
        if self.scale is None:
            return node.emit(relax.op.matmul(rows, constant(self.values.T)))
        asymmetric = bool(node.options["asymmetric_quantize_inputs"])
        quantized = quantize_rows(node, rows, shape_of(rows)[0], asymmetric)
        acc = qnn.dense(quantized.data, constant(self.values), 0, 0, 1.0, 1.0)
        sums = constant(self.values.sum(axis=1, dtype=np.int32).reshape(1, -1)) if asymmetric else None
        return dequantize_accumulator(node, acc, quantized, sums, self.scale)


def _tanh(value: relax.Expr) -> relax.Expr:
    return qnn.float_function(value, "litert_tanh")


def activation_of(node: Node, name: str) -> Callable[[relax.Expr], relax.Expr]:
    """The activation function of a recurrent layer's new values, usually tanh."""
    if name == "TANH":
        return _tanh
    if name not in ACTIVATION_RANGES:
        raise node.unsupported(f"activation {name}")
    return lambda value: node.activate(value, name)


class FloatCell:
    """The arithmetic of a float or hybrid LSTM."""

    def __init__(self, node: Node, layer: Layer) -> None:
        self.node, self.layer, self.emit = node, layer, node.emit
        if node.dtype(0) != "float32":
            raise node.unsupported(f"activations of dtype {node.dtype(0)}")
        self.activation = activation_of(node, node.options["fused_activation_function"])
        self.input_weights = Matrix(node, [lstm_layer.input_weights(gate) for gate in layer.gates])
        self.recurrent_weights = Matrix(node, [lstm_layer.recurrent_weights(gate) for gate in layer.gates])
        self.projection = Matrix(node, [16]) if layer.projection else None
        self.peephole = {
            gate: self._vector(lstm_layer.peephole_weights(gate))
            for gate in layer.gates
            if layer.peephole and gate != "cell"
        }

    def _vector(self, index: int) -> relax.Expr:
        """A vector operand in float32."""
        values = self.node.constant(index)
        if values.dtype == np.int8:
            values = values * self.node.qparams(index).scale.astype(np.float32)
        if values.dtype != np.float32:
            raise self.node.unsupported(f"input {index} of dtype {values.dtype}")
        return constant(values)

    def input_products(self, rows: relax.Expr) -> relax.Expr:
        """W·x + b; with layer normalization the bias is added later."""
        product = self.input_weights.product(rows)
        if self.layer.layer_norm:
            return product
        biases = [self.node.constant(lstm_layer.bias(gate)) for gate in self.layer.gates]
        return self.emit(relax.op.add(product, constant(np.concatenate(biases).astype(np.float32))))

    def step(self, products: relax.Expr, hidden: relax.Expr, cell: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
        """(h', c')."""
        emit = self.emit
        gates = emit(relax.op.add(products, self.recurrent_weights.product(hidden)))
        forget = emit(self._sigmoid(gates, "forget", cell))
        candidate = emit(self.activation(self._gate(gates, "cell", cell)))
        if self.layer.coupled:
            update = emit(relax.op.subtract(constant(np.float32(1)), forget))
        else:
            update = emit(self._sigmoid(gates, "input", cell))
        kept, added = emit(relax.op.multiply(forget, cell)), emit(relax.op.multiply(update, candidate))
        new_cell = self._clip(emit(relax.op.add(kept, added)), self.layer.cell_clip)
        output = emit(self._sigmoid(gates, "output", new_cell))
        new_hidden = emit(relax.op.multiply(output, emit(self.activation(new_cell))))
        return self._projected(new_hidden), new_cell

    def _sigmoid(self, gates: relax.Expr, gate: str, cell: relax.Expr) -> relax.Expr:
        """The sigmoid of a gate. LiteRT computes vectors of four elements of a gate's memory in one way, what is left
        before and behind them in another one."""
        value = self.emit(self._gate(gates, gate, cell))
        mask = self._in_vectors(gate, shape_of(value)[0])
        of_vectors, of_rest = (qnn.float_function(value, f"litert_{name}") for name in ("vector_logistic", "logistic"))
        if mask.all() or not mask.any():
            return of_vectors if mask.all() else of_rest
        return relax.op.where(constant(mask), self.emit(of_vectors), self.emit(of_rest))

    def _in_vectors(self, gate: str, batch: int) -> np.ndarray:
        """Which elements (batch, cells) of a gate belong to vectors of four: those between the first and the last place
        of memory that is a multiple of four elements. The gates follow each other in memory, from such a place on; all
        samples are one sequence of elements if they are computed at once, as where time comes first."""
        cells, order = self.layer.cells, ("cell", "forget", "output")
        number = order.index(gate) if self.layer.coupled else ("input", *order).index(gate)
        places = number * batch * cells + np.arange(batch * cells).reshape(batch, cells)
        at_once = self.node.options.get("time_major", True)
        start, end = (places.min(), places.max()) if at_once else (places[:, :1], places[:, -1:])
        return np.asarray((places >= -(-start // 4) * 4) & (places < (end + 1) // 4 * 4))

    def _gate(self, gates: relax.Expr, gate: str, cell: relax.Expr) -> relax.Expr:
        """A gate before its activation."""
        start, end = self.layer.span(gate)
        value = block(self.node, gates, [1], [start], [end], [1])
        if gate in self.peephole:
            value = self.emit(relax.op.add(value, self.emit(relax.op.multiply(self.peephole[gate], cell))))
        return self._normalized(value, gate) if self.layer.layer_norm else value

    def _normalized(self, value: relax.Expr, gate: str) -> relax.Expr:
        """(x − mean) · (1 / √(variance + ε)) · weight + bias, over each row."""
        emit = self.emit
        mean = emit(relax.op.mean(value, axis=[1], keepdims=True))
        centered = emit(relax.op.subtract(value, mean))
        variance = emit(relax.op.mean(emit(relax.op.multiply(centered, centered)), axis=[1], keepdims=True))
        deviation = emit(relax.op.sqrt(emit(relax.op.add(variance, constant(np.float32(EPSILON))))))
        normal = emit(relax.op.multiply(centered, emit(relax.op.divide(constant(np.float32(1)), deviation))))
        weighted = emit(relax.op.multiply(normal, self._vector(lstm_layer.norm_weights(gate))))
        return emit(relax.op.add(weighted, self._vector(lstm_layer.bias(gate))))

    def _projected(self, hidden: relax.Expr) -> relax.Expr:
        if self.projection is None:
            return hidden
        result = self.projection.product(hidden)
        if self.node.has_input(17):
            result = self.emit(relax.op.add(result, self._vector(17)))
        return self._clip(result, self.layer.projection_clip)

    def _clip(self, value: relax.Expr, limit: float) -> relax.Expr:
        return self.emit(relax.op.clip(value, -limit, limit)) if limit > 0 else value

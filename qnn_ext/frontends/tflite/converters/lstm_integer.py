"""One LSTM step in integers: int8 (or int16) activations, int8 weights, int16 gates and cell state.

Exactly LiteRT's 8x8_16 kernel in either numerics, as LiteRT has no other; int16 activations, which LiteRT refuses, work
the same with wider accumulators. Gates are in Q3.12 before and Q0.15 after their activation; the cell state's scale is
a power of two. It converts no operators.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from .... import op as qnn
from ....numerics import gemmlowp16
from ....op.base import constant
from ....op.layer_norm import OUT_BITS
from ....qparams import dtype_range
from ..node import Node, shape_of
from . import lstm_layer
from .lstm_layer import Layer
from .shape import block

Q15 = 2.0**-15
GATE_SCALE = 2.0**-OUT_BITS


class IntegerCell:
    """The arithmetic of an integer LSTM."""

    def __init__(self, node: Node, layer: Layer) -> None:
        self.node, self.layer, self.emit = node, layer, node.emit
        self._check_dtypes()
        self.accumulator = "int64" if node.dtype(0) == "int16" else "int32"
        self.input, self.hidden = node.qparams(0), node.qparams(18)
        self.cell_exponent = self._cell_exponent()
        self.hidden_scale, self.hidden_zero_point = self._before_projection()
        self.gate_scales = {gate: self._gate_scale(gate) for gate in layer.gates}
        self.input_weights = self._concatenated(lstm_layer.input_weights)
        self.recurrent_weights = self._concatenated(lstm_layer.recurrent_weights)
        self.input_scales = self._scales(lstm_layer.input_weights, np.float32(self.input.scale))
        self.recurrent_scales = self._scales(lstm_layer.recurrent_weights, np.float32(self.hidden.scale))
        self.logistic, self.tanh = constant(gemmlowp16.logistic_table()), constant(gemmlowp16.tanh_table(3))
        self.cell_tanh = constant(gemmlowp16.tanh_table(15 + self.cell_exponent))

    # ---- what the file says --------------------------------------------------------------------------------------

    def _check_dtypes(self) -> None:
        node, layer = self.node, self.layer
        if node.options["fused_activation_function"] != "TANH":
            raise node.unsupported(
                f"activation {node.options['fused_activation_function']}; integer LSTMs must have TANH"
            )
        wanted = {18: node.dtype(0), 19: "int16"}
        for gate in layer.gates:
            wanted |= {lstm_layer.input_weights(gate): "int8", lstm_layer.recurrent_weights(gate): "int8"}
            if node.dtype(0) == "int8" or layer.layer_norm:
                wanted[lstm_layer.bias(gate)] = "int32"
            if layer.peephole and gate != "cell":
                wanted[lstm_layer.peephole_weights(gate)] = "int16"
            if layer.layer_norm:
                wanted[lstm_layer.norm_weights(gate)] = "int16"
        if layer.projection:
            wanted[16] = "int8"
        for index, dtype in wanted.items():
            found = node.tensor(index).dtype
            if found != dtype:
                raise node.unsupported(f"input {index} of {found}; with {node.dtype(0)} activations it must be {dtype}")

    def _cell_exponent(self) -> int:
        scale = float(self.node.qparams(19).scale)
        exponent = round(np.log2(scale))
        if scale != 2.0**exponent or not -15 <= exponent <= -9:
            raise self.node.unsupported(f"a cell state with scale {scale}; it must be a power of two, 2⁻¹⁵ to 2⁻⁹")
        return exponent

    def _before_projection(self) -> tuple[np.float32, int]:
        """Scale and zero point of o∘tanh(c); they belong to the last of five intermediate tensors."""
        indices = self.node.operator.intermediates
        if len(indices) != 5 or indices[4] < 0:
            raise self.node.unsupported(f"{len(indices)} intermediate tensors; only 5 are supported")
        qparams = self.node.assembly.tensor(indices[4]).qparams
        if qparams is None:
            raise self.node.malformed("the intermediate tensor of the hidden state has no quantization parameters")
        return np.float32(qparams.scale), int(qparams.zero_point)

    def _gate_scale(self, gate: str) -> np.float32:
        """The scale of a gate before its activation, or before its layer normalization."""
        if not self.layer.layer_norm:
            return np.float32(GATE_SCALE)
        index = self.node.operator.intermediates[lstm_layer.input_weights(gate) - 1]
        qparams = self.node.assembly.tensor(index).qparams if index >= 0 else None
        if qparams is None:
            raise self.node.malformed(f"the intermediate tensor of the {gate} gate has no quantization parameters")
        return np.float32(qparams.scale)

    def _concatenated(self, operand: Callable[[str], int]) -> relax.Expr:
        return constant(np.concatenate([self.node.constant(operand(gate)) for gate in self.layer.gates]))

    def _scales(self, operand: Callable[[str], int], data_scale: np.float32) -> np.ndarray:
        """Multipliers from accumulator to gate, per row of the concatenated weights; float32 products, as in LiteRT."""
        factors = [
            np.float32(self.node.qparams(operand(gate)).scale) * data_scale / self.gate_scales[gate]
            for gate in self.layer.gates
        ]
        return np.repeat(np.array(factors, np.float32), self.layer.cells).astype(np.float64)

    # ---- integer helpers -----------------------------------------------------------------------------------------

    def _multiply(
        self, value: relax.Expr, factor: np.ndarray | np.floating, dtype: str, zero_point: int = 0
    ) -> relax.Expr:
        """saturate(MultiplyByQuantizedMultiplier(value, factor) + zero_point)."""
        factor, one = factor.astype(np.float64), np.float64(1)
        return self.emit(qnn.requantize(value, factor, 0, one, zero_point, rounding="TFLITE", out_dtype=dtype))

    def _saturate(self, value: relax.Expr) -> relax.Expr:
        """int32 -> int16."""
        return self.emit(qnn.requantize(value, 1.0, 0, 1.0, 0, rounding="TFLITE", out_dtype="int16"))

    def _wide(self, value: relax.Expr) -> relax.Expr:
        return self.emit(relax.op.astype(value, "int32"))

    def _clip(self, value: relax.Expr, limit: int) -> relax.Expr:
        return self.emit(relax.op.clip(value, -limit, limit)) if limit > 0 else value

    # ---- one step ------------------------------------------------------------------------------------------------

    def input_products(self, rows: relax.Expr) -> relax.Expr:
        """int16 W·(x − z) + b in the gates' scales; with layer normalization the bias is added later."""
        acc = self.emit(
            qnn.dense(rows, self.input_weights, self.input.zero_point, 0, 1.0, 1.0, out_dtype=self.accumulator)
        )
        if not self.layer.layer_norm:
            biases = [self.node.constant(lstm_layer.bias(gate)) for gate in self.layer.gates]
            acc = self.emit(relax.op.add(acc, constant(np.concatenate(biases).astype(self.accumulator))))
        return self._multiply(acc, self.input_scales, "int16")

    def step(self, products: relax.Expr, hidden: relax.Expr, cell: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
        """(h', c')."""
        acc = self.emit(
            qnn.dense(hidden, self.recurrent_weights, self.hidden.zero_point, 0, 1.0, 1.0, out_dtype=self.accumulator)
        )
        recurrent = self._multiply(acc, self.recurrent_scales, "int32")
        gates = self._saturate(self.emit(relax.op.add(recurrent, self._wide(products))))
        forget = self._activated(gates, "forget", cell)
        candidate = self._activated(gates, "cell", cell)
        if self.layer.coupled:
            update = self.emit(relax.op.subtract(constant(np.int16(gemmlowp16.ONE)), forget))
        else:
            update = self._activated(gates, "input", cell)
        new_cell = self._new_cell(forget, update, candidate, cell)
        output = self._activated(gates, "output", new_cell)
        return self._new_hidden(output, new_cell), new_cell

    def _activated(self, gates: relax.Expr, gate: str, cell: relax.Expr) -> relax.Expr:
        start, end = self.layer.span(gate)
        value = block(self.node, gates, [1], [start], [end], [1])
        if self.layer.peephole and gate != "cell":
            value = self._with_peephole(value, gate, cell)
        if self.layer.layer_norm:
            weight, bias = (self.node.constant(index(gate)) for index in (lstm_layer.norm_weights, lstm_layer.bias))
            scale = np.float32(self.node.qparams(lstm_layer.norm_weights(gate)).scale)
            value = self.emit(qnn.layer_norm(value, constant(weight), constant(bias), scale))
        return self.emit(qnn.table(value, self.tanh if gate == "cell" else self.logistic))

    def _with_peephole(self, value: relax.Expr, gate: str, cell: relax.Expr) -> relax.Expr:
        index = lstm_layer.peephole_weights(gate)
        weights = self._peephole_weights(self.node.constant(index), shape_of(cell))
        scale = np.float32(self.node.qparams(index).scale) * np.float32(2.0**self.cell_exponent)
        product = self.emit(relax.op.multiply(self._wide(cell), constant(weights.astype(np.int32))))
        scaled = self._multiply(product, scale / self.gate_scales[gate], "int32")
        return self._saturate(self.emit(relax.op.add(scaled, self._wide(value))))

    def _peephole_weights(self, weights: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The weights for every element of the cell state. LiteRT walks the state (of the whole batch when time-major,
        else of each entry) in rows of the *output's* size, so with a projection it applies the wrong weights, and none
        at the end."""
        if self.layer.outputs == self.layer.cells:
            return weights
        batch, entries = shape[0], shape[0] if self.node.options.get("time_major", True) else 1
        walked = np.zeros(entries * self.layer.cells, np.int64)
        end = min(walked.size, entries * self.layer.outputs)
        walked[:end] = np.resize(weights[: self.layer.outputs], end)
        return np.broadcast_to(walked.reshape(entries, self.layer.cells), (batch, self.layer.cells))

    def _new_cell(self, forget: relax.Expr, update: relax.Expr, candidate: relax.Expr, cell: relax.Expr) -> relax.Expr:
        scale = 2.0**self.cell_exponent
        exact, dtype = "TONEAREST", "int16"  # shifts that round midpoints away from zero
        kept = self.emit(qnn.mul(forget, cell, Q15, 0, scale, 0, scale, 0, rounding=exact, out_dtype=dtype))
        added = self.emit(qnn.mul(update, candidate, Q15, 0, Q15, 0, scale, 0, rounding=exact, out_dtype=dtype))
        total = self.emit(qnn.add(kept, added, scale, 0, scale, 0, scale, 0, rounding=exact, out_dtype=dtype))
        return self._clip(total, self._limit(self.layer.cell_clip, scale, 32767))

    def _limit(self, clip: float, scale: float, top: int) -> int:
        return int(min(np.float32(clip) / np.float32(scale), np.float32(top)))

    def _new_hidden(self, output: relax.Expr, cell: relax.Expr) -> relax.Expr:
        activated = self.emit(qnn.table(cell, self.cell_tanh))
        dtype = self.node.dtype(0)
        # Before a projection LiteRT stores the value with the opposite zero point; the product then subtracts it.
        zero_point = -self.hidden_zero_point if self.layer.projection else self.hidden_zero_point
        args = (output, activated, Q15, 0, Q15, 0, self.hidden_scale, zero_point)
        hidden = self.emit(qnn.mul(*args, rounding="TFLITE", out_dtype=dtype))
        return self._projected(hidden, zero_point) if self.layer.projection else hidden

    def _projected(self, hidden: relax.Expr, zero_point: int) -> relax.Expr:
        node = self.node
        acc = self.emit(qnn.dense(hidden, node.input(16), zero_point, 0, 1.0, 1.0, out_dtype=self.accumulator))
        if node.has_input(17):
            acc = self.emit(relax.op.add(acc, constant(node.constant(17).astype(self.accumulator))))
        scale = np.float32(node.qparams(16).scale) * self.hidden_scale / np.float32(self.hidden.scale)
        result = self._multiply(acc, scale, node.dtype(0), int(self.hidden.zero_point))
        limit = self._limit(
            self.layer.projection_clip, float(node.output_qparams().scale), dtype_range(node.dtype(0))[1]
        )
        return self._clip(result, limit)

"""The operands of an LSTM, found and checked once, for every kind of arithmetic. It converts no operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..node import Node

# The order within concatenated weights; TFLite's operand order is input, forget, cell, output.
GATES = ("input", "forget", "output", "cell")
_OPERAND = {"input": 0, "forget": 1, "cell": 2, "output": 3}
_PEEPHOLE = {"input": 9, "forget": 10, "output": 11}
_PROJECTION, _PROJECTION_BIAS, _HIDDEN, _CELL = 16, 17, 18, 19


@dataclass(frozen=True)
class Layer:
    """Sizes and options of an LSTM, and the node's input number of each operand.

    gates:      those with weights, in concatenation order; without "input" when it is coupled (CIFG)
    cell_clip, projection_clip: limits as real values, 0 for none
    """

    cells: int
    outputs: int
    gates: tuple[str, ...]
    integer: bool
    peephole: bool
    layer_norm: bool
    projection: bool
    cell_clip: float
    projection_clip: float

    @property
    def coupled(self) -> bool:
        """Whether the input gate is 1 − forget gate."""
        return "input" not in self.gates

    def span(self, gate: str) -> tuple[int, int]:
        """Position of the gate among the concatenated ones."""
        start = self.gates.index(gate) * self.cells
        return start, start + self.cells


def input_weights(gate: str) -> int:
    """Number of the node's input that holds the gate's W."""
    return 1 + _OPERAND[gate]


def recurrent_weights(gate: str) -> int:
    """Likewise for R."""
    return 5 + _OPERAND[gate]


def peephole_weights(gate: str) -> int:
    """Likewise for P, which the cell gate does not have."""
    return _PEEPHOLE[gate]


def bias(gate: str) -> int:
    """Likewise for b."""
    return 12 + _OPERAND[gate]


def norm_weights(gate: str) -> int:
    """Likewise for the layer normalization's coefficients."""
    return 20 + _OPERAND[gate]


def read_layer(node: Node) -> Layer:
    """The LSTM that the node describes. Raises ModelFormatError when its operands contradict each other,
    UnsupportedOperatorError for combinations of dtypes and options without an implementation."""
    if node.input_count not in (20, 24):
        raise node.malformed(f"an LSTM has 20 or 24 inputs, found {node.input_count}")
    gates = GATES if node.has_input(input_weights("input")) else GATES[1:]
    layer = Layer(
        cells=_rows(node, input_weights("output")),
        outputs=_columns(node, recurrent_weights("output")),
        gates=gates,
        integer=node.dtype(0) in ("int8", "int16"),
        peephole=node.has_input(peephole_weights("output")),
        layer_norm=node.has_input(norm_weights("forget")),
        projection=node.has_input(_PROJECTION),
        cell_clip=float(node.options["cell_clip"]),
        projection_clip=float(node.options["proj_clip"]),
    )
    _check(node, layer)
    return layer


def _rows(node: Node, index: int) -> int:
    return node.shape(index)[0]


def _columns(node: Node, index: int) -> int:
    shape = node.shape(index)
    if len(shape) != 2:
        raise node.unsupported(f"recurrent weights of shape {shape}; only full matrices are supported")
    return shape[1]


def _check(node: Node, layer: Layer) -> None:
    if (
        not (np.isfinite([layer.cell_clip, layer.projection_clip]).all())
        or min(layer.cell_clip, layer.projection_clip) < 0
    ):
        raise node.malformed(f"clips must not be negative, found {layer.cell_clip} and {layer.projection_clip}")
    if 0 in (layer.cells, layer.outputs) or (not layer.projection and layer.outputs != layer.cells):
        raise node.malformed(f"without a projection, {layer.cells} cells cannot have {layer.outputs} outputs")
    depth = node.shape(0)[-1]
    for gate in layer.gates:
        _expect(node, input_weights(gate), (layer.cells, depth))
        _expect(node, recurrent_weights(gate), (layer.cells, layer.outputs))
        _expect(node, bias(gate), (layer.cells,))
        if layer.layer_norm:
            _expect(node, norm_weights(gate), (layer.cells,))
        if layer.peephole and gate != "cell":
            _expect(node, peephole_weights(gate), (layer.cells,))
    if layer.projection:
        _expect(node, _PROJECTION, (layer.outputs, layer.cells))
        if node.has_input(_PROJECTION_BIAS):
            _expect(node, _PROJECTION_BIAS, (layer.outputs,))
    if layer.coupled and any(
        node.has_input(index) for index in (recurrent_weights("input"), peephole_weights("input"), bias("input"))
    ):
        raise node.malformed("the input gate has no input weights, but other operands")
    for index in (_HIDDEN, _CELL):
        if not node.has_input(index) or not node.tensor(index).is_variable:
            raise node.malformed(f"input {index} must be a variable tensor")


def _expect(node: Node, index: int, shape: tuple[int, ...]) -> None:
    if node.shape(index) != shape:
        raise node.malformed(f"input {index} must have shape {shape}, found {node.shape(index)}")

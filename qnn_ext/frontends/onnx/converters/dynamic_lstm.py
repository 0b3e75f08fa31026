"""DynamicQuantizeLSTM of com.microsoft: 8-bit weights, activations quantized at run time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tvm import relax

from ....op.base import constant
from ...recurrent import part_of
from ..node import Node
from ..registry import MICROSOFT, converter
from .arithmetic import matmul, times
from .integer import quantize_dynamically
from .microsoft_matmul import to_float
from .recurrent import Products, R, W, read_layer

_PARAMETERS = {W: 8, R: 10}  # position of a matrix -> those of its scales and, one on, of its zero points


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

    W (directions, depth, 4·hidden), R (directions, hidden, 4·hidden), their scales and zero points (directions,) or
    (directions, 4·hidden); the rest is as in LSTM. The inputs of all steps share one scale, the hidden states have one
    per step, as in ONNX Runtime.
    """
    layer = read_layer(node, transposed=True)

    def products(index: int) -> Products:
        inputs, past = (_weights(node, position, index) for position in (W, R))
        return Products(partial(inputs.product, node), lambda first, last: partial(past.product, node))

    return layer.run(products)


def _weights(node: Node, position: int, index: int) -> _Weights:
    """The matrix of one direction with its parameters."""
    if node.dtype(position) not in ("int8", "uint8"):
        raise node.malformed(f"input {position} must be int8 or uint8, found {node.dtype(position)}")

    def parameter(place: int, dtype: str) -> relax.Expr:
        value, shape = node.constant(place).astype(dtype), node.shape(position)
        if value.shape not in ((shape[0],), (shape[0], shape[2])):
            raise node.malformed(
                f"input {place} must have shape ({shape[0]},) or ({shape[0]}, {shape[2]}), found {value.shape}"
            )
        return part_of(node.emit, constant(value), index)

    place = _PARAMETERS[position]
    matrix = part_of(node.emit, constant(node.constant(position)), index)
    return _Weights(matrix, parameter(place, "float32"), parameter(place + 1, "int32"))

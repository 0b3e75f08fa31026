"""QuantizeLinear and DequantizeLinear, operator sets 10 to 25."""

from __future__ import annotations

from tvm import relax

from .... import op as qnn
from ..node import Node
from ..registry import converter


@converter("QuantizeLinear", since=10)
def quantize_linear(node: Node) -> relax.Expr:
    """q = saturate(rint(x / scale) + zero_point)."""
    out_dtype = node.dtype(2) if node.has_input(2) else "uint8"
    axis = node.attribute("axis", 1)
    return qnn.quantize(node.input(0), node.scale(1), node.zero_point(2), axis=axis, out_dtype=out_dtype)


@converter("DequantizeLinear", since=10)
def dequantize_linear(node: Node) -> relax.Expr:
    """x = (q - zero_point) · scale."""
    return qnn.dequantize(node.input(0), node.scale(1), node.zero_point(2), axis=node.attribute("axis", 1))

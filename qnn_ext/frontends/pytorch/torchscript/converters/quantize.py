"""Quantize and dequantize."""

from __future__ import annotations

from tvm import relax

from ..formulas import quantize
from ..node import Node
from ..registry import converter


@converter("aten::quantize_per_tensor")
def _quantize(node: Node) -> relax.Expr:
    out = node.output
    assert out is not None
    return quantize(node, node.expr("input" if "input" in node.arguments else "self"), out)


@converter("aten::dequantize")
def _dequantize(node: Node) -> relax.Expr:
    return node.dequantized("input" if "input" in node.arguments else "self")


@converter("aten::int_repr")
def _int_repr(node: Node) -> relax.Expr:
    return node.expr("self")

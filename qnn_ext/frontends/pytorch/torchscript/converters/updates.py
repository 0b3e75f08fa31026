"""Parts of a tensor written: `y[2:4] = x` is a copy to a view, `y[i, j] = x` index_put; windows taken apart and put
together. The importer passes on to the whole tensor what is written to a view."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .....op.base import constant
from .....qparams import QParams
from ...scatter import index_put
from ...windows import fold, unfold
from ..formulas import quantize
from ..node import Node
from ..registry import converter
from ..values import dtype_name
from .float_math import operand


@converter("aten::copy_", "aten::copy")
def _copy(node: Node) -> relax.Expr:
    """The source, in the dtype and shape of what it replaces; floats are quantized as that is."""
    out = node.output
    source = operand(node, "src") if out is None else _quantized(node, "src", out)
    return relax.op.broadcast_to(source, list(node.shape))


def _quantized(node: Node, name: str, out: QParams) -> relax.Expr:
    """An operand as the integers of a quantized tensor."""
    source = node.qparams(name)
    if source is None:
        return quantize(node, node.emit(relax.op.astype(node.expr(name), "float32")), out)
    if source != out:
        raise node.unsupported("writing values of another scale or zero point to a quantized tensor")
    return node.expr(name)


@converter("aten::fill_", "aten::zero_")
def _fill(node: Node) -> relax.Expr:
    if node.output is not None:
        value = _quantized(node, "value", node.output)  # PyTorch has no zero_ of such
    elif "value" in node.arguments:
        value = operand(node, "value")
    else:
        value = constant(np.zeros((), dtype_name(node.examples[0])))
    return relax.op.broadcast_to(value, list(node.shape))


@converter("aten::index_put", "aten::index_put_")
def _index_put(node: Node) -> relax.Expr:
    """PyTorch writes floats to quantized tensors, which it quantizes, and adds none."""
    indices, out = [None if value is None else node.to_expr(value) for value in node.raw("indices")], node.output
    if out is None:
        data, values = operand(node, "self"), operand(node, "values")
    else:
        data, values = node.expr("self"), _quantized(node, "values", out)
    return index_put(node.emit, data, indices, values, bool(node["accumulate"]), node.label)


@converter("aten::im2col")
def _unfold(node: Node) -> relax.Expr:
    return unfold(node.emit, operand(node, "self"), *_window(node))


@converter("aten::col2im")
def _fold(node: Node) -> relax.Expr:
    node.note("a sum of windows in float")
    return fold(node.emit, operand(node, "self"), [int(size) for size in node["output_size"]], *_window(node))


def _window(node: Node) -> list[list[int]]:
    return [[int(size) for size in node[name]] for name in ("kernel_size", "dilation", "padding", "stride")]

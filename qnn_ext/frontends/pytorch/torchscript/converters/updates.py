"""Parts of a tensor written: `y[2:4] = x` is a copy to a view, `y[i, j] = x` index_put; windows taken apart and put
together. The importer passes on to the whole tensor what is written to a view."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .....op.base import constant
from ...scatter import index_put
from ...windows import fold, unfold
from ..node import Node
from ..registry import converter
from ..values import dtype_name
from .float_math import operand


@converter("aten::copy_", "aten::copy")
def _copy(node: Node) -> relax.Expr:
    """The source, in the dtype and shape of what it replaces."""
    if node.output is not None:
        raise node.unsupported("copying into a quantized tensor")
    return relax.op.broadcast_to(operand(node, "src"), list(node.shape))


@converter("aten::fill_", "aten::zero_")
def _fill(node: Node) -> relax.Expr:
    if node.output is not None:
        raise node.unsupported("filling a quantized tensor")
    value = (
        operand(node, "value") if "value" in node.arguments else constant(np.zeros((), dtype_name(node.examples[0])))
    )
    return relax.op.broadcast_to(value, list(node.shape))


@converter("aten::index_put", "aten::index_put_")
def _index_put(node: Node) -> relax.Expr:
    if node.output is not None:
        raise node.unsupported("writing to elements of a quantized tensor")
    indices = [None if value is None else node.to_expr(value) for value in node.raw("indices")]
    data, values = operand(node, "self"), operand(node, "values")
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

"""Operators that only query or change shapes, whose results are known at import."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ....limits import check_elements
from ....op.base import constant
from ....passes.marks import Mark
from ..node import Node
from ..registry import converter


@converter("Shape")
def shape(node: Node) -> relax.Expr:
    """The shape as a constant vector, or a part of it (attributes start and end, since version 15)."""
    dims = node.shape(0)[node.attribute("start", 0) : node.attribute("end", None)]
    return constant(np.asarray(dims, np.int64))


@converter("Size")
def size(node: Node) -> relax.Expr:
    """The number of elements as a constant."""
    return constant(np.asarray(math.prod(node.shape(0)), np.int64))


@converter("Identity")
def identity(node: Node) -> relax.Expr:
    """The input itself."""
    return node.input(0)


@converter("Dropout")
def dropout(node: Node) -> list[relax.Expr]:
    """The input itself: models are run, not trained. The second output is a mask: all true, before version 12 all
    false, and before version 10 of the data's dtype, as in ONNX Runtime."""
    if node.has_input(2) and (not node.is_constant(2) or node.constant(2).any()):
        raise node.unsupported("training_mode; export the model for inference")
    if not node.has_output(1):
        return [node.input(0)]
    dtype = "bool" if node.opset >= 10 else node.dtype(0)
    return [
        node.input(0),
        constant(np.full(check_elements(node.shape(0), "the mask", "folded"), node.opset >= 12, dtype)),
    ]


@converter("Reshape", since=1)
def reshape_to_attribute(node: Node) -> relax.Expr:
    """Reshape with the shape in an attribute."""
    return _reshaped(node, node.attribute("shape", []))


@converter("Reshape", since=5)
def reshape(node: Node) -> relax.Expr:
    """0 copies a dimension (unless allowzero is set), −1 is inferred."""
    return _reshaped(node, node.integers(1))


def _reshaped(node: Node, target: list[int]) -> relax.Expr:
    data = node.shape(0)
    dims = [
        data[axis] if dim == 0 and axis < len(data) and not node.attribute("allowzero", 0) else dim
        for axis, dim in enumerate(target)
    ]
    if dims.count(-1) == 1:
        known = -math.prod(dims)
        dims[dims.index(-1)] = math.prod(data) // known if known > 0 else 0
    if math.prod(dims) != math.prod(data) or any(dim < 0 for dim in dims):
        raise node.malformed(f"cannot reshape {data} to {target}")
    return node.input(0) if tuple(dims) == data else relax.op.reshape(node.input(0), dims)


@converter("Flatten")
def flatten(node: Node) -> relax.Expr:
    """Two dimensions: those before the axis, and those from it on. The mark tells it from Reshape, before which ONNX
    Runtime quantizes."""
    data = node.shape(0)
    axis = node.attribute("axis", 1)
    if not -len(data) <= axis <= len(data):
        raise node.malformed(f"axis {axis} is out of range for {len(data)} dimensions")
    axis = axis + len(data) if axis < 0 else axis
    dims = (math.prod(data[:axis]), math.prod(data[axis:]))
    if dims == data:
        return node.input(0)
    return node.assembly.emit_marked(relax.op.reshape(node.input(0), dims), node.outputs[0], Mark.FLATTEN)


@converter("EyeLike", since=9)
def eye_like(node: Node) -> relax.Expr:
    """A constant matrix with ones on the k-th diagonal, as big as the input."""
    if len(node.shape(0)) != 2:
        raise node.malformed(f"the input must be a matrix, found shape {node.shape(0)}")
    dtype = node.target_dtype("dtype") if "dtype" in node.attributes else node.dtype(0)
    rows, columns = check_elements(node.shape(0), "the matrix", "folded")
    return constant(np.eye(rows, columns, k=node.attribute("k", 0), dtype=dtype))

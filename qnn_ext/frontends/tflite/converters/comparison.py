"""EQUAL … GREATER_EQUAL, LOGICAL_AND, LOGICAL_OR, LOGICAL_NOT, WHERE, UNIQUE, BUCKETIZE, SELECT, SELECT_V2."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from .... import op as qnn
from ....numerics import fixed_point, reference
from ....numerics.reference import domain
from ....op.base import constant
from ....qparams import QParams
from ... import data_dependent as build
from ...distinct import distinct
from ..integers import centered, multiply, require_dtype, same_dtype, scalar, tensor_qparams
from ..node import Node
from ..registry import converter
from .shape import check_elements

# TFLite compares the operands' real values after scaling both by 2⁸: steps much finer than 1/256 compare as equal.
COMPARISON_SHIFT = 8

COMPARISONS: dict[str, Callable[..., relax.Expr]] = {
    "EQUAL": relax.op.equal,
    "NOT_EQUAL": relax.op.not_equal,
    "LESS": relax.op.less,
    "LESS_EQUAL": relax.op.less_equal,
    "GREATER": relax.op.greater,
    "GREATER_EQUAL": relax.op.greater_equal,
}
NUMERIC = ("int8", "uint8", "int16", "int32", "int64", "float32")


@converter("EQUAL", "NOT_EQUAL", max_version=4)
def convert_equality(node: Node) -> relax.Expr:
    """Also of booleans and of int16 with QParams, whose real values are compared."""
    dtype = same_dtype(node, 0, 1)
    require_dtype(node, dtype, *NUMERIC, "bool")
    if dtype == "bool":
        differs = relax.op.logical_xor(node.input(0), node.input(1))
        return differs if node.operator.name == "NOT_EQUAL" else relax.op.logical_not(node.emit(differs))
    return _compare(node, scaled=dtype in ("int8", "uint8") or node.is_quantized(0))


@converter("LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", max_version=3)
def convert_order(node: Node) -> relax.Expr:
    """LiteRT's kernels order int16 by the stored integers, ignoring their scales."""
    dtype = same_dtype(node, 0, 1)
    require_dtype(node, dtype, *NUMERIC)
    return _compare(node, scaled=dtype in ("int8", "uint8"))


def _compare(node: Node, scaled: bool) -> relax.Expr:
    function = COMPARISONS[node.operator.name]
    if not scaled or _same_order(node):
        return function(node.input(0), node.input(1))
    return function(_scaled(node, 0), _scaled(node, 1))


def _same_order(node: Node) -> bool:
    """Whether comparing the stored integers gives the same: equal QParams, no two values equal to TFLite."""
    qparams = tensor_qparams(node, 0)
    return qparams == tensor_qparams(node, 1) and bool((np.diff(_scaled_domain(qparams)) > 0).all())


def _scaled_domain(qparams: QParams) -> np.ndarray:
    """What TFLite's comparison sees instead of each q: round(2⁸ · scale · (q − zero_point)) in fixed point."""
    shifted = (domain(qparams.dtype).astype(np.int32) - qparams.zero_point) << COMPARISON_SHIFT
    return reference.multiply_tflite(shifted, fixed_point(qparams.scale))


def _scaled(node: Node, index: int) -> relax.Expr:
    qparams = tensor_qparams(node, index)
    if qparams.dtype == "int16":
        shifted = node.emit(relax.op.multiply(centered(node, index), scalar(1 << COMPARISON_SHIFT)))
        return multiply(node, shifted, float(qparams.scale))
    return node.emit(qnn.table(node.input(index), _scaled_domain(qparams).astype(np.int32)))


# ---- logic -------------------------------------------------------------------------------------------------------


@converter("LOGICAL_AND", "LOGICAL_OR", max_version=1)
def convert_logical(node: Node) -> relax.Expr:
    """Of booleans, broadcasting."""
    require_dtype(node, same_dtype(node, 0, 1), "bool")
    function = relax.op.logical_and if node.operator.name == "LOGICAL_AND" else relax.op.logical_or
    return function(node.input(0), node.input(1))


@converter("LOGICAL_NOT", max_version=1)
def convert_logical_not(node: Node) -> relax.Expr:
    """Of a boolean tensor."""
    require_dtype(node, node.dtype(0), "bool")
    return relax.op.logical_not(node.input(0))


@converter("WHERE", max_version=2)
def convert_where(node: Node) -> relax.Expr:
    """The coordinates of all elements that are not 0, int64 (number of them, rank), in row-major order."""
    sizes = node.assembly.builder.sizes
    if node.input_count != 1 or not node.shape(0):
        raise node.unsupported(f"{node.input_count} operands, or a scalar")
    found, size = build.coordinates(sizes, build.nonzero_mask(sizes, node.input(0)), node.label)
    return sizes.emit(relax.op.stack(found, 1), {0: size})


@converter("UNIQUE", max_version=1)
def convert_unique(node: Node) -> list[relax.Expr]:
    """The values of a vector, each once, in the order of their first elements; and which of them each element is."""
    dtype = node.options["idx_out_type"]
    require_dtype(node, node.dtype(0), *NUMERIC)
    if len(node.shape(0)) != 1 or dtype not in ("int32", "int64"):
        raise node.malformed(f"values of shape {node.shape(0)} and indices of {dtype}")
    found = distinct(node.assembly.builder.sizes, node.input(0), False, node.label)
    return [found.values, node.emit(relax.op.astype(found.inverse, dtype))]


@converter("BUCKETIZE", max_version=1)
def convert_bucketize(node: Node) -> relax.Expr:
    """How many of the ascending boundaries are at most x, as int32; all of them for NaN."""
    boundaries = np.asarray(node.options["boundaries"], np.float32).reshape(-1)
    if not (np.diff(boundaries) >= 0).all():
        raise node.malformed("the boundaries must ascend")
    require_dtype(node, node.dtype(0), "float32", "int32", "int64")
    data = node.input(0)
    if node.dtype(0) != "float32":
        data = node.emit(relax.op.astype(data, "float32"))
    if not len(boundaries):
        return relax.op.zeros(list(node.shape(0)), "int32")
    check_elements(node, (*node.shape(0), len(boundaries)))
    column = node.emit(relax.op.expand_dims(data, len(node.shape(0))))
    passed = node.emit(relax.op.logical_not(node.emit(relax.op.less(column, constant(boundaries)))))
    return relax.op.sum(node.emit(relax.op.astype(passed, "int32")), [-1])


# ---- select ------------------------------------------------------------------------------------------------------


@converter("SELECT", max_version=4)
def convert_select(node: Node) -> relax.Expr:
    """The condition has the operands' shape, one element, or is a vector selecting rows; operands share a shape."""
    condition, rows = node.shape(0), node.shape(1)
    if rows != node.shape(2):
        raise node.malformed(f"operands must have the same shape, found {rows} and {node.shape(2)}")
    if condition == rows or condition in ((), (1,)):
        return _select(node, node.input(0))
    if len(condition) != 1 or not rows or condition[0] != rows[0]:
        raise node.malformed(f"a condition of shape {condition} cannot select between tensors of shape {rows}")
    column = (condition[0],) + (1,) * (len(rows) - 1)
    return _select(node, node.emit(relax.op.reshape(node.input(0), column)))


@converter("SELECT_V2", max_version=2)
def convert_select_v2(node: Node) -> relax.Expr:
    """Condition and operands broadcast."""
    return _select(node, node.input(0))


def _select(node: Node, condition: relax.Expr) -> relax.Expr:
    """LiteRT copies integers as they are, whatever the scales of operands and result."""
    require_dtype(node, node.dtype(0), "bool")
    require_dtype(node, same_dtype(node, 1, 2), *NUMERIC, "uint32", "bool")
    return relax.op.where(condition, node.input(1), node.input(2))

"""Extremes along axes and the largest values of rows, also of quantized tensors, whose integers have the order of the
values; running sums of float tensors and plain integers."""

from __future__ import annotations

from tvm import relax

from .....op.base import normalize_axis, shape_of
from ....run_time import check_count
from ...norms import cumulative_sum
from ..node import Node
from ..registry import converter
from .float_math import operand


def _extreme(node: Node, data: relax.Expr, largest: bool, axes: list[int], keep: bool) -> relax.Expr:
    if not shape_of(data):
        return data
    return (relax.op.max if largest else relax.op.min)(data, axes, keep)


def _is_largest(node: Node) -> bool:
    return "max" in node.kind


def _ordered(node: Node) -> relax.Expr:
    """The tensor, or the integers of a quantized one."""
    if node.qparams("self") is not None:
        return node.expr("self")
    node.note("a search in float")
    return operand(node, "self")


@converter("aten::amax", "aten::amin")
def _along_axes(node: Node) -> relax.Expr:
    """Over all axes if none are given. NaN is beyond all numbers, as everywhere in PyTorch."""
    node.note("an extreme in float")
    rank = len(node.shape_of("self"))
    axes = [normalize_axis(int(axis), rank) for axis in node["dim"]] or list(range(rank))
    return _extreme(node, operand(node, "self"), _is_largest(node), axes, bool(node["keepdim"]))


@converter("aten::max", "aten::min")
def _extreme_of(node: Node) -> relax.Expr | list[relax.Expr]:
    """Of two tensors, of all elements, or along one axis, with the positions."""
    largest = _is_largest(node)
    if node.get("other") is not None:
        node.note("an extreme in float")
        return (relax.op.maximum if largest else relax.op.minimum)(operand(node, "self"), operand(node, "other"))
    data = _ordered(node)
    if node.get("dim") is None:
        return _extreme(node, data, largest, list(range(len(shape_of(data)))), False)
    if not shape_of(data):
        raise node.unsupported("an axis of a scalar")
    axis, keep = normalize_axis(int(node["dim"]), len(shape_of(data))), bool(node["keepdim"])
    positions = (relax.op.argmax if largest else relax.op.argmin)(data, axis, keep)
    return [_extreme(node, data, largest, [axis], keep), positions]


@converter("aten::topk")
def _topk(node: Node) -> list[relax.Expr]:
    """The k largest or smallest values along an axis, in order, and where they were; equal ones in their order."""
    data, count = _ordered(node), int(node["k"])
    if not shape_of(data):
        raise node.unsupported("an axis of a scalar")
    axis = normalize_axis(int(node["dim"]), len(shape_of(data)))
    check_count(count, shape_of(data)[axis], node.kind)
    both = node.emit(relax.op.topk(data, count, axis, "both", bool(node["largest"]), "int64"))
    return [relax.TupleGetItem(both, 0), relax.TupleGetItem(both, 1)]


@converter("aten::cumsum")
def _cumsum(node: Node) -> relax.Expr:
    """Running sums along an axis."""
    node.note("a sum in float")
    return cumulative_sum(node.emit, operand(node, "self"), int(node["dim"]))

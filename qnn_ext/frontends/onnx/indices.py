"""Inputs that TVM's ONNX importer does not check and ONNX Runtime rejects when invalid: indices, divisors."""

from __future__ import annotations

import math

from tvm import relax

from ...op.base import normalize_axis
from ..run_time import checked_divisor, checked_indices
from .node import Node

_ALONG_AXIS = ("GatherElements", "Scatter", "ScatterElements")
_OF_COMPONENTS = ("GatherND", "ScatterND")
_DIVISIONS = ("Div", "Mod")


def checked_inputs(node: Node) -> list[relax.Expr | None]:
    """The node's inputs, with indices checked and made non-negative."""
    inputs = list(node.inputs)
    for position, checked in _checks(node).items():
        inputs[position] = checked
    return inputs


def _checks(node: Node) -> dict[int, relax.Expr]:
    """Position of an input -> its replacement."""
    if node.op_type in _DIVISIONS:
        return {1: checked_divisor(node.emit, node.input(1), node.label)}
    if node.op_type in _ALONG_AXIS:
        axis = normalize_axis(node.attribute("axis", 0), len(node.shape(0)))
        return {1: index_input(node, 1, node.shape(0)[axis], negative=True)}
    if node.op_type in _OF_COMPONENTS:
        first = node.attribute("batch_dims", 0)
        depth = node.shape(1)[-1] if node.shape(1) else 0
        sizes = node.shape(0)[first : first + depth]
        if not depth or len(sizes) != depth:
            raise node.malformed(f"indices of shape {node.shape(1)} do not match data of shape {node.shape(0)}")
        return {1: index_input(node, 1, sizes, negative=True)}
    if node.op_type == "MaxUnpool":
        return {1: index_input(node, 1, math.prod(_unpooled_shape(node)))}
    if node.op_type == "RoiAlign":
        return {2: index_input(node, 2, node.shape(0)[0])}
    return {}


def index_input(node: Node, position: int, lengths: int | tuple[int, ...], negative: bool = False) -> relax.Expr:
    """An input that holds indices, checked as by `checked_indices`."""
    if node.dtype(position) not in ("int32", "int64"):
        raise node.malformed(f"input {position} must be int32 or int64, found {node.dtype(position)}")
    return checked_indices(node.emit, node.input(position), lengths, node.label, negative)


def _unpooled_shape(node: Node) -> list[int]:
    """The input shape of the MaxPool with these attributes, or the shape that is given."""
    if node.has_input(2):
        return node.integers(2)
    shape, kernel = node.shape(0), node.attribute("kernel_shape")
    strides, pads = node.attribute("strides", [1] * len(kernel)), node.attribute("pads", [0] * 2 * len(kernel))
    spatial = [
        (size - 1) * stride + extent - pads[i] - pads[i + len(kernel)]
        for i, (size, stride, extent) in enumerate(zip(shape[2:], strides, kernel, strict=True))
    ]
    return [*shape[:2], *spatial]

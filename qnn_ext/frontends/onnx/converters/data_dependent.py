"""Operators whose results have sizes that depend on data: NonZero, NonMaxSuppression, Compress."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from .... import op as qnn
from ....limits import check_elements
from ....op.base import constant, normalize_axis
from ... import data_dependent as build
from ...sizes import Sizes
from ..node import Node
from ..registry import converter


def _sizes(node: Node) -> Sizes:
    return node.assembly.builder.sizes


@converter("NonZero")
def nonzero(node: Node) -> relax.Expr:
    """The coordinates of all elements that are not 0, (rank, number of them), in row-major order."""
    sizes, data = _sizes(node), node.input(0)
    mask = build.nonzero_mask(sizes, data)
    if not node.shape(0):  # as ONNX Runtime, of a vector of one element, but without a coordinate
        raise node.unsupported("a scalar")
    found, size = build.coordinates(sizes, mask, node.label)
    return sizes.emit(relax.op.stack(found, 0), {1: size})


@converter("Compress", since=9)
def compress(node: Node) -> relax.Expr:
    """The slices along an axis, or the elements of the flattened data, for which the condition is true. A condition
    that is shorter is false from there on."""
    sizes, data, condition = _sizes(node), node.input(0), node.input(1)
    axis = node.attribute("axis")
    if len(node.shape(1)) != 1 or node.dtype(1) != "bool":
        raise node.malformed(f"the condition must be a vector of bool, found {node.dtype(1)} of shape {node.shape(1)}")
    if axis is None:
        data, axis = build.reshape(sizes, data, [-1], node.label), 0
    axis = normalize_axis(axis, len(data.ty.shape))
    length, known = int(data.ty.shape[axis]), node.shape(1)[0]
    if known > length:
        raise node.malformed(f"a condition of {known} elements for an axis of {length}")
    if known < length and not sizes.of(condition):
        condition = node.emit(relax.op.concat([condition, constant(np.zeros(length - known, np.bool_))], 0))
    return build.masked(sizes, data, condition, axis, node.label)


# ---- non-maximum suppression -------------------------------------------------------------------------------------


@converter("NonMaxSuppression", since=10)
def non_max_suppression(node: Node) -> relax.Expr:
    """(batch, class, box) of each box kept, int64 (n, 3): batches and classes in order, boxes by descending score.

    boxes (batches, N, 4), scores (batches, classes, N), float32. Of equal scores the first box is taken first, as in
    ONNX Runtime; a NaN is never taken.
    """
    sizes = _sizes(node)
    boxes, scores = node.shape(0), node.shape(1)
    if len(boxes) != 3 or len(scores) != 3 or boxes[2] != 4 or (boxes[0], boxes[1]) != (scores[0], scores[2]):
        raise node.malformed(f"boxes {boxes} and scores {scores} must be (batches, N, 4) and (batches, classes, N)")
    if node.dtype(0) != "float32" or node.dtype(1) != "float32":
        raise node.malformed(f"boxes and scores must be float32, found {node.dtype(0)} and {node.dtype(1)}")
    most = min(int(_scalar(node, 2, 0)), boxes[1])
    overlap, least = float(_scalar(node, 3, 0.0)), _lowest_score(node)
    if not 0 <= overlap <= 1:
        raise node.malformed(f"iou_threshold must be from 0 to 1, found {overlap}")
    if most < 1 or 0 in boxes or 0 in scores or least is None:
        return constant(np.zeros((0, 3), np.int64))
    batches, classes = scores[:2]
    check_elements((batches * classes * most, 3), node.label)
    corners = _corners(node)
    kept = [
        node.emit(qnn.non_max_suppression(_one(node, corners, b), _one(node, node.input(1), b), most, least, overlap))
        for b in range(batches)
    ]
    chosen = node.emit(relax.op.reshape(kept[0] if batches == 1 else node.emit(relax.op.concat(kept, 0)), (-1,)))
    mask = node.emit(relax.op.greater_equal(chosen, constant(np.int32(0))))
    positions, _ = build.true_positions(sizes, mask, node.label)
    table = np.indices((batches, classes, most), np.int64).reshape(3, -1)[:2]
    columns = [*(constant(row) for row in table), node.emit(relax.op.astype(chosen, "int64"))]
    every = node.emit(relax.op.stack(columns, 1))
    return build.rows(sizes, every, positions, 0)


def _scalar(node: Node, index: int, default: float) -> float:
    if not node.has_input(index):
        return default
    value = node.constant(index)
    if value.size != 1:
        raise node.malformed(f"input {index} must be one number, found shape {value.shape}")
    return value.reshape(()).item()


def _lowest_score(node: Node) -> float | None:
    """The lowest score of a box that may be kept; None if there is none. ONNX keeps those above the threshold."""
    if not node.has_input(4):
        return -math.inf
    threshold = np.float32(_scalar(node, 4, 0.0))
    if np.isnan(threshold) or threshold == np.inf:
        return None
    return float(np.nextafter(threshold, np.float32(np.inf)))


def _corners(node: Node) -> relax.Expr:
    """(batches, N, 4): lower and upper corners of boxes given by two opposite ones, or by center and size."""
    sizes, boxes = _sizes(node), node.input(0)

    def part(first: int, last: int) -> relax.Expr:
        return node.emit(relax.op.strided_slice(boxes, [2], [first], [last]))

    one, two = part(0, 2), part(2, 4)
    if node.attribute("center_point_box", 0):
        half = node.emit(relax.op.divide(two, constant(np.float32(2))))
        ends = [node.emit(function(one, half)) for function in (relax.op.subtract, relax.op.add)]
    else:
        ends = [node.emit(function(one, two)) for function in (relax.op.minimum, relax.op.maximum)]
    return sizes.builder.emit(relax.op.concat(ends, 2))


def _one(node: Node, data: relax.Expr, batch: int) -> relax.Expr:
    """One sample, without the batch axis."""
    part = data if int(data.ty.shape[0]) == 1 else node.emit(relax.op.strided_slice(data, [0], [batch], [batch + 1]))
    return node.emit(relax.op.squeeze(part, [0]))

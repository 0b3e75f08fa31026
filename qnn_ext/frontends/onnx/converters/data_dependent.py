"""Operators whose results have sizes that depend on data: NonZero, Compress, Unique, Range, NonMaxSuppression."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from .... import op as qnn
from ....limits import check_elements
from ....op.base import constant, normalize_axis
from ... import data_dependent as build
from ... import sized_shapes as shapes
from ...bounded_values import bounds_of
from ...distinct import distinct, ranks
from ...sizes import Sizes
from ..node import Node
from ..registry import MICROSOFT, converter


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
        data, axis = shapes.reshape(sizes, data, [-1], node.label), 0
    axis = normalize_axis(axis, len(data.ty.shape))
    length, known = int(data.ty.shape[axis]), node.shape(1)[0]
    if known > length:
        raise node.malformed(f"a condition of {known} elements for an axis of {length}")
    if known < length and not sizes.of(condition):
        condition = node.emit(relax.op.concat([condition, constant(np.zeros(length - known, np.bool_))], 0))
    return build.masked(sizes, data, condition, axis, node.label)


@converter("Unique", since=11)
def unique(node: Node) -> list[relax.Expr]:
    """(values, where each is first, which value each element is, how often each is) of the flattened data, or of the
    slices along an axis."""
    sizes, data, axis = _sizes(node), node.input(0), node.attribute("axis")
    in_order = bool(node.attribute("sorted", 1))
    if axis is None or len(node.shape(0)) == 1:
        normalize_axis(axis or 0, 1)
        found = distinct(sizes, shapes.reshape(sizes, data, [-1], node.label), in_order, node.label)
        return [found.values, found.first, found.inverse, found.counts]
    axis = normalize_axis(axis, len(node.shape(0)))
    if 0 in node.shape(0):
        raise node.unsupported(f"slices without elements, of shape {node.shape(0)}")
    found = distinct(sizes, ranks(sizes, data, axis, node.label), in_order, node.label)
    return [shapes.rows(sizes, data, found.first, axis), found.first, found.inverse, found.counts]


@converter("Unique", domain=MICROSOFT)
def unique_of_vector(node: Node) -> list[relax.Expr]:
    """(values in the order in which they are first, which value each element is, how often each is) of a vector."""
    if len(node.shape(0)) != 1:
        raise node.malformed(f"the data must be a vector, found shape {node.shape(0)}")
    found = distinct(_sizes(node), node.input(0), False, node.label)
    return [found.values, found.inverse, found.counts]


@converter("Range", domain=MICROSOFT)
def known_range(node: Node) -> relax.Expr:
    """start, start + step, … below a limit, all known, each sum rounded; the step is 1 if it is absent."""
    start, limit = (node.constant(index).reshape(()) for index in range(2))
    step = node.constant(2).reshape(()) if node.has_input(2) else np.ones((), start.dtype)
    if not step or not np.isfinite([start, limit, step]).all():
        raise node.malformed(f"a range from {start} to {limit} in steps of {step}")
    count = max(math.ceil((limit.astype(np.float64) - start) / step), 0)
    check_elements((count,), node.label)
    return constant(np.add.accumulate(np.append(start, np.full(max(count - 1, 0), step)))[:count])


@converter("Range", since=11)
def counted(node: Node) -> relax.Expr:
    """start, start + step, … up to a limit that is computed from data, whose largest value must be known."""
    if not node.is_constant(0) or not node.is_constant(2) or not node.dtype(1).startswith(("int", "uint")):
        raise node.unsupported("a range other than from a known start, in known steps, up to a computed integer")
    (start,), (step,) = node.integers(0), node.integers(2)
    if step < 1 or start < 0:
        raise node.unsupported(f"a range from {start} in steps of {step} up to a computed number: neither is negative")
    limit = node.input(1)
    if bounds_of(node.assembly.builder, limit) is None:
        name = node.input_name(1)
        raise node.unsupported(
            f"a range up to '{name}', whose largest value is not known: say it with largest={{{name!r}: n}}, bind the "
            "inputs that it depends on to values (constants=), or end the model before this operator"
        )
    (count,) = build.computed_dims(_sizes(node), limit, node.label)
    return shapes.counted(_sizes(node), start, count, step, node.dtype(0))


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
    most = boxes[1] if _computed(node, 2) else min(int(_scalar(node, 2, 0)), boxes[1])
    least = -math.inf if _computed(node, 4) else _lowest_score(node)
    overlap = _overlap(node)
    if most < 1 or 0 in boxes or 0 in scores or least is None:
        return constant(np.zeros((0, 3), np.int64))
    batches, classes = scores[:2]
    check_elements((batches * classes * most, 3), node.label)
    corners, scored = _corners(node), _above_threshold(node)
    kept = [
        node.emit(qnn.non_max_suppression(_one(node, corners, b), _one(node, scored, b), overlap, most, least))
        for b in range(batches)
    ]
    found = kept[0] if batches == 1 else node.emit(relax.op.concat(kept, 0))
    chosen = node.emit(relax.op.reshape(_first(node, found, most), (-1,)))
    mask = node.emit(relax.op.greater_equal(chosen, constant(np.int32(0))))
    positions, _ = build.true_positions(sizes, mask, node.label)
    table = np.indices((batches, classes, most), np.int64).reshape(3, -1)[:2]
    columns = [*(constant(row) for row in table), node.emit(relax.op.astype(chosen, "int64"))]
    every = node.emit(relax.op.stack(columns, 1))
    return shapes.rows(sizes, every, positions, 0)


def _computed(node: Node, index: int) -> bool:
    """Whether a limit is computed at run time."""
    return node.has_input(index) and not node.is_constant(index)


def _number(node: Node, index: int) -> relax.Expr:
    """A limit computed at run time, as a vector of one element."""
    if math.prod(node.shape(index)) != 1:
        raise node.malformed(f"input {index} must be one number, found shape {node.shape(index)}")
    return node.emit(relax.op.reshape(node.input(index), (1,)))


def _scalar(node: Node, index: int, default: float) -> float:
    if not node.has_input(index):
        return default
    value = node.constant(index)
    if value.size != 1:
        raise node.malformed(f"input {index} must be one number, found shape {value.shape}")
    return value.reshape(()).item()


def _overlap(node: Node) -> float | relax.Expr:
    """The largest overlap of two boxes that are kept. ONNX Runtime refuses one that is not from 0 to 1."""
    if not _computed(node, 3):
        overlap = float(_scalar(node, 3, 0.0))
        if not 0 <= overlap <= 1:
            raise node.malformed(f"iou_threshold must be from 0 to 1, found {overlap}")
        return overlap
    value = _number(node, 3)
    clipped = node.emit(relax.op.clip(value, 0, 1))
    inside = node.emit(relax.op.astype(node.emit(relax.op.equal(value, clipped)), "int32"))
    label = f"{node.label}: iou_threshold, which is from 0 to 1 (1) or not (0)"
    checked = node.emit(qnn.check_bounds(inside, 1, 1, label))
    return node.emit(relax.op.multiply(clipped, node.emit(relax.op.astype(checked, "float32"))))


def _lowest_score(node: Node) -> float | None:
    """The lowest score of a box that may be kept; None if there is none. ONNX keeps those above the threshold."""
    if not node.has_input(4):
        return -math.inf
    threshold = np.float32(_scalar(node, 4, 0.0))
    if np.isnan(threshold) or threshold == np.inf:
        return None
    return float(np.nextafter(threshold, np.float32(np.inf)))


def _above_threshold(node: Node) -> relax.Expr:
    """The scores; NaN, which is none, where they are not above a threshold computed at run time."""
    scores = node.input(1)
    if not _computed(node, 4):
        return scores
    above = node.emit(relax.op.greater(scores, _number(node, 4)))
    return node.emit(relax.op.where(above, scores, constant(np.float32(np.nan))))


def _first(node: Node, chosen: relax.Expr, most: int) -> relax.Expr:
    """The boxes chosen of each class, without those beyond a number computed at run time."""
    if not _computed(node, 2):
        return chosen
    wanted = node.emit(relax.op.less(constant(np.arange(most, dtype=np.int64)), _number(node, 2)))
    return node.emit(relax.op.where(wanted, chosen, constant(np.int32(-1))))


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

"""TFLite_Detection_PostProcess, from box encodings and class scores to a fixed number of detections, and
NON_MAX_SUPPRESSION_V4 and _V5, in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from .... import op as qnn
from ....module import FloatNote
from ....op.base import constant
from ... import sized_shapes as shapes
from ..integers import require_dtype
from ..node import Node
from ..registry import converter
from .shape import block, check_elements, reshape

_BOXES, _SCORES, _ANCHORS = range(3)


@dataclass(frozen=True)
class Options:
    """The operator's flexbuffer map, and the sizes of its inputs.

    scales: of the encoded y, x, h, w
    offset: 1 when the scores begin with a background class
    """

    max_detections: int
    max_classes_per_detection: int
    detections_per_class: int
    use_regular_nms: bool
    score_threshold: float
    iou_threshold: float
    num_classes: int
    scales: tuple[float, float, float, float]
    boxes: int
    offset: int


@converter("TFLite_Detection_PostProcess", max_version=1)
def convert_detection_postprocess(node: Node) -> list[relax.Expr]:
    """(boxes, classes, scores, count); rows after the last detection are zeros, in LiteRT some are undefined."""
    options = _options(node)
    boxes = _decoded_boxes(node, options)
    scores = _float_input(node, _SCORES)
    scores = reshape(node, scores, [options.boxes, options.num_classes + options.offset])
    scores = block(node, scores, [1], [options.offset], [options.offset + options.num_classes], [1])
    if node.is_quantized(_BOXES) or node.is_quantized(_SCORES):
        reason = "the operator is defined to decode and compare boxes in float"
        node.assembly.notes.append(FloatNote(node.output_tensor().name, node.operator.name, reason))
    return (_regular if options.use_regular_nms else _fast)(node, boxes, scores, options)


# ---- what the file says ------------------------------------------------------------------------------------------


def _options(node: Node) -> Options:
    values = node.custom_map()
    try:
        return _checked(node, _parse(values, node))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise node.malformed(f"an option is missing or has a wrong type: {error}") from error


def _parse(values: dict[str, Any], node: Node) -> Options:
    boxes, scores = node.shape(_BOXES), node.shape(_SCORES)
    num_classes = int(values["num_classes"])
    if len(boxes) != 3 or boxes[0] != 1 or boxes[2] < 4 or len(scores) != 3 or scores[:2] != boxes[:2]:
        raise node.malformed(
            f"box encodings {boxes} and scores {scores} must have shapes (1, N, 4) and (1, N, classes)"
        )
    return Options(
        max_detections=int(values["max_detections"]),
        max_classes_per_detection=int(values["max_classes_per_detection"]),
        detections_per_class=int(values.get("detections_per_class", 100)),
        use_regular_nms=bool(values.get("use_regular_nms", False)),
        score_threshold=float(values["nms_score_threshold"]),
        iou_threshold=float(values["nms_iou_threshold"]),
        num_classes=num_classes,
        scales=tuple(float(values[f"{name}_scale"]) for name in "yxhw"),  # type: ignore[arg-type]
        boxes=boxes[1],
        offset=scores[2] - num_classes,
    )


def _checked(node: Node, options: Options) -> Options:
    positive = (options.max_detections, options.max_classes_per_detection, options.detections_per_class)
    if min(*positive, options.num_classes, options.boxes) < 1 or options.offset not in (0, 1):
        raise node.malformed(f"its options contradict each other: {options}")
    if not np.isfinite(options.scales).all() or 0 in options.scales or not 0 < options.iou_threshold <= 1:
        raise node.malformed(f"scales or thresholds are out of range in {options}")
    per_class = min(options.detections_per_class, options.max_detections)
    check_elements(node, [options.max_detections, options.max_classes_per_detection, 4], "folded")
    check_elements(node, [options.num_classes, per_class], "folded")
    return options


def _float_input(node: Node, index: int) -> relax.Expr:
    if node.is_quantized(index):
        return node.dequantize(node.input(index), node.qparams(index))
    if node.dtype(index) != "float32":
        raise node.unsupported(f"input {index} of dtype {node.dtype(index)}")
    return node.input(index)


# ---- boxes -------------------------------------------------------------------------------------------------------


def _decoded_boxes(node: Node, options: Options) -> relax.Expr:
    """(N, 4) float32 corners ymin, xmin, ymax, xmax from centers and sizes relative to the anchors, in double."""
    anchors = node.constant(_ANCHORS)
    if anchors.shape != (options.boxes, 4):
        raise node.malformed(f"{options.boxes} boxes do not match anchors of shape {anchors.shape}")
    if node.is_quantized(_ANCHORS):
        qparams = node.qparams(_ANCHORS)
        anchors = (anchors.astype(np.float32) - np.float32(qparams.zero_point)) * qparams.scale.astype(np.float32)
    encoded = _float_input(node, _BOXES)
    flat = reshape(node, encoded, [options.boxes, node.shape(_BOXES)[2]])
    wide = node.emit(relax.op.astype(flat, "float64"))
    centers, sizes = (block(node, wide, [1], [k], [k + 2], [1]) for k in (0, 2))
    anchor_centers, anchor_sizes = np.split(anchors.astype(np.float64), 2, axis=1)
    scales = np.asarray(options.scales, np.float32).astype(np.float64)
    emit, multiply = node.emit, relax.op.multiply

    moved = emit(multiply(emit(relax.op.divide(centers, constant(scales[:2]))), constant(anchor_sizes)))
    center = emit(relax.op.astype(emit(relax.op.add(moved, constant(anchor_centers))), "float32"))
    grown = emit(relax.op.exp(emit(relax.op.divide(sizes, constant(scales[2:])))))
    half = emit(multiply(emit(multiply(constant(np.float64(0.5)), grown)), constant(anchor_sizes)))
    half = emit(relax.op.astype(half, "float32"))
    return emit(relax.op.concat([emit(relax.op.subtract(center, half)), emit(relax.op.add(center, half))], axis=1))


# ---- selection ---------------------------------------------------------------------------------------------------


def _take(node: Node, table: relax.Expr, rows: relax.Expr) -> relax.Expr:
    return node.emit(relax.op.take(table, rows, axis=0, mode="clip"))


def _zero_unless(node: Node, mask: relax.Expr, value: relax.Expr) -> relax.Expr:
    """`value` where the (broadcasting) mask is true, else 0."""
    return node.emit(relax.op.where(mask, value, constant(np.float32(0))))


def _fast(node: Node, boxes: relax.Expr, scores: relax.Expr, options: Options) -> list[relax.Expr]:
    """One suppression over all boxes by their best class; each box kept then reports its best classes."""
    emit, kept = node.emit, options.max_detections
    categories = min(options.max_classes_per_detection, options.num_classes)
    best = reshape(node, emit(relax.op.max(scores, axis=[1])), [1, options.boxes])
    chosen = emit(qnn.non_max_suppression(boxes, best, options.iou_threshold, kept, options.score_threshold))
    chosen = reshape(node, chosen, [kept])
    valid = emit(relax.op.greater_equal(chosen, constant(np.int32(0))))
    column = reshape(node, valid, [kept, 1])
    corners = _zero_unless(node, column, _take(node, boxes, chosen))
    of_chosen = _take(node, scores, chosen)
    classes = emit(qnn.partial_sort(of_chosen, categories))
    names = _zero_unless(node, column, emit(relax.op.astype(classes, "float32")))
    places = emit(relax.op.astype(classes, "int64"))
    points = _zero_unless(node, column, emit(relax.op.gather_elements(of_chosen, places, axis=1)))

    spare = options.max_classes_per_detection - categories
    total = kept * options.max_classes_per_detection
    corners = emit(relax.op.broadcast_to(reshape(node, corners, [kept, 1, 4]), (kept, categories, 4)))
    if spare:
        corners = emit(relax.op.nn.pad(corners, [0, 0, 0, spare, 0, 0], pad_value=0.0))
        names, points = (emit(relax.op.nn.pad(x, [0, 0, 0, spare], pad_value=0.0)) for x in (names, points))
    return [
        reshape(node, corners, [1, total, 4]),
        reshape(node, names, [1, total]),
        reshape(node, points, [1, total]),
        _count(node, valid),
    ]


def _count(node: Node, valid: relax.Expr) -> relax.Expr:
    """The number of true elements, as a float32 of shape (1,)."""
    return node.emit(relax.op.sum(node.emit(relax.op.astype(valid, "float32")), axis=[0], keepdims=True))


def _regular(node: Node, boxes: relax.Expr, scores: relax.Expr, options: Options) -> list[relax.Expr]:
    """One suppression per class, then the best of all that is kept. Equal scores stay in the order of the classes."""
    emit = node.emit
    per_class, total = min(options.detections_per_class, options.max_detections), options.max_detections
    by_class = emit(relax.op.permute_dims(scores, [1, 0]))
    chosen = emit(qnn.non_max_suppression(boxes, by_class, options.iou_threshold, per_class, options.score_threshold))
    candidates = options.num_classes * per_class
    rows = reshape(node, chosen, [candidates])
    names = np.repeat(np.arange(options.num_classes, dtype=np.int32), per_class)
    places = emit(relax.op.add(rows, constant(names * np.int32(options.boxes))))  # −1 gives a wrong place, masked below
    points = _take(node, reshape(node, by_class, [options.num_classes * options.boxes]), places)
    there = emit(relax.op.greater_equal(rows, constant(np.int32(0))))
    lowest = constant(np.float32(-np.inf))
    points = emit(relax.op.where(there, points, lowest))
    if candidates < total:
        points = emit(relax.op.nn.pad(points, [0, total - candidates], pad_value=-np.inf))
    both = emit(relax.op.topk(points, total, axis=0, ret_type="both", largest=True, dtype="int32"))
    points, order = emit(relax.TupleGetItem(both, 0)), emit(relax.TupleGetItem(both, 1))
    valid = emit(relax.op.greater(points, lowest))
    corners = _take(node, boxes, _take(node, rows, order))
    classes = _take(node, constant(names.astype(np.float32)), order)
    return [
        reshape(node, _zero_unless(node, reshape(node, valid, [total, 1]), corners), [1, total, 4]),
        reshape(node, _zero_unless(node, valid, classes), [1, total]),
        reshape(node, _zero_unless(node, valid, points), [1, total]),
        _count(node, valid),
    ]


# ---- NON_MAX_SUPPRESSION -----------------------------------------------------------------------------------------


@converter("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5", max_version=1)
def convert_non_max_suppression(node: Node) -> list[relax.Expr]:
    """(indices, number of them), of V5 (indices, scores, number of them); what follows the last one is 0."""
    emit, boxes = node.emit, node.shape(0)
    if len(boxes) != 2 or boxes[1] != 4 or not boxes[0] or node.shape(1) != boxes[:1]:
        raise node.malformed(f"boxes of shape {boxes} and scores of shape {node.shape(1)} must be (N, 4) and (N)")
    for index in (0, 1):
        require_dtype(node, node.dtype(index), "float32")
    iou, least = (_threshold(node, index) for index in (3, 4))
    has_scores = node.operator.name.endswith("V5")
    if has_scores and _threshold(node, 5) != 0:
        raise node.unsupported("scores that overlapping boxes lower (a sigma other than 0)")
    if not 0 < iou <= 1:
        raise node.unsupported(f"an overlap threshold of {iou}; it must be above 0 and at most 1")
    most = node.integer(2)
    check_elements(node, (most,), "folded")
    if most < 1:
        raise node.unsupported(f"at most {most} boxes; it must be at least one")
    by_class = reshape(node, node.input(1), [1, boxes[0]])
    corners = _sorted_corners(node)
    chosen = reshape(node, emit(qnn.non_max_suppression(corners, by_class, iou, most, least, queue=True)), [most])
    valid = emit(relax.op.greater_equal(chosen, constant(np.int32(0))))
    sizes = node.assembly.builder.sizes
    count = sizes.size(emit(relax.op.sum(emit(relax.op.astype(valid, "int64")))), most, node.label)
    number = sizes.tensor(shapes.objects(count), "int32")  # a size of slices, too
    indices = emit(relax.op.where(valid, chosen, constant(np.int32(0))))
    if not has_scores:
        return [indices, number]
    return [indices, _zero_unless(node, valid, _take(node, node.input(1), chosen)), number]


def _threshold(node: Node, index: int) -> float:
    value = node.constant(index)
    if value.size != 1 or value.dtype != np.float32:
        raise node.malformed(f"input {index} must be one float32, found {value.dtype} {value.shape}")
    return float(value.reshape(()))


def _sorted_corners(node: Node) -> relax.Expr:
    """ymin, xmin, ymax, xmax from any two opposite corners."""
    first, second = (block(node, node.input(0), [1], [begin], [begin + 2], [1]) for begin in (0, 2))
    ends = [node.emit(function(first, second)) for function in (relax.op.minimum, relax.op.maximum)]
    return node.emit(relax.op.concat(ends, axis=1))

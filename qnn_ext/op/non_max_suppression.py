"""qnn.non_max_suppression: the boxes a detector keeps of each class, in TFLite's order."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from . import heaps
from .base import Shape, TensorInfo, check_dtype, check_rank, constant, define, export_to_script
from .traits import Data, Kind, Traits


def _infer(
    boxes: TensorInfo,
    scores: TensorInfo,
    iou_threshold: TensorInfo,
    *,
    max_boxes: int,
    score_threshold: float,
    queue: bool,
) -> tuple[Shape, str]:
    for info, rank in ((boxes, 2), (scores, 2), (iou_threshold, 1)):
        check_dtype(info, "float32")
        check_rank(info, rank)
    if boxes.shape[1] != 4 or scores.shape[1] != boxes.shape[0]:
        raise ShapeError(f"shapes must be boxes (N, 4) and scores (classes, N), found {boxes.shape} and {scores.shape}")
    if max_boxes < 1 or iou_threshold.shape != (1,):
        raise ShapeError(
            f"max_boxes must be positive and iou_threshold one number, found {max_boxes} and shape "
            f"{iou_threshold.shape}"
        )
    return (scores.shape[0], max_boxes), "int32"


def overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of a box and each of the others, in float32; 0 where an area is 0 or negative."""
    area = (box[2] - box[0]) * (box[3] - box[1])
    areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
    zero = np.float32(0)
    height = np.maximum(np.minimum(box[2], others[:, 2]) - np.maximum(box[0], others[:, 0]), zero)
    width = np.maximum(np.minimum(box[3], others[:, 3]) - np.maximum(box[1], others[:, 1]), zero)
    intersection = height * width
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = intersection / (area + areas - intersection)
    return np.where((areas <= 0) | (area <= 0), zero, ratio)


def _reference(
    boxes: np.ndarray,
    scores: np.ndarray,
    iou_threshold: np.ndarray,
    *,
    max_boxes: int,
    score_threshold: float,
    queue: bool = False,
) -> np.ndarray:
    result = np.full((scores.shape[0], max_boxes), -1, np.int32)
    for row, class_scores in zip(result, scores, strict=True):
        if queue:
            chosen = _from_queue(boxes, class_scores, iou_threshold, max_boxes, np.float32(score_threshold))
            row[: len(chosen)] = chosen
            continue
        order = np.argsort(-class_scores, kind="stable")
        order = order[class_scores[order] >= np.float32(score_threshold)]
        for slot in range(max_boxes):
            if order.size == 0:
                break
            row[slot] = order[0]
            overlap = overlaps(boxes[order[0]], boxes[order[1:]])
            order = order[1:][~(overlap > iou_threshold)]
    return result


def _from_queue(
    boxes: np.ndarray, scores: np.ndarray, iou_threshold: np.ndarray, max_boxes: int, score_threshold: np.float32
) -> list[int]:
    """The boxes that TFLite's NON_MAX_SUPPRESSION_V4 takes from a queue by score. It puts a box that it has taken back
    into the queue, where it then overlaps itself, and a box without area nothing: such a one is taken again."""

    def less(one: int, two: int) -> bool:
        return bool(scores[one] < scores[two])

    heap: list[int] = []
    for above in np.flatnonzero(scores > score_threshold):
        heaps.push(heap, int(above), less)
    places, chosen = min(len(heap), max_boxes), list[int]()
    compared = dict.fromkeys(heap, 0)  # with how many of the boxes that were taken
    while heap and len(chosen) < places:
        box = heaps.pop(heap, less)
        others = boxes[chosen[compared[box] :]]
        compared[box] = len(chosen)
        if not (overlaps(boxes[box], others) >= iou_threshold).any():
            chosen.append(box)
            heaps.push(heap, box, less)
    return chosen


NON_MAX_SUPPRESSION = define(
    "non_max_suppression",
    "boxes scores iou_threshold",
    _infer,
    _reference,
    Traits(Kind.SEARCH, data=(Data("boxes"), Data("scores")), others=("iou_threshold",)),
    "the best boxes that do not overlap",
)


def non_max_suppression(
    boxes: relax.Expr,
    scores: relax.Expr,
    iou_threshold: float | relax.Expr,
    max_boxes: int,
    score_threshold: float,
    queue: bool = False,
) -> relax.Call:
    """indices[c, k]: index of the k-th box of class c, −1 if there are no more; (classes, max_boxes) int32.

    boxes:  (N, 4) float32: ymin, xmin, ymax, xmax; scores: (classes, N) float32
    iou_threshold: largest overlap: a number in [0, 1], or (1,) float32
    max_boxes: how many boxes a class may have; score_threshold: lowest score

    Greedy: of the boxes with a score of at least score_threshold, the best is taken (the first if scores are equal),
    then all boxes whose intersection with it is more than iou_threshold of their union are dropped, and so on. Areas
    and ratio are float32, each operation rounded separately. Raises ShapeError.

    queue: boxes have scores above score_threshold and are dropped by an overlap of at least iou_threshold; equal scores
    come in the order of libstdc++'s std::priority_queue, into which boxes that were taken return.
    Source: TFLite NonMaxSuppressionSingleClassHelper, with queue TFLite NonMaxSuppression.
    """
    if not isinstance(iou_threshold, relax.Expr):
        if not 0 <= iou_threshold <= 1:
            raise ShapeError(f"iou_threshold must be in [0, 1], found {iou_threshold}")
        iou_threshold = constant(np.asarray([iou_threshold], np.float32))
    attributes = {"max_boxes": int(max_boxes), "score_threshold": float(score_threshold), "queue": bool(queue)}
    return NON_MAX_SUPPRESSION.call(boxes, scores, iou_threshold, **attributes)


export_to_script(non_max_suppression=non_max_suppression)

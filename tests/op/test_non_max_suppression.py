"""qnn.non_max_suppression: against a direct transcription of the greedy rule, and its edges."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext.errors import ShapeError
from qnn_ext.op import non_max_suppression
from qnn_ext.op.non_max_suppression import NON_MAX_SUPPRESSION


def suppress(boxes, scores, iou_threshold, **attributes):
    scores = np.asarray(scores, "float32").reshape(-1, len(boxes))
    return NON_MAX_SUPPRESSION.reference(
        np.asarray(boxes, "float32"), scores, np.asarray([iou_threshold], "float32"), **attributes
    )


def overlap(a, b):
    height = min(a[2], b[2]) - max(a[0], b[0])
    width = min(a[3], b[3]) - max(a[1], b[1])
    areas = [(c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)]
    if min(areas) <= 0 or height <= 0 or width <= 0:
        return 0.0
    return height * width / (sum(areas) - height * width)


def greedy(boxes, scores, max_boxes, score_threshold, iou_threshold):
    """Repeatedly the best box that overlaps none of those chosen."""
    chosen = []
    while len(chosen) < max_boxes:
        free = [
            i
            for i, score in enumerate(scores)
            if score >= score_threshold
            and i not in chosen
            and all(overlap(boxes[i], boxes[j]) <= iou_threshold for j in chosen)
        ]
        if not free:
            break
        chosen.append(max(free, key=lambda i: (scores[i], -i)))
    return chosen + [-1] * (max_boxes - len(chosen))


@pytest.mark.parametrize("iou_threshold", [0.1, 0.5, 0.9])
def test_equals_the_rule(iou_threshold, rng):
    corners = rng.uniform(0, 1, (30, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(0.05, 0.5, (30, 2))], axis=1).astype("float32")
    scores = rng.integers(0, 12, (3, 30)).astype("float32") / 12  # many ties
    result = suppress(boxes, scores, max_boxes=8, score_threshold=0.25, iou_threshold=iou_threshold)
    expected = [greedy(boxes.astype(float), row, 8, 0.25, iou_threshold) for row in scores]
    np.testing.assert_array_equal(result, expected)


def test_boxes_without_area_overlap_nothing():
    flat = [[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 1, 1]]
    result = suppress(flat, [0.5, 0.9, 0.7], max_boxes=4, score_threshold=0.1, iou_threshold=0.1)
    np.testing.assert_array_equal(result, [[1, 2, 0, -1]])


def test_a_queue_takes_boxes_without_area_again():
    flat = [[0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 1, 1]]
    result = suppress(flat, [0.5, 0.9, 0.9], max_boxes=3, score_threshold=0.5, iou_threshold=0.1, queue=True)
    np.testing.assert_array_equal(result, [[1, -1, -1]])
    result = suppress(flat, [0.6, 0.9, 0.9], max_boxes=3, score_threshold=0.5, iou_threshold=0.1, queue=True)
    np.testing.assert_array_equal(result, [[1, 0, 0]])


def test_type_rule():
    boxes, scores = (relax.Var("x", relax.TensorType(shape, "float32")) for shape in ((5, 4), (2, 6)))
    with pytest.raises(ShapeError, match="shapes must be boxes"):
        non_max_suppression(boxes, scores, 0.5, 3, 0.1)
    with pytest.raises(ShapeError, match="iou_threshold"):
        non_max_suppression(boxes, relax.Var("x", relax.TensorType((2, 5), "float32")), -0.1, 3, 0.1)

"""qnn.non_max_suppression as a loop nest: its number of iterations depends on the data, so it is no TE compute."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...numerics import tir
from .elementwise import Constants, Expr, Operand
from .nest import nest
from .stages import stages

YMIN, XMIN, YMAX, XMAX = range(4)


@stages("qnn.non_max_suppression")
def _non_max_suppression(
    constants: Constants,
    shape: tuple[int, ...],
    boxes: Operand,
    scores: Operand,
    *,
    max_boxes: int,
    score_threshold: float,
    iou_threshold: float,
) -> te.Tensor:
    """Classes run in parallel. Each takes the best remaining box `max_boxes` times: no sorting, results by score."""
    tensors = [
        operand.tensor if operand.tensor is not None else constants.add(operand.value) for operand in (boxes, scores)
    ]
    limits = [tirx.const(float(np.float32(value)), "float32") for value in (score_threshold, iou_threshold)]

    def body(ins: list[Any], outs: list[Any]) -> Any:
        with IRBuilder() as builder, T.parallel(0, shape[0]) as row:
            _one_class(row, T.buffer_proxy(ins[0]), T.buffer_proxy(ins[1]), T.buffer_proxy(outs[0]), limits)
        return builder.get()

    return nest(shape, tensors, body, dtype="int32", name="non_max_suppression")


def _one_class(row: Expr, boxes: Any, scores: Any, out: Any, limits: list[Expr]) -> None:
    """out[row, :] for one class."""
    count, slots = int(boxes.shape[0]), int(out.shape[1])
    left = T.buffer_proxy(T.decl_buffer([count], "int8", scope="global"))
    best = T.buffer_proxy(T.decl_buffer([1], "int32", scope="local"))
    with T.serial(0, count) as i:
        left[i] = tirx.Cast("int8", scores[row, i] >= limits[0])
    with T.serial(0, slots) as slot:
        best[0] = tirx.const(-1, "int32")
        with T.serial(0, count) as i:
            known = tirx.max(best[0], tirx.const(0, "int32"))
            better = tirx.any(best[0] < 0, scores[row, i] > scores[row, known])
            with T.If(tirx.all(left[i] != tirx.const(0, "int8"), better)), T.Then():
                best[0] = i
        out[row, slot] = best[0]
        with T.If(best[0] >= 0), T.Then():
            left[best[0]] = tirx.const(0, "int8")
            with T.serial(0, count) as i, T.If(_overlap(boxes, best[0], i) > limits[1]), T.Then():
                left[i] = tirx.const(0, "int8")


def _overlap(boxes: Any, one: Expr, two: Expr) -> Expr:
    """Intersection over union, as op.non_max_suppression.overlaps."""
    zero = tirx.const(0.0, "float32")

    def area(box: Expr) -> Expr:
        return tir.fence((boxes[box, YMAX] - boxes[box, YMIN]) * (boxes[box, XMAX] - boxes[box, XMIN]))

    def extent(low: int, high: int) -> Expr:
        end = tirx.min(boxes[one, high], boxes[two, high])
        return tirx.max(end - tirx.max(boxes[one, low], boxes[two, low]), zero)

    areas = area(one), area(two)
    intersection = tir.fence(extent(YMIN, YMAX) * extent(XMIN, XMAX))
    ratio = intersection / (areas[0] + areas[1] - intersection)
    return tirx.Select(tirx.any(areas[0] <= zero, areas[1] <= zero), zero, ratio)

"""qnn.non_max_suppression as a loop nest: its number of iterations depends on the data, so it is no TE compute."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...numerics import tir
from .heaps import Heap
from .nest import memory, nest, variable
from .operands import Constants, Expr, Operand
from .stages import stages

YMIN, XMIN, YMAX, XMAX = range(4)


@stages("qnn.non_max_suppression")
def _non_max_suppression(
    constants: Constants,
    shape: tuple[int, ...],
    boxes: Operand,
    scores: Operand,
    iou_threshold: Operand,
    *,
    max_boxes: int,
    score_threshold: float,
    queue: bool,
) -> te.Tensor:
    """Classes run in parallel. Each keeps a list of the boxes that are left and takes the best of them `max_boxes`
    times: no sorting, and no work once none is left. With a queue, a heap."""
    one_class = _from_queue if queue else _one_class
    tensors = [
        operand.tensor if operand.tensor is not None else constants.add(operand.value)
        for operand in (boxes, scores, iou_threshold)
    ]
    least = tirx.const(float(np.float32(score_threshold)), "float32")

    def body(ins: list[Any], outs: list[Any]) -> Any:
        with IRBuilder() as builder, T.parallel(0, shape[0]) as row:
            overlap = T.buffer_proxy(ins[2])[0]
            one_class(row, T.buffer_proxy(ins[0]), T.buffer_proxy(ins[1]), T.buffer_proxy(outs[0]), least, overlap)
        return builder.get()

    return nest(shape, tensors, body, dtype="int32", name="non_max_suppression")


def _one_class(row: Expr, boxes: Any, scores: Any, out: Any, least: Expr, overlap: Expr) -> None:
    """out[row, :] for one class."""
    count, slots = int(boxes.shape[0]), int(out.shape[1])
    left = memory([count], scope="global")  # in ascending order
    length, kept, best = (variable() for _ in range(3))
    length[0] = tirx.const(0, "int32")
    with T.serial(0, count) as i, T.If(scores[row, i] >= least), T.Then():
        left[length[0]] = i
        length[0] = length[0] + 1
    with T.serial(0, slots) as slot:
        out[row, slot] = tirx.const(-1, "int32")
        with T.If(length[0] > 0), T.Then():
            best[0] = left[0]
            with T.serial(0, length[0]) as i, T.If(scores[row, left[i]] > scores[row, best[0]]), T.Then():
                best[0] = left[i]
            out[row, slot] = best[0]
            kept[0] = tirx.const(0, "int32")
            with T.serial(0, length[0]) as i:
                stays = tirx.Not(_overlap(boxes, best[0], left[i]) > overlap)
                with T.If(tirx.all(left[i] != best[0], stays)), T.Then():
                    left[kept[0]] = left[i]
                    kept[0] = kept[0] + 1
            length[0] = kept[0]


def _from_queue(row: Expr, boxes: Any, scores: Any, out: Any, least: Expr, overlap: Expr) -> None:
    """out[row, :] for one class, as op.non_max_suppression._from_queue."""
    count, slots = int(boxes.shape[0]), int(out.shape[1])
    heap = Heap(memory([count], scope="global"), lambda one, two: scores[row, one] < scores[row, two])
    compared = memory([count], scope="global")
    taken, places, dropped = (variable(0) for _ in range(3))
    with T.serial(0, slots) as slot:
        out[row, slot] = tirx.const(-1, "int32")
    with T.serial(0, count) as box, T.If(scores[row, box] > least), T.Then():
        compared[box] = tirx.const(0, "int32")
        heap.push(box)
    places[0] = tirx.min(heap.size[0], tirx.const(slots, "int32"))
    with T.While(tirx.all(heap.size[0] > 0, taken[0] < places[0])):
        box = heap.pop()
        dropped[0] = tirx.const(0, "int32")
        with T.serial(0, taken[0] - compared[box]) as other:
            too_close = _overlap(boxes, box, out[row, compared[box] + other]) >= overlap
            with T.If(too_close), T.Then():
                dropped[0] = tirx.const(1, "int32")
        compared[box] = taken[0]
        with T.If(dropped[0] == 0), T.Then():
            out[row, taken[0]] = box
            taken[0] = taken[0] + 1
            heap.push(box)


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

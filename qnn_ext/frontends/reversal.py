"""Sequences of different lengths read backwards: ONNX ReverseSequence, TFLite REVERSE_SEQUENCE."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ..limits import check_elements
from ..op.base import constant, shape_of
from .run_time import Emit


def reversed_sequences(emit: Emit, x: relax.Expr, lengths: relax.Expr, steps: int, batch: int) -> relax.Expr:
    """x[…, b, …, lengths[b] − 1 − t, …] where t < lengths[b], and x elsewhere.

    steps, batch: the axes of t and b; lengths: one for each b, at most as many as there are steps
    """
    shape = shape_of(x)
    count, length = shape[batch], shape[steps]
    check_elements((count, length), "the positions of reversed sequences", "folded")
    column = emit(relax.op.reshape(emit(relax.op.astype(lengths, "int64")), (count, 1)))
    times = constant(np.arange(length, dtype=np.int64))
    mirrored = emit(relax.op.subtract(emit(relax.op.subtract(column, constant(np.int64(1)))), times))
    places = emit(relax.op.where(emit(relax.op.less(times, column)), mirrored, times))
    first_rows = constant((np.arange(count, dtype=np.int64) * length).reshape(-1, 1))
    places = emit(relax.op.reshape(emit(relax.op.add(places, first_rows)), (count * length,)))
    order = [batch, steps, *(axis for axis in range(len(shape)) if axis not in (batch, steps))]
    moved = emit(relax.op.permute_dims(x, order))
    rows = emit(relax.op.reshape(moved, (count * length, math.prod(shape_of(moved)[2:]))))
    taken = emit(relax.op.reshape(emit(relax.op.take(rows, places, axis=0, mode="clip")), shape_of(moved)))
    return emit(relax.op.permute_dims(taken, [int(axis) for axis in np.argsort(order)]))

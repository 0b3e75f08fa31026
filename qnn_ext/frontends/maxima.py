"""Where the largest element of each window of a pooling is, and the inverse of such a pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax

from ..limits import check
from ..op.base import constant, shape_of
from .run_time import checked_indices

Emit = Callable[[relax.Expr], relax.Expr]


def first_maxima(
    emit: Emit,
    data: relax.Expr,
    kernel: Sequence[int],
    strides: Sequence[int],
    low: Sequence[int],
    dilation: Sequence[int],
    result: Sequence[int],
    label: str,
) -> relax.Expr:
    """The place of each window's largest element, the first of equal ones, in the flattened image of its channel.

    data (N, C, …), result (N, C, …): int64, a place for each window; low: the padding before each dimension
    """
    shape, dtype, rank = shape_of(data)[2:], np.dtype(str(data.ty.dtype)), len(kernel)
    check("unrolled", math.prod(kernel), f"{label}: the elements of a window")
    ends = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(result[2:], strides, kernel, dilation, strict=True)]
    after = [max(end - size - pad, 0) for end, size, pad in zip(ends, shape, low, strict=True)]
    widths = [0, 0, 0, 0, *(width for pair in zip(low, after, strict=True) for width in pair)]
    lowest = -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)
    padded = emit(relax.op.nn.pad(data, widths, pad_value=lowest)) if any(widths) else data
    steps = [math.prod(shape[axis + 1 :]) for axis in range(rank)]
    best, offset = None, None
    for tap in np.ndindex(*kernel):
        begin = [place * d for place, d in zip(tap, dilation, strict=True)]
        end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, result[2:], strides, strict=True)]
        value = emit(relax.op.strided_slice(padded, list(range(2, 2 + rank)), begin, end, list(strides)))
        own = constant(np.int64(sum(b * step for b, step in zip(begin, steps, strict=True))))
        if best is None:
            best, offset = value, own
            continue
        larger = emit(relax.op.greater(value, best))
        offset = emit(relax.op.where(larger, own, offset))
        best = emit(relax.op.where(larger, value, best))
    place = emit(relax.op.broadcast_to(offset, list(result)))
    for axis, (count, stride, pad, step) in enumerate(zip(result[2:], strides, low, steps, strict=True)):
        firsts = (np.arange(count, dtype=np.int64) * stride - pad) * step
        place = emit(relax.op.add(place, constant(firsts.reshape([-1, *[1] * (rank - 1 - axis)]))))
    return place


def unpooled(emit: Emit, data: relax.Expr, places: relax.Expr, size: Sequence[int], label: str) -> relax.Expr:
    """Images of a size with each element at its place in the flattened image of its channel, and 0 elsewhere.

    data, places (…, C, h, w) → (…, C, H, W)
    """
    lead = shape_of(data)[: -len(size)]
    count = math.prod(shape_of(data)[len(lead) :])
    checked = checked_indices(emit, places, math.prod(size), label)
    values, rows = (emit(relax.op.reshape(one, [math.prod(lead), count])) for one in (data, checked))
    zeros = emit(relax.op.zeros([math.prod(lead), math.prod(size)], str(data.ty.dtype)))
    return relax.op.reshape(emit(relax.op.scatter_elements(zeros, rows, values, 1)), [*lead, *size])

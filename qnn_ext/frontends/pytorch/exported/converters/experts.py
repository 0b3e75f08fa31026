"""What mixtures of experts compute: how many rows each expert gets, and the product of each row with its expert."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..... import op as qnn
from .....errors import UnsupportedOperatorError
from .....limits import check_elements
from .....op.base import constant, shape_of
from ..registry import converter
from ..values import cast, dtype_of, reshape, scalar


@converter("aten.histc.default")
def _histogram(importer: Any, x: relax.Expr, bins: int, low: float, high: float) -> relax.Expr:
    """How many elements are in each of `bins` parts of low … high, as floats; elements outside count nowhere."""
    if low == high:
        raise UnsupportedOperatorError("a histogram over the range of its data is not supported; give min and max")
    dtype, emit = dtype_of(x), importer.emit
    (count,) = check_elements((int(np.prod(shape_of(x), dtype=np.int64)),), "a histogram", "folded")
    check_elements((count, bins), "a histogram", "folded")
    x = reshape(importer, x, (count, 1))
    place = emit(relax.op.divide(emit(relax.op.subtract(x, scalar(low, dtype))), scalar(high - low, dtype)))
    place = emit(relax.op.floor(emit(relax.op.multiply(place, scalar(bins, dtype)))))
    place = emit(relax.op.minimum(place, scalar(bins - 1, dtype)))  # the last part includes its upper end
    inside = emit(relax.op.less_equal(x, scalar(high, dtype)))
    hits = emit(relax.op.equal(place, constant(np.arange(bins, dtype=dtype))))
    return relax.op.sum(cast(importer, emit(relax.op.logical_and(hits, inside)), dtype), [0])


@converter("transformers.grouped_mm_fallback.default")
def _grouped_matmul(importer: Any, x: relax.Expr, weights: relax.Expr, ends: relax.Expr) -> relax.Expr:
    """Rows x (S, K), sorted by expert, times the weights (E, K, N) of their experts. Expert e has the rows before ends
    [e] that no expert before it has; rows that none has are 0.

    Few rows read the weights of their experts. More rows are multiplied by all experts, so that weights stay constants.
    """
    emit, (rows, depth), (experts, _, units) = importer.emit, shape_of(x), shape_of(weights)
    ends = cast(importer, ends, "int64")
    positions = constant(np.arange(rows, dtype=np.int64)[:, None])
    behind = emit(relax.op.greater_equal(positions, reshape(importer, ends, (1, experts))))
    expert = emit(relax.op.sum(cast(importer, behind, "int64"), [1]))
    if rows <= experts:
        own = emit(relax.op.take(weights, expert, 0, mode="clip"))
        result = emit(relax.op.matmul(reshape(importer, x, (rows, 1, depth)), own))
        result = reshape(importer, result, (rows, units))
    else:
        every = emit(relax.op.matmul(reshape(importer, x, (1, rows, depth)), weights))
        every = reshape(importer, every, (experts * rows, units))
        first = emit(relax.op.multiply(expert, constant(np.int64(rows))))
        place = emit(relax.op.add(first, constant(np.arange(rows, dtype=np.int64))))
        result = emit(relax.op.take(every, place, 0, mode="clip"))
    taken = emit(relax.op.less(reshape(importer, expert, (rows, 1)), constant(np.int64(experts))))
    return relax.op.where(taken, result, scalar(0, dtype_of(result)))


@converter("aten.repeat_interleave.Tensor")
def _repeated(importer: Any, repeats: relax.Expr, length: int | None) -> relax.Expr:
    """Each index i repeats[i] times, in ascending order: (length,), which must be the sum of repeats."""
    if length is None:
        raise UnsupportedOperatorError("the number of repetitions is known only at run time: give output_size")
    emit, dtype, count = importer.emit, dtype_of(repeats), shape_of(repeats)[0]
    check_elements((length, count), "repeated indices", "folded")
    ends = emit(relax.op.cumsum(cast(importer, repeats, "int64"), 0))
    total = emit(relax.op.strided_slice(ends, [0], [count - 1], [count]))
    total = emit(qnn.check_bounds(total, length, length, importer.label))
    ends = emit(relax.op.minimum(ends, total))
    behind = emit(relax.op.greater_equal(constant(np.arange(length, dtype=np.int64)[:, None]), ends))
    return cast(importer, emit(relax.op.sum(cast(importer, behind, "int64"), [1])), dtype)

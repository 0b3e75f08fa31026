"""TE compute of qnn.normalize, the twin of its NumPy reference: integer sums of a row, one factor, the elements."""

from __future__ import annotations

import numpy as np
from tvm import te, tirx

from ...numerics import tir
from ...numerics.normalize import units
from ...qparams import dtype_range
from .operands import Constants, Expr, Operand
from .softmax import Rows
from .stages import stages


@stages("qnn.normalize")
def _normalize(
    constants: Constants,
    shape: tuple[int, ...],
    data: Operand,
    scale: Operand,
    zero_point: Operand,
    *,
    epsilon: float,
    centered: bool,
) -> te.Tensor:
    rows = Rows(shape, -1)
    count, shift = rows.length, int(zero_point.constant().reshape(()))
    largest = max(abs(value - shift) for value in dtype_range(data.dtype))
    step, square = (_float(value) for value in units(float(scale.constant().reshape(())), count))
    zero = tirx.const(shift, "int32")
    sums = "int32" if count * largest * largest < 1 << 31 else "int64"
    wide = "int32" if 2 * count * largest < 1 << 31 else "int64"
    n = tirx.const(count, wide)

    def x(*i: Expr) -> Expr:
        return data.tensor(*i).astype("int32") - zero

    squares = rows.reduce(te.sum, lambda *i: tir.shared(x(*i).astype(sums), lambda v: v * v), "row_squares")
    total = rows.reduce(te.sum, lambda *i: x(*i).astype(wide), "row_sum") if centered else None

    def factor(*i: Expr) -> Expr:
        spread = tirx.const(count, "int64") * squares(*i).astype("int64")
        if total is not None:
            spread = spread - total(*i).astype("int64") * total(*i).astype("int64")
        variance = tir.fence(spread.astype("float32") * square) + _float(epsilon)
        return step / tirx.sqrt(variance)

    factors = rows.each(factor, "row_factor")

    def element(*i: Expr) -> Expr:
        deviation = n * x(*i).astype(wide)
        if total is not None:
            deviation = deviation - rows.of(total, i)
        # fenced, as a following addition must not contract with this multiplication
        return tir.fence(deviation.astype("float32") * rows.of(factors, i))

    return rows.elements(element, "normalize")


def _float(value: float | np.float32) -> Expr:
    return tirx.const(float(np.float32(value)), "float32")

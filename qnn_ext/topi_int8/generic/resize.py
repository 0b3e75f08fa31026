"""TE compute of qnn.resize_bilinear. Where each output row and column reads is known at compile time."""

from __future__ import annotations

import numpy as np
from tvm import te, tirx

from ...numerics import tir
from ...numerics.taps import FRACTION_BITS, Taps, bilinear_taps
from ...qparams import dtype_range
from .elementwise import Constants, Expr, Operand
from .stages import stages


@stages("qnn.resize_bilinear")
def _resize_bilinear(
    constants: Constants,
    shape: tuple[int, ...],
    data: Operand,
    *,
    size: tuple[int, int],
    align_corners: bool,
    half_pixel_centers: bool,
    arithmetic: str,
) -> te.Tensor:
    rows, columns = (
        bilinear_taps(extent, out, align_corners, half_pixel_centers, arithmetic)
        for extent, out in zip(data.shape[1:3], size, strict=True)
    )
    compute = _fixed if arithmetic == "fixed" else _float32
    return compute(constants, shape, data.tensor, rows, columns)


def _fixed(constants: Constants, shape: tuple[int, ...], data: te.Tensor, rows: Taps, columns: Taps) -> te.Tensor:
    """Integer products may be summed in any order: first along columns of the image, then along its rows."""
    dtype = str(data.dtype)
    low, high = dtype_range(dtype)
    largest = max(-low, high) * _weight(rows) * _weight(columns) + (1 << (2 * FRACTION_BITS))
    wide = "int32" if largest < 1 << 31 else "int64"
    one = tirx.const(1 << FRACTION_BITS, wide)
    lower_row, upper_row, down = (constants.add(array) for array in (rows.lower, rows.upper, rows.fraction))
    lower_column, upper_column, right = (constants.add(a) for a in (columns.lower, columns.upper, columns.fraction))

    def vertical(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        upper, lower = data(n, lower_row(y), x, c).astype(wide), data(n, upper_row(y), x, c).astype(wide)
        return upper * (one - down(y).astype(wide)) + lower * down(y).astype(wide)

    batch, height, _, channels = shape
    mixed = te.compute((batch, height, int(data.shape[2]), channels), vertical, name="resize_rows")

    def horizontal(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        left, right_of = mixed(n, y, lower_column(x), c), mixed(n, y, upper_column(x), c)
        return left * (one - right(x).astype(wide)) + right_of * right(x).astype(wide)

    total = te.compute(shape, horizontal, name="resize_columns")
    half, bits = tirx.const(1 << (2 * FRACTION_BITS - 1), wide), tirx.const(2 * FRACTION_BITS, wide)
    sign = tirx.const(63 if wide == "int64" else 31, wide)

    def rounded(*i: Expr) -> Expr:  # midpoints away from 0
        return ((total(*i) + half + (total(*i) >> sign)) >> bits).astype(dtype)

    return te.compute(shape, rounded, name="resize")


def _weight(taps: Taps) -> int:
    """The largest |1 − fraction| + |fraction| along an axis, in units of 2⁻¹⁰."""
    fraction = taps.fraction.astype(np.int64)
    return int((np.abs((1 << FRACTION_BITS) - fraction) + np.abs(fraction)).max())


def _float32(constants: Constants, shape: tuple[int, ...], data: te.Tensor, rows: Taps, columns: Taps) -> te.Tensor:
    """Σ (x · vertical) · horizontal over upper left, lower left, upper right, lower right, each product rounded."""
    one = np.float32(1)
    row_taps = _float_taps(constants, rows.lower, one - rows.fraction, rows.upper, rows.fraction)
    column_taps = _float_taps(constants, columns.lower, one - columns.fraction, columns.upper, columns.fraction)
    batch, height, _, channels = shape

    def weighted(row: te.Tensor, weight: te.Tensor) -> te.Tensor:
        def value(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
            return data(n, row(y), x, c).astype("float32") * weight(y)

        # a stage of its own, because several columns of the result read it
        return te.compute(
            (batch, height, int(data.shape[2]), channels), value, name="resize_row", attrs={tir.KEEP: True}
        )

    weighted_rows = [weighted(*tap) for tap in row_taps]

    first, last = (tirx.const(end, "int32") for end in (0, int(data.shape[2]) - 1))

    def interpolated(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        total = None
        for column, horizontal in column_taps:
            for row in weighted_rows:
                term = tir.fence(row(n, y, tirx.max(tirx.min(column(x), last), first), c) * horizontal(x))
                total = term if total is None else total + term
        return total

    result = te.compute(shape, interpolated, name="resize")
    if str(data.dtype) == "float32":
        return result
    return te.compute(
        shape, lambda *i: tir.round_half_away(result(*i)).astype("int32").astype(str(data.dtype)), name="resize_rounded"
    )


def _float_taps(
    constants: Constants, lower: np.ndarray, lower_weight: np.ndarray, upper: np.ndarray, upper_weight: np.ndarray
) -> list[tuple[te.Tensor, te.Tensor]]:
    """[(index, weight) of the lower neighbour, of the upper one]."""
    return [
        (constants.add(index), constants.add(weight))
        for index, weight in ((lower, lower_weight), (upper, upper_weight))
    ]

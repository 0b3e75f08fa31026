"""Kernels of qnn.resize_bilinear. The positions that each output row and column reads are known at compile time.

If the fractions have few bits, all sums are exact: then integers, in the narrowest type that holds them, also serve for
float32 arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...numerics import tir
from ...numerics.annotations import KEEP
from ...numerics.taps import FRACTION_BITS, Taps, bilinear_taps
from ...qparams import dtype_range
from ...targets.features import current_backend
from .nest import memory, nest
from .operands import Constants, Expr, Operand
from .stages import stages

FLOAT32_HOLDS = ("uint16", "int16")  # integer types of which float32 represents every value
LANES = (32, 16, 8)  # vectors of channels


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
        bilinear_taps(extent, out, align_corners, half_pixel_centers, arithmetic, str(data.dtype) == "float32")
        for extent, out in zip(data.shape[1:3], size, strict=True)
    )
    dtype = str(data.dtype)
    if dtype == "float32" and arithmetic == "xnnpack":
        return _between(constants, _between(constants, data.tensor, columns, 2), rows, 1)
    if dtype != "float32" and all((taps.lower == taps.upper).all() for taps in (rows, columns)):
        # both weights are of the same element: they add up to 1 within float32's precision, and its value is an integer
        rows, columns = (replace(taps, fraction=np.zeros_like(taps.fraction)) for taps in (rows, columns))
    down, across = (_dyadic(taps, arithmetic) for taps in (rows, columns))
    if dtype != "float32" and down is not None and across is not None:
        wide = _sum_dtype(dtype, down, across)
        if arithmetic in FRACTION_BITS or wide in FLOAT32_HOLDS:
            up = arithmetic == "xnnpack"
            return _integer(constants, shape, data.tensor, down, across, wide, up)
    return _float32(constants, shape, data.tensor, rows, columns)


@dataclass(frozen=True)
class _Weights:
    """The taps of one axis with fractions in units of 2^−bits: the fewest bits that represent all of them."""

    lower: np.ndarray
    upper: np.ndarray
    fraction: np.ndarray
    bits: int

    @property
    def rest(self) -> np.ndarray:
        """The weight of the lower neighbour."""
        return (1 << self.bits) - self.fraction

    @property
    def largest(self) -> int:
        """The largest |1 − fraction| + |fraction|."""
        return int((np.abs(self.rest) + np.abs(self.fraction)).max())

    @property
    def is_convex(self) -> bool:
        return bool((self.fraction >= 0).all() and (self.rest >= 0).all())


def _dyadic(taps: Taps, arithmetic: str) -> _Weights | None:
    """The fractions as integers, if few enough bits suffice."""
    bits = FRACTION_BITS.get(arithmetic, FRACTION_BITS["fixed"])
    exact = taps.fraction.astype(np.float64) * (1.0 if arithmetic in FRACTION_BITS else float(1 << bits))
    if (exact != np.rint(exact)).any():
        return None
    fraction = exact.astype(np.int64)
    while bits > 0 and not (fraction & 1).any():
        fraction, bits = fraction >> 1, bits - 1
    return _Weights(taps.lower, taps.upper, fraction, bits)


def _sum_dtype(dtype: str, rows: _Weights, columns: _Weights) -> str:
    """The narrowest type that holds every sum and the half that rounds it."""
    low, high = dtype_range(dtype)
    unit = rows.largest * columns.largest
    half = (1 << (rows.bits + columns.bits)) >> 1
    if low == 0 and rows.is_convex and columns.is_convex and high * unit + half < 1 << 16:
        return "uint16"
    largest = max(-low, high) * unit + half
    return next(f"int{bits}" for bits in (16, 32, 64) if largest < 1 << (bits - 1))


def _integer(
    constants: Constants,
    shape: tuple[int, ...],
    data: te.Tensor,
    rows: _Weights,
    columns: _Weights,
    wide: str,
    up: bool,
) -> te.Tensor:
    """Integer products may be summed in any order: first along columns of the image, then along its rows.

    up: midpoints are rounded up, not away from 0
    """
    dtype = str(data.dtype)
    taps = [
        [constants.add(axis.lower), constants.add(axis.upper)]
        + [constants.add(weight.astype(wide)) for weight in (axis.rest, axis.fraction)]
        for axis in (rows, columns)
    ]
    bits = rows.bits + columns.bits

    def rounded(total: Expr) -> Expr:
        if bits == 0:
            return total.astype(dtype)
        half, shift = tirx.const(1 << (bits - 1), wide), tirx.const(bits, wide)
        if not up and not wide.startswith("uint"):
            half = half + (total >> tirx.const(np.iinfo(wide).bits - 1, wide))
        return ((total + half) >> shift).astype(dtype)

    lanes = next((lanes for lanes in LANES if lanes <= shape[3] and lanes * np.iinfo(wide).bits <= 512), 0)
    if lanes and not current_backend().grid:
        body = partial(_nest, shape=shape, wide=wide, lanes=lanes, rounded=rounded)
        return nest(shape, [data, *taps[0], *taps[1]], body, dtype=dtype, name="resize")
    (upper_row, lower_row, above, below), (left_column, right_column, left, right) = taps

    def vertical(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        upper, lower = data(n, upper_row(y), x, c).astype(wide), data(n, lower_row(y), x, c).astype(wide)
        return upper * above(y) + lower * below(y)

    batch, height, _, channels = shape
    mixed = te.compute((batch, height, int(data.shape[2]), channels), vertical, name="resize_rows")

    def horizontal(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        return mixed(n, y, left_column(x), c) * left(x) + mixed(n, y, right_column(x), c) * right(x)

    total = te.compute(shape, horizontal, name="resize_columns")
    return te.compute(shape, lambda *i: rounded(total(*i)), name="resize")


def _nest(
    ins: list[Any], outs: list[Any], shape: tuple[int, ...], wide: str, lanes: int, rounded: Callable[[Expr], Expr]
) -> Any:
    """Each row of the result from one row of sums along columns, which stays in the L1 cache.

    The channels of a pixel are processed as whole vectors, the last overlapping the previous one if they do not divide.
    """
    data, upper_row, lower_row, above, below, left_column, right_column, left, right = map(T.buffer_proxy, ins)
    result = T.buffer_proxy(outs[0])
    _, height, width, channels = shape
    pixels = int(ins[0].shape[2])
    rows = T.parallel if prod(shape) >= current_backend().sharing.resized_elements else T.serial
    starts = [min(start, channels - lanes) for start in range(0, channels, lanes)]
    with IRBuilder() as builder, rows(0, shape[0] * height) as row:
        image, y = row // height, row % height
        mixed = memory([pixels, channels], wide, scope="global")
        with T.serial(0, pixels) as x:
            for start in starts:
                with T.vectorized(0, lanes) as lane:
                    upper = data[image, upper_row[y], x, start + lane].astype(wide) * above[y]
                    mixed[x, start + lane] = upper + data[image, lower_row[y], x, start + lane].astype(wide) * below[y]
        with T.serial(0, width) as x:
            for start in starts:
                with T.vectorized(0, lanes) as lane:
                    total = mixed[left_column[x], start + lane] * left[x]
                    total = total + mixed[right_column[x], start + lane] * right[x]
                    result[image, y, x, start + lane] = rounded(total)
    return builder.get()


def _between(constants: Constants, data: te.Tensor, taps: Taps, axis: int) -> te.Tensor:
    """lower + (upper − lower) · fraction along an axis, each operation rounded."""
    lower, upper, fraction = map(constants.add, (taps.lower, taps.upper, taps.fraction))
    shape = [int(size) for size in data.shape]
    last = shape[axis] - 1
    shape[axis] = len(taps.lower)

    def at(i: Sequence[Expr], index: te.Tensor) -> Expr:
        position = tirx.max(tirx.min(index(i[axis]), tirx.const(last, "int32")), tirx.const(0, "int32"))
        return data(*i[:axis], position, *i[axis + 1 :])

    def value(*i: Expr) -> Expr:
        low = at(i, lower)
        return low + tir.fence((at(i, upper) - low) * fraction(i[axis]))

    return te.compute(shape, value, name=f"resize_{axis}", attrs={KEEP: True} if axis == 2 else None)


def _float32(constants: Constants, shape: tuple[int, ...], data: te.Tensor, rows: Taps, columns: Taps) -> te.Tensor:
    """Σ (x · vertical) · horizontal over upper left, lower left, upper right, lower right, each product rounded."""
    one = np.float32(1)
    row_taps = _float_taps(constants, rows.lower, one - rows.fraction, rows.upper, rows.fraction)
    column_taps = _float_taps(constants, columns.lower, one - columns.fraction, columns.upper, columns.fraction)
    batch, height, _, channels = shape

    def weighted(row: te.Tensor, weight: te.Tensor) -> te.Tensor:
        def value(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
            return data(n, row(y), x, c).astype("float32") * weight(y)

        # a separate stage, because several columns of the result read it
        return te.compute((batch, height, int(data.shape[2]), channels), value, name="resize_row", attrs={KEEP: True})

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
    """[(index, weight) of the lower neighbour, (index, weight) of the upper one]."""
    return [
        (constants.add(index), constants.add(weight))
        for index, weight in ((lower, lower_weight), (upper, upper_weight))
    ]

"""TE computes of qnn.softmax and qnn.log_softmax, the twins of numerics/softmax.py.

Stages: the row's maximum; a table of exponentials over the steps below it; their sum; its reciprocal or logarithm, one
number per row; the results. Rows may be along any axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import te, tirx

from ...numerics import gemmlowp, softmax, tir, tir_gemmlowp
from ...numerics.multiplier import fixed_point
from ...numerics.tir_gemmlowp import RowStages, i64
from ...qparams import dtype_range
from .operands import Constants, Expr, Operand
from .softmax_rows import rows_together, softmax_rows
from .stages import stages


class Rows:
    """Stages over a tensor's elements and over its rows, which keep the axis with extent 1."""

    def __init__(self, shape: Sequence[int], axis: int) -> None:
        self.shape = tuple(shape)
        self.axis = axis % len(self.shape)
        self.length = self.shape[self.axis]
        self.row_shape = tuple(1 if i == self.axis else size for i, size in enumerate(self.shape))

    def reduce(self, combine: Callable[..., Expr], element: Callable[..., Expr], name: str) -> te.Tensor:
        """combine (te.sum, te.max) of element(*indices) over each row."""
        k = te.reduce_axis((0, self.length), "k")
        return te.compute(self.row_shape, lambda *i: combine(element(*self._moved(i, k)), axis=k), name=name)

    def each(self, value: Callable[..., Expr], name: str) -> te.Tensor:
        """One number per row."""
        return te.compute(self.row_shape, value, name=name)

    def elements(self, value: Callable[..., Expr], name: str) -> te.Tensor:
        """One number per element."""
        return te.compute(self.shape, value, name=name)

    def of(self, row: te.Tensor, indices: Sequence[Expr]) -> Expr:
        """The number of an element's row."""
        return row(*self._moved(indices, 0))

    def _moved(self, indices: Sequence[Expr], position: Expr) -> list[Expr]:
        return [position if i == self.axis else index for i, index in enumerate(indices)]


def _steps_below_max(data: te.Tensor, rows: Rows) -> Callable[..., Expr]:
    """d = max(row) − x as int32: the index into the tables of exponentials."""
    high = rows.reduce(te.max, data, "row_max")
    return lambda *i: rows.of(high, i).astype("int32") - data(*i).astype("int32")


def _lookup(constants: Constants, table: np.ndarray, index: Callable[..., Expr]) -> Callable[..., Expr]:
    tensor = constants.add(table)
    return lambda *i: tensor(index(*i))


def _exponentials(
    constants: Constants, data: Operand, scale: float, beta: float, rounding: str, rows: Rows
) -> tuple[Callable[..., Expr], te.Tensor]:
    """(steps, exponentials as int32)."""
    steps = _steps_below_max(data.tensor, rows)
    table = softmax.exp_table(data.dtype, scale, beta, rounding)
    return steps, rows.elements(_lookup(constants, table, steps), "exps")


def _sum(exps: te.Tensor, rows: Rows, largest: int) -> te.Tensor:
    """Σ of exponentials of at most `largest`, in a type that can hold it."""
    dtype = "int32" if rows.length * largest < 1 << 31 else "int64"
    return rows.reduce(te.sum, lambda *i: exps(*i).astype(dtype), "row_sum")


# ---- softmax -----------------------------------------------------------------------------------------------------


@stages("qnn.softmax")
def _softmax(
    constants: Constants,
    shape: tuple[int, ...],
    data: Operand,
    input_scale: Operand,
    input_zero_point: Operand,
    output_scale: Operand,
    output_zero_point: Operand,
    *,
    axis: int,
    beta: float,
    rounding: str,
    out_dtype: str,
) -> te.Tensor:
    rows = Rows(shape, axis)
    scale = float(input_scale.constant().reshape(()))
    if rounding == "ONNXRUNTIME":
        return _onnxruntime_row(
            constants, data, scale * beta, output_scale.constant(), output_zero_point.constant(), rows, out_dtype
        )
    if rounding in ("TONEAREST", "UPWARD"):
        output = output_scale.constant(), output_zero_point.constant()
        return _optimized_row(
            constants, data, softmax.optimized_exp_table(scale, beta), *output, rows, out_dtype, rounding
        )
    _, exps = _exponentials(constants, data, scale, beta, rounding, rows)
    if rounding == "TFLITE":
        if data.dtype == "int16":
            return _tflite_row_16bit(constants, exps, rows)
        return _tflite_row(exps, rows, out_dtype)
    out_scale = np.float32(output_scale.constant().reshape(()))
    zero_point = int(output_zero_point.constant().reshape(()))
    return _float_row(exps, rows, out_scale, zero_point, out_dtype)


def _float_row(exps: te.Tensor, rows: Rows, out_scale: np.float32, zero_point: int, dtype: str) -> te.Tensor:
    total = _sum(exps, rows, 1 << softmax.FLOAT_EXP_BITS)
    scale, one = (tirx.const(float(value), "float32") for value in (out_scale, 1.0))
    factor = rows.each(lambda *i: one / (total(*i).astype("float32") * scale), "row_factor")
    zero = tirx.const(zero_point, "int32")
    return rows.elements(lambda *i: tir.requantize_float(exps(*i), rows.of(factor, i), zero, dtype), "softmax")


def _onnxruntime_row(
    constants: Constants,
    data: Operand,
    scale: float,
    out_scale: np.ndarray,
    zero_point: np.ndarray,
    rows: Rows,
    dtype: str,
) -> te.Tensor:
    table = softmax.onnxruntime_exp_table(scale, rows.length)
    factor = softmax.onnxruntime_factor(out_scale.reshape(()))
    zero = tirx.const(int(zero_point.reshape(())), "int32")

    def probability(exp: Expr, total: Expr) -> Expr:
        return tir.round_to_int(_quotient(exp.astype("float64"), factor, total.astype("float64")), zero, dtype)

    return _summed_one_by_one(constants, data, table, probability, rows, dtype)


def _quotient(exp: Expr, factor: float, total: Expr) -> Expr:
    """A number on the same side of every midpoint between integers as exp · factor / total, with a division only for
    each row; exp and total are float32 numbers, exp ≤ total, and factor is an integer.

    exp · (factor / total) is off by less than factor · 2⁻⁵². A quotient that is no midpoint is at least 2⁻²⁶ / factor
    away from one, as exp and total have 24 bits. So a grid of 2⁻²⁷ / factor or finer than that, and coarser than the
    error, makes midpoints of what is one. Adding and subtracting a number whose last bit is that grid rounds to it.
    """
    bits = max(int(factor), 1).bit_length()
    if bits > 11:
        return exp * tirx.const(factor, "float64") / total
    grid = tirx.const(1.5 * 2.0 ** (52 - 27 - bits), "float64")
    return exp * (tirx.const(factor, "float64") / total) + grid - grid


def _optimized_row(
    constants: Constants,
    data: Operand,
    table: np.ndarray,
    out_scale: np.ndarray,
    zero_point: np.ndarray,
    rows: Rows,
    dtype: str,
    rounding: str,
) -> te.Tensor:
    scale, one = (tirx.const(float(np.float32(value)), "float32") for value in (out_scale.reshape(()), 1.0))
    zero = tirx.const(int(zero_point.reshape(())), "int32")
    rounded = tir.round_half_up if rounding == "UPWARD" else tir.round_half_away

    def probability(exp: Expr, total: Expr) -> Expr:
        return tir.float_to_int(rounded(tir.fence(exp * (one / (total * scale)))), zero, dtype)

    return _summed_one_by_one(constants, data, table, probability, rows, dtype)


def _summed_one_by_one(
    constants: Constants,
    data: Operand,
    table: np.ndarray,
    probability: Callable[[Expr, Expr], Expr],
    rows: Rows,
    dtype: str,
) -> te.Tensor:
    """probability(exponential, sum of its row) with a float32 table, whose sum depends on the order."""
    if rows.axis == len(rows.shape) - 1 and rows_together(rows.shape) > 1:
        return softmax_rows(data.tensor, constants.add(table), probability, dtype)
    exps = rows.elements(_lookup(constants, table, _steps_below_max(data.tensor, rows)), "exps")
    total = rows.reduce(te.sum, exps, "row_sum")
    return rows.elements(lambda *i: probability(exps(*i), rows.of(total, i)), "softmax")


def _rounded_sum(exps: te.Tensor, rows: Rows) -> te.Tensor:
    """Σ of exponentials, each rounded from Q0.31 to Q12.19, as int64 in 1 … 2³¹ − 1."""
    bits = softmax.SUM_BITS
    return rows.reduce(te.sum, lambda *i: (exps(*i).astype("int64") + i64(1 << (bits - 1))) >> i64(bits), "row_sum")


def _tflite_row(exps: te.Tensor, rows: Rows, dtype: str) -> te.Tensor:
    total = _rounded_sum(exps, rows)

    bind = RowStages(rows.row_shape, "row_inverse")
    inverse, over_unit = tir_gemmlowp.reciprocal(total(*bind.indices), softmax.SUM_BITS, bind)
    factor = bind.stage(inverse)
    low, _ = dtype_range(dtype)
    bits = np.iinfo(dtype).bits
    shift = bind.stage(over_unit + i64(31 - bits))

    def probability(*i: Expr) -> Expr:
        product = tir.saturating_rounding_doubling_high_mul(rows.of(factor, i), exps(*i))  # not negative: no saturation
        exponent = rows.of(shift, i)
        rounded = (product + (i64(1) << (exponent - i64(1)))) >> exponent
        return tir.saturate(rounded + i64(low), dtype)

    return rows.elements(probability, "softmax")


def _tflite_row_16bit(constants: Constants, exps: te.Tensor, rows: Rows) -> te.Tensor:
    total = _sum(exps, rows, 32767)
    headroom = rows.each(lambda *i: tirx.clz(total(*i).astype("int32")).astype("int64"), "row_headroom")
    samples = constants.add(softmax.reciprocal_samples_16bit().astype(np.int32))

    def position(*i: Expr) -> Expr:
        shifted = ((total(*i).astype("int64") << (headroom(*i) - i64(1))) + i64(1 << 13)) >> i64(14)
        return tir.saturate(shifted - i64((1 << 15) + (1 << 16)), "int16").astype("int32")

    centred = rows.each(position, "row_position")

    def interpolated(*i: Expr) -> Expr:
        index = (centred(*i) >> tirx.const(7, "int32")) + tirx.const(256, "int32")
        offset = centred(*i) & tirx.const(0x7F, "int32")
        slope = (samples(index + tirx.const(1, "int32")) - samples(index)).astype("int16").astype("int32")
        value = samples(index) + ((slope * offset + tirx.const(64, "int32")) >> tirx.const(7, "int32"))
        return value.astype("int16").astype("int64")

    inverse = rows.each(interpolated, "row_inverse")

    def probability(*i: Expr) -> Expr:
        shift = i64(31) - rows.of(headroom, i)
        product = exps(*i).astype("int64") * rows.of(inverse, i) + (i64(1) << (shift - i64(1)))
        return tirx.max(tirx.min(product >> shift, i64(32767)), i64(0)).astype("int16")

    return rows.elements(probability, "softmax")


# ---- log_softmax -------------------------------------------------------------------------------------------------


@stages("qnn.log_softmax")
def _log_softmax(
    constants: Constants,
    shape: tuple[int, ...],
    data: Operand,
    input_scale: Operand,
    input_zero_point: Operand,
    output_scale: Operand,
    output_zero_point: Operand,
    *,
    axis: int,
    rounding: str,
    out_dtype: str,
) -> te.Tensor:
    rows = Rows(shape, axis)
    scale = float(input_scale.constant().reshape(()))
    if rounding == "TFLITE":
        steps, exps = _exponentials(constants, data, scale, 1.0, rounding, rows)
        return _tflite_log_row(constants, steps, exps, scale, rows, out_dtype)
    high = rows.reduce(te.max, data.tensor, "row_max")
    table = constants.add(softmax.optimized_exp_table(scale, 1.0, 1 << np.iinfo(data.dtype).bits))
    exps = rows.elements(lambda *i: table(rows.of(high, i).astype("int32") - data.tensor(*i).astype("int32")), "exps")
    total = rows.reduce(te.sum, exps, "row_sum")
    in_scale, out_scale = np.float32(scale), np.float32(output_scale.constant().reshape(()))
    zero_point = tirx.const(int(output_zero_point.constant().reshape(())), "int32")

    def offset_of_row(*i: Expr) -> Expr:
        log_sum = tirx.log(total(*i).astype("float64")).astype("float32")
        real = tir.fence(tirx.const(float(in_scale), "float32") * high(*i).astype("float32")) + log_sum
        return real / tirx.const(float(out_scale), "float32")

    offset = rows.each(offset_of_row, "row_offset")
    factor = tirx.const(float(in_scale / out_scale), "float32")

    def logarithm(*i: Expr) -> Expr:
        real = tir.fence(factor * data.tensor(*i).astype("float32")) - rows.of(offset, i)
        return tir.round_to_int(real, zero_point, out_dtype)

    return rows.elements(logarithm, "log_softmax")


def _tflite_log_row(
    constants: Constants, steps: Callable[..., Expr], exps: te.Tensor, scale: float, rows: Rows, dtype: str
) -> te.Tensor:
    diff = softmax.diff_scale(scale, 1.0)
    total = _rounded_sum(exps, rows)
    low, high = dtype_range(dtype)

    bind = RowStages(rows.row_shape, "row_log")
    log_sum = bind.stage(tir_gemmlowp.log(total(*bind.indices), softmax.SUM_BITS, softmax.DIFF_BITS, bind))
    multiplier = diff.multiplier
    reverse = fixed_point(2.0 ** (31 - int(multiplier.shift)) / float(multiplier.multiplier))

    def farthest(*i: Expr) -> Expr:
        x = (log_sum(*i) + i64(gemmlowp.INT32_MIN)).astype("int32")
        product = tir.multiply_tflite(
            x, tirx.const(int(reverse.multiplier), "int32"), tirx.const(int(reverse.shift), "int32")
        )
        return tirx.min(-product, i64(diff.largest + 1)).astype("int32")

    limit = rows.each(farthest, "row_limit")
    entries = np.minimum(np.arange(256), diff.largest)
    scaled = _lookup(constants, diff.scaled(entries), steps)
    exponent = i64(31 - softmax.DIFF_BITS - 4)

    def result(*i: Expr) -> Expr:
        logarithm = tir.rounding_divide_by_pot(scaled(*i) - rows.of(log_sum, i), exponent) + i64(high)
        return tir.saturate(tirx.Select(steps(*i) < rows.of(limit, i), logarithm, i64(low)), dtype)

    return rows.elements(result, "log_softmax")

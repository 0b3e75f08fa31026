"""Elementwise rules of qnn.simulated_quantize and qnn.simulated_dequantize; the dtype is given by a run-time number."""

from __future__ import annotations

from tvm import tirx

from ...numerics import tir
from ...qparams import dtype_range
from .elementwise import rule
from .operands import Expr, Operand, Stage

CODES = {1: "int8", 2: "uint8", 3: "int32"}  # as op.simulated.DTYPE_CODES


def _f32(value: float) -> Expr:
    return tirx.const(float(value), "float32")


def _code(stage: Stage, dtype: Operand) -> Expr:
    return stage.parameter(dtype, 0).astype("int32")


def _selected(code: Expr, value: Expr, data: Expr) -> Expr:
    """`value` for known codes, the data itself for others."""
    known = tirx.all(code >= tirx.const(min(CODES), "int32"), code <= tirx.const(max(CODES), "int32"))
    return tirx.Select(known, value, data)


@rule("qnn.simulated_quantize")
def _simulated_quantize(
    stage: Stage, data: Operand, dtype: Operand, scale: Operand, zero_point: Operand, *, axis: int
) -> Expr:
    x, code = stage.read(data), _code(stage, dtype)
    divisor = stage.parameter(scale, axis).astype("float32")
    value = tir.round_half_away(x / divisor) + stage.parameter(zero_point, axis).astype("float32")
    low, high = (_bound(code, side) for side in (0, 1))
    clipped = tirx.max(tirx.min(value, high), low)
    return _selected(code, tirx.Select(tirx.isnan(x), x, clipped), x)  # NaN stays NaN


def _bound(code: Expr, side: int) -> Expr:
    values = {number: _f32(dtype_range(name)[side]) for number, name in CODES.items()}
    is_int8, is_uint8 = (code == tirx.const(number, "int32") for number in (1, 2))
    return tirx.Select(is_int8, values[1], tirx.Select(is_uint8, values[2], values[3]))


@rule("qnn.simulated_dequantize")
def _simulated_dequantize(
    stage: Stage, data: Operand, dtype: Operand, scale: Operand, zero_point: Operand, *, axis: int
) -> Expr:
    x = stage.read(data)
    shifted = x - stage.parameter(zero_point, axis).astype("float32")
    real = shifted * stage.parameter(scale, axis).astype("float32")
    return _selected(_code(stage, dtype), real, x)

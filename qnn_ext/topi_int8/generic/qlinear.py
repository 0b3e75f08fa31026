"""Elementwise rules of qnn.qlinear_add and qnn.qlinear_mul: the TIR twins of their NumPy references."""

from __future__ import annotations

from ...numerics import tir
from .elementwise import Expr, Operand, Stage, rule


def _shifted(stage: Stage, data: Operand, zero_point: Operand) -> Expr:
    """data − zero_point in int32."""
    x = stage.read(data).astype("int32")
    if zero_point.value is not None and not zero_point.value.any():
        return x
    return x - stage.parameter(zero_point, -1)


@rule("qnn.qlinear_add")
def _add(
    stage: Stage,
    lhs: Operand,
    rhs: Operand,
    lhs_zero_point: Operand,
    rhs_zero_point: Operand,
    lhs_factor: Operand,
    rhs_factor: Operand,
    offset: Operand,
    output_zero_point: Operand,
    *,
    out_dtype: str,
) -> Expr:
    left = _shifted(stage, lhs, lhs_zero_point).astype("float32")
    right = _shifted(stage, rhs, rhs_zero_point).astype("float32")
    inner = tir.fused_multiply_add(right, stage.parameter(rhs_factor, -1), stage.parameter(offset, -1))
    total = tir.fused_multiply_add(left, stage.parameter(lhs_factor, -1), inner)
    limit = _shifted_limit(lhs, lhs_zero_point) * lhs_factor.largest + offset.largest
    limit += _shifted_limit(rhs, rhs_zero_point) * rhs_factor.largest
    return tir.round_to_int(total, stage.parameter(output_zero_point, -1), out_dtype, limit)


def _shifted_limit(data: Operand, zero_point: Operand) -> float:
    """What |data − zero_point| cannot exceed."""
    return data.largest + zero_point.largest


@rule("qnn.qlinear_mul")
def _mul(
    stage: Stage,
    lhs: Operand,
    rhs: Operand,
    lhs_zero_point: Operand,
    rhs_zero_point: Operand,
    factor: Operand,
    offset: Operand,
    output_zero_point: Operand,
    *,
    out_dtype: str,
) -> Expr:
    product = _shifted(stage, lhs, lhs_zero_point) * _shifted(stage, rhs, rhs_zero_point)
    scaled = tir.fence(product.astype("float32") * stage.parameter(factor, -1))
    total = scaled + stage.parameter(offset, -1)
    limit = _shifted_limit(lhs, lhs_zero_point) * _shifted_limit(rhs, rhs_zero_point) * factor.largest + offset.largest
    return tir.round_to_int(total, stage.parameter(output_zero_point, -1), out_dtype, limit)

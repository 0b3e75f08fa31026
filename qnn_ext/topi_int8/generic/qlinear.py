"""Elementwise rules of qnn.qlinear_add and qnn.qlinear_mul: the TIR twins of their NumPy references."""

from __future__ import annotations

from ...numerics import tir
from .elementwise import rule
from .operands import Expr, Operand, Stage, defined, shifted_limit


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
    left = stage.shifted(lhs, lhs_zero_point, -1).astype("float32")
    right = stage.shifted(rhs, rhs_zero_point, -1).astype("float32")
    inner = tir.fused_multiply_add(right, stage.parameter(rhs_factor, -1), stage.parameter(offset, -1))
    total = tir.fused_multiply_add(left, stage.parameter(lhs_factor, -1), inner)
    limit = shifted_limit(lhs, lhs_zero_point) * lhs_factor.largest + offset.largest
    limit += shifted_limit(rhs, rhs_zero_point) * rhs_factor.largest
    return tir.round_to_int(total, stage.parameter(output_zero_point, -1), out_dtype, limit)


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
    limit = shifted_limit(lhs, lhs_zero_point) * shifted_limit(rhs, rhs_zero_point)
    product = defined(stage.shifted(lhs, lhs_zero_point, -1) * stage.shifted(rhs, rhs_zero_point, -1), limit)
    scaled = tir.fence(product.astype("float32") * stage.parameter(factor, -1))
    total = scaled + stage.parameter(offset, -1)
    limit = limit * factor.largest + offset.largest
    return tir.round_to_int(total, stage.parameter(output_zero_point, -1), out_dtype, limit)

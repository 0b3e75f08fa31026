"""Elementwise rules of qnn.add, qnn.subtract, qnn.mul and qnn.prelu: the TIR twins of their NumPy references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx

from ...numerics import fixed_point, float_multiplier, tir
from ...numerics.binary import (
    ADD_LEFT_SHIFT,
    add_multipliers,
    mul_multiplier,
    power_of_two_shifts,
    without_shift,
    xnnpack_multipliers,
)
from ...numerics.multiplier import FixedPoint
from ...targets.features import current_backend
from .elementwise import fixed, multiplied_tflite, rescaled, rule
from .operands import Expr, Operand, Stage, defined, shifted_limit

Sign = Callable[[Expr, Expr], Expr]


def _from_the_right(axis: int, operand: Operand) -> int:
    """An axis of an operand, which may lack leading axes of the result, as an axis of the result."""
    ndim = len(operand.shape)
    return axis % ndim - ndim if ndim else -1


def _sum(sign: Sign, numpy_sign: Callable[[Any, Any], Any]) -> Callable[..., Expr]:
    def build(
        stage: Stage,
        lhs: Operand,
        rhs: Operand,
        lhs_scale: Operand,
        lhs_zero_point: Operand,
        rhs_scale: Operand,
        rhs_zero_point: Operand,
        output_scale: Operand,
        output_zero_point: Operand,
        *,
        lhs_axis: int,
        rhs_axis: int,
        rounding: str,
        compute_dtype: str,
        out_dtype: str,
        pot_scale: bool,
    ) -> Expr:
        lhs_axis, rhs_axis = _from_the_right(lhs_axis, lhs), _from_the_right(rhs_axis, rhs)
        left = stage.shifted(lhs, lhs_zero_point, lhs_axis)
        right = stage.shifted(rhs, rhs_zero_point, rhs_axis)
        scales = [scale.constant().reshape(-1) for scale in (lhs_scale, rhs_scale, output_scale)]
        axes, zero_point = (lhs_axis, rhs_axis), stage.parameter(output_zero_point, -1)
        sizes = shifted_limit(lhs, lhs_zero_point), shifted_limit(rhs, rhs_zero_point)
        if rounding == "TONEAREST_EVEN":
            factors = [float_multiplier(scale, scales[2]) for scale in scales[:2]]
            parts = [
                tir.fence(x.astype("float32") * stage.along(factor, axis))
                for x, factor, axis in zip((left, right), factors, axes, strict=True)
            ]
            limit = sum(size * float(np.abs(factor).max()) for size, factor in zip(sizes, factors, strict=True))
            return tir.round_to_int(sign(*parts), zero_point, out_dtype, limit)
        if rounding == "TFLITE":
            shifts = power_of_two_shifts(*(float(scale[0]) for scale in scales)) if pot_scale else None
            if shifts is not None:
                one, two = (
                    tir.rounding_divide_by_pot(x, tirx.const(shift, "int64"))
                    for x, shift in zip((left, right), shifts, strict=True)
                )
                return tir.saturate(sign(one, two), out_dtype)
        if rounding.startswith("TFLITE"):
            headroom = ADD_LEFT_SHIFT[np.dtype(lhs.dtype).itemsize * 8]
            multipliers = add_multipliers(scales[0], scales[1], scales[2], headroom)
            one, two = (
                _scaled(stage, x, m, headroom, rounding, axis)
                for x, m, axis in zip((left, right), multipliers, axes, strict=False)
            )
            raw = sign(one, two).astype("int32")
            limit = sum(size * 2.0**headroom * m.largest for size, m in zip(sizes, multipliers, strict=False))
            return fixed(stage, raw, multipliers[2], zero_point, -1, "TFLITE", out_dtype, limit)
        if compute_dtype == "int32":
            left_multiplier, right_multiplier, shift = xnnpack_multipliers(*scales)
            total = sign(left * tirx.const(left_multiplier, "int32"), right * tirx.const(right_multiplier, "int32"))
            rounded = (total + tirx.const(1 << shift >> 1, "int32")) >> tirx.const(shift, "int32")
            return tir.saturating_add(rounded, zero_point, out_dtype)
        one, two = (
            rescaled(stage, x, scale, scales[2], zero_point, axis, rounding, compute_dtype, "int32").astype("int64")
            for x, scale, axis in zip((left, right), scales, axes, strict=False)
        )
        kept = output_zero_point.constant().astype(np.int64).reshape(())
        correction = int(kept - numpy_sign(kept, kept))
        return tir.saturate(sign(one, two) + tirx.const(correction, "int64"), out_dtype)

    return build


def _scaled(stage: Stage, x: Expr, multiplier: FixedPoint, headroom: int, rounding: str, axis: int) -> Expr:
    """The twin of `op.elementwise.scaled_operand`."""
    if rounding == "TFLITE":
        return multiplied_tflite(stage, x << tirx.const(headroom, "int32"), multiplier, axis)
    factor, exponent = without_shift(multiplier, headroom)
    up, down = (stage.along(part.astype(np.int32), axis) for part in (exponent.clip(0), (-exponent).clip(0)))
    return multiplied_tflite(stage, (x << up) >> down, factor, axis)


rule("qnn.add")(_sum(lambda a, b: a + b, lambda a, b: a + b))
rule("qnn.subtract")(_sum(lambda a, b: a - b, lambda a, b: a - b))


@rule("qnn.mul")
def _mul(
    stage: Stage,
    lhs: Operand,
    rhs: Operand,
    lhs_scale: Operand,
    lhs_zero_point: Operand,
    rhs_scale: Operand,
    rhs_zero_point: Operand,
    output_scale: Operand,
    output_zero_point: Operand,
    *,
    lhs_axis: int,
    rhs_axis: int,
    rounding: str,
    compute_dtype: str,
    out_dtype: str,
) -> Expr:
    lhs_axis, rhs_axis = _from_the_right(lhs_axis, lhs), _from_the_right(rhs_axis, rhs)
    left = stage.shifted(lhs, lhs_zero_point, lhs_axis)
    right = stage.shifted(rhs, rhs_zero_point, rhs_axis)
    left_scale, right_scale, out_scale = (s.constant().reshape(-1) for s in (lhs_scale, rhs_scale, output_scale))
    axis = lhs_axis if left_scale.size > 1 else rhs_axis
    limit = shifted_limit(lhs, lhs_zero_point) * shifted_limit(rhs, rhs_zero_point)
    product, zero_point = defined(left * right, limit), stage.parameter(output_zero_point, -1)
    if rounding == "TFLITE":
        multiplier = mul_multiplier(left_scale, right_scale, out_scale)
        return fixed(stage, product, multiplier, zero_point, axis, rounding, out_dtype)
    in_scale = np.asarray(left_scale * right_scale)
    if rounding == "TONEAREST_EVEN":  # never skipped, as in the reference
        factor = float_multiplier(in_scale, out_scale)
        limit *= float(np.abs(factor).max())
        return tir.requantize_float(product, stage.along(factor, axis), zero_point, out_dtype, limit)
    return rescaled(stage, product, in_scale, out_scale, zero_point, axis, rounding, compute_dtype, out_dtype)


@rule("qnn.prelu")
def _prelu(
    stage: Stage,
    data: Operand,
    alpha: Operand,
    input_scale: Operand,
    input_zero_point: Operand,
    alpha_scale: Operand,
    alpha_zero_point: Operand,
    output_scale: Operand,
    output_zero_point: Operand,
    *,
    rounding: str,
    compute_dtype: str,
    out_dtype: str,
) -> Expr:
    in_scale, slope_scale, out_scale = (s.constant().reshape(-1) for s in (input_scale, alpha_scale, output_scale))
    slope, zero_point = stage.shifted(alpha, alpha_zero_point, -1), stage.parameter(output_zero_point, -1)
    above = shifted_limit(data, input_zero_point)
    limits = above, above * shifted_limit(alpha, alpha_zero_point)
    scales = in_scale, np.asarray(in_scale * slope_scale)

    def either(scaled: Callable[[int, Expr], Expr]) -> Expr:
        """scaled(0, x) or scaled(1, x · slope), depending on the sign of x."""

        def branches(x: Expr) -> Expr:
            below = scaled(1, defined(x * slope, limits[1]))
            return tirx.Select(x >= tirx.const(0, "int32"), scaled(0, x), below)

        return tir.shared(stage.shifted(data, input_zero_point, -1), branches)

    if rounding != "TFLITE":
        return either(
            lambda i, value: rescaled(
                stage, value, scales[i], out_scale, zero_point, -1, rounding, compute_dtype, out_dtype, limit=limits[i]
            )
        )
    ratios = [float_multiplier(scale.astype(np.float32), out_scale.astype(np.float32)) for scale in scales]
    fps = [fixed_point(ratio.astype(np.float64), rounding=rounding) for ratio in ratios]
    fits = all(limit * fp.largest < 2.0**30 for limit, fp in zip(limits, fps, strict=True))
    if fits and not current_backend().doubles:
        total = either(lambda i, value: multiplied_tflite(stage, value, fps[i], -1).astype("int32"))
        return tir.saturating_add(total, zero_point, out_dtype)
    return either(lambda i, value: fixed(stage, value, fps[i], zero_point, -1, rounding, out_dtype))

"""qnn.add, qnn.subtract, qnn.mul: arithmetic on two quantized tensors, each with its own QParams."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import check_rounding, check_sum_rounding, float_multiplier, reference
from ..numerics.binary import (
    ADD_LEFT_SHIFT,
    add_multipliers,
    mul_multiplier,
    power_of_two_shifts,
    without_shift,
    xnnpack_multipliers,
)
from ..numerics.multiplier import FixedPoint
from .base import (
    OpDef,
    Shape,
    TensorInfo,
    along_axis,
    axis_in_use,
    broadcast_shape,
    channel_length,
    check_dtype,
    check_out_dtype,
    check_qparams,
    define,
    export_to_script,
)
from .requantize import rescale
from .traits import Data, Kind, Output, Traits

ARGUMENTS = "lhs rhs lhs_scale lhs_zero_point rhs_scale rhs_zero_point output_scale output_zero_point"
TRAITS = Traits(
    Kind.POINTWISE,
    data=(
        Data("lhs", "lhs_scale", "lhs_zero_point", "lhs_axis"),
        Data("rhs", "rhs_scale", "rhs_zero_point", "rhs_axis"),
    ),
    output=Output("output_scale", "output_zero_point", offset=True),
    shift_invariant=True,
)
OPERAND_DTYPES = ("int8", "uint8", "int16")
OUT_DTYPES = ("int8", "uint8", "int16", "int32")


# ---- type rules --------------------------------------------------------------------------------------------------


def _infer(
    lhs: TensorInfo,
    rhs: TensorInfo,
    lhs_scale: TensorInfo,
    lhs_zero_point: TensorInfo,
    rhs_scale: TensorInfo,
    rhs_zero_point: TensorInfo,
    output_scale: TensorInfo,
    output_zero_point: TensorInfo,
    *,
    lhs_axis: int,
    rhs_axis: int,
    rounding: str,
    compute_dtype: str,
    out_dtype: str,
) -> tuple[Shape, str]:
    for info, scale, zero_point, axis in (
        (lhs, lhs_scale, lhs_zero_point, lhs_axis),
        (rhs, rhs_scale, rhs_zero_point, rhs_axis),
    ):
        check_dtype(info, *OPERAND_DTYPES)
        check_qparams(scale, zero_point, channel_length(info, axis))
    check_qparams(output_scale, output_zero_point)
    check_out_dtype(out_dtype, *OUT_DTYPES)
    if rounding.startswith("TFLITE") and np.iinfo(lhs.dtype).bits != np.iinfo(rhs.dtype).bits:
        raise ShapeError(f"rounding {rounding} takes operands of the same width, found {lhs.dtype} and {rhs.dtype}")
    return broadcast_shape(lhs, rhs), out_dtype


def _infer_sum(*args: TensorInfo, pot_scale: bool, rounding: str, **attributes: object) -> tuple[Shape, str]:
    check_sum_rounding(rounding, str(attributes["compute_dtype"]))
    result = _infer(*args, rounding=rounding, **attributes)  # type: ignore[arg-type]
    scales = [args[2].value, args[4].value, args[6].value]
    if attributes["compute_dtype"] == "int32":
        if any(info.dtype not in ("int8", "uint8") for info in args[:2]) or any(
            s is None or s.size > 1 for s in scales
        ):
            raise ShapeError("rounding UPWARD in int32 takes 8-bit operands and constant scalar scales")
        xnnpack_multipliers(*scales)  # type: ignore[arg-type]
    if rounding == "TFLITE_SHIFTED" and args[0].dtype != "int16":
        raise ShapeError(f"rounding TFLITE_SHIFTED takes int16 operands, found {args[0].dtype}")
    if pot_scale:
        if rounding != "TFLITE" or (args[0].dtype, args[1].dtype) != ("int16", "int16"):
            raise ShapeError(f"pot_scale is only for rounding TFLITE on int16, found {rounding} on {args[0].dtype}")
        if any(info.shape not in ((), (1,)) for info in (args[2], args[4])):
            raise ShapeError("pot_scale takes scalar scales")
        if all(scale is not None for scale in scales):
            power_of_two_shifts(*(float(scale.reshape(())) for scale in scales))  # type: ignore[union-attr]
    return result


def _infer_mul(*args: TensorInfo, **attributes: object) -> tuple[Shape, str]:
    for info, zero_point in ((args[0], args[3]), (args[1], args[5])):
        if info.dtype == "int16" and zero_point.value is not None and zero_point.value.any():
            raise ShapeError(f"{zero_point.name} must be 0 for int16 operands, whose product would overflow int32")
    check_rounding(str(attributes["rounding"]), str(attributes["compute_dtype"]))
    return _infer(*args, **attributes)  # type: ignore[arg-type]


# ---- references --------------------------------------------------------------------------------------------------


def _shift(data: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """data − zero_point as int32, and the scale in a shape that broadcasts with it."""
    return data.astype(np.int32) - along_axis(zero_point, axis, data.ndim), along_axis(scale, axis, data.ndim)


def _sum_reference(sign: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    def run(
        lhs: np.ndarray,
        rhs: np.ndarray,
        lhs_scale: np.ndarray,
        lhs_zero_point: np.ndarray,
        rhs_scale: np.ndarray,
        rhs_zero_point: np.ndarray,
        output_scale: np.ndarray,
        output_zero_point: np.ndarray,
        *,
        lhs_axis: int,
        rhs_axis: int,
        rounding: str,
        compute_dtype: str,
        out_dtype: str,
        pot_scale: bool,
    ) -> np.ndarray:
        left, left_scale = _shift(lhs, lhs_scale, lhs_zero_point, lhs_axis)
        right, right_scale = _shift(rhs, rhs_scale, rhs_zero_point, rhs_axis)
        out_scale, zero_point = output_scale.reshape(()), output_zero_point.reshape(())
        scales = left_scale, right_scale, out_scale
        if rounding == "TONEAREST_EVEN":
            real = sign(
                left.astype(np.float32) * float_multiplier(left_scale, out_scale),
                right.astype(np.float32) * float_multiplier(right_scale, out_scale),
            )
            return reference.float_to_int(np.rint(real), zero_point, out_dtype)
        if rounding == "TFLITE":
            shifts = power_of_two_shifts(*map(float, scales)) if pot_scale else None
            if shifts is not None:
                parts = (
                    reference.rounding_divide_by_pot(x, np.int64(s)) for x, s in zip((left, right), shifts, strict=True)
                )
                return reference.saturate(sign(*parts), out_dtype)
        if rounding.startswith("TFLITE"):
            raw = _sum_tflite(sign, left, right, scales, ADD_LEFT_SHIFT[lhs.dtype.itemsize * 8], rounding)
            return reference.saturate(raw + zero_point, out_dtype)
        if compute_dtype == "int32":
            left_multiplier, right_multiplier, shift = xnnpack_multipliers(*scales)
            total = sign(left * np.int32(left_multiplier), right * np.int32(right_multiplier)).astype(np.int64)
            return reference.saturate(((total + (1 << shift >> 1)) >> shift) + zero_point, out_dtype)
        parts = (
            rescale(x, s, out_scale, zero_point, rounding, compute_dtype, "int32").astype(np.int64)
            for x, s in ((left, left_scale), (right, right_scale))
        )
        both = sign(*parts)  # contains the zero point twice after +, not at all after −
        return reference.saturate(both - sign(zero_point, zero_point) + zero_point, out_dtype)

    return run


def _sum_tflite(
    sign: Callable[[np.ndarray, np.ndarray], np.ndarray],
    left: np.ndarray,
    right: np.ndarray,
    scales: tuple[np.ndarray, np.ndarray, np.ndarray],
    left_shift: int,
    rounding: str,
) -> np.ndarray:
    """TFLite's AddElementwise and SubElementwise, without output offset and clamping."""
    left_multiplier, right_multiplier, out_multiplier = add_multipliers(*scales, left_shift)
    one = scaled_operand(left, left_multiplier, left_shift, rounding)
    two = scaled_operand(right, right_multiplier, left_shift, rounding)
    return reference.multiply_tflite(sign(one, two).astype(np.int32), out_multiplier)


def scaled_operand(x: np.ndarray, multiplier: FixedPoint, left_shift: int, rounding: str) -> np.ndarray:
    """x · 2^left_shift times a multiplier of `add_multipliers`, by the rounding TFLITE or TFLITE_SHIFTED; x: int32."""
    if rounding == "TFLITE":
        return reference.multiply_tflite(x << left_shift, multiplier)
    factor, exponent = without_shift(multiplier, left_shift)
    return reference.multiply_tflite(reference.shift_by(x, exponent), factor)


def _mul_reference(
    lhs: np.ndarray,
    rhs: np.ndarray,
    lhs_scale: np.ndarray,
    lhs_zero_point: np.ndarray,
    rhs_scale: np.ndarray,
    rhs_zero_point: np.ndarray,
    output_scale: np.ndarray,
    output_zero_point: np.ndarray,
    *,
    lhs_axis: int,
    rhs_axis: int,
    rounding: str,
    compute_dtype: str,
    out_dtype: str,
) -> np.ndarray:
    left, left_scale = _shift(lhs, lhs_scale, lhs_zero_point, lhs_axis)
    right, right_scale = _shift(rhs, rhs_scale, rhs_zero_point, rhs_axis)
    out_scale, zero_point = output_scale.reshape(()), output_zero_point.reshape(())
    product = left * right
    if rounding == "TFLITE":
        multiplier = mul_multiplier(left_scale, right_scale, out_scale)
        return reference.requantize_fixed(product, multiplier, zero_point, out_dtype, rounding)
    in_scale = np.asarray(left_scale * right_scale)
    if rounding == "TONEAREST_EVEN":
        return reference.requantize_float(product, float_multiplier(in_scale, out_scale), zero_point, out_dtype)
    return rescale(product, in_scale, out_scale, zero_point, rounding, compute_dtype, out_dtype)


ADD = define("add", ARGUMENTS, _infer_sum, _sum_reference(operator.add), TRAITS, "quantized sum")
SUBTRACT = define("subtract", ARGUMENTS, _infer_sum, _sum_reference(operator.sub), TRAITS, "quantized difference")
MUL = define("mul", ARGUMENTS, _infer_mul, _mul_reference, TRAITS, "quantized product")


# ---- builders ----------------------------------------------------------------------------------------------------


def _call(definition: OpDef, args: tuple[relax.Expr, ...], rounding: str, compute_dtype: str | None, **rest: object):
    check = check_rounding if definition is MUL else check_sum_rounding
    return definition.call(*args, rounding=rounding, compute_dtype=check(rounding, compute_dtype), **rest)


def _axes(lhs_axis: int, rhs_axis: int, args: tuple[Any, ...]) -> dict[str, int]:
    lhs, rhs, *qparams = args
    return {
        "lhs_axis": axis_in_use(lhs_axis, lhs, *qparams[:2]),
        "rhs_axis": axis_in_use(rhs_axis, rhs, *qparams[2:4]),
    }


def add(
    lhs: relax.Expr,
    rhs: relax.Expr,
    lhs_scale: relax.Expr,
    lhs_zero_point: relax.Expr,
    rhs_scale: relax.Expr,
    rhs_zero_point: relax.Expr,
    output_scale: relax.Expr,
    output_zero_point: relax.Expr,
    lhs_axis: int = -1,
    rhs_axis: int = -1,
    rounding: str = "TONEAREST_EVEN",
    compute_dtype: str | None = None,
    out_dtype: str = "int8",
    pot_scale: bool = False,
) -> relax.Call:
    """q = saturate(round(((lhs − z_l)·s_l + (rhs − z_r)·s_r) / s_o) + z_o); shapes broadcast as in NumPy.

    lhs, rhs: int8, uint8 or int16; scales float, zero points int32: scalars or vectors along `lhs_axis`, `rhs_axis`
    output_scale, output_zero_point: scalars
    rounding, and the q it gives:
        "TONEAREST_EVEN"  rint(f32(lhs − z_l)·f32(s_l/s_o) + f32(rhs − z_r)·f32(s_r/s_o)) + z_o, every float32 operation
                          rounded separately: no fused multiply-add
        "TFLITE"          the reference kernels of ADD and SUB: both operands shifted up by 20 bits (8-bit operands) or
                          15 (int16), scaled by s/(2·max(s_l, s_r)) and added in int32, then scaled to the output
        "TFLITE_SHIFTED"  ADD of int16 in LiteRT's optimized kernels: as TFLITE, but s/(2·max(s_l, s_r)) = m·2^e, where
                          ½ ≤ m < 1, shifts an operand by 15 + e bits, towards −∞ if they are negative, before the
                          product with m rounds
        "UPWARD", "TONEAREST"  Relay: each operand is requantized to int32 in the output's QParams, then they are added
        "UPWARD" in int32 XNNPACK's 8-bit addition: ((lhs − z_l)·m_l + (rhs − z_r)·m_r + half) >> shift with multipliers
                          of 21 bits, no float anywhere
    compute_dtype: int64, float32 or float64 for Relay's two roundings, int32 for XNNPACK's
    out_dtype: int8, uint8, int16 or int32
    pot_scale: TFLITE on int16 only: if all scales are powers of two, shift the finer operand and add with saturation
               (the option pot_scale_int16 of ADD and SUB)

    Raises ShapeError, QnnError. Source: Relay qnn.add; TFLite reference_ops::AddElementwise,
    optimized_integer_ops::AddElementwiseInt16.
    """
    args = (lhs, rhs, lhs_scale, lhs_zero_point, rhs_scale, rhs_zero_point, output_scale, output_zero_point)
    attributes = {**_axes(lhs_axis, rhs_axis, args), "out_dtype": out_dtype, "pot_scale": pot_scale}
    return _call(ADD, args, rounding, compute_dtype, **attributes)


def subtract(
    lhs: relax.Expr,
    rhs: relax.Expr,
    lhs_scale: relax.Expr,
    lhs_zero_point: relax.Expr,
    rhs_scale: relax.Expr,
    rhs_zero_point: relax.Expr,
    output_scale: relax.Expr,
    output_zero_point: relax.Expr,
    lhs_axis: int = -1,
    rhs_axis: int = -1,
    rounding: str = "TONEAREST_EVEN",
    compute_dtype: str | None = None,
    out_dtype: str = "int8",
    pot_scale: bool = False,
) -> relax.Call:
    """q = saturate(round(((lhs − z_l)·s_l − (rhs − z_r)·s_r) / s_o) + z_o); everything else as in `add`.

    Raises ShapeError, QnnError. Source: Relay qnn.subtract; TFLite SUB.
    """
    args = (lhs, rhs, lhs_scale, lhs_zero_point, rhs_scale, rhs_zero_point, output_scale, output_zero_point)
    attributes = {**_axes(lhs_axis, rhs_axis, args), "out_dtype": out_dtype, "pot_scale": pot_scale}
    return _call(SUBTRACT, args, rounding, compute_dtype, **attributes)


def mul(
    lhs: relax.Expr,
    rhs: relax.Expr,
    lhs_scale: relax.Expr,
    lhs_zero_point: relax.Expr,
    rhs_scale: relax.Expr,
    rhs_zero_point: relax.Expr,
    output_scale: relax.Expr,
    output_zero_point: relax.Expr,
    lhs_axis: int = -1,
    rhs_axis: int = -1,
    rounding: str = "TONEAREST_EVEN",
    compute_dtype: str | None = None,
    out_dtype: str = "int8",
) -> relax.Call:
    """q = saturate(round((lhs − z_l)·(rhs − z_r) · s_l·s_r / s_o) + z_o); shapes broadcast as in NumPy.

    The integer product is exact in int32, so int16 operands need zero points of 0. Arguments as in `add`.
    rounding: "TONEAREST_EVEN" multiplies f32(product) by f32(s_l·s_r/s_o); "TFLITE" uses the fixed-point multiplier of
    s_l·s_r/s_o computed in float32; "UPWARD" and "TONEAREST" requantize as Relay does.

    Raises ShapeError, QnnError. Source: Relay qnn.mul; TFLite reference_integer_ops::MulElementwise.
    """
    args = (lhs, rhs, lhs_scale, lhs_zero_point, rhs_scale, rhs_zero_point, output_scale, output_zero_point)
    attributes = {**_axes(lhs_axis, rhs_axis, args), "out_dtype": out_dtype}
    return _call(MUL, args, rounding, compute_dtype, **attributes)


export_to_script(add=add, subtract=subtract, mul=mul)

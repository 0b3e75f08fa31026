"""qnn.quantize, qnn.dequantize, qnn.requantize: between real values and integers, and from one QParams to another."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import check_requantize_rounding, fixed_point, float_multiplier, reference
from ..qparams import INTEGER_DTYPES
from .base import (
    Shape,
    TensorInfo,
    along_axis,
    axis_in_use,
    channel_length,
    check_dtype,
    check_out_dtype,
    check_qparams,
    define,
    export_to_script,
)
from .traits import Data, Kind, Output, Traits

# ---- quantize ----------------------------------------------------------------------------------------------------


def _infer_quantize(
    data: TensorInfo,
    scale: TensorInfo,
    zero_point: TensorInfo,
    *,
    axis: int,
    out_dtype: str,
    rounding: str,
    reciprocal: bool,
) -> tuple[Shape, str]:
    check_dtype(data, "float32", "float16", "float64")
    check_qparams(scale, zero_point, channel_length(data, axis))
    check_out_dtype(out_dtype, *INTEGER_DTYPES)
    if rounding not in ("TONEAREST_EVEN", "TONEAREST"):
        raise ShapeError(f"rounding must be TONEAREST_EVEN or TONEAREST, found {rounding}")
    return data.shape, out_dtype


def _reference_quantize(
    data: np.ndarray,
    scale: np.ndarray,
    zero_point: np.ndarray,
    *,
    axis: int,
    out_dtype: str,
    rounding: str,
    reciprocal: bool,
) -> np.ndarray:
    x = data.astype(np.float32) if data.dtype == np.float16 else data
    scale = along_axis(scale, axis, x.ndim).astype(x.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        real = x * (np.ones((), x.dtype) / scale) if reciprocal else x / scale
    rounded = reference.round_half_even(real) if rounding == "TONEAREST_EVEN" else reference.round_half_away(real)
    return reference.float_to_int(rounded, along_axis(zero_point, axis, x.ndim), out_dtype)


QUANTIZE = define(
    "quantize",
    "data scale zero_point",
    _infer_quantize,
    _reference_quantize,
    Traits(
        Kind.POINTWISE,
        data=(Data("data", axis="axis"),),
        output=Output("scale", "zero_point", "axis", offset=True),
        runtime_zero_point=True,
    ),
    "float -> integer",
)


def quantize(
    data: relax.Expr,
    scale: relax.Expr,
    zero_point: relax.Expr,
    axis: int = -1,
    out_dtype: str = "int8",
    rounding: str = "TONEAREST_EVEN",
    reciprocal: bool = False,
) -> relax.Call:
    """q = saturate(round(data / scale) + zero_point).

    data:       float tensor of any shape
    scale:      float, scalar or a vector along `axis`; real units per integer step
    zero_point: int32, scalar or a vector along `axis`, which scalars leave without meaning
    out_dtype:  int8, uint8, int16, uint16, int32 or int64
    rounding:   midpoints to even, "TONEAREST_EVEN" (ONNX, PyTorch, XNNPACK), or away from zero, "TONEAREST" (TFLite)
    reciprocal: multiply by f32(1 / scale) instead of dividing, as PyTorch and XNNPACK do

    NaN becomes the zero point; infinities saturate. Raises ShapeError. Source: Relay qnn.quantize, ONNX QuantizeLinear.
    """
    axis = axis_in_use(axis, data, scale, zero_point)
    return QUANTIZE.call(
        data, scale, zero_point, axis=axis, out_dtype=out_dtype, rounding=rounding, reciprocal=reciprocal
    )


# ---- dequantize --------------------------------------------------------------------------------------------------


def _infer_dequantize(
    data: TensorInfo, scale: TensorInfo, zero_point: TensorInfo, *, axis: int, out_dtype: str
) -> tuple[Shape, str]:
    check_dtype(data, *INTEGER_DTYPES)
    check_qparams(scale, zero_point, channel_length(data, axis))
    check_out_dtype(out_dtype, "float32", "float16")
    return data.shape, out_dtype


def _reference_dequantize(
    data: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, *, axis: int, out_dtype: str
) -> np.ndarray:
    wide = np.int64 if data.dtype == np.int64 else np.int32
    shifted = data.astype(wide) - along_axis(zero_point, axis, data.ndim).astype(wide)
    real = shifted.astype(np.float32) * along_axis(scale, axis, data.ndim).astype(np.float32)
    if out_dtype == "float16":
        real = np.clip(real, -65504.0, 65504.0)
    return np.asarray(real).astype(out_dtype)


DEQUANTIZE = define(
    "dequantize",
    "data scale zero_point",
    _infer_dequantize,
    _reference_dequantize,
    Traits(Kind.POINTWISE, data=(Data("data", "scale", "zero_point", "axis"),), shift_invariant=True),
    "integer -> float",
)


def dequantize(
    data: relax.Expr, scale: relax.Expr, zero_point: relax.Expr, axis: int = -1, out_dtype: str = "float32"
) -> relax.Call:
    """x = f32(data − zero_point) · scale; float16 results saturate at ±65504.

    data: integer tensor; scale (float) and zero_point (int32): scalars or vectors along `axis`.
    Raises ShapeError. Source: Relay qnn.dequantize, ONNX DequantizeLinear.
    """
    axis = axis_in_use(axis, data, scale, zero_point)
    return DEQUANTIZE.call(data, scale, zero_point, axis=axis, out_dtype=out_dtype)


# ---- requantize --------------------------------------------------------------------------------------------------


def _infer_requantize(
    data: TensorInfo,
    input_scale: TensorInfo,
    input_zero_point: TensorInfo,
    output_scale: TensorInfo,
    output_zero_point: TensorInfo,
    *,
    axis: int,
    rounding: str,
    compute_dtype: str,
    out_dtype: str,
) -> tuple[Shape, str]:
    check_dtype(data, *INTEGER_DTYPES)
    check_qparams(input_scale, input_zero_point, channel_length(data, axis))
    check_qparams(output_scale, output_zero_point, channel_length(data, axis))
    check_out_dtype(out_dtype, *INTEGER_DTYPES)
    check_requantize_rounding(rounding, compute_dtype)
    if data.dtype == "int64" and rounding in ("TFLITE_UPWARD", "UPWARD", "TONEAREST") and compute_dtype == "int64":
        raise ShapeError(f"rounding {rounding} in int64 takes data of at most 32 bits, found int64")
    return data.shape, out_dtype


def requantize_array(
    data: np.ndarray,
    input_scale: np.ndarray,
    input_zero_point: np.ndarray,
    output_scale: np.ndarray,
    output_zero_point: np.ndarray,
    *,
    axis: int = -1,
    rounding: str = "TONEAREST_EVEN",
    compute_dtype: str | None = None,
    out_dtype: str = "int8",
) -> np.ndarray:
    """The reference of `qnn.requantize`, for other references and for constants at import time."""
    wide = np.int64 if data.dtype == np.int64 else np.int32
    in_scale, out_scale = along_axis(input_scale, axis, data.ndim), along_axis(output_scale, axis, data.ndim)
    x = data.astype(wide) - along_axis(input_zero_point, axis, data.ndim).astype(wide)
    zero_point = along_axis(output_zero_point, axis, data.ndim)
    return rescale(x, in_scale, out_scale, zero_point, rounding, compute_dtype, out_dtype)


def rescale(
    x: np.ndarray,
    in_scale: np.ndarray,
    out_scale: np.ndarray,
    zero_point: np.ndarray,
    rounding: str,
    compute_dtype: str | None,
    out_dtype: str,
) -> np.ndarray:
    """saturate(round(x · in_scale / out_scale) + zero_point) for int32 or int64 x; all arguments broadcast."""
    compute_dtype = check_requantize_rounding(rounding, compute_dtype)
    if in_scale.ndim == 0 and out_scale.ndim == 0 and in_scale == out_scale:
        return reference.saturate(x.astype(np.int64) + zero_point, out_dtype)
    if rounding == "TONEAREST_EVEN":
        return reference.requantize_float(x, float_multiplier(in_scale, out_scale), zero_point, out_dtype)
    ratio = in_scale.astype(np.float64) / out_scale.astype(np.float64)
    if compute_dtype == "int64":
        return reference.requantize_fixed(
            x, fixed_point(ratio, str(x.dtype), rounding), zero_point, out_dtype, rounding
        )
    return reference.requantize_float_relay(x, ratio.astype(compute_dtype), zero_point, out_dtype, rounding)


REQUANTIZE = define(
    "requantize",
    "data input_scale input_zero_point output_scale output_zero_point",
    _infer_requantize,
    requantize_array,
    Traits(
        Kind.POINTWISE,
        data=(Data("data", "input_scale", "input_zero_point", "axis"),),
        output=Output("output_scale", "output_zero_point", "axis", offset=True),
        shift_invariant=True,
    ),
    "integer -> integer with other QParams",
)


def requantize(
    data: relax.Expr,
    input_scale: relax.Expr,
    input_zero_point: relax.Expr,
    output_scale: relax.Expr,
    output_zero_point: relax.Expr,
    axis: int = -1,
    rounding: str = "TONEAREST_EVEN",
    compute_dtype: str | None = None,
    out_dtype: str = "int8",
) -> relax.Call:
    """q' = saturate(round((data − input_zero_point) · input_scale / output_scale) + output_zero_point).

    data:      integer tensor, usually int32 accumulators
    scales:    float32 or float64, zero points int32: scalars or vectors along `axis`. The quotient is taken in the
               scales' own precision for TONEAREST_EVEN, in float64 otherwise
    rounding:  "TONEAREST_EVEN" (float32: PyTorch, ONNX Runtime, XNNPACK), "TFLITE" (gemmlowp's double rounding; int64
               data: the single rounding of 16-bit models), "TFLITE_UPWARD" (the double rounding with midpoints up
               both times: LiteRT's optimized kernels, for data of at most 32 bits), "UPWARD" and "TONEAREST" (Relay)
    compute_dtype: int64, float32 or float64 for Relay's two; int64, or float64 (midpoints away from zero, as TFLite's
               FULLY_CONNECTED), for TFLITE; int64 for TFLITE_UPWARD
    out_dtype: int8, uint8, int16, uint16, int32 or int64

    Equal per-tensor scales skip the multiplication. Raises ShapeError, QnnError (unknown rounding).
    Source: Relay qnn.requantize; TFLite MultiplyByQuantizedMultiplier.
    """
    qparams = (input_scale, input_zero_point, output_scale, output_zero_point)
    return REQUANTIZE.call(
        data,
        *qparams,
        axis=axis_in_use(axis, data, *qparams),
        rounding=rounding,
        compute_dtype=check_requantize_rounding(rounding, compute_dtype),
        out_dtype=out_dtype,
    )


export_to_script(quantize=quantize, dequantize=dequantize, requantize=requantize)

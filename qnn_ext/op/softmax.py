"""qnn.softmax and qnn.log_softmax: a table of exponentials and integer sums, see numerics/softmax.py."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import QnnError, ShapeError
from ..numerics import softmax as rows
from .base import (
    Shape,
    TensorInfo,
    check_dtype,
    check_out_dtype,
    check_qparams,
    define,
    export_to_script,
    normalize_axis,
)
from .traits import Data, Kind, Output, Traits

ARGUMENTS = "data input_scale input_zero_point output_scale output_zero_point"
TRAITS = Traits(
    Kind.ROWS,
    data=(Data("data", "input_scale", "input_zero_point"),),
    output=Output("output_scale", "output_zero_point"),
    axis="axis",
)
DTYPES = ("int8", "uint8", "int16")
ROUNDINGS = ("TONEAREST_EVEN", "TFLITE")
EIGHT_BIT_ROUNDINGS = ("TONEAREST", "UPWARD", "ONNXRUNTIME")
SOFTMAX_ROUNDINGS = (*ROUNDINGS, *EIGHT_BIT_ROUNDINGS)


def _infer(
    data: TensorInfo,
    input_scale: TensorInfo,
    input_zero_point: TensorInfo,
    output_scale: TensorInfo,
    output_zero_point: TensorInfo,
    *,
    axis: int,
    rounding: str,
    out_dtype: str,
    roundings: tuple[str, ...] = ROUNDINGS,
) -> tuple[Shape, str]:
    check_dtype(data, *DTYPES)
    check_qparams(input_scale, input_zero_point)
    check_qparams(output_scale, output_zero_point)
    check_out_dtype(out_dtype, *DTYPES)
    normalize_axis(axis, data.ndim)
    if data.ndim == 0:
        raise ShapeError("data must have an axis to normalize over, found shape ()")
    if rounding not in roundings:
        raise QnnError(f"rounding must be one of {', '.join(roundings)}, found {rounding!r}")
    return data.shape, out_dtype


def _check_output(scale: TensorInfo, zero_point: TensorInfo, expected: tuple[float, int]) -> None:
    """TFLite writes softmax and log_softmax only with fixed QParams."""
    found_scale = expected[0] if scale.value is None else float(scale.value.reshape(()))
    found_zero = expected[1] if zero_point.value is None else int(zero_point.value.reshape(()))
    if abs(found_scale / expected[0] - 1) > 1e-3 or found_zero != expected[1]:
        raise ShapeError(
            f"rounding TFLITE writes scale {expected[0]} and zero point {expected[1]}, "
            f"found {found_scale} and {found_zero}"
        )


# ---- softmax -----------------------------------------------------------------------------------------------------


def _tflite_output(data_dtype: str, out_dtype: str) -> tuple[float, int]:
    """Scale and zero point of TFLite's results. Raises ShapeError for combinations it does not have."""
    if data_dtype == "int16":
        if out_dtype != "int16":
            raise ShapeError(f"rounding TFLITE supports only int16 to int16, found {out_dtype}")
        return 2.0**-15, 0
    if out_dtype not in (data_dtype, "int16"):
        raise ShapeError(f"rounding TFLITE supports only {data_dtype} to {data_dtype} or int16, found {out_dtype}")
    info = np.iinfo(out_dtype)
    return 2.0**-info.bits, int(info.min)


def _infer_softmax(*args: TensorInfo, beta: float, rounding: str, out_dtype: str, axis: int) -> tuple[Shape, str]:
    result = _infer(*args, axis=axis, rounding=rounding, out_dtype=out_dtype, roundings=SOFTMAX_ROUNDINGS)
    if not beta > 0:
        raise ShapeError(f"beta must be positive, found {beta}")
    if rounding == "ONNXRUNTIME" and "int16" in (args[0].dtype, out_dtype):
        raise ShapeError(f"rounding ONNXRUNTIME supports only 8 bits to 8 bits, found {args[0].dtype} to {out_dtype}")
    if rounding in EIGHT_BIT_ROUNDINGS and args[0].dtype == "int16":
        raise ShapeError(f"rounding {rounding} supports only 8-bit data, found int16")
    if rounding == "TFLITE":
        _check_output(args[3], args[4], _tflite_output(args[0].dtype, out_dtype))
    return result


def _reference_softmax(
    data: np.ndarray,
    input_scale: np.ndarray,
    input_zero_point: np.ndarray,
    output_scale: np.ndarray,
    output_zero_point: np.ndarray,
    *,
    axis: int,
    beta: float,
    rounding: str,
    out_dtype: str,
) -> np.ndarray:
    x = np.moveaxis(data, axis, -1)
    scale = float(input_scale.reshape(()))
    if rounding == "ONNXRUNTIME":
        exps = rows.onnxruntime_exp_table(scale * beta, x.shape[-1])[rows.steps_below_max(x)]
        out = rows.onnxruntime_row(exps, output_scale.reshape(()), output_zero_point.reshape(()), out_dtype)
        return np.moveaxis(out, -1, axis)
    if rounding in EIGHT_BIT_ROUNDINGS:
        exps = rows.optimized_exp_table(scale, beta)[rows.steps_below_max(x)]
        out = rows.optimized_row(exps, output_scale.reshape(()), output_zero_point.reshape(()), out_dtype, rounding)
        return np.moveaxis(out, -1, axis)
    exps = rows.exp_table(str(data.dtype), scale, beta, rounding)[rows.steps_below_max(x)]
    if rounding == "TONEAREST_EVEN":
        out = rows.float_row(exps, output_scale.reshape(()), output_zero_point.reshape(()), out_dtype)
    elif data.dtype == np.int16:
        out = rows.tflite_row_16bit(exps)
    else:
        out = rows.tflite_row(exps, out_dtype)
    return np.moveaxis(out, -1, axis)


SOFTMAX = define("softmax", ARGUMENTS, _infer_softmax, _reference_softmax, TRAITS, "quantized softmax")


def softmax(
    data: relax.Expr,
    input_scale: relax.Expr,
    input_zero_point: relax.Expr,
    output_scale: relax.Expr,
    output_zero_point: relax.Expr,
    axis: int = -1,
    beta: float = 1.0,
    rounding: str = "TONEAREST_EVEN",
    out_dtype: str = "int8",
) -> relax.Call:
    """q = saturate(round(p / s_out) + z_out), p = e^(−β·s_in·d) / Σ e^(−β·s_in·d) along `axis`, d = max(data) − data.

    data: int8, uint8 or int16; scales float, zero points int32: scalars. The input's zero point cancels out
    beta: factor of the exponent, > 0
    rounding:
        "TONEAREST_EVEN"  e = rint(2²³·e^(−β·s_in·d)) as integers, then rint(f32(e) · f32(1 / (f32(Σe)·s_out))) + z_out:
                          float32 accuracy, and the same result on every machine and in any order of summation
        "TFLITE"          LiteRT's reference kernels: gemmlowp fixed point for 8-bit data, interpolated samples for
                          int16; writes scale 1/256 and the lowest value as zero point (int16 data: 1/32768 and 0)
        "TONEAREST", "UPWARD"
                          LiteRT's optimized kernels: round(e · (1 / (Σe·s_out))) + z_out, e and Σ in float32, one by
                          one; midpoints away from zero, or ⌊x + ½⌋ in float32 as for uint8 results; 8-bit data
        "ONNXRUNTIME"     QLinearSoftmax: rint(e·⌊1/s_out⌋ / Σe) + z_out in float64 (ONNX Runtime before 1.28: in
                          float32), e = e^(c − β·s_in·d) and Σ in float32, one by one; 8-bit data and results
    out_dtype: int8, uint8 or int16

    Raises ShapeError, QnnError. Source: Relay qnn.softmax; TFLite reference_ops::Softmax, SoftmaxInt16; ONNX Runtime
    com.microsoft.QLinearSoftmax.
    """
    return SOFTMAX.call(
        data,
        input_scale,
        input_zero_point,
        output_scale,
        output_zero_point,
        axis=axis,
        beta=float(beta),
        rounding=rounding,
        out_dtype=out_dtype,
    )


# ---- log_softmax -------------------------------------------------------------------------------------------------


def _infer_log_softmax(*args: TensorInfo, rounding: str, out_dtype: str, axis: int) -> tuple[Shape, str]:
    result = _infer(*args, axis=axis, rounding=rounding, out_dtype=out_dtype)
    if rounding == "TFLITE":
        if args[0].dtype == "int16" or out_dtype != args[0].dtype:
            raise ShapeError(
                f"rounding TFLITE supports only int8 to int8 and uint8 to uint8, found {args[0].dtype} to {out_dtype}"
            )
        _check_output(args[3], args[4], (1 / 16, int(np.iinfo(out_dtype).max)))
    return result


def _reference_log_softmax(
    data: np.ndarray,
    input_scale: np.ndarray,
    input_zero_point: np.ndarray,
    output_scale: np.ndarray,
    output_zero_point: np.ndarray,
    *,
    axis: int,
    rounding: str,
    out_dtype: str,
) -> np.ndarray:
    x = np.moveaxis(data, axis, -1)
    steps, scale = rows.steps_below_max(x), float(input_scale.reshape(()))
    if rounding == "TFLITE":
        exps = rows.exp_table(str(data.dtype), scale, 1.0, rounding)[steps]
        out = rows.tflite_log_row(steps, exps, rows.diff_scale(scale, 1.0), out_dtype)
    else:
        exps = rows.optimized_exp_table(scale, 1.0, 1 << np.iinfo(data.dtype).bits)[steps]
        out = rows.optimized_log_row(x, exps, scale, output_scale.reshape(()), output_zero_point.reshape(()), out_dtype)
    return np.moveaxis(out, -1, axis)


LOG_SOFTMAX = define(
    "log_softmax", ARGUMENTS, _infer_log_softmax, _reference_log_softmax, TRAITS, "quantized log softmax"
)


def log_softmax(
    data: relax.Expr,
    input_scale: relax.Expr,
    input_zero_point: relax.Expr,
    output_scale: relax.Expr,
    output_zero_point: relax.Expr,
    axis: int = -1,
    rounding: str = "TONEAREST_EVEN",
    out_dtype: str = "int8",
) -> relax.Call:
    """q = saturate(round((−d·s_in − ln Σ e^(−d·s_in)) / s_out) + z_out) along `axis`, d = max(data) − data.

    data: int8, uint8 or int16; scales float, zero points int32: scalars
    rounding:
        "TONEAREST_EVEN"  LiteRT's optimized kernel: rint(f32(s_in / s_out) · x − (s_in · max + ln Σe) / s_out) + z_out
                          in float32, Σe added up one by one
        "TFLITE"          LiteRT's reference kernel for 8-bit data, which writes scale 1/16 and the highest value as
                          zero point
    out_dtype: int8, uint8 or int16

    Raises ShapeError, QnnError. Source: TFLite reference_integer_ops::LogSoftmax, optimized_ops::LogSoftmax.
    """
    return LOG_SOFTMAX.call(
        data,
        input_scale,
        input_zero_point,
        output_scale,
        output_zero_point,
        axis=axis,
        rounding=rounding,
        out_dtype=out_dtype,
    )


export_to_script(softmax=softmax, log_softmax=log_softmax)

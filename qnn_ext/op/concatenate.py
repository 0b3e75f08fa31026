"""qnn.concatenate: join quantized tensors, each with its own QParams, into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import check_rounding, reference
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
from .requantize import rescale
from .traits import Kind, Traits

DTYPES = ("int8", "uint8", "int16", "int32")


def split_arguments(arguments: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any], Any, Any]:
    """data, input scales, input zero points, output scale and output zero point of the flat argument list."""
    count = (len(arguments) - 2) // 3
    if count < 1 or len(arguments) != 3 * count + 2:
        raise ShapeError(
            "it takes n tensors, n input scales, n input zero points, an output scale and an output zero point, "
            f"found {len(arguments)} arguments"
        )
    return arguments[:count], arguments[count : 2 * count], arguments[2 * count : 3 * count], *arguments[3 * count :]


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def _infer(*arguments: TensorInfo, axis: int, rounding: str, compute_dtype: str, out_dtype: str) -> tuple[Shape, str]:
    data, scales, zero_points, output_scale, output_zero_point = split_arguments(arguments)
    first = data[0]
    axis = normalize_axis(axis, first.ndim)
    for info, scale, zero_point in zip(data, scales, zero_points, strict=True):
        check_dtype(info, *DTYPES)
        check_qparams(scale, zero_point)
        if info.ndim != first.ndim or _without(info.shape, axis) != _without(first.shape, axis):
            raise ShapeError(f"shapes {first.shape} and {info.shape} cannot be concatenated along axis {axis}")
    if first.ndim == 0:
        raise ShapeError("scalars cannot be concatenated")
    check_qparams(output_scale, output_zero_point)
    check_out_dtype(out_dtype, *DTYPES)
    check_rounding(rounding, compute_dtype)
    length = sum((info.shape[axis] for info in data[1:]), first.shape[axis])
    return (*first.shape[:axis], length, *first.shape[axis + 1 :]), out_dtype


def rescale_tflite(
    data: np.ndarray, in_scale: np.ndarray, in_zero: np.ndarray, out_scale: np.ndarray, out_zero: np.ndarray, dtype: str
) -> np.ndarray:
    """TFLite's ConcatenationWithScaling: f32(q·m + b), rounded half away from zero; m = s_i·f32(1/s_o), b = −z_i·m."""
    one = np.float32(1)
    multiplier = in_scale.astype(np.float32) * (one / out_scale.astype(np.float32))
    real = data.astype(np.float32) * multiplier + (-in_zero).astype(np.float32) * multiplier
    return reference.float_to_int(reference.round_half_away(real), out_zero, dtype)


def _reference(*arguments: np.ndarray, axis: int, rounding: str, compute_dtype: str, out_dtype: str) -> np.ndarray:
    data, scales, zero_points, out_scale, out_zero = split_arguments([*arguments])
    out_scale, out_zero = out_scale.reshape(()), out_zero.reshape(())
    parts = []
    for x, scale, zero in zip(data, (s.reshape(()) for s in scales), (z.reshape(()) for z in zero_points), strict=True):
        if scale == out_scale and zero == out_zero:
            parts.append(reference.saturate(x, out_dtype))
        elif rounding == "TFLITE":
            parts.append(rescale_tflite(x, scale, zero, out_scale, out_zero, out_dtype))
        else:
            shifted = x.astype(np.int32) - zero
            parts.append(rescale(shifted, scale, out_scale, out_zero, rounding, compute_dtype, out_dtype))
    return np.concatenate(parts, axis)


CONCATENATE = define("concatenate", "*arguments", _infer, _reference, Traits(Kind.JOIN), "quantized concatenation")


def concatenate(
    *arguments: relax.Expr | Sequence[relax.Expr],
    axis: int = -1,
    rounding: str = "TONEAREST_EVEN",
    compute_dtype: str | None = None,
    out_dtype: str = "int8",
) -> relax.Call:
    """Every data[i], requantized to the output's QParams, joined along `axis`.

    arguments: n data tensors, n input scales, n input zero points, output scale, output zero point; flat, or with the
               first three as lists: concatenate([a, b], [s_a, s_b], [z_a, z_b], s_o, z_o)
               data int8, uint8, int16 or int32, with equal shapes except along `axis`; scales and zero points scalars
    rounding:  for inputs whose QParams differ from the output's, as in `requantize`; but "TFLITE" is that of TFLite's
               CONCATENATION: f32(q·m) + f32(−z_i·m), rounded half away from zero, m = f32(s_i · f32(1/s_o))
    compute_dtype: int64, float32 or float64 for "UPWARD" and "TONEAREST"
    out_dtype: int8, uint8, int16 or int32

    Inputs with the output's QParams are copied. Raises ShapeError, QnnError.
    Source: Relay qnn.concatenate; TFLite reference_ops::ConcatenationWithScaling.
    """
    flat: list[Any] = []
    for argument in arguments:
        flat += argument if isinstance(argument, (list, tuple)) else [argument]
    compute_dtype = check_rounding(rounding, compute_dtype)
    return CONCATENATE.call(*flat, axis=axis, rounding=rounding, compute_dtype=compute_dtype, out_dtype=out_dtype)


export_to_script(concatenate=concatenate)

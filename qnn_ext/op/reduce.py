"""qnn.mean, qnn.sum, qnn.max, qnn.min: quantized tensors reduced over some of their axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import check_rounding, reference
from ..numerics.multiplier import mean_multiplier
from .base import (
    OPS,
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
from .traits import Data, Kind, Output, Traits

DTYPES = ("int8", "uint8", "int16")
ARGUMENTS = "data input_scale input_zero_point output_scale output_zero_point"

SUMS = Traits(
    Kind.SUM,
    data=(Data("data", "input_scale", "input_zero_point"),),
    output=Output("output_scale", "output_zero_point", offset=True),
    shift_invariant=True,
    reduces=True,
)
EXTREMES = replace(SUMS, kind=Kind.SELECTION)


def normalize_axes(axis: Sequence[int], ndim: int) -> tuple[int, ...]:
    """The axes in ascending order, without repetitions; all of them for an empty list."""
    return tuple(sorted({normalize_axis(a, ndim) for a in axis})) if axis else tuple(range(ndim))


def _infer(
    data: TensorInfo,
    input_scale: TensorInfo,
    input_zero_point: TensorInfo,
    output_scale: TensorInfo,
    output_zero_point: TensorInfo,
    *,
    axis: tuple[int, ...],
    keepdims: bool,
    rounding: str,
    compute_dtype: str,
    out_dtype: str,
) -> tuple[Shape, str]:
    check_dtype(data, *DTYPES)
    check_qparams(input_scale, input_zero_point)
    check_qparams(output_scale, output_zero_point)
    check_out_dtype(out_dtype, *DTYPES, "int32")
    check_rounding(rounding, compute_dtype)
    axes = normalize_axes(axis, data.ndim)
    if any(data.shape[a] == 0 for a in axes):
        raise ShapeError(f"data {data.shape} has nothing to reduce along axes {axes}")
    if keepdims:
        return tuple(1 if i in axes else dim for i, dim in enumerate(data.shape)), out_dtype
    return tuple(dim for i, dim in enumerate(data.shape) if i not in axes), out_dtype


# ---- references --------------------------------------------------------------------------------------------------


def _mean(
    total: np.ndarray,
    count: int,
    scales: tuple[np.ndarray, np.ndarray],
    zero_point: np.ndarray,
    rounding: str,
    compute_dtype: str,
    out_dtype: str,
) -> np.ndarray:
    in_scale, out_scale = scales
    if rounding == "TFLITE":
        multiplier = mean_multiplier(float(in_scale), float(out_scale), count)
        return reference.requantize_fixed(total, multiplier, zero_point, out_dtype, rounding)
    if rounding == "TONEAREST_EVEN" and in_scale == out_scale:
        real = total.astype(np.float32) / np.float32(count)
        return reference.float_to_int(np.rint(real), zero_point, out_dtype)
    divided = np.asarray(out_scale * out_scale.dtype.type(count))
    return rescale(total, in_scale, divided, zero_point, rounding, compute_dtype, out_dtype)


def _reference_sum(divide: bool) -> Callable[..., np.ndarray]:
    def run(
        data: np.ndarray,
        input_scale: np.ndarray,
        input_zero_point: np.ndarray,
        output_scale: np.ndarray,
        output_zero_point: np.ndarray,
        *,
        axis: tuple[int, ...],
        keepdims: bool,
        rounding: str,
        compute_dtype: str,
        out_dtype: str,
    ) -> np.ndarray:
        axes = normalize_axes(axis, data.ndim)
        shifted = data.astype(np.int64) - input_zero_point.reshape(())
        total = np.asarray(shifted.sum(axis=axes, keepdims=keepdims)).astype(np.int32)
        scales = input_scale.reshape(()), output_scale.reshape(())
        zero_point = output_zero_point.reshape(())
        if divide:
            count = int(np.prod([data.shape[a] for a in axes], dtype=np.int64))
            out = _mean(total, count, scales, zero_point, rounding, compute_dtype, out_dtype)
        else:
            out = rescale(total, *scales, zero_point, rounding, compute_dtype, out_dtype)
        return np.asarray(out)

    return run


def _reference_extreme(reduce: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def run(
        data: np.ndarray,
        input_scale: np.ndarray,
        input_zero_point: np.ndarray,
        output_scale: np.ndarray,
        output_zero_point: np.ndarray,
        *,
        axis: tuple[int, ...],
        keepdims: bool,
        rounding: str,
        compute_dtype: str,
        out_dtype: str,
    ) -> np.ndarray:
        extreme = np.asarray(reduce(data, axis=normalize_axes(axis, data.ndim), keepdims=keepdims))
        shifted = extreme.astype(np.int32) - input_zero_point.reshape(())
        scales = input_scale.reshape(()), output_scale.reshape(())
        return np.asarray(rescale(shifted, *scales, output_zero_point.reshape(()), rounding, compute_dtype, out_dtype))

    return run


define("mean", ARGUMENTS, _infer, _reference_sum(divide=True), SUMS, "quantized mean")
define("sum", ARGUMENTS, _infer, _reference_sum(divide=False), SUMS, "quantized sum over axes")
define("max", ARGUMENTS, _infer, _reference_extreme(np.max), EXTREMES, "quantized maximum over axes")
define("min", ARGUMENTS, _infer, _reference_extreme(np.min), EXTREMES, "quantized minimum over axes")


# ---- builders ----------------------------------------------------------------------------------------------------

DOCSTRING = """q = saturate(round({formula}) + z_out) over the n elements along `axis`.

data: int8, uint8 or int16; scales float, zero points int32: scalars. Sums are taken in int32 and wrap
axis: an int or a list of ints; none or an empty list stands for all axes
keepdims: leave the reduced axes as 1
{rounding}
compute_dtype: int64, float32 or float64 for Relay's "UPWARD" and "TONEAREST"
out_dtype: int8, uint8, int16 or int32

Raises ShapeError, QnnError. Source: {source}.
"""
AS_REQUANTIZE = "rounding: of the rescaling, as in `requantize`; none happens when input and output have equal QParams"
FORMULAS = {
    "mean": (
        "Σ (data − z_in) · s_in / (n·s_out)",
        'rounding: as in `requantize`, but "TONEAREST_EVEN" is rint(f32(Σ) · f32(s_in / (s_out·n))), and for equal\n'
        '    scales rint(f32(Σ) / f32(n)); "TFLITE" folds 1/n into the fixed-point multiplier as MEAN does',
        "TFLite reference_ops::QuantizedMeanOrSum",
    ),
    "sum": (
        "Σ (data − z_in) · s_in / s_out",
        'rounding: as in `requantize`; "TFLITE" as SUM',
        "TFLite reference_ops::QuantizedMeanOrSum",
    ),
    "max": ("(max data − z_in) · s_in / s_out", AS_REQUANTIZE, "TFLite REDUCE_MAX"),
    "min": ("(min data − z_in) · s_in / s_out", AS_REQUANTIZE, "TFLite REDUCE_MIN"),
}


def _builder(name: str) -> Callable[..., relax.Call]:
    def build(
        data: relax.Expr,
        input_scale: relax.Expr,
        input_zero_point: relax.Expr,
        output_scale: relax.Expr,
        output_zero_point: relax.Expr,
        axis: int | Sequence[int] | None = None,
        keepdims: bool = False,
        rounding: str = "TONEAREST_EVEN",
        compute_dtype: str | None = None,
        out_dtype: str = "int8",
    ) -> relax.Call:
        axes = [axis] if isinstance(axis, int) else list(axis or ())
        return OPS[name].call(
            data,
            input_scale,
            input_zero_point,
            output_scale,
            output_zero_point,
            axis=axes,
            keepdims=keepdims,
            rounding=rounding,
            compute_dtype=check_rounding(rounding, compute_dtype),
            out_dtype=out_dtype,
        )

    formula, rounding, source = FORMULAS[name]
    build.__name__ = build.__qualname__ = name
    build.__doc__ = DOCSTRING.format(formula=formula, rounding=rounding, source=source)
    return build


mean, sum, max, min = (_builder(name) for name in ("mean", "sum", "max", "min"))

export_to_script(mean=mean, sum=sum, max=max, min=min)

"""qnn.avg_pool2d: averages over windows, in integers up to the final rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import check_rounding, reference
from ..numerics.windows import window_counts
from .accumulate import DATA_DTYPES, check_window, conv_output_size, windows
from .base import (
    Shape,
    TensorInfo,
    check_dtype,
    check_out_dtype,
    check_qparams,
    check_rank,
    define,
    export_to_script,
)
from .conv2d import DATA_LAYOUTS, permutation
from .requantize import rescale
from .traits import Data, Kind, Output, Traits


def pool_output_size(size: Any, extent: int, stride: int, low: int, high: int, ceil_mode: bool) -> Any:
    """Number of windows of `extent` cells along a dimension padded by low and high.

    With ceil_mode the last window may extend past the end, but must start within the data or the low padding (PyTorch,
    ONNX).
    """
    if not ceil_mode:
        return conv_output_size(size, extent, stride, low + high, 1)
    if not isinstance(size, int):
        raise ShapeError("ceil_mode needs the height and width to be known")
    count = conv_output_size(size + stride - 1, extent, stride, low + high, 1)
    return count - 1 if (count - 1) * stride >= size + low else count


def _infer(
    data: TensorInfo,
    input_scale: TensorInfo,
    input_zero_point: TensorInfo,
    output_scale: TensorInfo,
    output_zero_point: TensorInfo,
    *,
    pool_size: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    ceil_mode: bool,
    count_include_pad: bool,
    reciprocal: bool,
    layout: str,
    rounding: str,
    compute_dtype: str,
    out_dtype: str,
) -> tuple[Shape, str]:
    check_dtype(data, *DATA_DTYPES)
    check_rank(data, 4)
    check_window(strides, padding, dilation)
    check_qparams(input_scale, input_zero_point)
    check_qparams(output_scale, output_zero_point)
    check_rounding(rounding, compute_dtype)
    check_out_dtype(out_dtype, *DATA_DTYPES)
    if layout not in DATA_LAYOUTS:
        raise ShapeError(f"layout must be one of {DATA_LAYOUTS}, found {layout}")
    if len(pool_size) != 2 or min(pool_size) < 1:
        raise ShapeError(f"pool_size must be 2 ints ≥ 1, found {tuple(pool_size)}")
    extent = [(k - 1) * d + 1 for k, d in zip(pool_size, dilation, strict=True)]
    if not count_include_pad and any(p >= extent[i % 2] for i, p in enumerate(padding)):
        raise ShapeError(f"padding {tuple(padding)} would leave some windows {tuple(pool_size)} without data")
    if rounding == "TFLITE":
        same = [(input_scale, output_scale), (input_zero_point, output_zero_point)]
        if any(a.value is not None and b.value is not None and a.value.item() != b.value.item() for a, b in same):
            raise ShapeError(
                "rounding TFLITE averages the integers as they are: input and output must have equal QParams"
            )
    n, h, w, c = (data.shape[axis] for axis in permutation(layout, "NHWC"))
    oh = pool_output_size(h, extent[0], strides[0], padding[0], padding[2], ceil_mode)
    ow = pool_output_size(w, extent[1], strides[1], padding[1], padding[3], ceil_mode)
    shape = dict(zip("NHWC", (n, oh, ow, c), strict=True))
    return tuple(shape[axis] for axis in layout), out_dtype


def _window_sums(
    data: np.ndarray,
    pool_size: tuple[int, int],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    ceil_mode: bool,
) -> np.ndarray:
    """Sums over all windows of NHWC integers; cells outside count as 0."""
    extent = [(k - 1) * d + 1 for k, d in zip(pool_size, dilation, strict=True)]
    top, left, bottom, right = padding
    oh = pool_output_size(data.shape[1], extent[0], strides[0], top, bottom, ceil_mode)
    ow = pool_output_size(data.shape[2], extent[1], strides[1], left, right, ceil_mode)
    bottom = max(bottom, (oh - 1) * strides[0] + extent[0] - data.shape[1] - top)
    right = max(right, (ow - 1) * strides[1] + extent[1] - data.shape[2] - left)
    view = windows(data, pool_size, strides, (top, left, bottom, right), dilation, 0)
    return view[:, :oh, :ow].sum(axis=(4, 5), dtype=np.int64)


def _reference(
    data: np.ndarray,
    input_scale: np.ndarray,
    input_zero_point: np.ndarray,
    output_scale: np.ndarray,
    output_zero_point: np.ndarray,
    *,
    pool_size: tuple[int, int],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    ceil_mode: bool,
    count_include_pad: bool,
    reciprocal: bool,
    layout: str,
    rounding: str,
    compute_dtype: str,
    out_dtype: str,
) -> np.ndarray:
    in_scale, out_scale = input_scale.reshape(()), output_scale.reshape(())
    in_zero, out_zero = input_zero_point.reshape(()), output_zero_point.reshape(())
    x = data.transpose(permutation(layout, "NHWC")).astype(np.int64) - in_zero
    window = (pool_size, strides, padding, dilation, ceil_mode)
    total = _window_sums(x, *window)
    count = window_counts(x.shape[1:3], total.shape[1:3], pool_size, strides, padding, dilation, count_include_pad)
    if rounding == "TFLITE":
        out = reference.saturate(divide_half_away(total + in_zero * count, count), out_dtype)
    elif rounding == "TONEAREST_EVEN" and in_scale == out_scale and not reciprocal:
        real = total.astype(np.float32) / count.astype(np.float32)
        out = reference.float_to_int(np.rint(real), out_zero, out_dtype)
    else:
        scale = out_scale * count.astype(out_scale.dtype)
        out = rescale(total.astype(np.int32), in_scale, scale, out_zero, rounding, compute_dtype, out_dtype)
    return out.transpose(permutation("NHWC", layout))


def divide_half_away(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    """total / count in integers, midpoints away from zero, as in TFLite's AveragePool."""
    magnitude = (np.abs(total) + count // 2) // count
    return np.where(total < 0, -magnitude, magnitude)


AVG_POOL2D = define(
    "avg_pool2d",
    "data input_scale input_zero_point output_scale output_zero_point",
    _infer,
    _reference,
    Traits(
        Kind.SUM,
        data=(Data("data", "input_scale", "input_zero_point"),),
        output=Output("output_scale", "output_zero_point"),
        layouts=("layout",),
    ),
    "quantized average pooling",
)


def avg_pool2d(
    data: relax.Expr,
    input_scale: relax.Expr,
    input_zero_point: relax.Expr,
    output_scale: relax.Expr,
    output_zero_point: relax.Expr,
    pool_size: tuple[int, int] = (1, 1),
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    reciprocal: bool = False,
    layout: str = "NHWC",
    rounding: str = "TONEAREST_EVEN",
    compute_dtype: str | None = None,
    out_dtype: str = "int8",
) -> relax.Call:
    """q = saturate(round(S·s_in / (n·s_out)) + z_out), S = Σ (q_in − z_in) over the n cells a window counts.

    data:    int8, uint8 or int16, NHWC or NCHW; all scales and zero points are scalars
    padding: top, left, bottom, right; stands for real 0.0. Its cells count towards n only if `count_include_pad`
    ceil_mode: windows may extend past the bottom and right; cells beyond the padding never count
    rounding:
        "TONEAREST_EVEN"  rint(f32(S) · f32(s_in / (s_out·n))) + z_out; with equal scales rint(f32(S) / f32(n)) + z_out
                          unless `reciprocal`
        "TFLITE"          equal QParams only: the raw average (Σ q_in ± n/2) / n, midpoints away from zero
        "UPWARD", "TONEAREST"  Relay's requantize of S with the scale s_in / (s_out·n)
    compute_dtype: int64, float32 or float64 for Relay's two roundings
    out_dtype: int8, uint8 or int16

    Raises ShapeError, QnnError. Source: Relay qnn.avg_pool2d, which requantizes before it averages; TFLite
    reference_integer_ops::AveragePool; PyTorch avg_pool2d (windows, quantized NHWC rounding); oneDNN
    pooling (`reciprocal`).
    """
    return AVG_POOL2D.call(
        data,
        input_scale,
        input_zero_point,
        output_scale,
        output_zero_point,
        pool_size=pool_size,
        strides=strides,
        padding=padding,
        dilation=dilation,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        reciprocal=reciprocal,
        layout=layout,
        rounding=rounding,
        compute_dtype=check_rounding(rounding, compute_dtype),
        out_dtype=out_dtype,
    )


export_to_script(avg_pool2d=avg_pool2d)

"""qnn.conv2d: convolution of quantized activations with quantized weights, accumulated in integers."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from .accumulate import (
    ACCUMULATOR_DTYPES,
    DATA_DTYPES,
    check_window,
    conv2d_array,
    conv_output_size,
)
from .base import Shape, TensorInfo, check_dtype, check_out_dtype, check_qparams, check_rank, define, export_to_script
from .traits import Data, Kind, Product, Traits

DATA_LAYOUTS = ("NHWC", "NCHW")
KERNEL_LAYOUTS = ("OHWI", "HWIO", "OIHW", "HWOI")


def permutation(source: str, target: str) -> tuple[int, ...]:
    """The axes that turn layout `source` into layout `target`: permutation("OIHW", "OHWI") = (0, 2, 3, 1)."""
    return tuple(source.index(axis) for axis in target)


def ohwi_shape(weight_shape: Shape, kernel_layout: str, groups: int) -> Shape:
    """The weight's shape as OHWI. A depthwise HWOI kernel (H, W, C, M) holds C·M output channels of one input each."""
    if kernel_layout == "HWOI" and groups > 1:
        kh, kw, channels, multiplier = weight_shape
        return (channels * multiplier, kh, kw, 1)
    return tuple(weight_shape[axis] for axis in permutation(kernel_layout, "OHWI"))


def weight_to_ohwi(weight: np.ndarray, kernel_layout: str, groups: int) -> np.ndarray:
    """The weight array as OHWI, see `ohwi_shape`."""
    if kernel_layout == "HWOI" and groups > 1:
        kh, kw, channels, multiplier = weight.shape
        return weight.transpose(2, 3, 0, 1).reshape(channels * multiplier, kh, kw, 1)
    return weight.transpose(permutation(kernel_layout, "OHWI"))


def check_layouts(data_layout: str, kernel_layout: str, kernel_layouts: tuple[str, ...]) -> None:
    """Raise ShapeError unless the data's layout is known, and the weights' is one of `kernel_layouts`."""
    if data_layout not in DATA_LAYOUTS or kernel_layout not in kernel_layouts:
        raise ShapeError(
            f"data_layout must be one of {DATA_LAYOUTS} and kernel_layout of {kernel_layouts}, "
            f"found {data_layout} and {kernel_layout}"
        )


def _infer(
    data: TensorInfo,
    weight: TensorInfo,
    input_zero_point: TensorInfo,
    weight_zero_point: TensorInfo,
    input_scale: TensorInfo,
    weight_scale: TensorInfo,
    *,
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    data_layout: str,
    kernel_layout: str,
    out_dtype: str,
) -> tuple[Shape, str]:
    check_dtype(data, *DATA_DTYPES)
    check_dtype(weight, *DATA_DTYPES)
    check_rank(data, 4)
    check_rank(weight, 4)
    check_window(strides, padding, dilation)
    check_layouts(data_layout, kernel_layout, KERNEL_LAYOUTS)
    check_out_dtype(out_dtype, *ACCUMULATOR_DTYPES)
    n, h, w, c = (data.shape[axis] for axis in permutation(data_layout, "NHWC"))
    o, kh, kw, ci = ohwi_shape(weight.shape, kernel_layout, groups)
    if groups < 1 or c != ci * groups or o % groups:
        raise ShapeError(
            f"{c} input channels in {groups} groups do not match weight {weight.shape} in layout {kernel_layout}"
        )
    check_qparams(input_scale, input_zero_point)
    check_qparams(weight_scale, weight_zero_point, o)
    oh = conv_output_size(h, kh, strides[0], padding[0] + padding[2], dilation[0])
    ow = conv_output_size(w, kw, strides[1], padding[1] + padding[3], dilation[1])
    shape = dict(zip("NHWC", (n, oh, ow, o), strict=True))
    return tuple(shape[axis] for axis in data_layout), out_dtype


def _reference(
    data: np.ndarray,
    weight: np.ndarray,
    input_zero_point: np.ndarray,
    weight_zero_point: np.ndarray,
    input_scale: np.ndarray,
    weight_scale: np.ndarray,
    *,
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    data_layout: str,
    kernel_layout: str,
    out_dtype: str,
) -> np.ndarray:
    x = data.transpose(permutation(data_layout, "NHWC")).astype(np.int32) - input_zero_point.reshape(())
    w = weight_to_ohwi(weight, kernel_layout, groups).astype(np.int32)
    w = w - (weight_zero_point.reshape(-1, 1, 1, 1) if weight_zero_point.size > 1 else weight_zero_point.reshape(()))
    acc = conv2d_array(
        x,
        w,
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=groups,
        pad_value=0,
        out_dtype=out_dtype,
    )
    return acc.transpose(permutation("NHWC", data_layout))


CONV2D = define(
    "conv2d",
    "data weight input_zero_point weight_zero_point input_scale weight_scale",
    _infer,
    _reference,
    Traits(
        Kind.PRODUCT,
        data=(
            Data("data", "input_scale", "input_zero_point"),
            Data("weight", "weight_scale", "weight_zero_point"),
        ),
        weight="weight",
        product=Product.CONVOLUTION,
        shift_invariant=True,
        runtime_zero_point=True,
        layouts=("data_layout",),
    ),
    "quantized convolution",
)


def conv2d(
    data: relax.Expr,
    weight: relax.Expr,
    input_zero_point: relax.Expr,
    weight_zero_point: relax.Expr,
    input_scale: relax.Expr,
    weight_scale: relax.Expr,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    data_layout: str = "NHWC",
    kernel_layout: str = "OHWI",
    out_dtype: str = "int32",
) -> relax.Call:
    """acc = Σ_{r,s,c} (pad(data) − input_zero_point) · (weight − weight_zero_point), in units input_scale·weight_scale.

    data:    int8, uint8 or int16; NHWC or NCHW. Padding (top, left, bottom, right) stands for real 0.0
    weight:  int8, uint8 or int16; OHWI, HWIO, OIHW, or HWOI (depthwise: H, W, channels, multiplier)
    input_zero_point, input_scale:   scalars
    weight_zero_point, weight_scale: scalars or vectors over the output channels
    groups:  divides both channel counts; groups == input channels is a depthwise convolution with any multiplier
    out_dtype: int32 or int64; sums beyond it wrap

    Raises ShapeError. Source: Relay qnn.conv2d (same argument order).
    """
    return CONV2D.call(
        data,
        weight,
        input_zero_point,
        weight_zero_point,
        input_scale,
        weight_scale,
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=groups,
        data_layout=data_layout,
        kernel_layout=kernel_layout,
        out_dtype=out_dtype,
    )


export_to_script(conv2d=conv2d)

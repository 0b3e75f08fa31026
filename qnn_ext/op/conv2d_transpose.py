"""qnn.conv2d_transpose: the gradient-shaped convolution, accumulated in integers."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..errors import ShapeError
from .accumulate import ACCUMULATOR_DTYPES, DATA_DTYPES, check_window
from .base import Shape, TensorInfo, check_dtype, check_out_dtype, check_qparams, check_rank, define, export_to_script
from .conv2d import check_layouts, permutation
from .traits import Data, Kind, Product, Traits

KERNEL_LAYOUTS = ("OHWI", "IOHW", "OIHW", "HWIO", "HWOI")


def transpose_output_size(size: Any, kernel: int, stride: int, pad: int, dilation: int, output_padding: int) -> Any:
    """(size − 1)·stride + (kernel − 1)·dilation + 1 − pad + output_padding. Raises ShapeError unless positive."""
    result = (size - 1) * stride + (kernel - 1) * dilation + 1 - pad + output_padding
    if isinstance(result, int) and result < 1:
        raise ShapeError(f"padding {pad} leaves no output of {size} inputs with a kernel of {kernel}")
    return result


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
    output_padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    data_layout: str,
    kernel_layout: str,
    out_dtype: str,
) -> tuple[Shape, str]:
    for info in (data, weight):
        check_dtype(info, *DATA_DTYPES)
        check_rank(info, 4)
    check_window(strides, padding, dilation)
    check_out_dtype(out_dtype, *ACCUMULATOR_DTYPES)
    check_layouts(data_layout, kernel_layout, KERNEL_LAYOUTS)
    limits = [max(s, d) for s, d in zip(strides, dilation, strict=True)]
    if len(output_padding) != 2 or any(not 0 <= p < limit for p, limit in zip(output_padding, limits, strict=True)):
        raise ShapeError(f"output_padding must be 2 ints below stride or dilation, found {tuple(output_padding)}")
    n, h, w, c = (data.shape[axis] for axis in permutation(data_layout, "NHWC"))
    ci, o, kh, kw = (weight.shape[axis] for axis in permutation(kernel_layout, "IOHW"))
    if groups < 1 or c != ci or c % groups:
        raise ShapeError(f"{c} input channels in {groups} groups do not match weight {weight.shape} in {kernel_layout}")
    check_qparams(input_scale, input_zero_point)
    check_qparams(weight_scale, weight_zero_point, o * groups)
    oh = transpose_output_size(h, kh, strides[0], padding[0] + padding[2], dilation[0], output_padding[0])
    ow = transpose_output_size(w, kw, strides[1], padding[1] + padding[3], dilation[1], output_padding[1])
    shape = dict(zip("NHWC", (n, oh, ow, o * groups), strict=True))
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
    output_padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    data_layout: str,
    kernel_layout: str,
    out_dtype: str,
) -> np.ndarray:
    x = data.transpose(permutation(data_layout, "NHWC")).astype(np.float64) - input_zero_point.reshape(())
    n, h, w, c = x.shape
    x = x.reshape(n, h, w, groups, c // groups)
    kernels = weight.transpose(permutation(kernel_layout, "HWIO")).astype(np.float64)
    kh, kw, _, o = kernels.shape
    kernels = kernels.reshape(kh, kw, groups, c // groups, o)
    per_channel = weight_zero_point.size > 1
    kernels = kernels - (weight_zero_point.reshape(groups, 1, o) if per_channel else weight_zero_point.reshape(()))

    extent = [
        (size - 1) * s + (k - 1) * d + 1 for size, k, s, d in zip((h, w), (kh, kw), strides, dilation, strict=True)
    ]
    total = np.zeros((n, extent[0] + output_padding[0], extent[1] + output_padding[1], groups, o))
    for r in range(kh):
        for s in range(kw):
            top, left = r * dilation[0], s * dilation[1]
            rows = slice(top, top + (h - 1) * strides[0] + 1, strides[0])
            columns = slice(left, left + (w - 1) * strides[1] + 1, strides[1])
            total[:, rows, columns] += np.einsum("nyxgi,gio->nyxgo", x, kernels[r, s], optimize=True)
    oh = total.shape[1] - padding[0] - padding[2]
    ow = total.shape[2] - padding[1] - padding[3]
    cropped = total[:, padding[0] : padding[0] + oh, padding[1] : padding[1] + ow]
    acc = cropped.reshape(n, oh, ow, groups * o).astype(np.int64).astype(out_dtype)
    return acc.transpose(permutation("NHWC", data_layout))


CONV2D_TRANSPOSE = define(
    "conv2d_transpose",
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
        product=Product.TRANSPOSED,
        shift_invariant=True,
        layouts=("data_layout",),
    ),
    "quantized transposed convolution",
)


def conv2d_transpose(
    data: relax.Expr,
    weight: relax.Expr,
    input_zero_point: relax.Expr,
    weight_zero_point: relax.Expr,
    input_scale: relax.Expr,
    weight_scale: relax.Expr,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    output_padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    data_layout: str = "NHWC",
    kernel_layout: str = "OHWI",
    out_dtype: str = "int32",
) -> relax.Call:
    """acc[y·sh + r·dh − top, x·sw + s·dw − left, o] += (data[y,x,i] − input_zero_point) · (weight[o,r,s,i] − z_w[o]).

    data:    int8, uint8 or int16; NHWC or NCHW
    weight:  int8, uint8 or int16; OHWI, IOHW, OIHW, HWIO or HWOI. I counts all input channels, O the output channels of
             one group
    padding: (top, left, bottom, right) cells cut off the result; output_padding: rows and columns added at its end,
             less than the stride or the dilation. Size: (h − 1)·sh + (kh − 1)·dh + 1 − top − bottom + output_padding
    input_zero_point, input_scale:   scalars
    weight_zero_point, weight_scale: scalars or vectors over all output channels
    out_dtype: int32 or int64; sums beyond it wrap. The result is in units input_scale · weight_scale

    Raises ShapeError. Source: Relay qnn.conv2d_transpose (same argument order); TFLite TRANSPOSE_CONV.
    """
    return CONV2D_TRANSPOSE.call(
        data,
        weight,
        input_zero_point,
        weight_zero_point,
        input_scale,
        weight_scale,
        strides=strides,
        padding=padding,
        output_padding=output_padding,
        dilation=dilation,
        groups=groups,
        data_layout=data_layout,
        kernel_layout=kernel_layout,
        out_dtype=out_dtype,
    )


export_to_script(conv2d_transpose=conv2d_transpose)

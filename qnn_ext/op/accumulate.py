"""The primitives that Canonicalize and `float_products` rewrite to and that topi_int8 has kernels for.

No scales, no zero points: plain sums of products of integers or floats (`*_accumulate`) and plain sums of integers
(`window_sum`, `row_sum`). Activations are NHWC, weights OHWI.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import bfloat16
from ..qparams import dtype_range
from .base import Shape, TensorInfo, check_dtype, check_out_dtype, check_rank, define, export_to_script
from .traits import Data, Kind, Traits

DATA_DTYPES = ("int8", "uint8", "int16")
ACCUMULATOR_DTYPES = ("int32", "int64")
FLOAT = "float32"
FLOAT_DTYPES = (FLOAT, "float16", bfloat16.BITS)
"""Operands of float products; bfloat16 by its bits."""


def conv_output_size(size: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
    """⌊(size + pad − (kernel − 1)·dilation − 1) / stride⌋ + 1. Raises ShapeError when the window does not fit."""
    extent = size + pad - (kernel - 1) * dilation
    if isinstance(extent, int) and extent < 1:
        raise ShapeError(f"a window of {kernel} (dilation {dilation}) does not fit into {size} + padding {pad}")
    return (extent - 1) // stride + 1


def check_window(strides: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...]) -> None:
    """Strides and dilation are pairs of positive ints, padding four non-negative ints: top, left, bottom, right."""
    for name, values, count, low in (
        ("strides", strides, 2, 1),
        ("padding", padding, 4, 0),
        ("dilation", dilation, 2, 1),
    ):
        if len(values) != count or any(value < low for value in values):
            raise ShapeError(f"{name} must be {count} ints ≥ {low}, found {tuple(values)}")


def _check_dtypes(first: TensorInfo, second: TensorInfo, out_dtype: str) -> None:
    """Integers and a sum of integers, or floats of 16 or 32 bits and a sum of float32."""
    of_floats = out_dtype == FLOAT
    for operand in (first, second):
        check_dtype(operand, *(FLOAT_DTYPES if of_floats else DATA_DTYPES))
    check_out_dtype(out_dtype, *((FLOAT,) if of_floats else ACCUMULATOR_DTYPES))


def _values(operand: np.ndarray, out_dtype: str) -> np.ndarray:
    """An operand's values: those that bits of bfloat16 stand for, or itself."""
    return bfloat16.from_bits(operand) if out_dtype == FLOAT and operand.dtype == bfloat16.BITS else operand


def _sums(sums: np.ndarray, out_dtype: str) -> np.ndarray:
    """Sums in float64 as `out_dtype`: rounded once to float32, or wrapped."""
    return sums.astype(FLOAT) if out_dtype == FLOAT else sums.astype(np.int64).astype(out_dtype)


def windows(
    data: np.ndarray,
    kernel: tuple[int, int],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    pad_value: int,
) -> np.ndarray:
    """All windows of NHWC data as a view (n, oh, ow, c, kh, kw), padded with `pad_value`."""
    top, left, bottom, right = padding
    padded = np.pad(data, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=pad_value)
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(padded, extent, axis=(1, 2))
    return view[:, :: strides[0], :: strides[1], :, :: dilation[0], :: dilation[1]]


# ---- conv2d_accumulate -------------------------------------------------------------------------------------------


def _infer_conv2d(
    data: TensorInfo,
    weight: TensorInfo,
    *,
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    pad_value: int,
    out_dtype: str,
) -> tuple[Shape, str]:
    _check_dtypes(data, weight, out_dtype)
    check_rank(data, 4)
    check_rank(weight, 4)
    check_window(strides, padding, dilation)
    low, high = (0, 0) if out_dtype == FLOAT else dtype_range(data.dtype)
    if not low <= pad_value <= high:
        raise ShapeError(f"pad_value {pad_value} lies outside {data.dtype}")
    n, h, w, c = data.shape
    o, kh, kw, ci = weight.shape
    if groups < 1 or c != ci * groups or o % groups:
        raise ShapeError(f"{groups} groups, {c} input channels do not match OHWI weights {weight.shape}")
    oh = conv_output_size(h, kh, strides[0], padding[0] + padding[2], dilation[0])
    ow = conv_output_size(w, kw, strides[1], padding[1] + padding[3], dilation[1])
    return (n, oh, ow, o), out_dtype


def conv2d_array(
    data: np.ndarray,
    weight: np.ndarray,
    *,
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    pad_value: int,
    out_dtype: str,
) -> np.ndarray:
    """Σ x·w in float64, which is exact for integers below 2⁵³ and runs on the BLAS, then as `_sums`."""
    data, weight = _values(data, out_dtype), _values(weight, out_dtype)
    out_channels, kh, kw, _ = weight.shape
    view = windows(data, (kh, kw), strides, padding, dilation, pad_value)
    n, oh, ow, c = view.shape[:4]
    kernels = weight.astype(np.float64)
    if groups == c:  # depthwise: one window per channel, no matrix product
        taps = kernels[..., 0].reshape(c, out_channels // c, kh, kw)
        out = np.einsum("nyxcij,cmij->nyxcm", view, taps, optimize=True)
    else:
        grouped = view.reshape(n * oh * ow, groups, c // groups, kh, kw) if groups > 1 else view
        columns = grouped.transpose(0, 1, 3, 4, 2) if groups > 1 else view.transpose(0, 1, 2, 4, 5, 3)
        columns = columns.reshape(n * oh * ow, groups, -1).astype(np.float64)
        matrices = kernels.reshape(groups, out_channels // groups, -1)
        out = np.einsum("pgk,gok->pgo", columns, matrices, optimize=True)
    return _sums(np.asarray(out).reshape(n, oh, ow, out_channels), out_dtype)


ACCUMULATOR = Traits(Kind.ACCUMULATOR, data=(Data("data"), Data("weight")), weight="weight")
CONV2D_ACCUMULATE = define(
    "conv2d_accumulate", "data weight", _infer_conv2d, conv2d_array, ACCUMULATOR, "term T1 of a convolution"
)


def conv2d_accumulate(
    data: relax.Expr,
    weight: relax.Expr,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    pad_value: int = 0,
    out_dtype: str = "int32",
) -> relax.Call:
    """acc[n,y,x,o] = Σ_{r,s,c} pad(data)[n, y·sh + r·dh, x·sw + s·dw, g·C/G + c] · weight[o,r,s,c], g the group of o.

    data NHWC and weight OHWI: int8, uint8 or int16; padding is filled with `pad_value`. Result int32 or int64.
    Or floats, padded with 0, and a float32 result: operands float32, float16, or the bits of bfloat16 as uint16.
    """
    return CONV2D_ACCUMULATE.call(
        data,
        weight,
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=groups,
        pad_value=pad_value,
        out_dtype=out_dtype,
    )


# ---- window_sum --------------------------------------------------------------------------------------------------


def _infer_window_sum(
    data: TensorInfo,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    pad_value: int,
) -> tuple[Shape, str]:
    check_dtype(data, *DATA_DTYPES)
    check_rank(data, 4)
    check_window(strides, padding, dilation)
    n, h, w, c = data.shape
    if groups < 1 or c % groups:
        raise ShapeError(f"{c} channels cannot be divided into {groups} groups")
    oh = conv_output_size(h, kernel[0], strides[0], padding[0] + padding[2], dilation[0])
    ow = conv_output_size(w, kernel[1], strides[1], padding[1] + padding[3], dilation[1])
    return (n, oh, ow, groups), "int32"


def _reference_window_sum(
    data: np.ndarray,
    *,
    kernel: tuple[int, int],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    pad_value: int,
) -> np.ndarray:
    view = windows(data, kernel, strides, padding, dilation, pad_value)
    per_channel = view.sum(axis=(4, 5), dtype=np.int64)
    n, oh, ow, c = per_channel.shape
    return per_channel.reshape(n, oh, ow, groups, c // groups).sum(axis=-1).astype(np.int32)


WINDOW_SUM = define(
    "window_sum",
    "data",
    _infer_window_sum,
    _reference_window_sum,
    Traits(Kind.SIDE_TERM),
    "term T2 of a convolution, over zw",
)


def window_sum(
    data: relax.Expr,
    kernel: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    pad_value: int = 0,
) -> relax.Call:
    """sum[n,y,x,g] = Σ over the window and the channels of group g of pad(data), as int32 (n, oh, ow, groups)."""
    return WINDOW_SUM.call(
        data,
        kernel=kernel,
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=groups,
        pad_value=pad_value,
    )


# ---- dense and batch_matmul --------------------------------------------------------------------------------------


def _infer_dense(data: TensorInfo, weight: TensorInfo, *, out_dtype: str) -> tuple[Shape, str]:
    _check_dtypes(data, weight, out_dtype)
    check_rank(data, 2)
    check_rank(weight, 2)
    if data.shape[1] != weight.shape[1]:
        raise ShapeError(f"data {data.shape} and weight {weight.shape} (N, K) differ in K")
    return (data.shape[0], weight.shape[0]), out_dtype


def matmul_nt(x: np.ndarray, y: np.ndarray, *, out_dtype: str) -> np.ndarray:
    """x · yᵀ over the last two axes in float64, which is exact for integers below 2⁵³, then as `_sums`."""
    x, y = (_values(operand, out_dtype).astype(np.float64) for operand in (x, y))
    out = x @ np.swapaxes(y, -1, -2)
    return _sums(out, out_dtype)


DENSE_ACCUMULATE = define(
    "dense_accumulate", "data weight", _infer_dense, matmul_nt, ACCUMULATOR, "term T1 of a dense layer"
)


def dense_accumulate(data: relax.Expr, weight: relax.Expr, out_dtype: str = "int32") -> relax.Call:
    """acc[m,n] = Σ_k data[m,k] · weight[n,k]; int8, uint8 or int16 operands and an int32 or int64 result, or
    floats as of a convolution."""
    return DENSE_ACCUMULATE.call(data, weight, out_dtype=out_dtype)


def _infer_batch_matmul(x: TensorInfo, y: TensorInfo, *, out_dtype: str) -> tuple[Shape, str]:
    _check_dtypes(x, y, out_dtype)
    check_rank(x, 3)
    check_rank(y, 3)
    if x.shape[0] != y.shape[0] or x.shape[2] != y.shape[2]:
        raise ShapeError(f"x {x.shape} (B, M, K) and y {y.shape} (B, N, K) do not match")
    return (x.shape[0], x.shape[1], y.shape[1]), out_dtype


BATCH_MATMUL_ACCUMULATE = define(
    "batch_matmul_accumulate",
    "x y",
    _infer_batch_matmul,
    matmul_nt,
    Traits(Kind.ACCUMULATOR, data=(Data("x"), Data("y"))),
    "term T1 of a batched product",
)


def batch_matmul_accumulate(x: relax.Expr, y: relax.Expr, out_dtype: str = "int32") -> relax.Call:
    """acc[b,m,n] = Σ_k x[b,m,k] · y[b,n,k]."""
    return BATCH_MATMUL_ACCUMULATE.call(x, y, out_dtype=out_dtype)


def _infer_row_sum(data: TensorInfo) -> tuple[Shape, str]:
    check_dtype(data, *DATA_DTYPES)
    return (*data.shape[:-1], 1), "int32"


ROW_SUM = define(
    "row_sum",
    "data",
    _infer_row_sum,
    lambda data: data.sum(axis=-1, keepdims=True, dtype=np.int64).astype(np.int32),
    Traits(Kind.SIDE_TERM),
    "sum over the last axis",
)


def row_sum(data: relax.Expr) -> relax.Call:
    """sum[…, 0] = Σ_k data[…, k] as int32: term T2 of dense and batch_matmul, divided by the weight zero point."""
    return ROW_SUM.call(data)


export_to_script(
    conv2d_accumulate=conv2d_accumulate,
    window_sum=window_sum,
    dense_accumulate=dense_accumulate,
    batch_matmul_accumulate=batch_matmul_accumulate,
    row_sum=row_sum,
)

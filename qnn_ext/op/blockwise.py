"""Weights quantized block by block, a few bits each, and their products with floats or with 8-bit activations.

A weight (N, K) is three tensors. Along K, every `group_size` values are a group, the last of which may be shorter;
there are G = ⌈K / group_size⌉ of them, one per channel if group_size is K:

    weight      (N, bytes) uint8: integers of `weight_dtype`, 2 to 8 bits, packed as `numerics.packed` says
    scale       (N, G) float32, float16, or the bits of bfloat16 as uint16
    zero_point  (N, bytes) uint8: integers of `weight_dtype`, packed along G; or floats as the scales (N, G); or one
                number for all groups, 0-d int32

They stand for w[n, k] = (q[n, k] − zero_point[n, g]) · scale[n, g] with g = ⌊k / group_size⌋.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import bfloat16
from ..numerics.packed import WIDTHS, floats_of, packed_bytes, unpack, zero_points
from .base import Shape, TensorInfo, check_dtype, check_rank, define, export_to_script
from .traits import Data, Kind, Product, Traits

SCALE_DTYPES = ("float32", "float16", bfloat16.BITS)
LONGEST_GROUP = 1 << 16
"""255 · 128 · 2¹⁶ < 2³¹: the sum of a group with 8-bit activations fits int32."""

WEIGHT = Data("weight", "scale", "zero_point")


def groups_of(depth: int, group_size: int) -> int:
    """How many groups a row of `depth` values has."""
    return -(-depth // group_size)


def check_weight(
    weight: TensorInfo, scale: TensorInfo, zero_point: TensorInfo, depth: int, weight_dtype: str, group_size: int
) -> int:
    """The type rule of a weight of `depth` columns; returns its number of rows. Raises ShapeError."""
    if weight_dtype not in WIDTHS:
        raise ShapeError(f"weight_dtype must be one of {', '.join(WIDTHS)}, found {weight_dtype}")
    if not 1 <= group_size <= LONGEST_GROUP:
        raise ShapeError(f"group_size must be between 1 and {LONGEST_GROUP}, found {group_size}")
    check_dtype(weight, "uint8")
    check_rank(weight, 2)
    rows, groups = weight.shape[0], groups_of(depth, group_size)
    if weight.shape[1] != packed_bytes(depth, weight_dtype):
        raise ShapeError(
            f"weight must have {packed_bytes(depth, weight_dtype)} bytes a row for {depth} values of {weight_dtype}, "
            f"found shape {weight.shape}"
        )
    check_dtype(scale, *SCALE_DTYPES)
    if scale.shape != (rows, groups):
        raise ShapeError(
            f"scale must have shape {(rows, groups)} for {rows} rows of {depth} values in groups of {group_size}, "
            f"found {scale.shape}"
        )
    if scale.value is not None and not np.isfinite(floats_of(scale.value)).all():
        raise ShapeError("scale must be finite")
    _check_zero_point(zero_point, rows, groups, weight_dtype)
    return rows


def _check_zero_point(zero_point: TensorInfo, rows: int, groups: int, weight_dtype: str) -> None:
    expected = {
        "int32": (),
        "uint8": (rows, packed_bytes(groups, weight_dtype)),
        **dict.fromkeys(SCALE_DTYPES, (rows, groups)),
    }
    check_dtype(zero_point, *expected)
    if zero_point.shape != expected[zero_point.dtype]:
        raise ShapeError(
            f"zero_point of {zero_point.dtype} must have shape {expected[zero_point.dtype]}, found {zero_point.shape}"
        )
    if zero_point.value is not None and not np.isfinite(floats_of(zero_point.value)).all():
        raise ShapeError("zero_point must be finite")
    if zero_point.dtype == "int32" and zero_point.value is not None and abs(int(zero_point.value)) > 255:
        raise ShapeError(f"zero_point must be within ±255, found {int(zero_point.value)}")


def _by_column(values: np.ndarray, depth: int, group_size: int) -> np.ndarray:
    """Values of groups, (N, G) or 0-d, for each column."""
    return np.repeat(values, group_size, axis=1)[:, :depth] if values.ndim else values


# ---- blockwise_dequantize ----------------------------------------------------------------------------------------


def _infer_dequantize(
    weight: TensorInfo, scale: TensorInfo, zero_point: TensorInfo, *, depth: int, weight_dtype: str, group_size: int
) -> tuple[Shape, str]:
    return (check_weight(weight, scale, zero_point, depth, weight_dtype, group_size), depth), "float32"


def dequantized(
    weight: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, *, depth: int, weight_dtype: str, group_size: int
) -> np.ndarray:
    """The weight in float32: the difference and the product are rounded separately; integers' difference is exact."""
    values = unpack(weight, weight_dtype, depth).astype(np.float32)
    zeros = zero_points(zero_point, groups_of(depth, group_size), weight_dtype).astype(np.float32)
    with np.errstate(over="ignore"):
        difference = values - _by_column(zeros, depth, group_size)
        return difference * _by_column(floats_of(scale), depth, group_size)


BLOCKWISE_DEQUANTIZE = define(
    "blockwise_dequantize",
    "weight scale zero_point",
    _infer_dequantize,
    dequantized,
    Traits(Kind.OTHER, data=(WEIGHT,)),
    "block-wise quantized values as floats",
)


def blockwise_dequantize(
    weight: relax.Expr,
    scale: relax.Expr,
    zero_point: relax.Expr,
    depth: int,
    weight_dtype: str,
    group_size: int,
) -> relax.Call:
    """w[n, k] = (q[n, k] − zero_point[n, g]) · scale[n, g] in float32, (N, depth).

    weight, scale, zero_point: as at the top of this module; weight_dtype: int2 to uint8
    Raises ShapeError. Source: ONNX DequantizeLinear with a block_size, com.microsoft MatMulNBits.
    """
    attributes = {"depth": depth, "weight_dtype": weight_dtype, "group_size": group_size}
    return BLOCKWISE_DEQUANTIZE.call(weight, scale, zero_point, **attributes)


# ---- blockwise_dense ---------------------------------------------------------------------------------------------


# What both products take: `weight` is weight, scale and zero_point, `attributes` are weight_dtype and group_size


def _product_shape(data: TensorInfo, *weight: TensorInfo, **attributes: Any) -> tuple[int, int]:
    """The type rule of a product; returns the shape of its result. Raises ShapeError."""
    check_rank(data, 2)
    rows, depth = data.shape
    if not isinstance(depth, int):
        raise ShapeError(f"data must have a known number of columns, found shape {data.shape}")
    packed, scale, zero_point = weight
    return rows, check_weight(packed, scale, zero_point, depth, **attributes)


def _infer_dense(data: TensorInfo, *weight: TensorInfo, **attributes: Any) -> tuple[Shape, str]:
    check_dtype(data, *SCALE_DTYPES)
    return _product_shape(data, *weight, **attributes), "float32"


def _reference_dense(data: np.ndarray, *weight: np.ndarray, weight_dtype: str, group_size: int) -> np.ndarray:
    packed, scale, zero_point = weight
    depth = data.shape[1]
    values = unpack(packed, weight_dtype, depth).astype(np.float64)
    zeros = zero_points(zero_point, groups_of(depth, group_size), weight_dtype).astype(np.float64)
    real = (values - _by_column(zeros, depth, group_size)) * _by_column(
        floats_of(scale).astype(np.float64), depth, group_size
    )
    with np.errstate(all="ignore"):
        return (floats_of(data).astype(np.float64) @ real.T).astype(np.float32)


_PRODUCT = Traits(Kind.ACCUMULATOR, data=(Data("data"), WEIGHT), weight="weight", product=Product.MATRIX)
BLOCKWISE_DENSE = define(
    "blockwise_dense",
    "data weight scale zero_point",
    _infer_dense,
    _reference_dense,
    _PRODUCT,
    "floats times block-wise quantized weights",
)


def blockwise_dense(
    data: relax.Expr,
    weight: relax.Expr,
    scale: relax.Expr,
    zero_point: relax.Expr,
    weight_dtype: str,
    group_size: int,
) -> relax.Call:
    """y[m, n] = Σ_k data[m, k] · w[n, k] in float32, with w as in `blockwise_dequantize`: weight-only quantization.

    data: (M, K) float32, float16 or the bits of bfloat16 as uint16; weight, scale, zero_point: as at the top of this
    module. The reference rounds the exact sum once. Kernels compute, with all sums in float32 and in order,

        Σ_g (Σ_{k in g} data[m, k] · q[n, k] − zero_point[n, g] · Σ_{k in g} data[m, k]) · scale[n, g]

    which is within (group_size + G + 8) · 2⁻²⁴ · Σ_k |data[m, k]| · (|q[n, k]| + |zero_point[n, g]|) · |scale[n, g]| of
    it for finite data, where 2^(bits − 1) is first subtracted from unsigned q and their zero points. Tensor cores
    add 16 products of data in 16 bits, which are exact, at a time.

    Raises ShapeError. Source: com.microsoft MatMulNBits with accuracy_level 0 and 1.
    """
    attributes = {"weight_dtype": weight_dtype, "group_size": group_size}
    return BLOCKWISE_DENSE.call(data, weight, scale, zero_point, **attributes)


# ---- blockwise_dense_int8 ----------------------------------------------------------------------------------------


def _infer_dense_int8(
    data: TensorInfo, data_scale: TensorInfo, *weight: TensorInfo, **attributes: Any
) -> tuple[Shape, str]:
    check_dtype(data, "int8")
    check_dtype(weight[-1], "uint8", "int32")
    rows, units = _product_shape(data, *weight, **attributes)
    check_dtype(data_scale, "float32")
    groups = groups_of(int(data.shape[1]), attributes["group_size"])
    if data_scale.shape not in ((rows, 1), (rows, groups)):
        raise ShapeError(
            f"data_scale must have shape {(rows, 1)} or, with one for each group, {(rows, groups)}, "
            f"found {data_scale.shape}"
        )
    return (rows, units), "float32"


def _reference_dense_int8(
    data: np.ndarray, data_scale: np.ndarray, *weight: np.ndarray, weight_dtype: str, group_size: int
) -> np.ndarray:
    packed, scale, zero_point = weight
    depth = data.shape[1]
    groups = groups_of(depth, group_size)
    zeros = zero_points(zero_point, groups, weight_dtype)
    centered = unpack(packed, weight_dtype, depth).astype(np.int32) - _by_column(zeros, depth, group_size)
    by_row = data_scale.shape[1] == 1
    result = np.zeros((len(data), len(packed)), np.float32)
    with np.errstate(all="ignore"):
        for group in range(groups):
            part = slice(group * group_size, min((group + 1) * group_size, depth))
            exact = data[:, part].astype(np.float64) @ centered[:, part].T.astype(np.float64)
            unit = floats_of(scale[:, group])
            result += exact.astype(np.float32) * (unit if by_row else data_scale[:, group, None] * unit)
        return result * data_scale if by_row else result


BLOCKWISE_DENSE_INT8 = define(
    "blockwise_dense_int8",
    "data data_scale weight scale zero_point",
    _infer_dense_int8,
    _reference_dense_int8,
    Traits(Kind.ACCUMULATOR, data=(Data("data", "data_scale"), WEIGHT), weight="weight", product=Product.MATRIX),
    "8-bit activations times block-wise quantized weights",
)


def blockwise_dense_int8(
    data: relax.Expr,
    data_scale: relax.Expr,
    weight: relax.Expr,
    scale: relax.Expr,
    zero_point: relax.Expr,
    weight_dtype: str,
    group_size: int,
) -> relax.Call:
    """y[m, n] = Σ_k (data[m, k] · data_scale[m, g]) · w[n, k], summed in integers within each group:

        a[m, n, g] = Σ_{k in g} data[m, k] · (q[n, k] − zero_point[n, g])                    in int32
        y[m, n]    = Σ_g f32(a[m, n, g]) · (data_scale[m, g] · scale[n, g])                  data_scale (M, G)
        y[m, n]    = (Σ_g f32(a[m, n, g]) · scale[n, g]) · data_scale[m, 0]                  data_scale (M, 1)

    The sum over g starts at 0 and goes in order; every product and every sum is rounded to float32, so that results are
    equal on every target. With a single group, data_scale (M, 1) means the last line.

    data:       (M, K) int8, symmetrically quantized
    data_scale: (M, 1) or (M, G) float32
    weight, scale, zero_point: as at the top of this module, with zero points of integers
    Raises ShapeError. Source: com.microsoft MatMulNBits with accuracy_level 4; torchao's dynamic activations.
    """
    attributes = {"weight_dtype": weight_dtype, "group_size": group_size}
    return BLOCKWISE_DENSE_INT8.call(data, data_scale, weight, scale, zero_point, **attributes)


export_to_script(
    blockwise_dequantize=blockwise_dequantize,
    blockwise_dense=blockwise_dense,
    blockwise_dense_int8=blockwise_dense_int8,
)

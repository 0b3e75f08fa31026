"""qnn.blockwise_dense_lanes: `blockwise_dense_int8` with the bits of ONNX Runtime on CPUs with AVX-512 VNNI."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import mlas_blocks
from ..numerics.packed import WIDTHS, floats_of, unpack, zero_points
from .base import Shape, TensorInfo, check_dtype, check_rank, define, export_to_script
from .blockwise import WEIGHT, check_weight, groups_of
from .traits import Data, Kind, Traits

WEIGHT_DTYPES = ("uint4", "uint8")


def _infer(
    data: TensorInfo,
    data_scale: TensorInfo,
    weight: TensorInfo,
    scale: TensorInfo,
    zero_point: TensorInfo,
    bias: TensorInfo,
    *,
    weight_dtype: str,
    group_size: int,
) -> tuple[Shape, str]:
    check_dtype(data, "int8")
    check_rank(data, 2)
    check_dtype(zero_point, "uint8", "int32")
    for one in (data_scale, bias):
        check_dtype(one, "float32")
    if weight_dtype not in WEIGHT_DTYPES or group_size not in mlas_blocks.BLOCKS:
        raise ShapeError(
            f"weights must be {' or '.join(WEIGHT_DTYPES)} in groups of {', '.join(map(str, mlas_blocks.BLOCKS))}, "
            f"found {weight_dtype} in groups of {group_size}"
        )
    rows, depth = data.shape
    if not isinstance(depth, int):
        raise ShapeError(f"data must have a known number of columns, found shape {data.shape}")
    units = check_weight(weight, scale, zero_point, depth, weight_dtype, group_size)
    expected = {"data_scale": (data_scale, (rows, groups_of(depth, group_size))), "bias": (bias, (units,))}
    for name, (one, shape) in expected.items():
        if one.shape != shape:
            raise ShapeError(f"{name} must have shape {shape}, found {one.shape}")
    return (rows, units), "float32"


def _reference(
    data: np.ndarray,
    data_scale: np.ndarray,
    weight: np.ndarray,
    scale: np.ndarray,
    zero_point: np.ndarray,
    bias: np.ndarray,
    *,
    weight_dtype: str,
    group_size: int,
) -> np.ndarray:
    values = unpack(weight, weight_dtype, data.shape[1])
    zeros = np.broadcast_to(zero_points(zero_point, scale.shape[1], weight_dtype), scale.shape)
    return mlas_blocks.blockwise_dense(
        data, data_scale, values, floats_of(scale), zeros, bias, group_size, WIDTHS[weight_dtype]
    )


BLOCKWISE_DENSE_LANES = define(
    "blockwise_dense_lanes",
    "data data_scale weight scale zero_point bias",
    _infer,
    _reference,
    Traits(Kind.OTHER, data=(Data("data", "data_scale"), WEIGHT), others=("bias",)),
    "8-bit activations times block-wise quantized weights, in partial sums",
)


def blockwise_dense_lanes(
    data: relax.Expr,
    data_scale: relax.Expr,
    weight: relax.Expr,
    scale: relax.Expr,
    zero_point: relax.Expr,
    bias: relax.Expr,
    weight_dtype: str,
    group_size: int,
) -> relax.Call:
    """y[m, n] = Σ_k (data[m, k] · data_scale[m, g]) · w[n, k] + bias[n], w as in `blockwise_dequantize`, summed in
    sixteen lanes, each over some columns k of every group g, by fused multiply-adds:

        s[m, n, l] = Σ_g f32(Σ_{k in l and g} data[m, k] · q[n, k]) · (data_scale[m, g] · scale[n, g])
        z[m, n]    = Σ_g (f32(Σ_{k in g} data[m, k]) · data_scale[m, g]) · −(scale[n, g] · zero_point[n, g])
        y[m, n]    = z[m, n] + (Σ_l s[m, n, l] + bias[n])

    Which columns a lane has, and in which order lanes are added, `numerics/mlas_blocks.py` says.

    data:       (M, K) int8, symmetrically quantized; data_scale: (M, G) float32; bias: (N,) float32
    weight, scale, zero_point: as in `op.blockwise`, of uint4 or uint8, in groups of 16 to 256, a power of two
    Raises ShapeError. Source: com.microsoft MatMulNBits with accuracy_level 4.
    """
    attributes: dict[str, Any] = {"weight_dtype": weight_dtype, "group_size": group_size}
    return BLOCKWISE_DENSE_LANES.call(data, data_scale, weight, scale, zero_point, bias, **attributes)


export_to_script(blockwise_dense_lanes=blockwise_dense_lanes)

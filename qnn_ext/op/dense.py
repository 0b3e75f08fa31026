"""qnn.dense and qnn.contrib_dense_pack: matrix products with quantized weights, accumulated in integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm import relax

from ..errors import ShapeError
from .accumulate import ACCUMULATOR_DTYPES, DATA_DTYPES, matmul_nt
from .base import Shape, TensorInfo, check_dtype, check_out_dtype, check_qparams, check_rank, define, export_to_script
from .traits import Data, Kind, Product, Traits

ARGUMENTS = "data weight input_zero_point weight_zero_point input_scale weight_scale"
TRAITS = Traits(
    Kind.PRODUCT,
    data=(Data("data", "input_scale", "input_zero_point"), Data("weight", "weight_scale", "weight_zero_point")),
    weight="weight",
    product=Product.MATRIX,
    shift_invariant=True,
)
PACKED_LAYOUTS = ("NC", "NC32n4c")


def _check(
    data: TensorInfo,
    weight: TensorInfo,
    matrix: Shape,
    qparams: tuple[TensorInfo, TensorInfo, TensorInfo, TensorInfo],
    out_dtype: str,
) -> tuple[Shape, str]:
    """The type rule that both operators share; `matrix` is the weight's shape as (N, K)."""
    input_zero_point, weight_zero_point, input_scale, weight_scale = qparams
    check_dtype(data, *DATA_DTYPES)
    check_dtype(weight, *DATA_DTYPES)
    check_rank(data, 2)
    check_out_dtype(out_dtype, *ACCUMULATOR_DTYPES)
    units, depth = matrix
    if data.shape[1] != depth:
        raise ShapeError(f"data {data.shape} (M, K) and weight {weight.shape}, which is (N, K) = {matrix}, differ in K")
    check_qparams(input_scale, input_zero_point)
    check_qparams(weight_scale, weight_zero_point, units)
    return (data.shape[0], units), out_dtype


def _shifted_product(
    data: np.ndarray, matrix: np.ndarray, input_zero_point: np.ndarray, weight_zero_point: np.ndarray, out_dtype: str
) -> np.ndarray:
    zero_points = weight_zero_point.reshape(-1, 1) if weight_zero_point.size > 1 else weight_zero_point.reshape(())
    x = data.astype(np.int32) - input_zero_point.reshape(())
    return matmul_nt(x, matrix.astype(np.int32) - zero_points, out_dtype=out_dtype)


# ---- dense -------------------------------------------------------------------------------------------------------


def _infer_dense(data: TensorInfo, weight: TensorInfo, *qparams: TensorInfo, out_dtype: str) -> tuple[Shape, str]:
    check_rank(weight, 2)
    return _check(data, weight, weight.shape, qparams, out_dtype)  # type: ignore[arg-type]


def _reference_dense(
    data: np.ndarray,
    weight: np.ndarray,
    input_zero_point: np.ndarray,
    weight_zero_point: np.ndarray,
    input_scale: np.ndarray,
    weight_scale: np.ndarray,
    *,
    out_dtype: str,
) -> np.ndarray:
    return _shifted_product(data, weight, input_zero_point, weight_zero_point, out_dtype)


DENSE = define(
    "dense",
    ARGUMENTS,
    _infer_dense,
    _reference_dense,
    replace(TRAITS, runtime_zero_point=True),
    "quantized matrix product",
)


def dense(
    data: relax.Expr,
    weight: relax.Expr,
    input_zero_point: relax.Expr,
    weight_zero_point: relax.Expr,
    input_scale: relax.Expr,
    weight_scale: relax.Expr,
    out_dtype: str = "int32",
) -> relax.Call:
    """acc[m,n] = Σ_k (data[m,k] − input_zero_point) · (weight[n,k] − weight_zero_point[n]).

    data:    (M, K), weight: (N, K); int8, uint8 or int16 each
    input_zero_point, input_scale:   scalars
    weight_zero_point, weight_scale: scalars or vectors of N
    out_dtype: int32 or int64; sums beyond it wrap. The result (M, N) is in units input_scale · weight_scale[n]

    Raises ShapeError. Source: Relay qnn.dense (same argument order).
    """
    return DENSE.call(data, weight, input_zero_point, weight_zero_point, input_scale, weight_scale, out_dtype=out_dtype)


# ---- contrib_dense_pack ------------------------------------------------------------------------------------------


def packed_matrix_shape(weight: TensorInfo, kernel_layout: str) -> Shape:
    """(N, K) of a packed weight: NC is (N, K) itself, NC32n4c is (N/32, K/4, 32, 4)."""
    if kernel_layout not in PACKED_LAYOUTS:
        raise ShapeError(f"kernel_layout must be {' or '.join(PACKED_LAYOUTS)}, found {kernel_layout}")
    if kernel_layout == "NC":
        check_rank(weight, 2)
        return weight.shape
    check_rank(weight, 4)
    if weight.shape[2:] != (32, 4):
        raise ShapeError(f"a weight in NC32n4c has shape (N/32, K/4, 32, 4), found {weight.shape}")
    return (weight.shape[0] * 32, weight.shape[1] * 4)


def unpack_weight(weight: np.ndarray, kernel_layout: str) -> np.ndarray:
    """The packed weight as (N, K)."""
    if kernel_layout == "NC":
        return weight
    blocks, depth = weight.shape[:2]
    return weight.transpose(0, 2, 1, 3).reshape(blocks * 32, depth * 4)


def _infer_dense_pack(
    data: TensorInfo, weight: TensorInfo, *qparams: TensorInfo, kernel_layout: str, out_dtype: str
) -> tuple[Shape, str]:
    return _check(data, weight, packed_matrix_shape(weight, kernel_layout), qparams, out_dtype)  # type: ignore[arg-type]


def _reference_dense_pack(
    data: np.ndarray,
    weight: np.ndarray,
    input_zero_point: np.ndarray,
    weight_zero_point: np.ndarray,
    input_scale: np.ndarray,
    weight_scale: np.ndarray,
    *,
    kernel_layout: str,
    out_dtype: str,
) -> np.ndarray:
    matrix = unpack_weight(weight, kernel_layout)
    return _shifted_product(data, matrix, input_zero_point, weight_zero_point, out_dtype)


CONTRIB_DENSE_PACK = define(
    "contrib_dense_pack",
    ARGUMENTS,
    _infer_dense_pack,
    _reference_dense_pack,
    TRAITS,
    "quantized product, packed weight",
)


def contrib_dense_pack(
    data: relax.Expr,
    weight: relax.Expr,
    input_zero_point: relax.Expr,
    weight_zero_point: relax.Expr,
    input_scale: relax.Expr,
    weight_scale: relax.Expr,
    kernel_layout: str = "NC32n4c",
    out_dtype: str = "int32",
) -> relax.Call:
    """`dense` over a packed weight: with NC32n4c, weight[n // 32, k // 4, n % 32, k % 4] stands for (n, k).

    data: (M, K); weight: (N/32, K/4, 32, 4) in NC32n4c, (N, K) in NC; everything else as in `dense`.
    Raises ShapeError. Source: Relay qnn.contrib_dense_pack, which had no lowering of its own.
    """
    return CONTRIB_DENSE_PACK.call(
        data,
        weight,
        input_zero_point,
        weight_zero_point,
        input_scale,
        weight_scale,
        kernel_layout=kernel_layout,
        out_dtype=out_dtype,
    )


export_to_script(dense=dense, contrib_dense_pack=contrib_dense_pack)

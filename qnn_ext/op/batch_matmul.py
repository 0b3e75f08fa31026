"""qnn.batch_matmul: products of two quantized activations, accumulated in integers."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from .accumulate import ACCUMULATOR_DTYPES, DATA_DTYPES, matmul_nt
from .base import Shape, TensorInfo, check_dtype, check_out_dtype, check_qparams, check_rank, define, export_to_script
from .traits import Data, Kind, Product, Traits


def _infer(
    x: TensorInfo,
    y: TensorInfo,
    x_zero_point: TensorInfo,
    y_zero_point: TensorInfo,
    x_scale: TensorInfo,
    y_scale: TensorInfo,
    *,
    out_dtype: str,
) -> tuple[Shape, str]:
    for info in (x, y):
        check_dtype(info, *DATA_DTYPES)
        check_rank(info, 3)
    check_out_dtype(out_dtype, *ACCUMULATOR_DTYPES)
    batches = (x.shape[0], y.shape[0])
    if x.shape[2] != y.shape[2] or (batches[0] != batches[1] and 1 not in batches):
        raise ShapeError(f"x {x.shape} (B, M, K) and y {y.shape} (B, N, K) do not match")
    check_qparams(x_scale, x_zero_point)
    check_qparams(y_scale, y_zero_point)
    return (batches[1] if batches[0] == 1 else batches[0], x.shape[1], y.shape[1]), out_dtype


def _reference(
    x: np.ndarray,
    y: np.ndarray,
    x_zero_point: np.ndarray,
    y_zero_point: np.ndarray,
    x_scale: np.ndarray,
    y_scale: np.ndarray,
    *,
    out_dtype: str,
) -> np.ndarray:
    left = x.astype(np.int32) - x_zero_point.reshape(())
    right = y.astype(np.int32) - y_zero_point.reshape(())
    return matmul_nt(left, right, out_dtype=out_dtype)


BATCH_MATMUL = define(
    "batch_matmul",
    "x y x_zero_point y_zero_point x_scale y_scale",
    _infer,
    _reference,
    Traits(
        Kind.PRODUCT,
        data=(Data("x", "x_scale", "x_zero_point"), Data("y", "y_scale", "y_zero_point")),
        product=Product.MATRIX,
        shift_invariant=True,
    ),
    "quantized batched matrix product",
)


def batch_matmul(
    x: relax.Expr,
    y: relax.Expr,
    x_zero_point: relax.Expr,
    y_zero_point: relax.Expr,
    x_scale: relax.Expr,
    y_scale: relax.Expr,
    out_dtype: str = "int32",
) -> relax.Call:
    """acc[b,m,n] = Σ_k (x[b,m,k] − x_zero_point) · (y[b,n,k] − y_zero_point), in units x_scale · y_scale.

    x: (B, M, K), y: (B, N, K), that is, transposed; int8, uint8 or int16. A batch of 1 broadcasts against the other
    all scales and zero points: scalars, constant or computed
    out_dtype: int32 or int64; sums beyond it wrap

    Raises ShapeError. Source: Relay qnn.batch_matmul (same argument order).
    """
    return BATCH_MATMUL.call(x, y, x_zero_point, y_zero_point, x_scale, y_scale, out_dtype=out_dtype)


export_to_script(batch_matmul=batch_matmul)

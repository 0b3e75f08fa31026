"""qnn.qlinear_avg_pool: ONNX Runtime's quantized average pooling, which sums real values one by one in float32."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..numerics.reference import float_to_int
from ..numerics.windows import pooled_cells
from .base import Shape, TensorInfo, check_dtype, check_out_dtype, check_qparams, define, export_to_script
from .pool_sum import check_geometry, pooled_size, window_totals
from .traits import Data, Kind, Output, Traits

DTYPES = ("int8", "uint8")


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
    ceil_mode: bool,
    count_include_pad: bool,
    out_dtype: str,
) -> tuple[Shape, str]:
    check_dtype(data, *DTYPES)
    check_qparams(input_scale, input_zero_point)
    check_qparams(output_scale, output_zero_point)
    check_out_dtype(out_dtype, *DTYPES)
    check_geometry(data, pool_size, strides, padding)
    spatial = pooled_size(data.shape[1:-1], pool_size, strides, padding, ceil_mode)
    return (data.shape[0], *spatial, data.shape[-1]), out_dtype


def _reference(
    data: np.ndarray,
    input_scale: np.ndarray,
    input_zero_point: np.ndarray,
    output_scale: np.ndarray,
    output_zero_point: np.ndarray,
    *,
    pool_size: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    ceil_mode: bool,
    count_include_pad: bool,
    out_dtype: str,
) -> np.ndarray:
    window = {"pool_size": pool_size, "strides": strides, "padding": padding}
    total = window_totals(data, input_scale, input_zero_point, ceil_mode=ceil_mode, **window)
    cells = pooled_cells(data.shape[1:-1], total.shape[1:-1], **window, count_include_pad=count_include_pad)
    average = total / cells
    steps = average / output_scale.reshape(()).astype(np.float32) + output_zero_point.reshape(()).astype(np.float32)
    return float_to_int(np.rint(steps), np.int64(0), out_dtype)


QLINEAR_AVG_POOL = define(
    "qlinear_avg_pool",
    "data input_scale input_zero_point output_scale output_zero_point",
    _infer,
    _reference,
    Traits(
        Kind.SUM,
        data=(Data("data", "input_scale", "input_zero_point"),),
        output=Output("output_scale", "output_zero_point"),
        shift_invariant=True,
    ),
    "quantized average pooling in ONNX Runtime's float32",
)


def qlinear_avg_pool(
    data: relax.Expr,
    input_scale: relax.Expr,
    input_zero_point: relax.Expr,
    output_scale: relax.Expr,
    output_zero_point: relax.Expr,
    pool_size: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    out_dtype: str = "int8",
) -> relax.Call:
    """q = saturate(rint(((Σ s_in·(q_in − z_in)) / n) / s_out + z_out)), the sums in float32, row by row.

    data:    int8 or uint8, channels last: (N, spatial…, C) with any number of spatial dimensions; scales float and
             zero points int32, scalars
    padding: all beginnings, then all ends; stands for real 0.0
    n:       the cells of the window that are in the data, or with `count_include_pad` all of them, including those
             beyond the padding that `ceil_mode` reaches
    out_dtype: int8 or uint8

    Raises ShapeError. Source: com.microsoft QLinearAveragePool of ONNX Runtime.
    """
    return QLINEAR_AVG_POOL.call(
        data,
        input_scale,
        input_zero_point,
        output_scale,
        output_zero_point,
        pool_size=tuple(pool_size),
        strides=tuple(strides),
        padding=tuple(padding),
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        out_dtype=out_dtype,
    )


export_to_script(qlinear_avg_pool=qlinear_avg_pool)

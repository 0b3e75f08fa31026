"""qnn.prelu: leaky relu whose slopes are a quantized tensor, usually one slope per channel."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import check_rounding, fixed_point, float_multiplier, reference
from .base import (
    Shape,
    TensorInfo,
    broadcast_shape,
    check_dtype,
    check_out_dtype,
    check_qparams,
    define,
    export_to_script,
)
from .requantize import rescale
from .traits import Data, Kind, Output, Traits

DTYPES = ("int8", "uint8")


def _infer(
    data: TensorInfo,
    alpha: TensorInfo,
    input_scale: TensorInfo,
    input_zero_point: TensorInfo,
    alpha_scale: TensorInfo,
    alpha_zero_point: TensorInfo,
    output_scale: TensorInfo,
    output_zero_point: TensorInfo,
    *,
    rounding: str,
    compute_dtype: str,
    out_dtype: str,
) -> tuple[Shape, str]:
    check_dtype(data, *DTYPES, "int16")
    check_dtype(alpha, *DTYPES)
    for scale, zero_point in (
        (input_scale, input_zero_point),
        (alpha_scale, alpha_zero_point),
        (output_scale, output_zero_point),
    ):
        check_qparams(scale, zero_point)
    check_out_dtype(out_dtype, *DTYPES, "int16")
    check_rounding(rounding, compute_dtype)
    if broadcast_shape(data, alpha) != data.shape:
        raise ShapeError(f"alpha {alpha.shape} must broadcast to data {data.shape}")
    return data.shape, out_dtype


def _reference(
    data: np.ndarray,
    alpha: np.ndarray,
    input_scale: np.ndarray,
    input_zero_point: np.ndarray,
    alpha_scale: np.ndarray,
    alpha_zero_point: np.ndarray,
    output_scale: np.ndarray,
    output_zero_point: np.ndarray,
    *,
    rounding: str,
    compute_dtype: str,
    out_dtype: str,
) -> np.ndarray:
    in_scale, slope_scale, out_scale = (s.reshape(()) for s in (input_scale, alpha_scale, output_scale))
    zero_point = output_zero_point.reshape(())
    x = data.astype(np.int32) - input_zero_point.reshape(())
    below = x * (alpha.astype(np.int32) - alpha_zero_point.reshape(()))
    product_scale = np.asarray(in_scale * slope_scale)
    branches = []
    for value, scale in ((x, in_scale), (below, product_scale)):
        if rounding == "TFLITE":
            real = float(float_multiplier(scale.astype(np.float32), out_scale.astype(np.float32)))
            multiplier = fixed_point(real, rounding=rounding)
            branches.append(reference.requantize_fixed(value, multiplier, zero_point, out_dtype, rounding))
        else:
            branches.append(rescale(value, scale, out_scale, zero_point, rounding, compute_dtype, out_dtype))
    return np.where(x >= 0, *branches)


PRELU = define(
    "prelu",
    "data alpha input_scale input_zero_point alpha_scale alpha_zero_point output_scale output_zero_point",
    _infer,
    _reference,
    Traits(
        Kind.POINTWISE,
        data=(
            Data("data", "input_scale", "input_zero_point"),
            Data("alpha", "alpha_scale", "alpha_zero_point"),
        ),
        output=Output("output_scale", "output_zero_point"),
    ),
    "quantized prelu",
)


def prelu(
    data: relax.Expr,
    alpha: relax.Expr,
    input_scale: relax.Expr,
    input_zero_point: relax.Expr,
    alpha_scale: relax.Expr,
    alpha_zero_point: relax.Expr,
    output_scale: relax.Expr,
    output_zero_point: relax.Expr,
    rounding: str = "TONEAREST_EVEN",
    compute_dtype: str | None = None,
    out_dtype: str = "int8",
) -> relax.Call:
    """q = saturate(round(d·s_in / s_out) + z_out) for d = data − z_in ≥ 0, with d·(alpha − z_a)·s_in·s_a for d < 0.

    data:  int8, uint8 or int16; alpha: int8 or uint8, its shape broadcasts to data's
    scales float, zero points int32: scalars
    rounding, compute_dtype: as in `requantize`, for the multipliers s_in/s_out and s_in·s_a/s_out ("TFLITE" computes
           them in float32, as PRELU does)
    out_dtype: int8, uint8 or int16

    Raises ShapeError, QnnError. Source: TFLite reference_ops::Prelu.
    """
    return PRELU.call(
        data,
        alpha,
        input_scale,
        input_zero_point,
        alpha_scale,
        alpha_zero_point,
        output_scale,
        output_zero_point,
        rounding=rounding,
        compute_dtype=check_rounding(rounding, compute_dtype),
        out_dtype=out_dtype,
    )


export_to_script(prelu=prelu)

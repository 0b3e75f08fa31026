"""qnn.lane_norm: instance normalization of floats with ONNX Runtime's bits."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import float_rows
from .base import Shape, TensorInfo, check_dtype, define, export_to_script
from .traits import Kind, Traits


def _infer(data: TensorInfo, gamma: TensorInfo, beta: TensorInfo, *, epsilon: float) -> tuple[Shape, str]:
    for operand in (data, gamma, beta):
        check_dtype(operand, "float32")
    if data.ndim != 3 or data.shape[2] == 0:
        raise ShapeError(f"data must have shape (N, C, L) with L > 0, found {data.shape}")
    if not gamma.shape == beta.shape == data.shape[1:2]:
        raise ShapeError(f"gamma and beta must have shape {data.shape[1:2]}, found {gamma.shape} and {beta.shape}")
    if not epsilon >= 0:
        raise ShapeError(f"epsilon must not be negative, found {epsilon}")
    return data.shape, "float32"


def _reference(data: np.ndarray, gamma: np.ndarray, beta: np.ndarray, *, epsilon: float) -> np.ndarray:
    return float_rows.lane_norm(data, gamma, beta, epsilon)


TRAITS = Traits(Kind.OTHER, others=("gamma", "beta"), function="layer_norm")
LANE_NORM = define("lane_norm", "data gamma beta", _infer, _reference, TRAITS, "instance normalization of floats")


def lane_norm(data: relax.Expr, gamma: relax.Expr, beta: relax.Expr, epsilon: float = 1e-5) -> relax.Call:
    """y = x · f + (β − mean · f) with f = γ / √(variance + ε), over the last axis, each step rounded to float32.

    data: float32 of shape (N, C, L); gamma and beta: float32, one value for each index of the second axis

    The mean is `lane_sum(x) / L`; the variance is the mean of (x − mean)², added up as by `lane_sum`, but with partial
    sums from each row's first element on. γ is multiplied by 1 / √. Raises ShapeError. Source: ONNX Runtime's
    InstanceNormalization.
    """
    return LANE_NORM.call(data, gamma, beta, epsilon=float(epsilon))


export_to_script(lane_norm=lane_norm)

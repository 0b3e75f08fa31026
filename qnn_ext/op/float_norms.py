"""qnn.welford_norm, qnn.rms_norm and qnn.lane_norm: normalizations of floats with ONNX Runtime's bits: of layers, by
root mean squares, and of instances."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import float_rows
from .base import Shape, TensorInfo, check_dtype, define, export_to_script
from .traits import Kind, Traits


def _checked(data: TensorInfo, parameters: Sequence[TensorInfo], axis: int, epsilon: float) -> tuple[Shape, str]:
    """The result's type; gamma and beta have one value for each index of `axis`."""
    for operand in (data, *parameters):
        check_dtype(operand, "float32")
    expected = (data.shape[axis],)
    for operand in parameters:
        if operand.shape != expected:
            raise ShapeError(f"{operand.name} must have shape {expected}, found {operand.shape}")
    if not epsilon >= 0:
        raise ShapeError(f"epsilon must not be negative, found {epsilon}")
    return data.shape, "float32"


# ---- welford_norm ------------------------------------------------------------------------------------------------


def _infer_welford(data: TensorInfo, gamma: TensorInfo, beta: TensorInfo, *, epsilon: float) -> tuple[Shape, str]:
    if data.ndim == 0 or data.shape[-1] < 2:
        raise ShapeError(f"data must have rows of at least two elements, found shape {data.shape}")
    return _checked(data, (gamma, beta), -1, epsilon)


def _reference_welford(data: np.ndarray, gamma: np.ndarray, beta: np.ndarray, *, epsilon: float) -> np.ndarray:
    return float_rows.welford_norm(data, gamma, beta, epsilon)


WELFORD_NORM = define(
    "welford_norm",
    "data gamma beta",
    _infer_welford,
    _reference_welford,
    Traits(Kind.ROWS, others=("gamma", "beta"), function="layer_norm"),
    "layer normalization of floats",
)


def welford_norm(data: relax.Expr, gamma: relax.Expr, beta: relax.Expr, epsilon: float = 1e-5) -> relax.Call:
    """y = (x − mean) / √(variance + ε) · γ + β over the last axis, each step rounded to float32.

    data: float32; gamma and beta: float32, one value for each element of a row

    Mean and variance are Welford's: element after element, with d = xₖ − mean, mean += d / k and
    squares += d · (xₖ − mean). Raises ShapeError. Source: ONNX Runtime's SkipLayerNormalization.
    """
    return WELFORD_NORM.call(data, gamma, beta, epsilon=float(epsilon))


# ---- rms_norm ----------------------------------------------------------------------------------------------------


def _infer_rms(data: TensorInfo, gamma: TensorInfo, *, epsilon: float, in_order: bool) -> tuple[Shape, str]:
    if data.ndim == 0 or data.shape[-1] == 0:
        raise ShapeError(f"data must have a last axis to normalize over, found shape {data.shape}")
    return _checked(data, (gamma,), -1, epsilon)


def _reference_rms(data: np.ndarray, gamma: np.ndarray, *, epsilon: float, in_order: bool) -> np.ndarray:
    return float_rows.rms_norm(data, gamma, epsilon, in_order)


RMS_NORM = define(
    "rms_norm",
    "data gamma",
    _infer_rms,
    _reference_rms,
    Traits(Kind.ROWS, others=("gamma",), function="layer_norm"),
    "normalization of floats by their root mean square",
)


def rms_norm(data: relax.Expr, gamma: relax.Expr, epsilon: float = 1e-5, in_order: bool = False) -> relax.Call:
    """y = x / √(mean of x² + ε) · γ over the last axis, each step rounded to float32.

    data: float32; gamma: float32, one value for each element of a row
    in_order: x² are rounded and added up one by one, and x is divided by the root. Otherwise eight partial sums are
              made by fused multiply-adds, as in layer normalization, and x is multiplied by 1 / √

    Raises ShapeError. Source: ONNX Runtime's SimplifiedLayerNormalization; in order, its
    SkipSimplifiedLayerNormalization, and both for rows of fewer than 16 elements.
    """
    return RMS_NORM.call(data, gamma, epsilon=float(epsilon), in_order=bool(in_order))


# ---- lane_norm ---------------------------------------------------------------------------------------------------


def _infer_lane(data: TensorInfo, gamma: TensorInfo, beta: TensorInfo, *, epsilon: float) -> tuple[Shape, str]:
    if data.ndim != 3 or data.shape[2] == 0:
        raise ShapeError(f"data must have shape (N, C, L) with L > 0, found {data.shape}")
    return _checked(data, (gamma, beta), 1, epsilon)


def _reference_lane(data: np.ndarray, gamma: np.ndarray, beta: np.ndarray, *, epsilon: float) -> np.ndarray:
    return float_rows.lane_norm(data, gamma, beta, epsilon)


LANE_NORM = define(
    "lane_norm",
    "data gamma beta",
    _infer_lane,
    _reference_lane,
    Traits(Kind.OTHER, others=("gamma", "beta"), function="layer_norm"),
    "instance normalization of floats",
)


def lane_norm(data: relax.Expr, gamma: relax.Expr, beta: relax.Expr, epsilon: float = 1e-5) -> relax.Call:
    """y = x · f + (β − mean · f) with f = γ / √(variance + ε), over the last axis, each step rounded to float32.

    data: float32 of shape (N, C, L); gamma and beta: float32, one value for each index of the second axis

    The mean is `lane_sum(x) / L`; the variance is the mean of (x − mean)², added up as by `lane_sum`, but with partial
    sums from each row's first element on. γ is multiplied by 1 / √. Raises ShapeError. Source: ONNX Runtime's
    InstanceNormalization.
    """
    return LANE_NORM.call(data, gamma, beta, epsilon=float(epsilon))


export_to_script(welford_norm=welford_norm, rms_norm=rms_norm, lane_norm=lane_norm)

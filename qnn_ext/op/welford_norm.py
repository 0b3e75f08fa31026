"""qnn.welford_norm: layer normalization of floats with ONNX Runtime's bits where it adds two tensors and normalizes."""

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
    if data.ndim == 0 or data.shape[-1] < 2:
        raise ShapeError(f"data must have rows of at least two elements, found shape {data.shape}")
    if not gamma.shape == beta.shape == data.shape[-1:]:
        raise ShapeError(f"gamma and beta must have shape {data.shape[-1:]}, found {gamma.shape} and {beta.shape}")
    if not epsilon >= 0:
        raise ShapeError(f"epsilon must not be negative, found {epsilon}")
    return data.shape, "float32"


def _reference(data: np.ndarray, gamma: np.ndarray, beta: np.ndarray, *, epsilon: float) -> np.ndarray:
    return float_rows.welford_norm(data, gamma, beta, epsilon)


TRAITS = Traits(Kind.ROWS, others=("gamma", "beta"), function="layer_norm")
WELFORD_NORM = define("welford_norm", "data gamma beta", _infer, _reference, TRAITS, "layer normalization of floats")


def welford_norm(data: relax.Expr, gamma: relax.Expr, beta: relax.Expr, epsilon: float = 1e-5) -> relax.Call:
    """y = (x − mean) / √(variance + ε) · γ + β over the last axis, each step rounded to float32.

    data: float32; gamma and beta: float32, one value for each element of a row

    Mean and variance are Welford's: element after element, with d = xₖ − mean, mean += d / k and
    squares += d · (xₖ − mean). Raises ShapeError. Source: ONNX Runtime's SkipLayerNormalization.
    """
    return WELFORD_NORM.call(data, gamma, beta, epsilon=float(epsilon))


export_to_script(welford_norm=welford_norm)

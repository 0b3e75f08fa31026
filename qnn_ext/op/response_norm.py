"""qnn.response_norm: local response normalization of floats with the bits of ONNX Runtime."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import response_norm as numerics
from .base import Shape, TensorInfo, check_dtype, define, export_to_script
from .traits import Kind, Traits


def _infer(data: TensorInfo, *, size: int, alpha: float, beta: float, bias: float) -> tuple[Shape, str]:
    check_dtype(data, "float32")
    if data.ndim < 2:
        raise ShapeError(f"data must have channels, found shape {data.shape}")
    if size < 1 or not 0 < beta < math.inf or not math.isfinite(alpha) or not math.isfinite(bias):
        raise ShapeError(
            f"size and beta must be positive, found {size} and {beta}; alpha {alpha} and bias {bias} finite"
        )
    return data.shape, "float32"


def _reference(data: np.ndarray, *, size: int, alpha: float, beta: float, bias: float) -> np.ndarray:
    return numerics.response_norm(data, size, alpha, beta, bias)


RESPONSE_NORM = define(
    "response_norm", "data", _infer, _reference, Traits(Kind.OTHER, cheap=False), "response normalization of floats"
)


def response_norm(
    data: relax.Expr, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> relax.Call:
    """y = x · sum^−β with sum = bias + α / size · Σ x² over `size` neighbouring channels, each step rounded to float32.

    data: float32 of shape (N, C, …)
    size: channels from c − ⌊(size − 1) / 2⌋ on

    The sum of a channel is that of the one before it, plus the term that comes in, minus the one that leaves; its power
    is Eigen's, from a logarithm of 2 floats. Raises ShapeError. Source: ONNX Runtime's LRN.
    """
    return RESPONSE_NORM.call(data, size=int(size), alpha=float(alpha), beta=float(beta), bias=float(bias))


export_to_script(response_norm=response_norm)

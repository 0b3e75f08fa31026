"""qnn.lane_softmax: softmax of rows of floats with XNNPACK's bits."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import float_rows
from .base import Shape, TensorInfo, check_dtype, define, export_to_script
from .traits import Kind, Traits


def _infer(data: TensorInfo) -> tuple[Shape, str]:
    check_dtype(data, "float32")
    if data.ndim == 0 or data.shape[-1] == 0:
        raise ShapeError(f"data must have a last axis with elements, found shape {data.shape}")
    return data.shape, "float32"


def _reference(data: np.ndarray) -> np.ndarray:
    return float_rows.lane_softmax(data)


LANE_SOFTMAX = define("lane_softmax", "data", _infer, _reference, Traits(Kind.OTHER), "softmax of rows of floats")


def lane_softmax(data: relax.Expr) -> relax.Call:
    """e^(x − max) · (1 / Σ e^(x − max)) over the last axis of float32 values, by XNNPACK's polynomial and in its order
    of sums: twice sixteen partial sums over whole groups of 64 elements, the second sixteen added to the first, then
    what follows, sixteen elements at a time; at last repeatedly one half of them added to the other.

    Raises ShapeError. Source: XNNPACK's kernels for AVX-512; those for AVX2 have half as many partial sums.
    """
    return LANE_SOFTMAX.call(data)


export_to_script(lane_softmax=lane_softmax)

"""qnn.wide_sum: sums of rows of floats with XNNPACK's bits."""

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
        raise ShapeError(f"data must have a last axis to sum over, found shape {data.shape}")
    return (*data.shape[:-1], 1), "float32"


def _reference(data: np.ndarray) -> np.ndarray:
    return float_rows.wide_sum(data)


WIDE_SUM = define("wide_sum", "data", _infer, _reference, Traits(Kind.OTHER), "sum of rows of floats")


def wide_sum(data: relax.Expr) -> relax.Call:
    """Σ x over the last axis, kept with extent 1; float32, each addition rounded: twice sixteen partial sums over whole
    groups of 32 elements; to the first ones the sixteen elements behind them if there are as many, then the second
    ones, then the elements that are left; at last repeatedly one half of them added to the other.

    Raises ShapeError. Source: XNNPACK's f32-rsum for AVX-512.
    """
    return WIDE_SUM.call(data)


export_to_script(wide_sum=wide_sum)

"""qnn.aligned_sum: sums of rows of floats with the bits of Eigen, and so of ONNX Runtime's ReduceSum and ReduceMean."""

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


TRAITS = Traits(Kind.SUM)
ALIGNED_SUM = define("aligned_sum", "data", _infer, float_rows.aligned_sum, TRAITS, "sum of rows of floats")


def aligned_sum(data: relax.Expr) -> relax.Call:
    """Σ x over the last axis, kept with extent 1; float32, each addition rounded.

    Eight partial sums from the row's first element on whose position in the tensor is a multiple of four, over whole
    groups of eight; the second four are added to the first, then the four elements behind them if there are as many,
    then the third and fourth to the first two, and those to one. The elements in front follow one by one, then those
    behind. Raises ShapeError. Source: Eigen's vectorized reduction with 16-byte vectors.
    """
    return ALIGNED_SUM.call(data)


export_to_script(aligned_sum=aligned_sum)

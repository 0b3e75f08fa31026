"""qnn.lane_sum: sums of rows of floats with the bits of ONNX Runtime's ReduceSum, ReduceMean and GlobalAveragePool."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import float_rows
from .base import Shape, TensorInfo, check_dtype, define, export_to_script
from .traits import Kind, Traits


def _infer(data: TensorInfo, *, aligned: bool) -> tuple[Shape, str]:
    check_dtype(data, "float32")
    if data.ndim == 0 or data.shape[-1] == 0:
        raise ShapeError(f"data must have a last axis to sum over, found shape {data.shape}")
    return (*data.shape[:-1], 1), "float32"


def _reference(data: np.ndarray, *, aligned: bool) -> np.ndarray:
    return float_rows.lane_sum(data, 2 if aligned else 1, aligned)


LANE_SUM = define("lane_sum", "data", _infer, _reference, Traits(Kind.OTHER), "sum of rows of floats")


def lane_sum(data: relax.Expr, aligned: bool = True) -> relax.Call:
    """Σ x over the last axis, kept with extent 1; float32, each addition rounded.

    aligned: eight partial sums, from the row's first element on whose position in the tensor is a multiple of four,
             over whole groups of eight; the second four are added to the first, then the four elements behind them if
             there are as many. Otherwise four partial sums, from the row's first element on, over whole groups of four

    Of the four sums the last two are added to the first two, and those to each other. The elements in front follow one
    by one, then those behind. Raises ShapeError. Source: Eigen's reduction with vectors of 16 bytes; MLAS's pooling.
    """
    return LANE_SUM.call(data, aligned=bool(aligned))


export_to_script(lane_sum=lane_sum)

"""qnn.range_scale and qnn.range_zero_point: quantization parameters of a range that is found at run time."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import reference
from ..numerics.extremes import maximum, minimum
from ..qparams import dtype_range
from .base import Shape, TensorInfo, check_dtype, check_out_dtype, define, export_to_script
from .traits import Kind, Traits

_DTYPES = ("int8", "uint8", "int16", "uint16")
_ZERO = np.zeros((), np.float32)


def _check_range(ends: TensorInfo) -> Shape:
    """The shape of what is computed from ranges."""
    check_dtype(ends, "float32")
    if not ends.shape or ends.shape[-1] != 2:
        raise ShapeError(
            f"{ends.name} must have a last axis of two, the least and the greatest value, found shape {ends.shape}"
        )
    return ends.shape[:-1]


# ---- scale -------------------------------------------------------------------------------------------------------


def _infer_scale(ends: TensorInfo, *, steps: int) -> tuple[Shape, str]:
    shape = _check_range(ends)
    if steps < 1:
        raise ShapeError(f"steps must be positive, found {steps}")
    return shape, "float32"


def _reference_scale(ends: np.ndarray, *, steps: int) -> np.ndarray:
    low, high = minimum(ends[..., 0], _ZERO), maximum(ends[..., 1], _ZERO)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(low == high, np.float32(1), (high - low) / np.float32(steps))


RANGE_SCALE = define(
    "range_scale", "ends", _infer_scale, _reference_scale, Traits(Kind.OTHER), "scale of a range found at run time"
)


def range_scale(ends: relax.Expr, steps: int) -> relax.Call:
    """s = (max(high, 0) − min(low, 0)) / steps, or 1 where that is 0: the smallest scale that covers a range and zero.

    ends:  float32 (…, 2): the least value, low, and the greatest, high
    steps: between the integers that stand for them

    NaN where an end is NaN. Raises ShapeError. Source: ONNX DynamicQuantizeLinear, whose specification leaves a range
    of zeros open; its scale is 1 in ONNX Runtime.
    """
    return RANGE_SCALE.call(ends, steps=steps)


# ---- zero point --------------------------------------------------------------------------------------------------


def _infer_zero_point(ends: TensorInfo, scale: TensorInfo, *, start: int, dtype: str) -> tuple[Shape, str]:
    shape = _check_range(ends)
    check_dtype(scale, "float32")
    if scale.shape != shape:
        raise ShapeError(f"scale must have shape {shape}, one for each range, found {scale.shape}")
    check_out_dtype(dtype, *_DTYPES)
    first, last = dtype_range(dtype)
    if not first <= start <= last:
        raise ShapeError(f"start must be a number of {dtype}, found {start}")
    return shape, "int32"


def _reference_zero_point(ends: np.ndarray, scale: np.ndarray, *, start: int, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        position = np.float32(start) - minimum(ends[..., 0], _ZERO) / scale
    return reference.float_to_int(reference.round_half_even(position), np.int32(0), dtype).astype(np.int32)


RANGE_ZERO_POINT = define(
    "range_zero_point",
    "ends scale",
    _infer_zero_point,
    _reference_zero_point,
    Traits(Kind.OTHER, others=("scale",)),
    "zero point of a range found at run time",
)


def range_zero_point(ends: relax.Expr, scale: relax.Expr, start: int, dtype: str) -> relax.Call:
    """z = saturate(rint(start − min(low, 0) / scale)) in the given dtype, as int32: the integer that stands for zero.

    ends:  float32 (…, 2): the least value, low, and the greatest
    scale: float32 (…), as by `range_scale`; real units per integer step
    start: the integer that stands for the least value
    dtype: int8, uint8, int16 or uint16

    Raises ShapeError. Source: ONNX DynamicQuantizeLinear.
    """
    return RANGE_ZERO_POINT.call(ends, scale, start=start, dtype=dtype)


export_to_script(range_scale=range_scale, range_zero_point=range_zero_point)

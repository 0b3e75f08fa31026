"""qnn.simulated_quantize, qnn.simulated_dequantize: quantization error in float32, for a dtype chosen at run time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import reference
from ..qparams import dtype_range
from .base import (
    Shape,
    TensorInfo,
    along_axis,
    axis_in_use,
    channel_length,
    check_dtype,
    check_qparams,
    define,
    export_to_script,
)
from .traits import Data, Kind, Output, Traits

# What the run-time dtype code selects; 0 and any other code pass the data through.
DTYPE_CODES = {1: "int8", 2: "uint8", 3: "int32"}


def dtype_code(dtype: str | None) -> int:
    """The code of a dtype; 0 for None, which disables the quantization. Raises ShapeError for other dtypes."""
    if dtype is None:
        return 0
    for code, name in DTYPE_CODES.items():
        if name == dtype:
            return code
    raise ShapeError(f"dtype must be None or one of {', '.join(DTYPE_CODES.values())}, found {dtype}")


def _infer(
    data: TensorInfo, code: TensorInfo, scale: TensorInfo, zero_point: TensorInfo, *, axis: int
) -> tuple[Shape, str]:
    check_dtype(data, "float32")
    check_dtype(code, "int32")
    if code.shape not in ((), (1,)):
        raise ShapeError(f"{code.name} must be a scalar, found shape {code.shape}")
    check_qparams(scale, zero_point, channel_length(data, axis))
    return data.shape, "float32"


def _quantize(x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, dtype: str) -> np.ndarray:
    low, high = dtype_range(dtype)
    rounded = reference.round_half_away(x / scale) + zero_point.astype(np.float32)
    return np.clip(rounded, np.float32(low), np.float32(high))


def _dequantize(x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, dtype: str) -> np.ndarray:
    return (x - zero_point.astype(np.float32)) * scale


def _reference(convert: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def run(data: np.ndarray, code: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, *, axis: int) -> np.ndarray:
        dtype = DTYPE_CODES.get(int(code.reshape(())))
        if dtype is None:
            return data
        scale = along_axis(scale, axis, data.ndim).astype(np.float32)
        return np.asarray(convert(data, scale, along_axis(zero_point, axis, data.ndim), dtype))

    return run


SIMULATED_QUANTIZE = define(
    "simulated_quantize",
    "data dtype scale zero_point",
    _infer,
    _reference(_quantize),
    Traits(
        Kind.POINTWISE,
        data=(Data("data", axis="axis"),),
        output=Output("scale", "zero_point", "axis"),
        others=("dtype",),
    ),
    "quantize, kept in float32",
)
SIMULATED_DEQUANTIZE = define(
    "simulated_dequantize",
    "data dtype scale zero_point",
    _infer,
    _reference(_dequantize),
    Traits(Kind.POINTWISE, data=(Data("data", "scale", "zero_point", "axis"),), others=("dtype",)),
    "dequantize float32 integers",
)


def simulated_quantize(
    data: relax.Expr, dtype: relax.Expr, scale: relax.Expr, zero_point: relax.Expr, axis: int = -1
) -> relax.Call:
    """y = clip(round(data / scale) + zero_point) as float32; midpoints away from zero.

    data:  float32 tensor; dtype: int32 scalar, constant or computed: 0 passes the data through, 1 is int8, 2 uint8,
           3 int32 (see `dtype_code`); results are clipped to the range of that dtype
    scale: float, zero_point: int32; scalars or vectors along `axis`, constant or computed

    Raises ShapeError. Source: Relay qnn.simulated_quantize.
    """
    axis = axis_in_use(axis, data, scale, zero_point)
    return SIMULATED_QUANTIZE.call(data, dtype, scale, zero_point, axis=axis)


def simulated_dequantize(
    data: relax.Expr, dtype: relax.Expr, scale: relax.Expr, zero_point: relax.Expr, axis: int = -1
) -> relax.Call:
    """y = (data − zero_point) · scale in float32, data itself for dtype code 0; arguments as in `simulated_quantize`.

    Raises ShapeError. Source: Relay qnn.simulated_dequantize.
    """
    axis = axis_in_use(axis, data, scale, zero_point)
    return SIMULATED_DEQUANTIZE.call(data, dtype, scale, zero_point, axis=axis)


export_to_script(simulated_quantize=simulated_quantize, simulated_dequantize=simulated_dequantize)

"""qnn.normalize: rows of integers with mean 0 and variance 1: the heart of layer, group, instance and RMS norm."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics.normalize import units
from .base import Shape, TensorInfo, check_dtype, check_qparams, define, export_to_script
from .traits import Data, Kind, Traits

DTYPES = ("int8", "uint8", "int16")


def _infer(
    data: TensorInfo, scale: TensorInfo, zero_point: TensorInfo, *, epsilon: float, centered: bool
) -> tuple[Shape, str]:
    check_dtype(data, *DTYPES)
    check_qparams(scale, zero_point)
    if data.ndim == 0 or data.shape[-1] == 0:
        raise ShapeError(f"data must have a last axis to normalize over, found shape {data.shape}")
    span = np.iinfo(data.dtype).max - np.iinfo(data.dtype).min
    if isinstance(data.shape[-1], int) and (data.shape[-1] * span) ** 2 >= 1 << 63:
        raise ShapeError(f"the square of a sum of {data.shape[-1]} {data.dtype} values does not fit into int64")
    if not epsilon >= 0:
        raise ShapeError(f"epsilon must not be negative, found {epsilon}")
    return data.shape, "float32"


def _reference(
    data: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, *, epsilon: float, centered: bool
) -> np.ndarray:
    count = data.shape[-1]
    x = data.astype(np.int64) - zero_point.reshape(())
    spread = count * (x * x).sum(axis=-1, keepdims=True)
    deviation = count * x
    if centered:
        total = x.sum(axis=-1, keepdims=True)
        spread, deviation = spread - total * total, deviation - total
    step, square = units(float(scale.reshape(())), count)
    variance = spread.astype(np.float32) * square + np.float32(epsilon)
    with np.errstate(divide="ignore", invalid="ignore"):
        return deviation.astype(np.float32) * (step / np.sqrt(variance))


NORMALIZE = define(
    "normalize",
    "data scale zero_point",
    _infer,
    _reference,
    Traits(Kind.ROWS, data=(Data("data", "scale", "zero_point"),), shift_invariant=True),
    "rows with mean 0 and variance 1",
)


def normalize(
    data: relax.Expr, scale: relax.Expr, zero_point: relax.Expr, epsilon: float = 1e-5, centered: bool = True
) -> relax.Call:
    """y = (x − mean) / √(variance + ε) over the last axis, x = (data − zero_point)·scale; float32.

    data: int8, uint8 or int16; scale (float) and zero_point (int32): scalars
    centered: False leaves the mean in and divides by √(mean of x² + ε): RMS norm

    With n elements per row and integer x, D = n·x − Σx and V = n·Σx² − (Σx)² are exact; then in float32
    y = f32(D) · (f32(s/n) / √(f32(V)·f32((s/n)²) + f32(ε))), each operation rounded separately.
    Not centered: D = n·x and V = n·Σx². A row of equal values with ε = 0 gives 0 / 0.

    Raises ShapeError. Source: layer_norm of PyTorch and ONNX, with exact statistics.
    """
    return NORMALIZE.call(data, scale, zero_point, epsilon=float(epsilon), centered=bool(centered))


export_to_script(normalize=normalize)

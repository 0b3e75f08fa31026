"""qnn.layer_norm: layer normalization of int16 gates in integers, as TFLite's integer LSTM does it."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import fixed_point, reference
from ..numerics.gemmlowp import inverse_sqrt
from ..numerics.layer_norm import MEAN_BITS, OUT_BITS, variance_guard
from ..numerics.multiplier import FixedPoint
from .base import Shape, TensorInfo, check_dtype, check_qparams, define, export_to_script
from .traits import Kind, Traits


def _infer(data: TensorInfo, weight: TensorInfo, bias: TensorInfo, weight_scale: TensorInfo) -> tuple[Shape, str]:
    check_dtype(data, "int16")
    check_dtype(weight, "int16")
    check_dtype(bias, "int32")
    check_qparams(weight_scale, TensorInfo("zero_point", (), "int32"))
    if data.ndim != 2 or data.shape[1] == 0 or weight.shape != data.shape[1:] or bias.shape != weight.shape:
        raise ShapeError(
            f"shapes must be data (rows, C), weight (C) and bias (C), found {data.shape}, {weight.shape}, {bias.shape}"
        )
    return data.shape, "int16"


def _reference(data: np.ndarray, weight: np.ndarray, bias: np.ndarray, weight_scale: np.ndarray) -> np.ndarray:
    scale = float(weight_scale.reshape(()))
    count = data.shape[1]
    x = data.astype(np.int64)
    mean = _divide(x.sum(axis=1, keepdims=True) << MEAN_BITS, count)
    squares = ((x * x).astype(np.int32).astype(np.int64)).sum(axis=1, keepdims=True)
    unit = 1 << (2 * MEAN_BITS)
    variance = _divide(squares * (unit // count) - mean * mean, unit)
    variance = np.where(variance < 1, variance_guard(scale), variance)
    centered = ((x << MEAN_BITS) - mean).astype(np.int32)
    rows = [_normalize(row, int(v)) for row, v in zip(centered, variance[:, 0], strict=True)]
    weighted = np.stack(rows).astype(np.int32) * weight.astype(np.int32) + bias  # wraps, as in TFLite
    half, step = 1 << (MEAN_BITS - 1), 1 << MEAN_BITS
    wide = weighted.astype(np.int64)
    rounded = _divide(np.where(wide > 0, wide + half, wide - half), step).astype(np.int32)
    fp = fixed_point(scale)
    result = reference.multiply_tflite(rounded, FixedPoint(fp.multiplier, np.asarray(fp.shift + OUT_BITS)))
    return reference.saturate(result, "int16")


def _normalize(row: np.ndarray, variance: int) -> np.ndarray:
    multiplier, shift = inverse_sqrt(variance)
    fp = FixedPoint(np.asarray(multiplier, np.int32), np.asarray(shift, np.int32))
    return reference.multiply_tflite(row, fp)


def _divide(x: np.ndarray, divisor: int) -> np.ndarray:
    """C's integer division, which rounds towards 0."""
    return np.sign(x) * (np.abs(x) // divisor)


LAYER_NORM = define(
    "layer_norm",
    "data weight bias weight_scale",
    _infer,
    _reference,
    Traits(Kind.ROWS, others=("weight", "bias", "weight_scale")),
    "integer layer normalization",
)


def layer_norm(data: relax.Expr, weight: relax.Expr, bias: relax.Expr, weight_scale: relax.Expr) -> relax.Call:
    """y = (x − mean) / √variance · weight + bias over each row, in integers; y is int16 in Q3.12.

    data:         (rows, C) int16; its scale does not matter
    weight:       (C,) int16, in units of weight_scale (a float scalar)
    bias:         (C,) int32, in units of weight_scale / 1024

    In detail, with / rounding towards 0 and TFLite's fixed-point products: mean = 1024·Σx / C;
    variance = (Σx²·⌊2²⁰ / C⌋ − mean²) / 2²⁰, or if that is below 1, at least variance_guard(weight_scale);
    n = (1024·x − mean) · GetInvSqrtQuantizedMultiplierExp(variance); v = n·weight + bias in int32;
    y = saturate(round(v / 1024) · weight_scale · 2¹²).

    Raises ShapeError. Source: TFLite tensor_utils::ApplyLayerNorm.
    """
    return LAYER_NORM.call(data, weight, bias, weight_scale)


export_to_script(layer_norm=layer_norm)

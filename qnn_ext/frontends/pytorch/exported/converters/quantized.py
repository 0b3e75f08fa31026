"""quantized_decomposed.*: quantize and dequantize of PT2E and reference programs, with fixed or run-time parameters.

q = clip(rint(x · f32(1 / scale)) + zero_point, quant_min, quant_max); x = f32(q − zero_point) · scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tvm import relax

from ..... import op as qnn
from .....errors import UnsupportedOperatorError
from .....op.base import constant, constant_value, shape_of
from ..registry import converter
from ..values import cast, dtype_name, dtype_of, reshape, scalar

FLOATS = ("float32", "float16")
_FLOAT_INTEGERS = 1 << 24  # float32 holds every integer up to here


@converter(
    "quantized_decomposed.quantize_per_tensor.default",
    "quantized_decomposed.quantize_per_tensor.tensor",
    "quantized_decomposed.quantize_per_tensor.tensor2",
)
def _quantize_per_tensor(
    importer: Any, x: relax.Expr, scale: Any, zero_point: Any, low: Any, high: Any, dtype: torch.dtype
) -> relax.Expr:
    return quantize(importer, x, scale, zero_point, -1, (number(low), number(high)), dtype)


@converter("quantized_decomposed.quantize_per_channel.default")
def _quantize_per_channel(
    importer: Any, x: relax.Expr, scale: Any, zero_point: Any, axis: int, low: int, high: int, dtype: torch.dtype
) -> relax.Expr:
    return quantize(importer, x, scale, zero_point, axis, (low, high), dtype)


@converter(
    "quantized_decomposed.dequantize_per_tensor.default",
    "quantized_decomposed.dequantize_per_tensor.tensor",
    "quantized_decomposed.dequantize_per_tensor.tensor2",
)
def _dequantize_per_tensor(
    importer: Any,
    q: relax.Expr,
    scale: Any,
    zero_point: Any,
    low: Any,
    high: Any,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None,
) -> relax.Expr:
    return dequantize(importer, q, scale, zero_point, -1)


# ---- shared with torchao's operators -----------------------------------------------------------------------------


def quantize(
    importer: Any,
    x: relax.Expr,
    scale: Any,
    zero_point: Any,
    axis: int,
    limits: tuple[int, int],
    dtype: torch.dtype,
) -> relax.Expr:
    """R.qnn.quantize with PyTorch's rounding, clipped where quant_min and quant_max are narrower than the dtype."""
    x = cast(importer, x, "float32") if dtype_of(x) == "float16" else x
    name = dtype_name(dtype)
    zero_point = zero_points(importer, zero_point)
    step, factor = _reciprocal(scale)
    if factor is not None:
        x = importer.emit(relax.op.multiply(x, scalar(factor, "float32")))
    scale, bounds = scales(importer, step), np.iinfo(name)
    if bounds.max > _FLOAT_INTEGERS and _shifts(zero_point):
        q = importer.emit(qnn.quantize(x, scale, 0, axis=axis, out_dtype=name, reciprocal=True))
        q = _shifted(importer, q, zero_point, axis)
    else:
        q = importer.emit(qnn.quantize(x, scale, zero_point, axis=axis, out_dtype=name, reciprocal=True))
    low, high = limits
    if low <= bounds.min and high >= bounds.max:
        return q
    return importer.emit(relax.op.clip(q, max(low, bounds.min), min(high, bounds.max)))


def _shifts(zero_point: relax.Expr) -> bool:
    """Whether a zero point is anything but zero."""
    known = constant_value(zero_point)
    return known is None or bool(known.any())


def _shifted(importer: Any, q: relax.Expr, zero_point: relax.Expr, axis: int) -> relax.Expr:
    """q + zero_point in float32, as PyTorch adds them: beyond 2²⁴ the sum is rounded, unlike in R.qnn.quantize."""
    offset = _along(importer, cast(importer, zero_point, "float32"), len(shape_of(q)), axis)
    total = importer.emit(relax.op.add(cast(importer, q, "float32"), offset))
    return importer.emit(qnn.quantize(total, np.float32(1), np.int32(0), out_dtype=dtype_of(q)))


def dequantize(importer: Any, q: relax.Expr, scale: Any, zero_point: Any, axis: int) -> relax.Expr:
    """R.qnn.dequantize to the dtype that the program declares."""
    name = importer.dtype
    if name not in FLOATS:
        raise UnsupportedOperatorError(f"dequantizing to {name} is not supported; supported: {', '.join(FLOATS)}")
    if is_fractional(zero_point):
        return cast(importer, _dequantize_from_floats(importer, q, scale, zero_point, axis), name)
    zero_point = zero_points(importer, zero_point)
    return importer.emit(qnn.dequantize(q, scales(importer, scale), zero_point, axis=axis, out_dtype=name))


def is_fractional(zero_point: Any) -> bool:
    """Whether a zero point is known and no integer, as those of `per_channel_affine_float_qparams`."""
    known = constant_value(zero_point) if isinstance(zero_point, relax.Expr) else np.asarray(zero_point)
    return known is not None and not np.array_equal(known, np.trunc(known))


def _dequantize_from_floats(importer: Any, q: relax.Expr, scale: Any, zero_point: relax.Expr, axis: int) -> relax.Expr:
    """(f32(q) − zero_point) · scale in float32."""
    rank = len(shape_of(q))
    offset = _along(importer, _scalar_or_vector(importer, cast(importer, zero_point, "float32")), rank, axis)
    centred = importer.emit(relax.op.subtract(cast(importer, q, "float32"), offset))
    return importer.emit(relax.op.multiply(centred, _along(importer, scales(importer, scale), rank, axis)))


def _along(importer: Any, value: relax.Expr, rank: int, axis: int) -> relax.Expr:
    """A scalar or a vector so that it broadcasts along `axis`."""
    if not shape_of(value):
        return value
    shape = [1] * rank
    shape[axis] = shape_of(value)[0]
    return reshape(importer, value, shape)


def scales(importer: Any, value: Any) -> relax.Expr:
    """A scale (number or tensor) as a float32 scalar or vector."""
    if not isinstance(value, relax.Expr):
        return scalar(np.float32(value), "float32")
    return _scalar_or_vector(importer, cast(importer, value, "float32"))


def zero_points(importer: Any, value: Any) -> relax.Expr:
    """A zero point (number or tensor) as an int32 scalar or vector."""
    if not isinstance(value, relax.Expr):
        if is_fractional(value):
            raise UnsupportedOperatorError(f"zero point {value} is not an integer")
        return scalar(int(value), "int32")
    if is_fractional(value):
        raise UnsupportedOperatorError(
            "activations are quantized with zero points that are no integers; quantize them with an affine scheme of "
            "integers, such as torch.per_tensor_affine"
        )
    return _scalar_or_vector(importer, cast(importer, value, "int32"))


def _scalar_or_vector(importer: Any, value: relax.Expr) -> relax.Expr:
    size = int(np.prod(shape_of(value)))
    return reshape(importer, value, () if size == 1 else (size,))


def number(value: Any) -> int:
    """A quant_min or quant_max, which .tensor2 overloads pass as tensors."""
    if isinstance(value, relax.Expr):
        known = constant_value(value)
        if known is None or known.size != 1:
            raise UnsupportedOperatorError("quant_min and quant_max must be constants")
        return int(known.reshape(()))
    return int(value)


def _reciprocal(scale: Any) -> tuple[Any, np.float32 | None]:
    """A scale whose float32 reciprocal is f32(1 / scale), which PyTorch computes in double. For nearly every scale it
    is the scale itself; else a neighbour of it; else (1, the reciprocal), to multiply by first."""
    if isinstance(scale, relax.Expr):
        known = constant_value(scale)
        if known is None or known.size != 1 or known.dtype != np.float64:
            return scale, None
        scale = float(known.reshape(()))
    if not np.isfinite(scale) or np.float32(scale) <= 0:
        raise UnsupportedOperatorError(f"scale {scale} is not positive and finite in float32")
    wanted, near = np.float32(1.0 / scale), np.float32(scale)
    for step in (near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf))):
        if step > 0 and np.float32(1) / step == wanted:
            return constant(np.asarray(step)), None
    return constant(np.asarray(1, np.float32)), wanted

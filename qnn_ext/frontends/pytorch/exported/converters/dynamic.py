"""quantized_decomposed.choose_qparams*: scale and zero point from the range of the data, at run time.

    scale = max((max(x, 0) − min(x, 0)) / (quant_max − quant_min), eps)
    zero_point = clip(quant_min − rint(min(x, 0) / scale), quant_min, quant_max)

in float32, as in PyTorch's determine_qparams. The divisor is a 1-element tensor: as a scalar, the compiler would
multiply by its rounded reciprocal.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from tvm import relax

from .....errors import UnsupportedOperatorError
from .....op.base import constant, shape_of
from ..registry import converter
from ..values import cast, dtype_name, dtype_of, reshape, scalar
from .quantized import number

PER_TOKEN_EPS = float(np.finfo(np.float32).eps)


@converter("quantized_decomposed.choose_qparams.tensor", narrows=True)
def _choose_qparams(
    importer: Any, x: relax.Expr, low: int, high: int, eps: float, dtype: torch.dtype
) -> tuple[relax.Expr, relax.Expr]:
    least, greatest = _whole_range(importer, x)
    return affine_qparams(importer, least, greatest, (number(low), number(high)), eps)


def _whole_range(importer: Any, x: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
    """The range of a whole tensor, as vectors of one element."""
    return range_with_zero(importer, reshape(importer, x, (math.prod(shape_of(x)),)), [0])


@converter("quantized_decomposed.choose_qparams_symmetric.tensor", narrows=True)
def _choose_qparams_symmetric(
    importer: Any, x: relax.Expr, low: int, high: int, eps: float, dtype: torch.dtype
) -> tuple[relax.Expr, relax.Expr]:
    least, greatest = _whole_range(importer, x)
    scale = symmetric_scale(importer, least, greatest, (number(low), number(high)), eps)
    zero_point = 128 if dtype_name(dtype) == "uint8" else 0
    return scale, constant(np.full(shape_of(scale), zero_point, np.int32))


@converter(
    "quantized_decomposed.choose_qparams_per_token_asymmetric.default",
    "quantized_decomposed._choose_qparams_per_token_asymmetric_impl.default",
    narrows=True,
)
def _choose_qparams_per_token(importer: Any, x: relax.Expr, dtype: torch.dtype) -> tuple[relax.Expr, relax.Expr]:
    """Int8, one scale per row; the zero point is taken from the end of the range with the smaller error (XNNPACK). The
    scale is float64 as in PyTorch, because quantize_per_token computes in its dtype."""
    low, high = scalar(-128, "float32"), scalar(127, "float32")
    least, greatest = range_with_zero(importer, x, [len(shape_of(x)) - 1])
    scale = _at_least(importer, _divide(importer, relax.op.subtract(greatest, least), 255.0), PER_TOKEN_EPS)
    bottom = importer.emit(relax.op.divide(least, scale))
    top = importer.emit(relax.op.divide(greatest, scale))
    error = importer.emit(relax.op.add(relax.op.add(low, bottom), relax.op.add(high, top)))
    positive = importer.emit(relax.op.greater(error, scalar(0, "float32")))
    real = relax.op.where(positive, relax.op.subtract(low, bottom), relax.op.subtract(high, top))
    clipped = importer.emit(relax.op.clip(importer.emit(real), -128, 127))
    return cast(importer, scale, "float64"), cast(importer, importer.emit(relax.op.round(clipped)), "int32")


@converter("quantized_decomposed.choose_qparams_per_token.default", narrows=True)
def _choose_qparams_per_token_symmetric(
    importer: Any, x: relax.Expr, dtype: torch.dtype
) -> tuple[relax.Expr, relax.Expr]:
    if dtype_name(dtype) != "int8" or dtype_of(x) != "float32":
        raise UnsupportedOperatorError(
            "choosing quantization parameters per token is only supported for float32 to int8"
        )
    largest = importer.emit(relax.op.max(importer.emit(relax.op.abs(x)), axis=-1, keepdims=True))
    scale = _divide(importer, _at_least(importer, largest, 1e-5), 127.0)
    return scale, constant(np.zeros(shape_of(scale), np.int32))


# ---- shared with torchao's operators -----------------------------------------------------------------------------


def range_with_zero(importer: Any, x: relax.Expr, axes: list[int]) -> tuple[relax.Expr, relax.Expr]:
    """min(x, 0) and max(x, 0) over the dimensions, which are kept with length 1."""
    x = cast(importer, x, "float32")
    zero = scalar(0, "float32")
    least = importer.emit(relax.op.minimum(importer.emit(relax.op.min(x, axis=axes, keepdims=True)), zero))
    greatest = importer.emit(relax.op.maximum(importer.emit(relax.op.max(x, axis=axes, keepdims=True)), zero))
    return least, greatest


def affine_qparams(
    importer: Any, least: relax.Expr, greatest: relax.Expr, limits: tuple[int, int], eps: float
) -> tuple[relax.Expr, relax.Expr]:
    """The scale and zero point that map [least, greatest] to the limits."""
    low, high = limits
    scale = _at_least(importer, _divide(importer, relax.op.subtract(greatest, least), float(high - low)), eps)
    shift = importer.emit(relax.op.round(importer.emit(relax.op.divide(least, scale))))
    real = importer.emit(relax.op.subtract(scalar(low, "float32"), shift))
    return scale, cast(importer, importer.emit(relax.op.clip(real, low, high)), "int32")


def symmetric_scale(
    importer: Any, least: relax.Expr, greatest: relax.Expr, limits: tuple[int, int], eps: float
) -> relax.Expr:
    """max(|x|) / (half the number of steps)."""
    largest = importer.emit(relax.op.maximum(relax.op.negative(least), greatest))
    return _at_least(importer, _divide(importer, largest, float(limits[1] - limits[0]) / 2), eps)


def _divide(importer: Any, x: relax.Expr, divisor: float) -> relax.Expr:
    ndim = len(shape_of(importer.emit(x)))
    return importer.emit(relax.op.divide(x, constant(np.full((1,) * max(ndim, 1), divisor, np.float32))))


def _at_least(importer: Any, x: relax.Expr, eps: float) -> relax.Expr:
    return importer.emit(relax.op.maximum(x, scalar(eps, "float32")))

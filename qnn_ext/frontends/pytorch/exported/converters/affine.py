"""torchao.*_affine and the per-token and per-group operators of executorch: quantization parameters per block of a
tensor.

`block_size` says how many neighbours along each dimension share a scale: [1, K] is one per row, [1, 32] one per group
of 32 in a row, the whole shape one per tensor. Blocks that are contiguous in memory become rows of a matrix, which
R.qnn.quantize and R.qnn.dequantize scale along axis 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tvm import relax

from ..... import op as qnn
from .....errors import ModelFormatError, UnsupportedOperatorError
from .....numerics.packed import narrowest, pack
from .....op.base import as_expr, constant, constant_value, shape_of
from .....op.blockwise import LONGEST_GROUP
from ..registry import converter
from ..values import cast, dtype_name, dtype_of, reshape, scalar
from .dynamic import affine_qparams, range_with_zero, symmetric_scale
from .quantized import dequantize, is_fractional, quantize, zero_points


@converter("torchao.choose_qparams_affine.default")
def _choose_qparams_affine(
    importer: Any,
    x: relax.Expr,
    mapping: str,
    block: list[int],
    dtype: torch.dtype,
    low: Any,
    high: Any,
    eps: float | None,
    scale_dtype: torch.dtype | None,
    zero_point_dtype: torch.dtype | None,
    keepdim: bool,
) -> tuple[relax.Expr, relax.Expr]:
    shape = shape_of(x)
    if dtype_of(x) != "float32" or scale_dtype not in (None, torch.float32, torch.bfloat16):
        raise UnsupportedOperatorError(
            f"choosing quantization parameters for {dtype_of(x)} is not supported, only for float32"
        )
    limits = _limits(dtype, low, high)
    eps = float(np.finfo(np.float32).smallest_normal) if eps is None else eps
    split = [part for d, b in zip(shape, block, strict=True) for part in ((d // b, b) if 1 < b < d else (d,))]
    reduced, position = [], 0
    for d, b in zip(shape, block, strict=True):
        position += 1 if 1 < b < d else 0
        reduced += [position] if b > 1 else []
        position += 1
    least, greatest = range_with_zero(importer, reshape(importer, x, split), reduced)
    if mapping == "ASYMMETRIC":
        scale, zero_point = affine_qparams(importer, least, greatest, limits, eps)
    elif mapping == "SYMMETRIC":
        scale = symmetric_scale(importer, least, greatest, limits, eps)
        zero_point = constant(np.full(shape_of(scale), int((limits[0] + limits[1] + 1) / 2), np.int32))
    else:
        raise UnsupportedOperatorError(f"mapping {mapping} is not supported")
    kept = [d // b for d, b in zip(shape, block, strict=True)]
    result = kept if keepdim else [d for axis, d in enumerate(shape_of(scale)) if axis not in reduced]
    zero_point_name = "int32" if zero_point_dtype is None else dtype_name(zero_point_dtype)
    return reshape(importer, scale, result), cast(importer, reshape(importer, zero_point, result), zero_point_name)


@converter("torchao.quantize_affine.default")
def _quantize_affine(
    importer: Any, x: relax.Expr, block: list[int], scale: Any, zero_point: Any, dtype: torch.dtype, low: Any, high: Any
) -> relax.Expr:
    limits = _limits(dtype, low, high)
    return _on_blocks(
        importer,
        x,
        block,
        lambda data, axis: quantize(importer, data, scale, _or_zero(zero_point), axis, limits, dtype),
    )


@converter("torchao.dequantize_affine.default")
def _dequantize_affine(
    importer: Any,
    q: relax.Expr,
    block: list[int],
    scale: Any,
    zero_point: Any,
    dtype: torch.dtype,
    low: Any,
    high: Any,
    out_dtype: torch.dtype,
) -> relax.Expr:
    packed = _packed(importer, q, block, scale, zero_point) if importer.dtype == "float32" else None
    if packed is not None:
        return packed
    return _on_blocks(
        importer, q, block, lambda data, axis: dequantize(importer, data, scale, _or_zero(zero_point), axis)
    )


@converter("quantized_decomposed.dequantize_per_channel.default")
def _dequantize_per_channel(
    importer: Any,
    q: relax.Expr,
    scale: Any,
    zero_point: Any,
    axis: int,
    low: int,
    high: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None,
) -> relax.Expr:
    """A matrix whose rows have zero points that are no integers, as EmbeddingQuantizer's tables, stays packed."""
    shape = shape_of(q)
    if is_fractional(zero_point) and len(shape) == 2 and axis % 2 == 0 and importer.dtype == "float32":
        packed = _packed(importer, q, [1, shape[1]], scale, zero_point)
        if packed is not None:
            return packed
    return dequantize(importer, q, scale, _or_zero(zero_point), axis)


@converter("quantized_decomposed.dequantize_per_channel_group.default")
def _dequantize_per_group(
    importer: Any,
    q: relax.Expr,
    scale: Any,
    zero_point: Any,
    low: int,
    high: int,
    dtype: torch.dtype,
    group: int,
    out_dtype: torch.dtype,
) -> relax.Expr:
    block = [*[1] * (len(shape_of(q)) - 1), group]
    return _dequantize_affine(importer, q, block, scale, zero_point, dtype, low, high, out_dtype)


@converter("quantized_decomposed.dequantize_per_token.default")
def _dequantize_per_token(
    importer: Any,
    q: relax.Expr,
    scale: Any,
    zero_point: Any,
    low: int,
    high: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
) -> relax.Expr:
    block = [*[1] * (len(shape_of(q)) - 1), shape_of(q)[-1]]
    return _dequantize_affine(importer, q, block, scale, zero_point, dtype, low, high, out_dtype)


@converter("quantized_decomposed.quantize_per_token.default")
def _quantize_per_token(
    importer: Any, x: relax.Expr, scale: Any, zero_point: Any, low: int, high: int, dtype: torch.dtype
) -> relax.Expr:
    """clip(rint(x · (1 / scale) + zero_point)): here the zero point is added before rounding, all in the scale's dtype,
    float32 or float64."""
    rows = (*shape_of(x)[:-1], 1)
    name = "float64" if dtype_of(scale) == "float64" else "float32"
    step = reshape(importer, cast(importer, scale, name), rows)
    offset = reshape(importer, cast(importer, zero_points(importer, zero_point), name), rows)
    inverse = importer.emit(relax.op.divide(scalar(1, name), step))
    real = importer.emit(relax.op.multiply(cast(importer, x, name), inverse))
    rounded = importer.emit(relax.op.round(importer.emit(relax.op.add(real, offset))))
    return cast(importer, importer.emit(relax.op.clip(rounded, low, high)), dtype_name(dtype))


# ---- weights -----------------------------------------------------------------------------------------------------


def _packed(importer: Any, q: relax.Expr, block: list[int], scale: Any, zero_point: Any) -> relax.Call | None:
    """A constant matrix with groups along its rows, whose integers stay packed, see `passes.blockwise`; None for
    anything else, and for a single group if 8-bit activations are multiplied by it, which other operators do."""
    shape, values, scales = shape_of(q), constant_value(q), _known(scale)
    if values is None or scales is None or len(shape) != 2 or len(block) != 2 or block[0] != 1:
        return None
    (rows, depth), group = shape, block[1]
    if not 1 < group <= LONGEST_GROUP or depth % group or scales.size != rows * depth // group:
        return None
    if group == depth and any(_reads_integers(user, importer.node) for user in importer.node.users):
        return None
    zeros = np.zeros(scales.shape, np.int32)
    if zero_point is not None and shape_of(as_expr(zero_point)) != (0,):
        known = _known(zero_point)
        if known is None or known.size != scales.size:
            return None
        zeros = known
    matrix = scales.reshape(rows, -1).astype(np.float32), zeros.reshape(rows, -1)
    if not all(np.isfinite(part).all() for part in matrix):
        raise ModelFormatError("the scales and zero points of a weight must be finite")
    whole = np.array_equal(zeros, np.trunc(zeros))
    held = (values, zeros) if whole else (values,)
    dtype = narrowest(*held, signed=dtype_of(q) != "uint8") or narrowest(*held)
    if dtype is None:
        return None
    stored: np.ndarray = matrix[1].astype(np.float32)
    if whole:
        stored = pack(matrix[1].astype(np.int32), dtype) if zeros.any() else np.zeros((), np.int32)
    weight, factors, offsets = (constant(part) for part in (pack(values, dtype), matrix[0], stored))
    return qnn.blockwise_dequantize(weight, factors, offsets, depth, dtype, group)


def _reads_integers(user: Any, weight: Any) -> bool:
    """Whether a node's data, other than `weight`, are dequantized right before it, other than row by row."""
    data: Any = user.args[0] if user.args else None
    if data is None or data is weight or "dequantize" not in (name := str(getattr(data, "target", ""))):
        return False
    block = data.args[1] if len(data.args) > 1 and isinstance(data.args[1], (list, tuple)) else None
    return "per_token" not in name and (block is None or any(size != 1 for size in block[:-1]))


def _known(value: Any) -> np.ndarray | None:
    return constant_value(as_expr(value))


# ---- blocks ------------------------------------------------------------------------------------------------------


def _on_blocks(
    importer: Any, data: relax.Expr, block: list[int], function: Callable[[relax.Expr, int], relax.Expr]
) -> relax.Expr:
    """`function(matrix, axis)` on the data arranged so that one axis runs over the blocks; the result is back in the
    data's shape."""
    shape = shape_of(data)
    if len(block) != len(shape) or any(b < 1 or d % b for d, b in zip(shape, block, strict=True)):
        raise UnsupportedOperatorError(f"blocks of {tuple(block)} do not divide shape {shape}")
    counts = [d // b for d, b in zip(shape, block, strict=True)]
    many = [axis for axis, count in enumerate(counts) if count > 1]
    if len(many) <= 1 and all(block[axis] == 1 for axis in many):
        return function(data, many[0] if many else -1)
    last = many[-1]
    if any(b > 1 for b in block[:last]):
        raise UnsupportedOperatorError(
            f"blocks of {tuple(block)} in shape {shape} are not contiguous in memory, which is not supported"
        )
    matrix = reshape(importer, data, (math.prod(counts), math.prod(block)))
    return reshape(importer, function(matrix, 0), shape)


def _limits(dtype: torch.dtype, low: Any, high: Any) -> tuple[int, int]:
    bounds = np.iinfo(dtype_name(dtype))
    return int(bounds.min if low is None else low), int(bounds.max if high is None else high)


def _or_zero(zero_point: Any) -> Any:
    """An absent zero point may also be written as an empty tensor."""
    return 0 if zero_point is None or shape_of(zero_point) == (0,) else zero_point

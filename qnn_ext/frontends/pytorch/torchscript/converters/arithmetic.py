"""Sums and products of quantized tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tvm import relax

from ..... import op as qnn
from .....numerics.reference import domain, float_to_int, fused_multiply_add
from .....op.base import constant
from .....op.compound import matmul
from .....qparams import QParams, dtype_range
from ...common import import_torch
from ..formulas import (
    AVX2_CHANNELS,
    VECTOR_LENGTH,
    by_channels,
    f32,
    qnnpack_sum,
    quantize,
    relu_clip,
    scalar_sum,
    vector_sum,
)
from ..node import Node
from ..registry import converter
from ..values import plain, qparams_of


@converter("quantized::add", "quantized::add_relu")
def _add(node: Node) -> relax.Expr:
    if "b" in node.arguments:
        return _add_scalar(node)
    out = node.output
    assert out is not None
    lhs, rhs = node.quantized("qa"), node.quantized("qb")
    formula = _sum_formula(node, out)
    total = formula(node, node.expr("qa"), node.expr("qb"), lhs, rhs, out)
    return relu_clip(node, total, out) if node.kind.endswith("_relu") else total


def _sum_formula(node: Node, out: QParams) -> Callable[..., relax.Expr]:
    one, two = node["qa"], node["qb"]
    if node.engine == "qnnpack" and out.dtype == "uint8" and one.shape == two.shape:
        return qnnpack_sum
    alike = one.shape == two.shape and one.stride() == two.stride()
    return vector_sum if alike and one.numel() >= VECTOR_LENGTH else scalar_sum


@converter("quantized::mul", "quantized::mul_relu")
def _mul(node: Node) -> relax.Expr:
    """rint(f32((a − za)(b − zb)) · (sa·sb·(1/so))) + zo."""
    if "b" in node.arguments:
        return _mul_scalar(node)
    out = node.output
    assert out is not None
    lhs, rhs = node.quantized("qa"), node.quantized("qb")
    multiplier = lhs.scale.astype(f32) * rhs.scale.astype(f32) * (f32(1) / out.scale.astype(f32))
    one = constant(np.asarray(1, f32))
    product = qnn.mul(
        node.expr("qa"), node.expr("qb"), constant(np.asarray(multiplier)), lhs.zero_point, one, rhs.zero_point, one,
        out.zero_point, out_dtype=out.dtype,
    )  # fmt: skip
    result = node.emit(product)
    return relu_clip(node, result, out) if node.kind.endswith("_relu") else result


# ---- with a scalar -----------------------------------------------------------------------------------------------


@converter("quantized::add_scalar", "quantized::add_scalar_relu")
def _add_scalar(node: Node) -> relax.Expr:
    """q stays and the zero point moves by c = rint(b/s); where it would leave the dtype, the scale grows instead:
    rint(f32(q − z + c) · (s·(1/s'))) + z'."""
    value, data, out = node.expr("qa"), node.quantized("qa"), node.output
    assert out is not None
    if data.scale != out.scale:
        steps = int(np.rint(f32(node["b"]) / data.scale.astype(f32)))
        multiplier = data.scale.astype(f32) * (f32(1) / out.scale.astype(f32))
        scale = constant(np.asarray(multiplier))
        zero = np.asarray(int(data.zero_point) - steps, np.int32)
        value = node.emit(qnn.requantize(value, scale, zero, 1.0, out.zero_point, out_dtype=out.dtype))
    return relu_clip(node, value, out) if node.kind.endswith("_relu") else value


@converter("quantized::mul_scalar", "quantized::mul_scalar_relu")
def _mul_scalar(node: Node) -> relax.Expr:
    """A positive factor moves into the scale; a negative one mirrors q within the dtype; 0 yields zeros."""
    value, out = node.expr("qa"), node.output
    assert out is not None
    factor = float(node["b"])
    low, high = dtype_range(out.dtype)
    if factor == 0:
        value = constant(np.full(node.shape, int(out.zero_point), out.dtype))
    elif factor < 0:
        wide = node.emit(relax.op.astype(value, "int32"))
        turned = node.emit(relax.op.subtract(constant(np.asarray(low + high, np.int32)), wide))
        value = node.emit(relax.op.astype(turned, out.dtype))
    return relu_clip(node, value, out) if node.kind.endswith("_relu") else value


# ---- matrix products ---------------------------------------------------------------------------------------------


@converter("quantized::matmul")
def _matmul(node: Node) -> relax.Expr:
    """Integers, then rint(fma(f32(acc)·f32(sa·sb), 1/so, zo)). PyTorch multiplies dequantized floats, whose sum depends
    on the order: at most one step away."""
    out = node.output
    assert out is not None
    lhs, rhs = node.quantized("qa"), node.quantized("qb")
    acc = matmul(node.expr("qa"), node.expr("qb"), lhs.zero_point, rhs.zero_point, emit=node.emit)
    unit = lhs.scale.astype(f32) * rhs.scale.astype(f32)
    return quantize(node, node.emit(qnn.dequantize(acc, constant(np.asarray(unit)), 0)), out)


# ---- concatenation -----------------------------------------------------------------------------------------------


@converter("quantized::cat", "quantized::cat_relu")
def _quantized_cat(node: Node) -> relax.Expr:
    """Each operand in the output's QParams, then a plain concatenation."""
    out = node.output
    assert out is not None
    fields = [requantized(node, value, out) for value in node.raw("qx")]
    result = node.emit(relax.op.concat(fields, node["dim"]))
    return relu_clip(node, result, out) if node.kind.endswith("_relu") else result


def requantized(node: Node, value: Any, out: QParams) -> relax.Expr:
    """An operand of a concatenation, traced or constant, requantized to the result's QParams by a table."""
    source = qparams_of(plain(value))
    if source is None:
        raise node.unsupported("an operand that is not quantized")
    if source == out:
        return node.to_expr(value)

    def lookup(table: np.ndarray, data: relax.Expr) -> relax.Expr:
        return node.emit(qnn.table(data, constant(table)))

    data = node.to_expr(value)
    if not _is_channels_last(node):
        return lookup(_contiguous_table(source, out), data)
    vector, scalar = _vector_table(source, out), _scalar_table(source, out)
    if np.array_equal(vector, scalar):
        return lookup(vector, data)
    return by_channels(node, data, AVX2_CHANNELS, partial(lookup, vector), partial(lookup, scalar))


def _is_channels_last(node: Node) -> bool:
    """Whether PyTorch uses its kernel for concatenating channels-last images along the channels."""
    tensors = node["qx"] if "qx" in node.arguments else node["tensors"]
    layout = import_torch().channels_last
    images = all(tensor.dim() == 4 and tensor.is_contiguous(memory_format=layout) for tensor in tensors)
    return images and int(node["dim"]) % 4 == 1


def _contiguous_table(source: QParams, out: QParams) -> np.ndarray:
    """rint(fma((q − z)·s, 1/f32(so), zo))."""
    real = (domain(source.dtype).astype(np.int64) - source.zero_point).astype(f32) * source.scale.astype(f32)
    inverse = np.full_like(real, f32(1) / out.scale.astype(f32))
    moved = fused_multiply_add(real, inverse, np.full_like(real, f32(out.zero_point)))
    return float_to_int(np.rint(moved), np.int64(0), out.dtype)


def _vector_table(source: QParams, out: QParams) -> np.ndarray:
    """rint(fma(q, s, −z·s) · f32(1/so)) + zo, the reciprocal in float64."""
    scale = source.scale.astype(f32)
    values = domain(source.dtype).astype(f32)
    shift = np.full_like(values, scale * f32(-source.zero_point))
    real = fused_multiply_add(values, np.full_like(values, scale), shift)
    return float_to_int(np.rint(real * f32(1 / out.scale)), out.zero_point, out.dtype)


def _scalar_table(source: QParams, out: QParams) -> np.ndarray:
    """rint((q − z)·s · (1/f32(so)) + zo)."""
    real = (domain(source.dtype).astype(np.int64) - source.zero_point).astype(f32) * source.scale.astype(f32)
    moved = real * (f32(1) / out.scale.astype(f32)) + f32(out.zero_point)
    return float_to_int(np.rint(moved), np.int64(0), out.dtype)

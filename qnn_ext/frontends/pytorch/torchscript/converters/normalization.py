"""Normalization and softmax of quantized tensors: integer sums, then PyTorch's float32 formula per element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ..... import op as qnn
from .....op.base import constant
from .....op.compound import reshape
from .....qparams import QParams
from ..formulas import f32, quantize_after, relu_clip, scalar
from ..node import Node
from ..registry import converter
from ..values import array_of


def normalized(node: Node, value: relax.Expr, source: QParams, axes: Sequence[int], eps: float) -> relax.Expr:
    """(q − mean) · s/√(var·s² + ε) over some axes, in float32, with the exact integer sums Σq and Σq².

    var = max(Σq²/n − mean², 0). Zero points cancel out. Source: PyTorch's quantized_normalize kernel.
    """
    emit, op = node.emit, relax.op
    scale = source.scale.astype(f32)
    shape = [int(d) for d in value.ty.shape]
    count = scalar(float(np.prod([shape[axis] for axis in axes])))
    wide = emit(op.astype(value, "int32"))
    sums = []
    for summand in (wide, emit(op.multiply(wide, wide))):
        total = emit(op.sum(summand, list(axes), keepdims=True))
        sums.append(emit(op.divide(emit(op.astype(total, "float32")), count)))
    mean, mean_of_squares = sums
    variance = emit(qnn.fma(emit(op.negative(mean)), mean, mean_of_squares))
    variance = emit(op.maximum(variance, scalar(0)))
    scaled = emit(op.multiply(variance, scalar(scale)))
    deviation = emit(op.sqrt(emit(qnn.fma(scaled, scalar(scale), scalar(eps)))))
    inverse = emit(op.divide(scalar(scale), deviation))
    centered = emit(op.subtract(emit(op.astype(value, "float32")), mean))
    return emit(op.multiply(centered, inverse))


def _affine(node: Node, value: relax.Expr, weight: np.ndarray | None, bias: np.ndarray | None) -> relax.Expr:
    """fma(x, γ, β)."""
    if weight is None and bias is None:
        return value
    gamma = np.ones((), f32) if weight is None else weight
    beta = np.zeros((), f32) if bias is None else bias
    return node.emit(qnn.fma(value, constant(gamma), constant(beta)))


def _parameter(node: Node, name: str) -> np.ndarray | None:
    tensor = node[name]
    return None if tensor is None else array_of(tensor).astype(f32)


@converter("quantized::layer_norm")
def _layer_norm(node: Node) -> relax.Expr:
    """rint(fma((q − mean)·r, γ, β) · (1/so)) + zo."""
    source, out = node.quantized("input"), node.output
    assert out is not None
    rank = len(node.shape)
    axes = list(range(rank - len(node["normalized_shape"]), rank))
    value = normalized(node, node.expr("input"), source, axes, float(node["eps"]))
    value = _affine(node, value, _parameter(node, "weight"), _parameter(node, "bias"))
    return quantize_after(node, value, out)


@converter("quantized::group_norm", "quantized::instance_norm")
def _group_norm(node: Node) -> relax.Expr:
    """As layer_norm, over the channels of a group and all later axes; γ and β per channel."""
    source, out = node.quantized("input"), node.output
    assert out is not None
    n, c, *rest = node.shape
    groups = int(node["num_groups"]) if "num_groups" in node.arguments else c
    per_group = (n, groups, c // groups * int(np.prod(rest, dtype=np.int64)))
    value = normalized(node, reshape(node.expr("input"), per_group, node.emit), source, [2], float(node["eps"]))
    value = reshape(value, node.shape, node.emit)
    column = (c,) + (1,) * len(rest)
    parameters = [_parameter(node, name) for name in ("weight", "bias")]
    value = _affine(node, value, *[None if p is None else p.reshape(column) for p in parameters])
    return quantize_after(node, value, out)


@converter(
    "quantized::batch_norm", "quantized::batch_norm_relu", "quantized::batch_norm1d", "quantized::batch_norm1d_relu",
    "quantized::batch_norm2d", "quantized::batch_norm2d_relu", "quantized::batch_norm3d",
    "quantized::batch_norm3d_relu",
)  # fmt: skip
def _batch_norm(node: Node) -> relax.Expr:
    """rint(fma(f32(q − z), α, β)) + zo with α = γ/√(var + ε)·(s/so), β = (bias − mean·γ/√(var + ε))/so."""
    source, out = node.quantized("qx"), node.output
    assert out is not None
    mean, variance = (array_of(node[name]).astype(f32) for name in ("mean", "var"))
    weight, bias = _parameter(node, "weight"), _parameter(node, "bias")
    inverse = f32(1) / np.sqrt(variance + f32(node["eps"]))
    factor = inverse if weight is None else inverse * weight
    alpha = factor * (source.scale.astype(f32) / out.scale.astype(f32))
    shift = -mean * factor if bias is None else bias - mean * factor
    beta = shift / out.scale.astype(f32)
    column = (-1,) + (1,) * (len(node.shape) - 2)
    real = node.emit(qnn.dequantize(node.expr("qx"), 1.0, source.zero_point))
    moved = node.emit(qnn.fma(real, constant(alpha.reshape(column)), constant(beta.reshape(column))))
    result = node.emit(qnn.quantize(moved, 1.0, out.zero_point, out_dtype=out.dtype))
    return relu_clip(node, result, out) if node.kind.endswith("_relu") else result


@converter("quantized::softmax")
def _softmax(node: Node) -> relax.Expr:
    """With the integer exponentials of qnn.softmax: float32 accuracy, at most one step from PyTorch's own."""
    source, out = node.quantized("qx"), node.output
    assert out is not None
    return qnn.softmax(
        node.expr("qx"),
        constant(source.scale.astype(f32)),
        source.zero_point,
        constant(out.scale.astype(f32)),
        out.zero_point,
        axis=int(node["dim"]),
        out_dtype=out.dtype,
    )

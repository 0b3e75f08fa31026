"""BatchNorm, LayerNorm, InstanceNorm, L2Normalization, LRN in float32, and _contrib_quantized_batch_norm."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op.base import constant
from ..node import Node
from ..registry import converter
from ..scales import F32, LEVELS, as_real, rescaled, round_saturate
from .convolution import per_channel

MAX_NEIGHBOURS = 255  # number of channels that LRN sums over


@converter("BatchNorm", "BatchNorm_v1", "SyncBatchNorm", "_contrib_SyncBatchNorm")
def convert_batch_norm(node: Node) -> relax.Expr:
    """x·α + (β − α·μ), α = γ / √(σ² + ε), with the moving statistics; a no-op where it is folded into a convolution."""
    if any(node.operator is fused for fused in node.assembly.fused):
        return node.input(0)
    rank = len(node.shape(0))
    axis = node.axis("axis", 1, rank)
    gamma, beta, mean, variance = (node.vector(i, node.shape(0)[axis]) for i in range(1, 5))
    if node.flag("fix_gamma", True):
        gamma = np.ones_like(gamma)
    alpha = (gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + node.real("eps", 1e-3))).astype(F32)
    scaled = node.emit(relax.op.multiply(node.input(0), constant(per_channel(alpha, rank, axis))))
    return relax.op.add(scaled, constant(per_channel(beta - alpha * mean, rank, axis)))


@converter("_contrib_quantized_batch_norm")
def convert_quantized_batch_norm(node: Node) -> list[relax.Expr]:
    """int8 output: q' = saturate(rint(fma(q, a, b))), a = γ/√(σ²+ε) · r/r' · 1/√(1+ε), b = (β − μ·γ/√(σ²+ε)) · S/r'.

    uint8 data is first rescaled to int8. γ is used even with fix_gamma, and oneDNN applies ε a second time, to the
    variance of 1 that it is passed (mkldnn_quantized_batch_norm.cc).
    """
    target = node.calibrated()
    if target is None:
        raise node.unsupported(
            "an operator that is not calibrated, which MXNet itself cannot run; quantize with calib_mode='naive'"
        )
    rank = len(node.shape(0))
    axis = node.axis("axis", 1, rank)
    gamma, beta, mean, variance = (node.vector(i, node.shape(0)[axis]) for i in range(1, 5))
    span, eps, levels = node.range(5), node.real("eps", 1e-3), LEVELS["int8"]
    data = node.input(0)
    if node.dtype(0) == "uint8":
        data = node.emit(rescaled(data, levels / LEVELS["uint8"], "int8"))
    inverse = (1.0 / np.sqrt(variance.astype(np.float64) + eps)).astype(F32)
    slope = gamma * inverse * span.largest / target.largest / np.sqrt(F32(1) + F32(eps))
    offset = (beta - mean * gamma * inverse) * levels / target.largest
    real = qnn.fma(
        node.emit(as_real(data)),
        constant(per_channel(slope.astype(F32), rank, axis)),
        constant(per_channel(offset.astype(F32), rank, axis)),
    )
    return node.with_range(round_saturate(node.emit(real), "int8"), target)


@converter("LayerNorm")
def convert_layer_norm(node: Node) -> relax.Expr:
    """Over one axis, in float32."""
    axis = node.axis("axis", -1, len(node.shape(0)))
    length = node.shape(0)[axis]
    gamma, beta = (constant(node.vector(i, length)) for i in (1, 2))
    return relax.op.nn.layer_norm(node.input(0), gamma, beta, axes=[axis], epsilon=node.real("eps", 1e-5))


@converter("InstanceNorm")
def convert_instance_norm(node: Node) -> relax.Expr:
    """Over the spatial dimensions of each channel, in float32."""
    node.check_rank(3, 4, 5)
    channels, rank = node.shape(0)[1], len(node.shape(0))
    gamma, beta = (constant(node.vector(i, channels)) for i in (1, 2))
    axes = list(range(2, rank))
    return relax.op.nn.instance_norm(node.input(0), gamma, beta, 1, axes, epsilon=node.real("eps", 1e-3))


@converter("L2Normalization")
def convert_l2_normalization(node: Node) -> relax.Expr:
    """x / √(Σ x² + ε) over all but the batch (instance), the channels (channel) or the rest (spatial)."""
    rank = len(node.shape(0))
    mode = node.choice("mode", "instance", "instance", "channel", "spatial")
    axes = {"instance": list(range(1, rank)), "channel": [1], "spatial": list(range(2, rank))}[mode]
    if not axes or max(axes) >= rank:
        raise node.malformed(f"mode {mode} does not match data of shape {node.shape(0)}")
    squares = node.emit(relax.op.sum(node.emit(relax.op.square(node.input(0))), axes, keepdims=True))
    norm = relax.op.sqrt(node.emit(relax.op.add(squares, constant(F32(node.real("eps", 1e-10))))))
    return relax.op.divide(node.input(0), node.emit(norm))


@converter("LRN")
def convert_lrn(node: Node) -> relax.Expr:
    """x · (k + α/n · Σ x² over n neighbouring channels)^(−β)."""
    node.check_rank(4)
    size = node.integer("nsize")
    if not 1 <= size <= MAX_NEIGHBOURS or size % 2 == 0:
        raise node.malformed(f"nsize must be an odd number of at most {MAX_NEIGHBOURS}, found {size}")
    side = size // 2
    squares = node.emit(relax.op.square(node.input(0)))
    widths = [0, 0, side, side, 0, 0, 0, 0]
    padded = node.emit(relax.op.nn.pad(squares, widths, pad_mode="constant", pad_value=0.0))
    channels, total = node.shape(0)[1], None
    for begin in range(size):
        part = node.emit(relax.op.strided_slice(padded, axes=[1], begin=[begin], end=[begin + channels]))
        total = part if total is None else node.emit(relax.op.add(total, part))
    factor = node.emit(relax.op.multiply(total, constant(F32(node.real("alpha", 1e-4) / size))))
    base = node.emit(relax.op.add(factor, constant(F32(node.real("knorm", 2.0)))))
    power = node.emit(relax.op.power(base, constant(F32(-node.real("beta", 0.75)))))
    return relax.op.multiply(node.input(0), power)

"""Convolutions and fully connected layers: integer accumulators, then the engine's own requantization.

Two defects of PyTorch are not reproduced: oneDNN's transposed convolutions read some weights in the wrong order, and
fbgemm's depthwise kernels of 3 × 3 and 5 × 5, for a multiple of 8 channels (x86's too, for more than 100), add the
products of taps 2i and 2i + 1 in 16 bits, which saturate. Activations of 7 bits, which `reduce_range` gives, never do,
but their dtype has 8: where larger inputs than those of the calibration exceed 127, PyTorch's results are too small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..... import op as qnn
from .....op.base import constant, shape_of
from .....op.compound import convolution, reshape, transposed_convolution
from ..formulas import product_formula, relu_clip
from ..node import Node
from ..packed import ConvParameters, Weights, unpack_conv, unpack_linear
from ..registry import converter

# PyTorch's x86 engine packs convolutions for oneDNN on CPUs with VNNI, but not these
MOST_ONEDNN_GROUPS = 100


@converter(
    "quantized::conv1d",
    "quantized::conv1d_relu",
    "quantized::conv2d",
    "quantized::conv2d_relu",
    "quantized::conv3d",
    "quantized::conv3d_relu",
    "quantized::conv_transpose1d",
    "quantized::conv_transpose2d",
    "quantized::conv_transpose3d",
)
def _conv(node: Node) -> relax.Expr:
    data, out = node.quantized("qx"), node.output
    assert out is not None
    packed = unpack_conv(node["packed_weight"] if "packed_weight" in node.arguments else node["weight"])
    rank = len(node.shape) - 2
    acc = conv_accumulator(node, node.expr("qx"), data.zero_point, packed, rank)
    formula = product_formula(node.engine, _uses_onednn(packed))
    shape = (-1,) + (1,) * rank
    result = formula(node, acc, packed.weights.bias, data, packed.weights.scale, out, shape)
    return relu_clip(node, result, out) if node.kind.endswith("_relu") else result


def _uses_onednn(packed: ConvParameters) -> bool:
    return (
        packed.groups <= MOST_ONEDNN_GROUPS and not packed.weights.zero_point.any() and not any(packed.output_padding)
    )


def conv_accumulator(
    node: Node, data: relax.Expr, zero_point: np.ndarray, packed: ConvParameters, rank: int
) -> relax.Expr:
    """Σ (q − zx)(w − zw) over an (N, C, …) tensor."""

    def spatial(values: tuple[int, ...]) -> tuple[int, ...]:
        return values[len(values) - rank :]

    weights = packed.weights
    weight = weights.weight
    if weight.ndim > rank + 2:  # one dimension, stored with a height of 1
        weight = weight.reshape(weight.shape[0], weight.shape[1], *weight.shape[weight.ndim - rank :])
    padding = spatial(packed.padding)
    geometry: dict[str, Any] = {
        "strides": spatial(packed.stride),
        "padding": (*padding, *padding),
        "dilation": spatial(packed.dilation),
        "groups": packed.groups,
        "emit": node.emit,
    }
    if packed.transpose:
        geometry["output_padding"] = spatial(packed.output_padding)
        return transposed_convolution(data, constant(weight), zero_point, weights.zero_point, **geometry)
    return convolution(data, constant(weight), zero_point, weights.zero_point, **geometry)


@converter("quantized::linear", "quantized::linear_relu")
def _linear(node: Node) -> relax.Expr:
    data, out = node.quantized("X"), node.output
    assert out is not None
    weights = unpack_linear(node["W_prepack"])
    acc = linear_accumulator(node, node.expr("X"), data.zero_point, weights)
    formula = product_formula(node.engine, uses_onednn=False)
    result = formula(node, acc, weights.bias, data, weights.scale, out, (-1,))
    result = relu_clip(node, result, out) if node.kind.endswith("_relu") else result
    return reshape(result, node.shape, node.emit)


def linear_accumulator(node: Node, data: relax.Expr, zero_point: np.ndarray, weights: Weights) -> relax.Expr:
    """Σ (q − zx)(w − zw) for each row of a tensor, as a matrix (rows, O)."""
    *lead, depth = shape_of(data)
    rows = reshape(data, (int(np.prod(lead, dtype=np.int64)), depth), node.emit)
    call = qnn.dense(rows, constant(weights.weight), zero_point, weights.zero_point, 1.0, 1.0)
    return node.emit(call)

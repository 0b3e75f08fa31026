"""CONV_2D, DEPTHWISE_CONV_2D: quantized, hybrid (float activations, int8 weights) and float."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op.base import constant
from ....qparams import QParams
from ..node import Node
from ..registry import converter

Padding = tuple[int, int, int, int]


def same_padding(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """TFLite's SAME: ⌈size / stride⌉ outputs, the odd element of padding at the end."""
    extent = (kernel - 1) * dilation + 1
    total = max((-(-size // stride) - 1) * stride + extent - size, 0)
    return total // 2, total - total // 2


def window_padding(
    node: Node, spatial: tuple[int, int], kernel: tuple[int, int], strides: tuple[int, int], dilation: tuple[int, int]
) -> Padding:
    """top, left, bottom, right for the node's padding option."""
    if node.options["padding"] == "VALID":
        return (0, 0, 0, 0)
    (top, bottom), (left, right) = (
        same_padding(*dims) for dims in zip(spatial, kernel, strides, dilation, strict=True)
    )
    return (top, left, bottom, right)


def strides_and_dilation(node: Node) -> tuple[tuple[int, int], tuple[int, int]]:
    """(height, width) strides and dilation factors. Raises ModelFormatError unless positive."""
    strides = (node.options["stride_h"], node.options["stride_w"])
    dilation = (node.options.get("dilation_h_factor", 1), node.options.get("dilation_w_factor", 1))
    if min(*strides, *dilation) < 1:
        raise node.malformed(f"strides {strides} and dilation {dilation} must be positive")
    return strides, dilation


def accumulator_scale(node: Node, data: QParams, weight: QParams) -> np.ndarray:
    """The scale of Σ data·weight, in the precision of the numerics in force.

    TFLite's reference kernels multiply per-channel scales in double; a single scale they multiply in float32 first
    (GetQuantizedConvolutionMultipler). XNNPACK stays in float32.
    """
    if node.tflite_numerics and weight.per_channel:
        return data.scale.astype(np.float64) * weight.scale.astype(np.float64)
    product = data.scale.astype(np.float32) * weight.scale.astype(np.float32)
    return product.astype(np.float64) if node.tflite_numerics else product


def output_scale(node: Node, qparams: QParams) -> np.ndarray:
    """The output scale in the same precision."""
    return qparams.scale.astype(np.float64 if node.tflite_numerics else np.float32)


def finish_accumulator(node: Node, accumulator: relax.Expr, data: QParams, weight: QParams) -> relax.Expr:
    """accumulator + bias, requantized to the output's QParams, with the fused activation. Channels are the last axis."""
    acc = node.emit(accumulator)
    if node.has_input(2):
        bias = node.constant(2).reshape(-1).astype(str(acc.ty.dtype))
        acc = node.emit(relax.op.add(acc, constant(bias)))
    target = node.output_qparams()
    result = qnn.requantize(
        acc,
        accumulator_scale(node, data, weight),
        0,
        output_scale(node, target),
        target.zero_point,
        axis=-1,
        rounding=node.rounding,
        out_dtype=target.dtype,
    )
    return node.activate(result)


@converter("CONV_2D", max_version=8)
def convert_conv2d(node: Node) -> relax.Expr:
    """acc = Σ x·w + b; TFLite weights are OHWI, groups follow from the channel counts."""
    channels, in_channels = node.shape(0)[3], node.shape(1)[3]
    if in_channels < 1 or channels % in_channels:
        raise node.malformed(f"{channels} input channels do not fit weights of shape {node.shape(1)}")
    return _convolution(node, groups=channels // in_channels, depthwise=False)


@converter("DEPTHWISE_CONV_2D", max_version=7)
def convert_depthwise_conv2d(node: Node) -> relax.Expr:
    """Weights are (1, H, W, C·M); output channel c·M + m reads input channel c."""
    return _convolution(node, groups=node.shape(0)[3], depthwise=True)


def _convolution(node: Node, groups: int, depthwise: bool) -> relax.Expr:
    strides, dilation = strides_and_dilation(node)
    weight = node.input(1)
    if depthwise:  # (1, H, W, O) -> OHWI with one input channel per group
        weight = node.emit(relax.op.permute_dims(weight, [3, 1, 2, 0]))
    kernel = (node.shape(1)[1], node.shape(1)[2])
    padding = window_padding(node, node.shape(0)[1:3], kernel, strides, dilation)
    geometry = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
    if not node.is_quantized(0):
        return float_convolution(node, weight, geometry)
    data, weights = node.qparams(0), node.qparams(1)
    acc = qnn.conv2d(
        node.input(0),
        weight,
        data.zero_point,
        weights.zero_point,
        data.scale,
        weights.scale,
        out_dtype="int64" if data.dtype == "int16" else "int32",
        **geometry,
    )
    return finish_accumulator(node, acc, data, weights)


def float_convolution(node: Node, weight: relax.Expr, geometry: dict) -> relax.Expr:
    """Float convolution, weights OHWI."""
    raise node.unsupported("float convolution")

"""CONV_2D, DEPTHWISE_CONV_2D: quantized, hybrid (float activations, int8 weights) and float."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import relax

from .... import limits
from .... import op as qnn
from ....op.base import constant
from ....qparams import QParams
from ..node import Node, shape_of
from ..registry import converter
from ..weights import stays_packed
from .accumulators import (
    accumulator_dtype,
    bias_of,
    finish_accumulator,
    finish_float,
    product_kind,
    reshaped,
    runs_on_ruy,
    weight_qparams,
)
from .dense import hybrid_dense
from .hybrid import dequantize_accumulator, packed_product, quantize_rows
from .shape import block

Padding = tuple[int, int, int, int]
Pair = tuple[int, int]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """How the window moves: (height, width) pairs; padding is top, left, bottom, right."""

    strides: Pair = (1, 1)
    padding: Padding = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def options(self) -> dict:
        """As the keyword arguments of `qnn.conv2d`."""
        return vars(self)


def same_padding(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """TFLite's SAME: ⌈size / stride⌉ outputs, an odd element of padding goes at the end."""
    extent = (kernel - 1) * dilation + 1
    total = max((-(-size // stride) - 1) * stride + extent - size, 0)
    return total // 2, total - total // 2


def window_padding(node: Node, spatial: Shape, kernel: Shape, strides: Pair, dilation: Pair) -> Padding:
    """top, left, bottom, right for the node's padding option; `spatial` and `kernel` are (height, width)."""
    padding = node.options["padding"]
    if padding == "VALID":
        return (0, 0, 0, 0)
    if padding != "SAME":
        raise node.unsupported(f"padding {padding}; supported: SAME and VALID")
    (top, bottom), (left, right) = (
        same_padding(*dims) for dims in zip(spatial, kernel, strides, dilation, strict=True)
    )
    window = f"{node.label}: a window of {kernel} with dilation {dilation} on an image of {spatial}"
    limits.check("padding", max(bottom, right), window)
    return (top, left, bottom, right)


def strides_and_dilation(node: Node) -> tuple[Pair, Pair]:
    """(height, width) strides and dilation factors. Raises ModelFormatError unless positive."""
    strides = (node.options["stride_h"], node.options["stride_w"])
    dilation = (node.options.get("dilation_h_factor", 1), node.options.get("dilation_w_factor", 1))
    if min(*strides, *dilation) < 1:
        raise node.malformed(f"strides {strides} and dilation {dilation} must be positive")
    return strides, dilation


def check_rank4(node: Node, *indices: int) -> None:
    """Raise ModelFormatError unless these inputs have four dimensions, none of them 0."""
    for index in indices:
        shape = node.shape(index)
        if len(shape) != 4 or 0 in shape:
            raise node.malformed(f"input {index} must have 4 dimensions, none of them 0, found shape {shape}")


@converter("CONV_2D", max_version=8)
def convert_conv2d(node: Node) -> relax.Expr:
    """acc = Σ x·w + b; TFLite weights are OHWI, groups follow from the channel counts."""
    check_rank4(node, 0, 1)
    channels, in_channels = node.shape(0)[3], node.shape(1)[3]
    if channels % in_channels:
        raise node.malformed(f"{channels} input channels do not match weights of shape {node.shape(1)}")
    groups = channels // in_channels
    asymmetric = groups > 1 or _scales_differ(node.tensor(1).qparams)
    return _window_operator(node, node.input(1), 0, groups, asymmetric)


@converter("DEPTHWISE_CONV_2D", max_version=7)
def convert_depthwise_conv2d(node: Node) -> relax.Expr:
    """Weights are (1, H, W, C·M); output channel c·M + m reads input channel c."""
    check_rank4(node, 0, 1)
    weight = node.emit(relax.op.permute_dims(node.input(1), [3, 1, 2, 0]))
    return _window_operator(node, weight, 3, node.shape(0)[3], asymmetric=True)


def _window_operator(node: Node, weight: relax.Expr, axis: int, groups: int, asymmetric: bool) -> relax.Expr:
    """weight: OHWI; axis: its output channels in the file; asymmetric: how TFLite's hybrid kernel for the operator
    quantizes its activations."""
    strides, dilation = strides_and_dilation(node)
    kernel = shape_of(weight)[1:3]
    padding = window_padding(node, node.shape(0)[1:3], kernel, strides, dilation)
    geometry = Geometry(strides, padding, dilation, groups)
    bias = bias_of(node, 2, shape_of(weight)[0])
    kind = product_kind(node, 0, 1)
    if kind == "float":
        return finish_float(node, float_convolution(node.input(0), weight, geometry), bias)
    if kind == "hybrid":
        qparams = weight_qparams(node, 1, axis)
        if node.delegated and groups == 1 and (kernel, strides) == ((1, 1), (1, 1)) and sum(shape_of(weight)) > 4:
            return node.activate(_pointwise(node, weight, qparams, bias))
        return hybrid_convolution(node, node.input(0), weight, qparams, bias, geometry, asymmetric)
    dtype = accumulator_dtype(node, node.dtype(0), 2)
    data, weights = (node.input(0), node.qparams(0)), (weight, weight_qparams(node, 1, axis))

    def convolution(rounding: str | None) -> relax.Expr:
        return integer_convolution(node, data, weights, bias, geometry, dtype, rounding)

    if axis == 3 and node.dtype(0) == "int8" and not node.reference_kernels and not node.delegated:
        return _optimized_depthwise(node, convolution, shape_of(weight)[0])
    upward = axis == 0 and groups == 1 and dtype == "int32" and runs_on_ruy(node)
    return convolution("TFLITE_UPWARD" if upward else None)


def _optimized_depthwise(node: Node, convolution: Callable[[str], relax.Expr], channels: int) -> relax.Expr:
    """LiteRT's optimized kernel, which XNNPACK leaves those to whose weights have a channel of scale 0, rounds 8
    channels at once with midpoints up, and the rest as the reference kernel does."""
    whole = channels - channels % 8
    rounded = [("TFLITE_UPWARD", 0, whole), ("TFLITE", whole, channels)]
    parts = [
        block(node, node.emit(convolution(rounding)), [3], [first], [last], [1])
        for rounding, first, last in rounded
        if first < last
    ]
    return relax.op.concat(parts, axis=3) if len(parts) > 1 else parts[0]


def integer_convolution(
    node: Node,
    data: tuple[relax.Expr, QParams],
    weight: tuple[relax.Expr, QParams],
    bias: relax.Expr | None,
    geometry: Geometry,
    dtype: str,
    rounding: str | None = None,
) -> relax.Expr:
    """Convolution of integers with OHWI weights, requantized to the output; `dtype` is the accumulator's, `rounding`
    the requantization's, if it is not the node's."""
    acc = qnn.conv2d(
        data[0],
        weight[0],
        data[1].zero_point,
        weight[1].zero_point,
        data[1].scale,
        weight[1].scale,
        out_dtype=dtype,
        **geometry.options(),
    )
    double = data[1].dtype != "uint8"
    return finish_accumulator(node, acc, data[1], weight[1], bias, double, rounding=rounding)


def hybrid_convolution(
    node: Node,
    data: relax.Expr,
    weight: relax.Expr,
    qparams: QParams,
    bias: relax.Expr | None,
    geometry: Geometry,
    asymmetric: bool,
) -> relax.Expr:
    """Convolution of float32 activations, quantized per image at run time, with int8 weights (OHWI, `qparams`).
    The reference kernel of CONV_2D, with scales of channels, and the optimized one of DEPTHWISE_CONV_2D multiply by one
    scale after the other; the reference one also computes all convolutions of groups."""
    asymmetric |= node.delegated
    rows = quantize_rows(node, data, shape_of(data)[0], asymmetric)
    pointwise = shape_of(weight)[1:3] == (1, 1) and geometry == Geometry()
    if pointwise and stays_packed(node.tensor(1)):
        return node.activate(packed_product(node, rows, bias))
    acc = node.emit(qnn.conv2d(rows.data, weight, 0, 0, 1.0, qparams.scale, **geometry.options()))
    weight_sum = _weight_sum(node, shape_of(data), weight, geometry) if asymmetric else None
    if node.operator.name == "DEPTHWISE_CONV_2D":
        weight_first = not node.reference_kernels
    else:
        is_reference = node.reference_kernels or geometry.groups > 1
        weight_first = node.operator.name == "CONV_2D" and qparams.per_channel and is_reference
    return node.activate(dequantize_accumulator(node, acc, rows, weight_sum, qparams.scale, bias, weight_first))


def _pointwise(node: Node, weight: relax.Expr, qparams: QParams, bias: relax.Expr | None) -> relax.Expr:
    """XNNPACK turns convolutions of 1×1 (but not of one channel to one) into dense layers, so that the activations are
    quantized per pixel."""
    units, _, _, depth = shape_of(weight)
    shape = node.shape(0)
    rows = reshaped(node, node.input(0), (shape[0] * shape[1] * shape[2], depth))
    result = hybrid_dense(node, rows, reshaped(node, weight, (units, depth)), qparams, bias)
    return node.emit(reshaped(node, result, (*shape[:3], units)))


def _weight_sum(node: Node, shape: tuple[int, ...], weight: relax.Expr, geometry: Geometry) -> relax.Expr:
    """Sum of the weights that meet an input element, int32: per output position where there is padding, otherwise once
    per channel."""
    height, width = shape[1:3]
    if not any(geometry.padding):
        height, width = (
            (kernel - 1) * dilation + 1
            for kernel, dilation in zip(shape_of(weight)[1:3], geometry.dilation, strict=True)
        )
    limits.charge((height, width, shape[3]), "the image of ones behind the zero points")
    ones = constant(np.ones((1, height, width, shape[3]), np.int8))
    return node.emit(qnn.conv2d(ones, weight, 0, 0, 1.0, 1.0, **geometry.options()))


def float_convolution(data: relax.Expr, weight: relax.Expr, geometry: Geometry) -> relax.Expr:
    """Convolution in float32, weights OHWI."""
    return relax.op.nn.conv2d(data, weight, data_layout="NHWC", kernel_layout="OHWI", **geometry.options())


def _scales_differ(qparams: QParams | None) -> bool:
    return qparams is not None and bool(np.any(qparams.scale != qparams.scale.reshape(-1)[0]))

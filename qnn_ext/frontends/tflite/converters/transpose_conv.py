"""TRANSPOSE_CONV and MediaPipe's variant of it as one ordinary convolution per output phase, all phases at once,
followed by a shuffle.

The derivation is in numerics/phases.py.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ....numerics.phases import phase_weight, tap_counts
from ....op.base import constant, constant_value
from ....qparams import QParams
from ..node import Node, shape_of
from ..registry import converter
from .accumulators import accumulator_dtype, bias_of, finish_float, product_kind, reshaped, weight_qparams
from .convolution import (
    Geometry,
    Pair,
    check_rank4,
    float_convolution,
    hybrid_convolution,
    integer_convolution,
    strides_and_dilation,
    window_padding,
)
from .shape import block, check_elements

SHAPE, WEIGHT, DATA, BIAS = range(4)
_SAME, _VALID = 1, 2  # TfLitePadding


@dataclass(frozen=True)
class Operands:
    """The inputs by role: their indices."""

    data: int
    weight: int
    bias: int


@converter("TRANSPOSE_CONV", max_version=5)
def convert_transpose_conv(node: Node) -> relax.Expr:
    """Inputs: the output's shape (constant), weights OHWI, activations NHWC, optional bias."""
    check_rank4(node, WEIGHT, DATA)
    size, phases = _output_size(node), strides_and_dilation(node)[0]
    # the padding of the convolution being transposed
    top, left, _, _ = window_padding(node, size, node.shape(WEIGHT)[1:3], phases, (1, 1))
    return _transposed(node, Operands(DATA, WEIGHT, BIAS), size, phases, (top, left))


@converter("Convolution2DTransposeBias", max_version=1)
def convert_transpose_conv_bias(node: Node) -> relax.Expr:
    """MediaPipe's custom operator (util/tflite/operations/transpose_conv_bias.cc). Inputs, all float32: activations
    NHWC, weights OHWI, bias. Options: TfLiteTransposeConvParams. The output's size follows from the input's."""
    operands = Operands(0, 1, 2)
    check_rank4(node, operands.data, operands.weight)
    if any(node.dtype(index) != "float32" for index in range(3)):
        raise node.unsupported("dtypes other than float32")
    if len(node.operator.custom_options) < 12:
        raise node.malformed(f"{len(node.operator.custom_options)} bytes of options; padding and strides need 12")
    padding, stride_w, stride_h = struct.unpack_from("<3i", node.operator.custom_options)
    if padding not in (_SAME, _VALID) or min(stride_h, stride_w) < 1:
        raise node.malformed(f"padding {padding} and strides {(stride_h, stride_w)} are not valid")
    size, offset = [], []
    strides = (stride_h, stride_w)
    for dim, kernel, stride in zip(node.shape(0)[1:3], node.shape(1)[1:3], strides, strict=True):
        total = max(0, kernel - (dim - 1) % stride - 1) if padding == _SAME else 0
        size.append(stride * (dim - 1) + kernel - total)
        offset.append(total // 2)
    check_elements(node, [node.shape(0)[0], *size, node.shape(1)[0]])
    return _transposed(node, operands, (size[0], size[1]), strides, (offset[0], offset[1]))


def _transposed(node: Node, operands: Operands, size: Pair, phases: Pair, offset: Pair) -> relax.Expr:
    """size: of the output; phases: the strides; offset: rows and columns cut off at the top and left."""
    weight = node.constant(operands.weight)
    if weight.shape[3] != node.shape(operands.data)[3]:
        channels = node.shape(operands.data)[3]
        raise node.malformed(f"weights of shape {weight.shape} do not match {channels} input channels")
    kind = product_kind(node, operands.data, operands.weight)
    zero_point = int(node.qparams(operands.weight).zero_point.reshape(-1)[0]) if kind == "integer" else 0
    taps = tap_counts(weight.shape[1:3], phases)
    rows = ((size[0] - 1 + offset[0]) // phases[0] + 1, (size[1] - 1 + offset[1]) // phases[1] + 1)
    units = weight.shape[0]
    enlarged = (units, phases[0] * taps[0], phases[1] * taps[1], weight.shape[3])
    check_elements(node, enlarged, "folded", exempt=4 * weight.size)
    data, padding = _fit(node, node.input(operands.data), rows, taps)
    bias = bias_of(node, operands.bias, units)

    def part(first: int, last: int, rounding: str | None) -> relax.Expr:
        """These channels of the result."""
        channels = slice(first, last)
        kernel = phase_weight(weight[channels], phases, zero_point)
        some = bias if bias is None or last - first == units else block(node, bias, [0], [first], [last], [1])
        convolution = Convolution(data, constant(kernel), some, channels, rounding)
        result = _convolve(node, operands, kind, convolution, padding, phases)
        return node.emit(_interleave(node, node.emit(result), phases, offset, size))

    runs = kind == "integer" and node.dtype(operands.data) in ("int8", "uint8")
    if not runs or node.reference_kernels or node.delegated:
        return part(0, units, None)
    return _as_optimized(node, part, units)


def _as_optimized(node: Node, part: Callable[[int, int, str], relax.Expr], units: int) -> relax.Expr:
    """LiteRT's optimized kernels, which XNNPACK leaves those to whose output shape is computed, round vectors with
    midpoints up, and what remains behind them as the reference kernels do: of int8, 8 channels of a pixel at once; of
    uint8, 16 elements."""
    upward, nearest = "TFLITE_UPWARD", "TFLITE"
    if node.output_tensor().dtype == "int8":
        whole = units - units % 8
        parts = [(0, whole, upward), (whole, units, nearest)]
        results = [part(*arguments) for arguments in parts if arguments[0] < arguments[1]]
        return results[0] if len(results) == 1 else relax.op.concat(results, axis=3)
    result = part(0, units, upward)
    shape = shape_of(result)
    total = math.prod(shape)
    whole = total - total % 16
    if whole == total:
        return result
    pieces = [
        block(node, reshaped(node, value, (total,)), [0], [first], [last], [1])
        for value, first, last in ((result, 0, whole), (part(0, units, nearest), whole, total))
        if first < last
    ]
    return reshaped(node, node.emit(relax.op.concat(pieces, axis=0)), shape)


@dataclass(frozen=True)
class Convolution:
    """What is multiplied: all channels of the data by a kernel of phases, for some channels of the result.

    rounding: of the requantization, None for the node's
    """

    data: relax.Expr
    kernel: relax.Expr
    bias: relax.Expr | None
    channels: slice
    rounding: str | None


def _output_size(node: Node) -> Pair:
    """Height and width from the shape input, whose batch size comes from the file and may be stale."""
    shape = node.integers(SHAPE)
    if len(shape) != 4 or min(shape) < 1 or shape[3] != node.shape(WEIGHT)[0]:
        raise node.malformed(f"output shape {shape} does not match weights of shape {node.shape(WEIGHT)}")
    return shape[1], shape[2]


def _fit(node: Node, data: relax.Expr, rows: Pair, taps: Pair) -> tuple[relax.Expr, tuple[int, int, int, int]]:
    """The activations cropped to what outputs read, and the padding that makes the convolution yield `rows`."""
    height, width = shape_of(data)[1:3]
    if height > rows[0] or width > rows[1]:
        end = [min(height, rows[0]), min(width, rows[1])]
        data = node.emit(relax.op.strided_slice(data, axes=[1, 2], begin=[0, 0], end=end))
    height, width = shape_of(data)[1:3]
    return data, (taps[0] - 1, taps[1] - 1, rows[0] - height, rows[1] - width)


def _convolve(
    node: Node,
    operands: Operands,
    kind: str,
    convolution: Convolution,
    padding: tuple[int, int, int, int],
    phases: Pair,
) -> relax.Expr:
    """The convolution, with per-output-channel parameters repeated for every phase."""
    repeats, geometry = phases[0] * phases[1], Geometry(padding=padding)
    data, kernel, bias = convolution.data, convolution.kernel, convolution.bias
    if bias is not None and repeats > 1:
        bias = node.emit(relax.op.tile(bias, (repeats,)))
    if kind == "float":
        return _float_convolution(node, data, kernel, bias, padding)
    qparams = _repeated(weight_qparams(node, operands.weight, 0), convolution.channels, repeats)
    if kind == "hybrid":
        return hybrid_convolution(node, data, kernel, qparams, bias, geometry, asymmetric=True)
    source = node.qparams(operands.data)
    dtype = accumulator_dtype(node, source.dtype, operands.bias)
    return integer_convolution(node, (data, source), (kernel, qparams), bias, geometry, dtype, convolution.rounding)


def _float_convolution(
    node: Node, data: relax.Expr, kernel: relax.Expr, bias: relax.Expr | None, padding: tuple[int, int, int, int]
) -> relax.Expr:
    """XNNPACK adds the taps in the order of the weights, which `phase_weight` has turned round: so the image is turned
    round as well."""
    turned = [axis for axis in (1, 2) if shape_of(kernel)[axis] > 1] if node.follows_xnnpack else []
    top, left, bottom, right = padding
    if 1 in turned:
        top, bottom = bottom, top
    if 2 in turned:
        left, right = right, left
    product = float_convolution(
        _turned(node, data, turned), _turned(node, kernel, turned), Geometry(padding=(top, left, bottom, right))
    )
    return _turned(node, finish_float(node, product, bias), turned)


def _turned(node: Node, value: relax.Expr, axes: list[int]) -> relax.Expr:
    """The value with these axes in the opposite order."""
    known = constant_value(value)
    if known is not None:
        return constant(np.ascontiguousarray(np.flip(known, tuple(axes))))
    for axis in axes:
        value = relax.op.flip(node.emit(value), axis)
    return value


def _repeated(qparams: QParams, channels: slice, repeats: int) -> QParams:
    """Those of some channels, repeated."""
    if not qparams.per_channel:
        return qparams
    scale, zero_point = (np.tile(values[channels], repeats) for values in (qparams.scale, qparams.zero_point))
    return QParams(scale, zero_point, qparams.dtype, axis=0)


def _interleave(node: Node, phased: relax.Expr, phases: Pair, offset: Pair, size: Pair) -> relax.Expr:
    """(N, Y_h, Y_w, s_h·s_w·O) -> (N, size, O): phase (r_h, r_w) goes to rows s·Y + r, cropped to the output."""
    batch, height, width, channels = shape_of(phased)
    (sh, sw), out = phases, channels // (phases[0] * phases[1])
    if phases != (1, 1):
        split = reshaped(node, phased, (batch, height, width, sh, sw, out))
        shuffled = node.emit(relax.op.permute_dims(split, [0, 1, 3, 2, 4, 5]))
        phased = reshaped(node, shuffled, (batch, height * sh, width * sw, out))
    if offset == (0, 0) and size == (height * sh, width * sw):
        return phased
    end = [begin + extent for begin, extent in zip(offset, size, strict=True)]
    return relax.op.strided_slice(phased, axes=[1, 2], begin=list(offset), end=end)

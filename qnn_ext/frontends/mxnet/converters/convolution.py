"""Convolution, Deconvolution and the fused _sg_mkldnn_conv, quantized and float."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op import compound
from ....op.base import constant
from ..node import Node
from ..registry import converter
from ..scales import F32, INT_MAX, Range, as_real, rescaled, round_saturate, saturate, scale_of
from . import uncalibrated
from .fused import convert_fused_float

CHANNELS_FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


@dataclass(frozen=True)
class Geometry:
    """How the window moves; padding is all beginnings, then all ends."""

    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def read_geometry(node: Node, data: tuple[int, ...], weight: tuple[int, ...]) -> Geometry:
    """Window attributes of a Convolution or Deconvolution, checked against the shapes of data and weight."""
    rank = len(data) - 2
    if rank not in CHANNELS_FIRST:
        raise node.unsupported(f"data of shape {data}; supported: 1, 2 and 3 spatial dimensions")
    node.choice("layout", CHANNELS_FIRST[rank], CHANNELS_FIRST[rank])
    kernel = node.integers("kernel")
    groups = node.integer("num_group", 1)
    if len(weight) != rank + 2 or weight[2:] != kernel or 0 in weight or 0 in data or groups < 1:
        raise node.malformed(f"kernel {kernel} with {groups} groups, weight {weight} and data {data} do not match")
    strides, dilation = node.window("stride", rank, 1, 1), node.window("dilate", rank, 1, 1)
    pad = node.window("pad", rank, 0, 0)
    return Geometry(strides, (*pad, *pad), dilation, groups)


def check_channels(node: Node, data: tuple[int, ...], weight: tuple[int, ...], groups: int) -> None:
    """Raise ModelFormatError unless the OI… weights match the data."""
    if weight[1] * groups != data[1] or weight[0] % groups:
        raise node.malformed(f"weight {weight} with {groups} groups does not match data {data}")


def fold_batch_norm(
    norm: Node, weight: np.ndarray, bias: np.ndarray | None, statistics: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Weight and bias with gamma, beta, mean, variance folded in: α = γ / √(σ² + ε) in float64, the rest in float32."""
    gamma, beta, mean, variance = statistics
    if norm.flag("fix_gamma", True):
        gamma = np.ones_like(gamma)
    alpha = (gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + norm.real("eps", 1e-3))).astype(F32)
    shifted = beta - alpha * mean if bias is None else beta + alpha * (bias - mean)
    return weight * per_channel(alpha, weight.ndim, 0), shifted


def per_channel(vector: np.ndarray, rank: int, axis: int = 1) -> np.ndarray:
    """A vector shaped so that it broadcasts along `axis`."""
    return vector.reshape([-1 if i == axis else 1 for i in range(rank)])


# ---- quantized ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Inputs:
    """The inputs of a quantized _sg_mkldnn_conv by role; weight and bias with BatchNorm folded in."""

    weight: np.ndarray
    bias: np.ndarray | None
    total: int | None  # index of the sum's other operand
    ranges: int  # index of the data's min and max, followed by the sum's


@converter("_sg_mkldnn_conv")
def convert_fused_convolution(node: Node) -> relax.Expr | list[relax.Expr]:
    """Convolution with the BatchNorm, activation and residual sum fused into it by oneDNN."""
    if not node.flag("quantized"):
        return convert_fused_float(node)
    convolution = node.fused("Convolution")
    if convolution is None:
        raise node.malformed("its subgraph has no Convolution")
    inputs = _inputs(node, convolution)
    if node.dtype(0) not in ("int8", "uint8"):
        raise node.malformed(f"quantized data must be int8 or uint8, found {node.dtype(0)}")
    geometry = read_geometry(convolution, node.shape(0), inputs.weight.shape)
    check_channels(convolution, node.shape(0), inputs.weight.shape, geometry.groups)
    target = node.calibrated()
    if target is None:
        return _uncalibrated(node, inputs, geometry)
    data_range = node.range(inputs.ranges)
    data_scale = scale_of(node.dtype(0), data_range)
    weight_scale = channel_scales(inputs.weight, inputs.bias, data_scale)
    used = weight_scale if node.assembly.intended else _scales_by_group(weight_scale, geometry.groups)
    weight, bias = quantize_weights(inputs.weight, used), quantize_bias(inputs.bias, weight_scale, data_scale)
    acc = _accumulator(node, weight, geometry)
    if bias is not None:
        acc = node.emit(relax.op.add(acc, constant(per_channel(bias, len(node.shape(0))))))
    return node.with_range(_finish(node, acc, inputs, data_scale, weight_scale, target), target)


def _accumulator(node: Node, weight: np.ndarray, geometry: Geometry) -> relax.Expr:
    return compound.convolution(
        node.input(0),
        constant(weight),
        0,
        0,
        strides=geometry.strides,
        padding=geometry.padding,
        dilation=geometry.dilation,
        groups=geometry.groups,
        emit=node.emit,
    )


def _uncalibrated(node: Node, inputs: _Inputs, geometry: Geometry) -> list[relax.Expr]:
    """int32 output: rint(acc + bias + sum · s_x·s_w / s_sum), with one scale for all weights. relu acts on integers as
    on real numbers; a clip does not, and MXNet clips the integers."""
    activations = [_activation(node, "with_act", 0), _activation(node, "with_postsum_act", -1)]
    if any(activation is not None and activation.operator.op == "clip" for activation in activations):
        raise node.unsupported(
            "clip without calibration, which MXNet itself computes incorrectly; quantize with calib_mode='naive'"
        )
    data = uncalibrated.largest(node, inputs.ranges)
    data_scale = uncalibrated.scale(node, node.dtype(0), data)
    weights = Range(inputs.weight.min(), inputs.weight.max())
    weight_scale = scale_of("int8", weights)
    acc = _accumulator(node, quantize_weights(inputs.weight, np.full(len(inputs.weight), weight_scale)), geometry)
    both = uncalibrated.product(node, data_scale, weight_scale)
    if inputs.bias is not None:
        bias = uncalibrated.bias_steps(node, inputs.bias, both, "TONEAREST_EVEN")
        shape = [-1 if i == 1 else 1 for i in range(len(node.shape(0)))]
        acc = node.emit(relax.op.add(acc, node.emit(relax.op.reshape(bias, shape))))
    if activations[0] is not None:
        acc = _integer_relu(node, acc, activations[0])
    if inputs.total is not None:
        sum_scale = uncalibrated.scale(node, node.dtype(inputs.total), uncalibrated.largest(node, inputs.ranges + 2))
        ratio = node.emit(relax.op.divide(both, sum_scale))
        real = qnn.fma(node.emit(as_real(node.input(inputs.total))), ratio, node.emit(as_real(acc)))
        acc = node.emit(round_saturate(node.emit(real), "int32"))
    if activations[1] is not None:
        acc = _integer_relu(node, acc, activations[1])
    return uncalibrated.accumulator_range(node, acc, node.dtype(0), data, weights.largest)


def _integer_relu(node: Node, acc: relax.Expr, activation: Node) -> relax.Expr:
    """relu or leaky relu of int32."""
    if activation.operator.op == "Activation":
        return node.emit(relax.op.maximum(acc, constant(np.int32(0))))
    real = _leaky(node, node.emit(as_real(acc)), activation.real("slope", 0.25))
    return node.emit(round_saturate(real, "int32"))


def _inputs(node: Node, convolution: Node) -> _Inputs:
    no_bias, with_bn, with_sum = convolution.flag("no_bias"), node.flag("with_bn"), node.flag("with_sum")
    expected = 4 + (not no_bias) + 4 * with_bn + 3 * with_sum
    if len(node.inputs) != expected:
        raise node.malformed(f"it must have {expected} inputs, found {len(node.inputs)}")
    weight = float_weight(node, 1)
    channels, at = weight.shape[0], 2
    bias = None if no_bias else node.vector(at, channels)
    at += not no_bias
    if with_bn:
        norm = node.fused("BatchNorm")
        if norm is None:
            raise node.malformed("with_bn is set, but its subgraph has no BatchNorm")
        weight, bias = fold_batch_norm(norm, weight, bias, [node.vector(at + i, channels) for i in range(4)])
        at += 4
    total = at if with_sum else None
    at += with_sum
    return _Inputs(weight, bias, total, at)


def float_weight(node: Node, index: int) -> np.ndarray:
    """A parameter: finite float32 numbers in at least two dimensions."""
    weight = node.constant(index)
    if weight.dtype != np.float32 or weight.ndim < 2 or not weight.size or not np.isfinite(weight).all():
        raise node.malformed(f"input {index} must be finite float32 weights, found {weight.dtype} {weight.shape}")
    return weight


def channel_scales(weight: np.ndarray, bias: np.ndarray | None, data_scale: np.float32) -> np.ndarray:
    """int8 steps per unit of each output channel's weights, reduced where the bias would overflow int32
    (GetWeightScales: |bias| in accumulator steps stays below INT_MAX / 2)."""
    rows = weight.reshape(len(weight), -1)
    scales = np.array([scale_of("int8", Range(row.min(), row.max())) for row in rows], F32)
    if bias is not None:
        used = bias != 0
        limit = INT_MAX / F32(2) / np.abs(bias[used]) / data_scale
        scales[used] = np.minimum(scales[used], limit)
    return scales


def _scales_by_group(scales: np.ndarray, groups: int) -> np.ndarray:
    """The scales that MXNet 1.9.1 quantizes weights with: group g uses the scale of channel g. To oneDNN grouped
    weights have a leading dimension of groups, and MXNet tells it that scales run along the first dimension. This is
    correct for one group and for depthwise convolutions."""
    return scales if groups == 1 else np.repeat(scales[:groups], len(scales) // groups)


def quantize_weights(weight: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """int8 weights, one scale per output channel."""
    return saturate(weight * per_channel(scales, weight.ndim, 0), "int8")


def quantize_bias(bias: np.ndarray | None, scales: np.ndarray, data_scale: np.float32) -> np.ndarray | None:
    """The int32 bias in accumulator steps."""
    return None if bias is None else saturate(bias * (scales * data_scale), "int32")


def _finish(
    node: Node, acc: relax.Expr, inputs: _Inputs, data_scale: np.float32, weight_scale: np.ndarray, target: Range
) -> relax.Expr:
    """Accumulator → [relu] → [+ sum] → [relu] → integers; every step in float32, in oneDNN's order."""
    early, late = _activation(node, "with_act", 0), _activation(node, "with_postsum_act", -1)
    last = early if inputs.total is None else late
    leaky = last is not None and last.operator.op == "LeakyReLU"
    dtype = "int8" if last is None or leaky else "uint8"
    out_scale = scale_of(dtype, target)
    factor = out_scale / data_scale / weight_scale
    if not leaky and inputs.total is None:
        return rescaled(acc, factor, dtype)  # a final relu is the saturation at 0, a relu6 the one at 255
    real = node.emit(as_real(acc, factor))
    if inputs.total is not None:
        if early is not None:
            real = _early_relu(node, real, early)
        ratio = F32(out_scale / scale_of(node.dtype(inputs.total), node.range(inputs.ranges + 2)))
        real = node.emit(qnn.fma(node.emit(as_real(node.input(inputs.total))), constant(ratio), real))
    if leaky and last is not None:
        real = _leaky(node, real, last.real("slope", 0.25))
    if node.assembly.intended or inputs.total is None or node.dtype(inputs.total) == dtype:
        return round_saturate(real, dtype)
    return _in_place(node, real, late is not None, node.dtype(inputs.total), dtype)


def _early_relu(node: Node, real: relax.Expr, activation: Node) -> relax.Expr:
    """The activation between the convolution and the sum."""
    if activation.operator.op != "Activation":
        raise node.unsupported(f"{activation.operator.op} between the convolution and the sum; only relu is supported")
    return node.emit(relax.op.maximum(real, constant(F32(0))))


def _leaky(node: Node, real: relax.Expr, slope: float) -> relax.Expr:
    """x where positive, slope·x elsewhere."""
    below = node.emit(relax.op.multiply(node.emit(relax.op.minimum(real, constant(F32(0)))), constant(F32(slope))))
    return node.emit(relax.op.add(node.emit(relax.op.maximum(real, constant(F32(0)))), below))


def _in_place(node: Node, real: relax.Expr, relu: bool, sum_dtype: str, dtype: str) -> relax.Expr:
    """What MXNet 1.9.1 computes: the result is rounded into the buffer of the sum's operand, with that dtype's range,
    and its bytes are then read as the declared dtype."""
    if relu:
        real = node.emit(relax.op.maximum(real, constant(F32(0))))
    return relax.op.astype(node.emit(round_saturate(real, sum_dtype)), dtype)


def _activation(node: Node, key: str, position: int) -> Node | None:
    """The fused activation that `key` declares: the first or last one in the subgraph."""
    if not node.flag(key):
        return None
    found = [op for op in node.subgraph.nodes if op.op in ("Activation", "clip", "LeakyReLU")]
    if not found:
        raise node.malformed(f"{key} is set, but its subgraph has no activation")
    activation = Node(node.assembly, found[position], [])
    if activation.operator.op == "LeakyReLU":
        activation.choice("act_type", "leaky", "leaky")
    elif activation.operator.op == "Activation":
        activation.choice("act_type", "", "relu")
    elif activation.real("a_min") != 0:
        raise node.unsupported(f"clip from {activation.real('a_min')} in a convolution; only clip from 0 is supported")
    return activation


# ---- float -------------------------------------------------------------------------------------------------------


@converter("Convolution", "Convolution_v1")
def convert_convolution(node: Node) -> relax.Expr:
    """A convolution in float32; a BatchNorm that is its only reader is folded into its weights."""
    data, weight = node.input(0), float_weight(node, 1)
    geometry = read_geometry(node, node.shape(0), weight.shape)
    check_channels(node, node.shape(0), weight.shape, geometry.groups)
    bias = None if node.flag("no_bias") else node.vector(2, len(weight))
    weight, bias = _with_batch_norm(node, weight, bias)
    function = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}[len(geometry.strides)]
    result = function(
        data,
        constant(weight),
        strides=geometry.strides,
        padding=geometry.padding,
        dilation=geometry.dilation,
        groups=geometry.groups,
    )
    return with_bias(node, result, bias)


def _with_batch_norm(node: Node, weight: np.ndarray, bias: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    following = node.assembly.sole_consumer(node.operator)
    if following is None or following.op != "BatchNorm" or len(following.inputs) != 5:
        return weight, bias
    names = [node.assembly.graph.nodes[edge[0]].name for edge in following.inputs[1:]]
    norm = Node(node.assembly, following, [])
    statistics = [node.assembly.params.get(name) for name in names]
    if norm.axis("axis", 1, weight.ndim) != 1 or any(s is None or s.shape != weight.shape[:1] for s in statistics):
        return weight, bias
    node.assembly.fused.append(following)
    return fold_batch_norm(norm, weight, bias, [s.astype(F32) for s in statistics if s is not None])


def with_bias(node: Node, result: relax.Expr, bias: np.ndarray | None) -> relax.Expr:
    """Add one number per channel (axis 1)."""
    if bias is None:
        return result
    bound = node.emit(result)
    return relax.op.add(bound, constant(per_channel(bias, len(bound.ty.shape))))


@converter("Deconvolution")
def convert_deconvolution(node: Node) -> relax.Expr:
    """A transposed convolution in float32, weights (C, O / groups, kernel…)."""
    data, weight = node.input(0), float_weight(node, 1)
    geometry = read_geometry(node, node.shape(0), weight.shape)
    rank = len(geometry.strides)
    if rank != 2:
        raise node.unsupported(f"{rank} spatial dimensions; only 2 are supported")
    if weight.shape[0] != node.shape(0)[1] or weight.shape[0] % geometry.groups:
        raise node.malformed(f"weight {weight.shape} does not match data {node.shape(0)}")
    if node.has("target_shape") and any(node.integers("target_shape")):
        raise node.unsupported("target_shape; export the model with pad and adj instead")
    adjust = node.window("adj", rank, 0, 0)
    result = relax.op.nn.conv2d_transpose(
        data,
        constant(weight),
        strides=geometry.strides,
        padding=geometry.padding,
        output_padding=adjust,
        dilation=geometry.dilation,
        groups=geometry.groups,
    )
    bias = None if node.flag("no_bias", True) else node.vector(2, weight.shape[1] * geometry.groups)
    return with_bias(node, result, bias)

"""FullyConnected and the fused _sg_mkldnn_fully_connected, quantized and float; dot and batch_dot."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from .... import op as qnn
from ....numerics import reference
from ....op.base import constant, constant_value, shape_of
from ..node import Node
from ..registry import converter
from ..scales import F32, Range, as_real, rescaled, round_saturate, scale_of
from . import uncalibrated
from .activation import float_activation
from .convolution import channel_scales, float_weight, quantize_bias, quantize_weights
from .fused import convert_fused_float

ELTWISE = ("Activation", "clip", "LeakyReLU", "abs", "exp", "sqrt", "square")


def _rows(node: Node, attributes: Node, columns: int) -> relax.Expr:
    """The data as a matrix of `columns` columns."""
    shape = node.shape(0)
    if len(shape) < 2 or 0 in shape:
        raise node.malformed(f"the input must have 2 dimensions or more, found shape {shape}")
    lead = shape[:1] if attributes.flag("flatten", True) else shape[:-1]
    if math.prod(shape) != math.prod(lead) * columns:
        raise node.malformed(f"data of shape {shape} does not match weights with {columns} columns")
    return _reshaped(node, node.input(0), (math.prod(lead), columns))


def _like_input(node: Node, attributes: Node, result: relax.Expr, units: int) -> relax.Expr:
    """The result with the data's leading dimensions."""
    lead = node.shape(0)[:1] if attributes.flag("flatten", True) else node.shape(0)[:-1]
    return _reshaped(node, result, (*lead, units))


def _reshaped(node: Node, value: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    bound = node.emit(value)
    return bound if shape_of(bound) == shape else node.emit(relax.op.reshape(bound, shape))


# ---- quantized ---------------------------------------------------------------------------------------------------


@converter("_sg_mkldnn_fully_connected")
def convert_fused_dense(node: Node) -> relax.Expr | list[relax.Expr]:
    """A dense layer with the elementwise operator that oneDNN fuses after it."""
    if not node.flag("quantized"):
        return convert_fused_float(node)
    dense = node.fused("FullyConnected")
    if dense is None:
        raise node.malformed("its subgraph has no FullyConnected")
    if node.dtype(0) not in ("int8", "uint8"):
        raise node.malformed(f"quantized data must be int8 or uint8, found {node.dtype(0)}")
    target = node.calibrated()
    if target is None and not node.flag("enable_float_output"):
        return _uncalibrated(node, dense)
    if node.flag("channel_wise_quantize"):
        weight, bias, data_scale, weight_scale = _channel_wise(node, dense)
    else:
        weight, bias, data_scale, weight_scale = _tensor_wise(node, dense)
    acc = node.emit(qnn.dense(_rows(node, dense, weight.shape[1]), constant(weight), 0, 0, 1.0, 1.0))
    if bias is not None:
        acc = node.emit(relax.op.add(acc, constant(bias)))
    activation = _eltwise(node)
    if node.flag("enable_float_output"):
        real = as_real(acc, F32(1) / data_scale / weight_scale)
        if activation is not None:
            real = float_activation(activation, node.emit(real))
        return _like_input(node, dense, real, len(weight))
    assert target is not None  # otherwise its output is float, or it is uncalibrated
    result = _requantized(node, acc, activation, data_scale, weight_scale, target)
    return node.with_range(_like_input(node, dense, result, len(weight)), target)


def _requantized(
    node: Node,
    acc: relax.Expr,
    activation: Node | None,
    data_scale: np.float32,
    weight_scale: np.ndarray,
    target: Range,
) -> relax.Expr:
    """The accumulator, after the elementwise operator on real values, in the calibrated range."""
    if activation is None:
        return rescaled(acc, scale_of("int8", target) / data_scale / weight_scale, "int8")
    dtype = "uint8" if _never_negative(activation) else "int8"
    factor = F32(1) / data_scale / weight_scale
    real = node.emit(float_activation(activation, node.emit(as_real(acc, factor))))
    steps = node.emit(relax.op.multiply(real, constant(scale_of(dtype, target))))
    return round_saturate(steps, dtype)


def _uncalibrated(node: Node, dense: Node) -> list[relax.Expr]:
    """int32 output, where the range of the data is only known at run time: acc + round(bias · s_x·s_w / s_b)."""
    activation = _eltwise(node)
    if node.flag("channel_wise_quantize"):
        raise node.unsupported("scales per channel without calibration, which MXNet itself cannot run")
    if activation is not None and not (activation.operator.op == "abs" or activation.text("act_type", "") == "relu"):
        raise node.unsupported(
            f"{activation.operator.op} without calibration, which MXNet itself computes incorrectly; use "
            "calib_mode='naive'"
        )
    weight, bias = _integer_parameters(node, dense)
    first = 2 + (bias is not None)
    data, weights = uncalibrated.largest(node, first), node.range(first + 2)
    acc = node.emit(qnn.dense(_rows(node, dense, weight.shape[1]), constant(weight), 0, 0, 1.0, 1.0))
    if bias is not None:
        both = uncalibrated.product(node, uncalibrated.scale(node, node.dtype(0), data), scale_of("int8", weights))
        bias_scale = scale_of("int8", node.range(first + 4))
        factor = node.emit(relax.op.divide(both, constant(bias_scale.reshape(1))))
        acc = node.emit(relax.op.add(acc, uncalibrated.bias_steps(node, bias, factor, "TONEAREST")))
    if activation is not None:
        zero = constant(np.int32(0))
        acc = node.emit(relax.op.abs(acc) if activation.operator.op == "abs" else relax.op.maximum(acc, zero))
    result = _like_input(node, dense, acc, len(weight))
    return uncalibrated.accumulator_range(node, result, node.dtype(0), data, weights.largest)


def _tensor_wise(node: Node, dense: Node) -> tuple[np.ndarray, np.ndarray | None, np.float32, np.ndarray]:
    """int8 weights and bias, each with its range: the inputs are data, weight, [bias], then min and max of each. The
    bias is rescaled to accumulator steps, rounding midpoints away from zero (std::round)."""
    weight, bias = _integer_parameters(node, dense)
    first = 2 + (bias is not None)
    data_scale, weight_scale = scale_of(node.dtype(0), node.range(first)), scale_of("int8", node.range(first + 2))
    if bias is None:
        return weight, None, data_scale, np.asarray(weight_scale)
    span = node.range(first + 4)
    bias_scale = scale_of("int8", span)
    ratio = F32(F32(data_scale * weight_scale) / bias_scale)
    if span.largest:
        largest = F32(F32(F32(2**30 - 1) / span.largest) / bias_scale)
        if ratio > largest:  # the bias would overflow: scale it and the weights down
            shrink = F32(F32(F32(largest * bias_scale) / data_scale) / weight_scale)
            weight = reference.round_half_away(weight.astype(F32) * shrink).astype(np.int8)
            ratio, weight_scale = largest, F32(weight_scale * shrink)
    steps = reference.round_half_away(bias.astype(F32) * ratio)
    return weight, reference.float_to_int(steps, np.int64(0), "int32"), data_scale, np.asarray(weight_scale)


def _integer_parameters(node: Node, dense: Node) -> tuple[np.ndarray, np.ndarray | None]:
    """int8 weights and bias: inputs 1 and 2."""
    has_bias = not dense.flag("no_bias")
    expected = 3 * (2 + has_bias)
    if len(node.inputs) != expected:
        raise node.malformed(f"it must have {expected} inputs, found {len(node.inputs)}")
    weight = node.constant(1)
    if weight.dtype != np.int8 or weight.ndim != 2 or not weight.size:
        raise node.malformed(f"weights must be an int8 matrix, found {weight.dtype} {weight.shape}")
    if not has_bias:
        return weight, None
    bias = node.constant(2)
    if bias.dtype != np.int8 or bias.shape != weight.shape[:1]:
        raise node.malformed(f"the bias must be int8 of shape {weight.shape[:1]}, found {bias.dtype} {bias.shape}")
    return weight, bias


def _channel_wise(node: Node, dense: Node) -> tuple[np.ndarray, np.ndarray | None, np.float32, np.ndarray]:
    """Float weights and bias that MXNet quantizes when it loads the model, as it does for a convolution."""
    has_bias = not dense.flag("no_bias")
    first = 2 + has_bias
    if len(node.inputs) != first + 2:
        raise node.malformed(f"it must have {first + 2} inputs, found {len(node.inputs)}")
    weight = float_weight(node, 1)
    if weight.ndim != 2:
        raise node.malformed(f"weights must be a matrix, found shape {weight.shape}")
    bias = node.vector(2, len(weight)) if has_bias else None
    data_scale = scale_of(node.dtype(0), node.range(first))
    scales = channel_scales(weight, bias, data_scale)
    return quantize_weights(weight, scales), quantize_bias(bias, scales, data_scale), data_scale, scales


def _eltwise(node: Node) -> Node | None:
    """The fused elementwise operator; `with_relu` is what MXNet before 1.6 calls `with_eltwise`."""
    found = [operator for operator in node.subgraph.nodes if operator.op in ELTWISE]
    wanted = node.flag("with_eltwise", node.flag("with_relu"))
    if wanted and not found:
        raise node.malformed("with_eltwise is set, but its subgraph has no elementwise operator")
    return Node(node.assembly, found[-1], []) if found else None


def _never_negative(activation: Node) -> bool:
    if activation.operator.op == "Activation":
        return activation.text("act_type") in ("relu", "sigmoid", "softrelu")
    return activation.operator.op in ("clip", "abs", "exp", "sqrt", "square")


# ---- float -------------------------------------------------------------------------------------------------------


@converter("FullyConnected")
def convert_dense(node: Node) -> relax.Expr:
    """x · Wᵀ + b in float32."""
    weight = float_weight(node, 1)
    if weight.ndim != 2:
        raise node.malformed(f"weights must be a matrix, found shape {weight.shape}")
    rows = _rows(node, node, weight.shape[1])
    result = node.emit(relax.op.matmul(rows, constant(np.ascontiguousarray(weight.T))))
    if not node.flag("no_bias"):
        result = node.emit(relax.op.add(result, constant(node.vector(2, len(weight)))))
    return _like_input(node, node, result, len(weight))


@converter("dot", "batch_dot")
def convert_dot(node: Node) -> relax.Expr:
    """Matrix products in float32 of two matrices, or of two batches of them."""
    operands = []
    for index, key in enumerate(("transpose_a", "transpose_b")):
        rank, value = len(node.shape(index)), node.input(index)
        if rank != (3 if node.operator.op == "batch_dot" else 2):
            raise node.unsupported(f"operands of shapes {node.shape(0)} and {node.shape(1)}")
        axes = [*range(rank - 2), rank - 1, rank - 2]
        known = constant_value(value)
        if node.flag(key):
            value = node.emit(relax.op.permute_dims(value, axes)) if known is None else constant(known.transpose(axes))
        operands.append(value)
    return relax.op.matmul(*operands)

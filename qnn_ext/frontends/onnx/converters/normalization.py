"""Normalizations at inference: BatchNormalization as one multiplication and addition, and those of groups and rows."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op.base import constant, normalize_axis, shape_of
from ...building import group_norm
from ..node import Node
from ..registry import converter
from .products import normalized_convolution


@converter("BatchNormalization", since=7)
def batch_normalization(node: Node) -> relax.Expr:
    """y = x · a + (b − mean · a) with a = (1 / sqrt(var + epsilon)) · scale, which is constant when the statistics are;
    ONNX Runtime rounds in this order."""
    if node.attribute("training_mode", 0) or any(node.has_output(index) for index in range(1, len(node.outputs))):
        raise node.unsupported("batch normalization in training mode; export the model for inference")
    shape = node.shape(0)
    per_element = not node.attribute("spatial", 1)  # before version 9
    held, spread = (shape[1:], shape[1:]) if per_element else (shape[1:2], (-1,) + (1,) * (len(shape) - 2))
    if len(shape) < 2 or any(node.shape(index) != held for index in range(1, 5)):
        what = "element of a sample" if per_element else "channel"
        raise node.malformed(f"scale, bias, mean and variance must have one value per {what} of {shape}")
    fused = None if per_element else normalized_convolution(node)
    if fused is not None:
        return fused
    dtype = node.dtype(0)
    scale, bias, mean, variance = (
        node.emit(relax.op.reshape(node.emit(relax.op.astype(node.input(index), "float32")), spread))
        for index in range(1, 5)
    )
    epsilon = constant(np.float32(node.attribute("epsilon", 1e-5)))
    deviation = node.emit(relax.op.sqrt(node.emit(relax.op.add(variance, epsilon))))
    inverse = node.emit(relax.op.divide(constant(np.float32(1)), deviation))
    factor = node.emit(relax.op.multiply(inverse, scale))
    offset = node.emit(relax.op.subtract(bias, node.emit(relax.op.multiply(mean, factor))))
    if dtype != "float32":
        factor, offset = (node.emit(relax.op.astype(value, dtype)) for value in (factor, offset))
    return relax.op.add(node.emit(relax.op.multiply(node.input(0), factor)), offset)


@converter("LayerNormalization", since=17)
@converter("LayerNormalization", domain="com.microsoft")
def layer_normalization(node: Node) -> list[relax.Expr]:
    """y = (x − mean) / sqrt(var + epsilon) · scale + bias over the axes from `axis` on; also mean and 1 / deviation."""
    data, shape = node.input(0), node.shape(0)
    first = normalize_axis(node.attribute("axis", -1), len(shape))
    axes = list(range(first, len(shape)))
    epsilon = node.attribute("epsilon", 1e-5)
    dtype = node.dtype(0)
    scale = _spread(node, 1, shape[first:], dtype)
    bias = _spread(node, 2, shape[first:], dtype)
    results = [relax.op.nn.layer_norm(data, scale, bias, axes, epsilon)]
    if node.has_output(1) or node.has_output(2):
        results += _moments(node, axes, epsilon)
    return results


@converter("InstanceNormalization", since=6)
def instance_normalization(node: Node) -> relax.Expr:
    """y = (x − mean) / sqrt(var + epsilon) · scale + B over each channel of each sample; float16 in float32."""
    shape = node.shape(0)
    if len(shape) < 3:
        raise node.malformed(f"the input must have the shape (N, C, D1, …), found shape {shape}")
    scale, bias = _per_channel(node, shape[1])
    axes, epsilon = list(range(2, len(shape))), node.attribute("epsilon", 1e-5)
    result = relax.op.nn.instance_norm(_as_float32(node, 0), scale, bias, 1, axes, epsilon)
    return result if node.dtype(0) == "float32" else relax.op.astype(node.emit(result), node.dtype(0))


@converter("LRN")
def local_response_normalization(node: Node) -> relax.Expr:
    """y = x · (bias + alpha / size · Σ x²)^−beta over neighbouring channels; float16 in float32."""
    size, beta = node.attribute("size", 0), node.attribute("beta", 0.75)
    if size < 1:
        raise node.malformed(f"size must be at least 1, found {size}")
    if len(node.shape(0)) < 2 or beta <= 0.0:
        raise node.unsupported(
            f"data of shape {node.shape(0)} with beta {beta}; supported: channels and a positive beta"
        )
    data = _as_float32(node, 0)
    result = qnn.response_norm(data, size, node.attribute("alpha", 1e-4), beta, node.attribute("bias", 1.0))
    return result if node.dtype(0) == "float32" else relax.op.astype(node.emit(result), node.dtype(0))


@converter("GroupNormalization", since=18)
def group_normalization(node: Node) -> relax.Expr:
    """As InstanceNormalization, over num_groups groups of channels; before version 21 scale and bias are per group."""
    shape, groups = node.shape(0), node.attribute("num_groups", 0)
    if len(shape) < 2 or groups < 1 or shape[1] % groups:
        raise node.malformed(f"num_groups must divide the number of channels, found {groups} for shape {shape}")
    if node.attribute("stash_type", 1) != 1:
        raise node.unsupported("stash_type other than float32")
    scale, bias = _per_channel(node, groups if node.opset < 21 else shape[1])
    if node.opset < 21:
        scale, bias = (node.emit(relax.op.repeat(vector, shape[1] // groups, 0)) for vector in (scale, bias))
    result = group_norm(node.emit, _as_float32(node, 0), scale, bias, groups, node.attribute("epsilon", 1e-5))
    return result if node.dtype(0) == "float32" else relax.op.astype(node.emit(result), node.dtype(0))


def _per_channel(node: Node, count: int) -> tuple[relax.Expr, relax.Expr]:
    """Scale and bias, of one value per channel or group, as float32."""
    if any(node.shape(index) != (count,) for index in (1, 2)):
        raise node.malformed(f"scale and bias must have {count} values, found {node.shape(1)} and {node.shape(2)}")
    return _as_float32(node, 1), _as_float32(node, 2)


def _as_float32(node: Node, index: int) -> relax.Expr:
    value = node.input(index)
    return value if node.dtype(index) == "float32" else node.emit(relax.op.astype(value, "float32"))


def _spread(node: Node, index: int, shape: tuple[int, ...], dtype: str) -> relax.Expr:
    """Scale or bias in the shape of the normalized axes; a missing bias is zero."""
    if not node.has_input(index):
        return constant(np.zeros(shape, dtype))
    value = node.input(index)
    if shape_of(value) == shape:
        return value
    trimmed = shape_of(value)[-len(shape) :]
    if int(np.prod(trimmed)) != int(np.prod(shape_of(value))):
        raise node.unsupported(f"input {index} of shape {shape_of(value)}, which varies along other axes than {shape}")
    return node.emit(relax.op.broadcast_to(node.emit(relax.op.reshape(value, trimmed)), shape))


def _moments(node: Node, axes: list[int], epsilon: float) -> list[relax.Expr]:
    data = node.emit(relax.op.astype(node.input(0), "float32"))
    mean = node.emit(relax.op.mean(data, axes, keepdims=True))
    centred = node.emit(relax.op.subtract(data, mean))
    variance = node.emit(relax.op.mean(node.emit(relax.op.multiply(centred, centred)), axes, keepdims=True))
    total = node.emit(relax.op.add(variance, constant(np.float32(epsilon))))
    return [mean, node.emit(relax.op.divide(constant(np.float32(1)), node.emit(relax.op.sqrt(total))))]


@converter("RMSNormalization")
@converter("SimplifiedLayerNormalization")
def rms_normalization(node: Node) -> relax.Expr:
    """y = x / sqrt(mean(x²) + epsilon) · scale over the axes from `axis` on, computed in float32."""
    shape, dtype = node.shape(0), node.dtype(0)
    if not dtype.startswith(("float", "bfloat")):
        raise node.unsupported(f"data of {dtype}; only floats are supported")
    axes = list(range(normalize_axis(node.attribute("axis", -1), len(shape)), len(shape)))
    if dtype == "float32" and axes == [len(shape) - 1] and node.shape(1) == shape[-1:]:
        return relax.op.nn.rms_norm(node.input(0), node.input(1), axes, node.attribute("epsilon", 1e-5))
    data = node.emit(relax.op.astype(node.input(0), "float32")) if dtype != "float32" else node.input(0)
    power = node.emit(relax.op.mean(node.emit(relax.op.multiply(data, data)), axes, keepdims=True))
    total = node.emit(relax.op.add(power, constant(np.float32(node.attribute("epsilon", 1e-5)))))
    unit = node.emit(relax.op.divide(data, node.emit(relax.op.sqrt(total))))
    if dtype != "float32":
        unit = node.emit(relax.op.astype(unit, dtype))
    return relax.op.multiply(unit, node.input(1))


@converter("LpNormalization")
def lp_normalization(node: Node) -> relax.Expr:
    """x / ‖x‖ₚ along an axis, p = 1 or 2; zeros stay zeros."""
    p, axis = int(node.attribute("p", 2)), normalize_axis(node.attribute("axis", -1), len(node.shape(0)))
    if p not in (1, 2):
        raise node.malformed(f"p must be 1 or 2, found {p}")
    x, zero = node.input(0), constant(np.zeros((), node.dtype(0)))
    terms = node.emit(relax.op.abs(x) if p == 1 else relax.op.multiply(x, x))
    norm = node.emit(relax.op.sum(terms, [axis], keepdims=True))
    if p == 2:
        norm = node.emit(relax.op.sqrt(norm))
    quotient = node.emit(relax.op.divide(x, norm))
    return relax.op.where(node.emit(relax.op.equal(norm, zero)), zero, quotient)

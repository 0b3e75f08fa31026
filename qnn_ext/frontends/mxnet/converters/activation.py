"""Activation, LeakyReLU, clip, softmax and other unary functions, in float32; _contrib_quantized_act."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from ....op.base import constant
from ..node import Node
from ..registry import converter
from ..scales import F32

SELU_ALPHA, SELU_SCALE = F32(1.6732632423543772), F32(1.0507009873554805)


def _softrelu(x: relax.Expr) -> relax.Expr:
    """log(1 + eˣ)."""
    return relax.op.log(relax.op.add(relax.op.exp(x), constant(F32(1))))


def _softsign(x: relax.Expr) -> relax.Expr:
    """x / (1 + |x|)."""
    return relax.op.divide(x, relax.op.add(relax.op.abs(x), constant(F32(1))))


ACTIVATIONS: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "relu": relax.op.nn.relu,
    "sigmoid": relax.op.sigmoid,
    "tanh": relax.op.tanh,
    "softrelu": _softrelu,
    "softsign": _softsign,
}

FUNCTIONS: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    **ACTIVATIONS,
    "abs": relax.op.abs,
    "ceil": relax.op.ceil,
    "cos": relax.op.cos,
    "erf": relax.op.erf,
    "exp": relax.op.exp,
    "floor": relax.op.floor,
    "log": relax.op.log,
    "negative": relax.op.negative,
    "rsqrt": relax.op.rsqrt,
    "sin": relax.op.sin,
    "sqrt": relax.op.sqrt,
    "square": relax.op.square,
}


@converter("Activation", "LeakyReLU", "clip", "hard_sigmoid", *FUNCTIONS)
def convert_function(node: Node) -> relax.Expr:
    """A function of one float tensor."""
    if not node.dtype(0).startswith("float"):
        raise node.unsupported(f"data of dtype {node.dtype(0)}; only float32 is supported")
    return float_activation(node, node.input(0))


def float_activation(node: Node, x: relax.Expr) -> relax.Expr:
    """The node's function of x."""
    name = node.operator.op
    if name == "Activation":
        return ACTIVATIONS[node.choice("act_type", "", *ACTIVATIONS)](x)
    if name == "LeakyReLU":
        return _leaky_relu(node, x)
    if name == "clip":
        return relax.op.clip(x, node.real("a_min"), node.real("a_max"))
    if name == "hard_sigmoid":
        line = relax.op.multiply(x, constant(F32(node.real("alpha", 0.2))))
        return relax.op.clip(relax.op.add(line, constant(F32(node.real("beta", 0.5)))), 0.0, 1.0)
    return FUNCTIONS[name](x)


def _leaky_relu(node: Node, x: relax.Expr) -> relax.Expr:
    """x where positive, otherwise: leaky slope·x, prelu γ·x, elu slope·(eˣ − 1), rrelu with the middle slope."""
    kind = node.choice("act_type", "leaky", "leaky", "prelu", "elu", "selu", "gelu", "rrelu")
    if kind == "gelu":
        return relax.op.nn.gelu(x)
    if kind == "prelu":
        gamma = node.constant(1)
        if gamma.ndim != 1 or gamma.dtype != np.float32:
            raise node.malformed(f"gamma must be a float32 vector, found {gamma.dtype} {gamma.shape}")
        return relax.op.nn.prelu(x, constant(np.broadcast_to(gamma, (node.shape(0)[1],))), axis=1)
    if kind in ("elu", "selu"):
        alpha = SELU_ALPHA if kind == "selu" else F32(node.real("slope", 0.25))
        below = relax.op.multiply(relax.op.subtract(relax.op.exp(x), constant(F32(1))), constant(alpha))
        bent = relax.op.where(relax.op.greater(x, constant(F32(0))), x, below)
        return relax.op.multiply(bent, constant(SELU_SCALE)) if kind == "selu" else bent
    bounds = (node.real("lower_bound", 0.125), node.real("upper_bound", 0.334))
    slope = node.real("slope", 0.25) if kind == "leaky" else sum(bounds) / 2
    return relax.op.nn.leakyrelu(x, slope)


@converter("softmax", "log_softmax")
def convert_softmax(node: Node) -> relax.Expr:
    """Along `axis`, of x / temperature."""
    x = node.input(0)
    if len(node.inputs) > 1 or node.flag("use_length"):
        raise node.unsupported("softmax over rows of different lengths (use_length)")
    if node.has("temperature"):
        x = node.emit(relax.op.divide(x, constant(F32(node.real("temperature")))))
    axis = node.axis("axis", -1, len(node.shape(0)))
    return (relax.op.nn.log_softmax if node.operator.op == "log_softmax" else relax.op.nn.softmax)(x, axis)


@converter("SoftmaxOutput", "Softmax", "SoftmaxActivation")
def convert_softmax_output(node: Node) -> relax.Expr:
    """Over the channels (multi_output, mode=channel), the last axis (preserve_shape), or all but the batch."""
    shape = node.shape(0)
    if not shape:
        raise node.malformed("the input must have at least one dimension")
    over_channels = node.flag("multi_output") or node.choice("mode", "instance", "instance", "channel") == "channel"
    if over_channels and len(shape) > 1:
        return relax.op.nn.softmax(node.input(0), 1)
    if len(shape) <= 2 or node.flag("preserve_shape"):
        return relax.op.nn.softmax(node.input(0), -1)
    rows = node.emit(relax.op.reshape(node.input(0), (shape[0], -1)))
    return relax.op.reshape(node.emit(relax.op.nn.softmax(rows, -1)), shape)


@converter("_contrib_quantized_act")
def convert_quantized_act(node: Node) -> list[relax.Expr]:
    """relu of integers; the range is unchanged. (MXNet itself reads a uint8 result with int8's scale.)"""
    node.choice("act_type", "relu", "relu")
    data = node.input(0)
    if node.dtype(0) != "uint8":
        data = relax.op.maximum(data, constant(np.zeros((), node.dtype(0))))
    return [data, node.input(1), node.input(2)]

"""What the nodes of a traced graph are to quantization. Anything not named here computes in float."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

# Module -> the function that computes it from (data, weight, bias, ...)
CONVOLUTIONS: dict[type[nn.Module], Callable] = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}
TRANSPOSED: dict[type[nn.Module], Callable] = {
    nn.ConvTranspose1d: F.conv_transpose1d,
    nn.ConvTranspose2d: F.conv_transpose2d,
    nn.ConvTranspose3d: F.conv_transpose3d,
}
PRODUCTS = {*CONVOLUTIONS.values(), *TRANSPOSED.values(), F.linear}

# Computed in integers from quantized operands
_ARITHMETIC = {
    *(operator.add, operator.iadd, operator.sub, operator.mul, operator.imul, operator.matmul),
    *(torch.add, torch.sub, torch.mul, torch.matmul, torch.bmm, torch.cat, torch.concat, torch.stack, torch.mean),
    *(F.avg_pool1d, F.avg_pool2d, F.avg_pool3d),
    *(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
    *(F.sigmoid, F.tanh, F.hardswish, F.hardsigmoid, F.silu, F.gelu, F.elu, F.leaky_relu, torch.sigmoid, torch.tanh),
    *("add", "add_", "sub", "mul", "mul_", "matmul", "bmm", "mean", "sigmoid", "tanh"),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.Sigmoid, nn.Tanh, nn.Hardswish, nn.Hardsigmoid, nn.SiLU, nn.GELU, nn.ELU, nn.LeakyReLU),
}
# Part of the operator before them: what they cut off needs no integers of its own
_CLAMPS = {
    *(F.relu, F.relu6, F.hardtanh, torch.relu, torch.relu_, torch.clamp, "relu", "relu_", "clamp", "clamp_"),
    *(nn.ReLU, nn.ReLU6, nn.Hardtanh),
}
# Their results are some of the values of their first operand, or zero
_MOVES = {
    *(torch.flatten, torch.reshape, torch.permute, torch.transpose, torch.squeeze, torch.unsqueeze, torch.movedim),
    *(torch.chunk, torch.split, torch.unbind, torch.narrow, torch.roll, torch.flip, operator.getitem, F.pad),
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.pixel_shuffle, F.pixel_unshuffle),
    *(F.max_pool1d, F.max_pool2d, F.max_pool3d),
    *(F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d),
    *("flatten", "reshape", "view", "permute", "transpose", "squeeze", "unsqueeze", "contiguous", "clone", "chunk"),
    *("split", "unbind", "narrow", "expand", "repeat", "roll", "flip", "t", "movedim", "unflatten"),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    *(nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout),
    *(nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, nn.ZeroPad1d, nn.ZeroPad2d, nn.ReflectionPad2d),
    nn.ReplicationPad2d,
}


def kind_of(node: fx.Node) -> Any:
    """What a node calls: a function, the name of a method, the type of a module; None for anything else."""
    if node.op == "call_module":
        return type(module_of(node))
    return node.target if node.op in ("call_function", "call_method") else None


def module_of(node: fx.Node) -> Any:
    """The module that a call_module node calls."""
    module: Any = node.graph.owning_module
    return module.get_submodule(str(node.target))


def is_product(node: fx.Node) -> bool:
    """Whether the node multiplies by a weight."""
    return node.op == "call_function" and node.target in PRODUCTS


def reads_integers(node: fx.Node) -> bool:
    """Whether the node computes in integers from quantized operands."""
    return is_product(node) or kind_of(node) in _ARITHMETIC


def is_clamp(node: fx.Node) -> bool:
    """Whether the node only cuts off values."""
    return kind_of(node) in _CLAMPS


def source_of(node: fx.Node) -> fx.Node:
    """The node whose values these are, before operators that only move, repeat or drop values."""
    while kind_of(node) in _MOVES and _first_is_tensor(node) and not _pads_with_more_than_zero(node):
        node = node.all_input_nodes[0]
    return node


def _first_is_tensor(node: fx.Node) -> bool:
    operand = node.args[0] if node.args else None
    if not isinstance(operand, fx.Node):
        return False
    return is_float(operand) or (kind_of(operand) in _MOVES and node.target is operator.getitem)


def _pads_with_more_than_zero(node: fx.Node) -> bool:
    if node.target is not F.pad:
        return False
    value = node.args[3] if len(node.args) > 3 else node.kwargs.get("value")
    return value not in (None, 0)


def is_float(node: fx.Node) -> bool:
    """Whether the node's value is one tensor of floats, on the example inputs."""
    dtype = getattr(node.meta.get("tensor_meta"), "dtype", None)
    return dtype is not None and dtype.is_floating_point


def rank(node: fx.Node) -> int:
    """Number of dimensions of the node's value."""
    return len(node.meta["tensor_meta"].shape)


def parametric_nodes(graph: fx.Graph) -> set[fx.Node]:
    """The nodes whose values depend on parameters alone."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        operands = node.all_input_nodes
        is_parameter = node.op == "get_attr" and node.target != "training"
        if is_parameter or (operands and node.op != "output" and found.issuperset(operands)):
            found.add(node)
    return found

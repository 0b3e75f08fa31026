"""Operators that Relax has as they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from ....limits import check_rank
from ....op.base import constant, normalize_axis
from ....passes.marks import Mark
from ..fallback import convert_with_tvm
from ..fusions.gelu import gelu_argument, gelu_by_tanh
from ..fusions.layer_normalization import layer_normalization, rms_normalization
from ..fusions.scaled_product import rescaled_matmul
from ..node import Node
from ..reader import Shape
from ..registry import converter
from .arithmetic import float_function

_UNARY: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "Abs": relax.op.abs,
    "Ceil": relax.op.ceil,
    "Erf": float_function("erf"),
    "Exp": float_function("exp"),
    "Floor": relax.op.floor,
    "Neg": relax.op.negative,
    "Not": relax.op.logical_not,
    "Relu": relax.op.nn.relu,
    "Sigmoid": float_function("logistic"),
    "Sqrt": relax.op.sqrt,
    "Tanh": float_function("tanh"),
}
_BINARY: dict[str, Callable[[relax.Expr, relax.Expr], relax.Expr]] = {
    "Add": relax.op.add,
    "And": relax.op.logical_and,
    "Div": relax.op.divide,
    "Equal": relax.op.equal,
    "Greater": relax.op.greater,
    "GreaterOrEqual": relax.op.greater_equal,
    "Less": relax.op.less,
    "LessOrEqual": relax.op.less_equal,
    "Mul": relax.op.multiply,
    "Or": relax.op.logical_or,
    "Sub": relax.op.subtract,
    "Xor": relax.op.logical_xor,
}
_EXTREMES: dict[str, Callable[[relax.Expr, relax.Expr], relax.Expr]] = {
    "Max": relax.op.maximum,
    "Min": relax.op.minimum,
}


@converter(*_UNARY)
def unary(node: Node) -> relax.Expr:
    """A function of one tensor."""
    return _UNARY[node.op_type](node.input(0))


@converter("Cos", "Log", "Sin")
def function_of_eigen(node: Node) -> relax.Expr:
    """A function that has other bits in quantized models, see `passes.onnxruntime_rows`."""
    function = {"Cos": relax.op.cos, "Log": relax.op.log, "Sin": relax.op.sin}[node.op_type]
    return node.assembly.emit_marked(function(node.input(0)), node.outputs[0], Mark.FUNCTION)


@converter(*_BINARY)
def binary(node: Node) -> relax.Expr | list[relax.Expr]:
    """A function of two tensors. Integers divide towards zero."""
    if node.op_type == "Div" and "int" in node.dtype(0):
        return convert_with_tvm(node)
    if node.op_type == "Add" and (normalized := layer_normalization(node)) is not None:
        return normalized
    if node.op_type == "Mul" and (normalized := rms_normalization(node)) is not None:
        return normalized
    if node.op_type == "Mul" and (gelu := gelu_by_tanh(node)) is not None:
        return gelu
    if node.op_type in ("Mul", "Div") and (product := rescaled_matmul(node)) is not None:
        return product
    if node.op_type == "Div" and (argument := gelu_argument(node)) is not None:
        return argument
    result = _BINARY[node.op_type](node.input(0), node.input(1))
    if node.op_type == "Add" and _may_differ(*map(node.assembly.model.declared_shape, node.operator.inputs)):
        return node.assembly.emit_marked(result, node.outputs[0], Mark.UNLIKE_SHAPES)
    return result


def _may_differ(first: Shape, second: Shape) -> bool:
    """Whether shapes of three dimensions are not equal to ONNX Runtime, which tells open sizes by their names."""
    return len(first) == len(second) == 3 and any(a is None or a != b for a, b in zip(first, second, strict=True))


@converter(*_EXTREMES)
def extreme(node: Node) -> relax.Expr:
    """Maximum or minimum of several tensors. (A Sum of two is no Add: ONNX Runtime never computes it in integers.)"""
    result = node.input(0)
    for index in range(1, len(node.inputs)):
        result = node.emit(_EXTREMES[node.op_type](result, node.input(index)))
    return result


@converter("Mean")
def mean(node: Node) -> relax.Expr:
    """The sum of several tensors, from the first to the last, times 1 / n."""
    total, dtype = node.input(0), np.dtype(node.dtype(0))
    for index in range(1, len(node.inputs)):
        total = node.emit(relax.op.add(total, node.input(index)))
    return relax.op.multiply(total, constant(np.ones((), dtype) / np.asarray(len(node.inputs), dtype)))


@converter("LeakyRelu")
def leaky_relu(node: Node) -> relax.Expr:
    """x where x ≥ 0, alpha · x elsewhere."""
    return relax.op.nn.leakyrelu(node.input(0), node.attribute("alpha", 0.01))


@converter("GlobalAveragePool")
def global_average_pool(node: Node) -> relax.Expr:
    """The mean over all spatial dimensions, which are kept with the length 1."""
    mean = relax.op.mean(node.input(0), list(range(2, len(node.shape(0)))), keepdims=True)
    return node.assembly.emit_marked(mean, node.outputs[0], Mark.GLOBAL_AVERAGE)


@converter("Transpose")
def transpose(node: Node) -> relax.Expr:
    """Axes in another order, by default reversed."""
    ndim = len(node.shape(0))
    order = node.attribute("perm", list(reversed(range(ndim))))
    if sorted(order) != list(range(ndim)):
        raise node.malformed(f"perm {order} is no order of {ndim} axes")
    return relax.op.permute_dims(node.input(0), order) if ndim else node.input(0)


@converter("Squeeze")
def squeeze_by_attribute(node: Node) -> relax.Expr:
    """Drops axes of length 1: those in an attribute, or all."""
    return _squeezed(node, node.attribute("axes"))


@converter("Squeeze", since=13)
def squeeze(node: Node) -> relax.Expr:
    """Drops axes of length 1: those in an input, or all."""
    return _squeezed(node, node.integers(1) if node.has_input(1) else None)


def _squeezed(node: Node, axes: list[int] | None) -> relax.Expr:
    shape = node.shape(0)
    dropped = None if axes is None else {normalize_axis(axis, len(shape)) for axis in axes}
    if dropped is not None and any(shape[axis] != 1 for axis in dropped):
        raise node.malformed(f"axes {axes} of shape {shape} do not all have the length 1")
    return relax.op.squeeze(node.input(0), None if dropped is None else sorted(dropped))


@converter("Unsqueeze")
def unsqueeze_by_attribute(node: Node) -> relax.Expr:
    """Inserts axes of length 1, given in an attribute."""
    return _unsqueezed(node, node.attribute("axes", []))


@converter("Unsqueeze", since=13)
def unsqueeze(node: Node) -> relax.Expr:
    """Inserts axes of length 1, given in an input."""
    return _unsqueezed(node, node.integers(1))


def _unsqueezed(node: Node, axes: list[int]) -> relax.Expr:
    check_rank(len(axes))
    ndim = len(node.shape(0)) + len(axes)
    inserted = sorted(normalize_axis(axis, ndim) for axis in axes)
    if len(set(inserted)) != len(axes):
        raise node.malformed(f"axes {axes} are not distinct")
    data = node.input(0)
    for axis in inserted:
        data = node.emit(relax.op.expand_dims(data, axis))
    return data

"""Elementwise operators that TVM's importer refuses, gets wrong, or turns into opaque functions."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ....limits import check_elements
from ....op.base import constant, constant_value, normalize_axis
from ....passes.marks import Mark
from ...building import sign_or_nan, to_bfloat16
from ..fallback import convert_with_tvm
from ..node import Node
from ..registry import converter
from .activations import activation
from .arithmetic import float_function
from .float8 import rounded_to_float8, to_float8


@converter("Clip", since=1)
def clip(node: Node) -> relax.Expr:
    """min(max(x, low), high) with bounds in attributes."""
    low, high = node.attribute("min", -math.inf), node.attribute("max", math.inf)
    return relax.op.clip(node.input(0), low, high)


@converter("Clip", since=11)
def clip_to_inputs(node: Node) -> relax.Expr:
    """min(max(x, low), high); either bound may be left out."""
    data = node.input(0)
    bounds = [node.input(index) if node.has_input(index) else None for index in (1, 2)]
    values = [None if bound is None else constant_value(bound) for bound in bounds]
    floats = node.dtype(0).startswith(("float", "bfloat"))
    if any(b is not None and v is None for b, v in zip(bounds, values, strict=True)) or not floats:
        for bound, operator in zip(bounds, (relax.op.maximum, relax.op.minimum), strict=True):
            if bound is not None:
                data = node.emit(operator(data, node.emit(relax.op.reshape(bound, ()))))
        return data
    low, high = (
        default if value is None else float(value.reshape(()))
        for value, default in zip(values, (-math.inf, math.inf), strict=True)
    )
    if low > high:  # the upper bound is applied last
        return relax.op.minimum(node.emit(relax.op.maximum(data, _like(node, low))), _like(node, high))
    return relax.op.clip(data, low, high)


def _like(node: Node, value: float) -> relax.Expr:
    return constant(np.asarray(value, np.dtype(node.dtype(0))))


@converter("Pow")
def power(node: Node) -> relax.Expr:
    """x ** y in the base's dtype, integers by way of float64. An exponent of 2 is a product, of 0.5 a square root."""
    data, dtype = node.input(0), node.dtype(0)
    if node.is_constant(1) and node.constant(1).size == 1 and len(node.shape(1)) <= len(node.shape(0)):
        exponent = float(node.constant(1).reshape(()))
        if exponent in (1.0, 2.0, 3.0):
            product = data
            for _ in range(int(exponent) - 1):
                product = node.emit(relax.op.multiply(product, data))
            return product
        if exponent == 0.5 and dtype.startswith("float"):
            return relax.op.sqrt(data)
    compute = dtype if dtype.startswith(("float", "bfloat")) else "float64"
    base, exponent_expr = (
        node.input(index) if node.dtype(index) == compute else node.emit(relax.op.astype(node.input(index), compute))
        for index in (0, 1)
    )
    result = relax.op.power(base, exponent_expr)
    return result if compute == dtype else relax.op.astype(node.emit(result), dtype)


@converter("Mod")
def mod(node: Node) -> relax.Expr | list[relax.Expr]:
    """The remainder with the sign of the dividend if `fmod` is set, else with that of the divisor."""
    if node.attribute("fmod", 0) or "int" in node.dtype(0):
        return convert_with_tvm(node)
    divisor, zero = node.input(1), _like(node, 0.0)
    rest = node.emit(relax.op.mod(node.input(0), divisor))
    signs = [node.emit(relax.op.less(value, zero)) for value in (rest, divisor)]
    moved = node.emit(relax.op.logical_xor(*signs))
    moved = node.emit(relax.op.logical_and(moved, node.emit(relax.op.not_equal(rest, zero))))
    return relax.op.where(moved, node.emit(relax.op.add(rest, divisor)), rest)


@converter("Sign", since=9)
def sign(node: Node) -> relax.Expr:
    """−1, 0, 1 or NaN."""
    return sign_or_nan(node.emit, node.input(0))


@converter("IsInf", since=10)
def is_inf(node: Node) -> relax.Expr:
    """Whether an element is infinite, with a sign that the attributes ask for."""
    signs = [
        value for name, value in (("detect_positive", np.inf), ("detect_negative", -np.inf)) if node.attribute(name, 1)
    ]
    if not signs:
        return constant(np.zeros(check_elements(node.shape(0), "the result", "folded"), np.bool_))
    found = [node.emit(relax.op.equal(node.input(0), _like(node, value))) for value in signs]
    return found[0] if len(found) == 1 else relax.op.logical_or(*found)


@converter("Celu", since=12)
def celu(node: Node) -> relax.Expr:
    """x where x > 0, alpha · (exp(x / alpha) − 1) elsewhere."""
    data, alpha = node.input(0), node.attribute("alpha", 1.0)
    return _exponential_unit(node, data, node.emit(relax.op.divide(data, _like(node, alpha))), alpha)


@converter("Elu", since=6)
def elu(node: Node) -> relax.Expr:
    """x where x > 0, alpha · (exp(x) − 1) elsewhere."""
    return _exponential_unit(node, node.input(0), node.input(0), node.attribute("alpha", 1.0))


@converter("Selu", since=6)
def selu(node: Node) -> relax.Expr:
    """gamma · x where x > 0, gamma · alpha · (exp(x) − 1) elsewhere."""
    alpha = np.float32(node.attribute("alpha", 1.67326319217681884765625))
    gamma = np.float32(node.attribute("gamma", 1.05070102214813232421875))
    scaled = node.emit(relax.op.multiply(node.input(0), _like(node, float(gamma))))
    return _exponential_unit(node, scaled, node.input(0), float(gamma * alpha))


def _exponential_unit(node: Node, above: relax.Expr, argument: relax.Expr, factor: float) -> relax.Expr:
    """`above`, x times a factor, where x > 0, factor · (exp(argument) − 1) elsewhere."""
    exponential = node.emit(float_function("vector_exp")(argument))
    rest = node.emit(relax.op.subtract(exponential, _like(node, 1.0)))
    scaled = node.emit(relax.op.multiply(_like(node, factor), rest))
    if factor > 0 and (node.op_type != "Selu" or node.attribute("gamma", 1.0) > 0):  # without a condition, for tables
        negative = node.emit(relax.op.minimum(scaled, _like(node, 0.0)))
        return relax.op.add(node.emit(relax.op.nn.relu(above)), negative)
    is_above = node.emit(relax.op.greater(node.input(0), _like(node, 0.0)))
    return relax.op.where(is_above, above, scaled)


@converter("Softplus", since=1)
def softplus(node: Node) -> relax.Expr:
    """ln(1 + exp(x))."""
    return float_function("softplus")(node.input(0))


@converter("Mish", since=18)
def mish(node: Node) -> relax.Expr:
    """x · tanh(ln(1 + exp(x)))."""
    inner = node.emit(float_function("softplus")(node.input(0)))
    return relax.op.multiply(node.input(0), node.emit(float_function("tanh")(inner)))


@converter("PRelu")
def prelu(node: Node) -> relax.Expr:
    """x where x ≥ 0, slope · x elsewhere. The slope broadcasts to x; before version 7 it has one value per channel."""
    data, shape, slope_shape = node.input(0), node.shape(0), node.shape(1)
    if node.opset < 7 and len(slope_shape) == 1 and len(shape) > 1:
        slope_shape = (*slope_shape, *(1,) * (len(shape) - 2))
    first = len(shape) - len(slope_shape)
    if first < 0 or any(size not in (1, shape[first + axis]) for axis, size in enumerate(slope_shape)):
        raise node.malformed(f"a slope of shape {node.shape(1)} does not broadcast to data of shape {shape}")
    varying = [first + axis for axis, size in enumerate(slope_shape) if size != 1]
    if len(varying) <= 1:
        axis = varying[0] if varying else len(shape) - 1
        return relax.op.nn.prelu(data, node.emit(relax.op.reshape(node.input(1), (-1,))), axis)
    scaled = node.emit(relax.op.multiply(data, node.emit(relax.op.reshape(node.input(1), slope_shape))))
    return relax.op.where(node.emit(relax.op.less(data, _like(node, 0.0))), scaled, data)


@converter("HardSigmoid")
def hard_sigmoid(node: Node) -> relax.Expr:
    """max(0, min(1, alpha · x + beta))"""
    return activation(node, "HardSigmoid", (node.attribute("alpha", 0.2), node.attribute("beta", 0.5)))(node.input(0))


@converter("Softsign")
def softsign(node: Node) -> relax.Expr:
    """x / (1 + |x|)"""
    return activation(node, "Softsign", ())(node.input(0))


@converter("HardSwish", since=14)
def hard_swish(node: Node) -> relax.Expr:
    """x · max(0, min(1, x / 6 + ½))"""
    return relax.op.multiply(node.input(0), activation(node, "HardSigmoid", (1 / 6, 0.5))(node.input(0)))


@converter("Gelu", since=20)
def gelu(node: Node) -> relax.Expr:
    """½·x · (1 + erf(x / √2)), or by tanh."""
    return float_function("gelu_tanh" if node.attribute("approximate", "none") == "tanh" else "gelu")(node.input(0))


@converter("Swish", since=24)
def swish(node: Node) -> relax.Expr:
    """x · sigmoid(alpha · x)."""
    data, alpha = node.input(0), node.attribute("alpha", 1.0)
    scaled = data if alpha == 1.0 else node.emit(relax.op.multiply(data, _like(node, alpha)))
    return relax.op.multiply(data, node.emit(float_function("logistic")(scaled)))


@converter("ReduceSum", since=1)
def reduce_sum(node: Node) -> relax.Expr:
    """A sum, told from those of other reductions, which ONNX Runtime adds one by one."""
    (total,) = convert_with_tvm(node)
    return node.assembly.emit_marked(total, node.outputs[0], Mark.SUM)


@converter("ReduceMax", "ReduceMin", since=20)
def reduce_extreme(node: Node) -> relax.Expr | list[relax.Expr]:
    """The largest or smallest element along axes; of truth values, whether any or all are true."""
    if node.dtype(0) != "bool":
        return convert_with_tvm(node)
    axes = (node.integers(1) if node.has_input(1) else None) or None
    if axes is None and node.attribute("noop_with_empty_axes", 0):
        return node.input(0)
    rank = len(node.shape(0))
    axes = list(range(rank)) if axes is None else [normalize_axis(axis, rank) for axis in axes]
    numbers = node.emit(relax.op.astype(node.input(0), "uint8"))
    reduce = relax.op.max if node.op_type == "ReduceMax" else relax.op.min
    found = node.emit(reduce(numbers, axes, bool(node.attribute("keepdims", 1))))
    return relax.op.not_equal(found, constant(np.uint8(0)))


@converter("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare", since=18)
def reduce_function(node: Node) -> relax.Expr | list[relax.Expr]:
    """A sum of a function of the elements, or only the function where there are no axes and `noop_with_empty_axes`."""
    no_axes = not node.has_input(1) or 0 in node.shape(1)
    if not (no_axes and node.attribute("noop_with_empty_axes", 0)):
        return convert_with_tvm(node)
    data = node.input(0)
    if node.op_type == "ReduceSumSquare":
        return relax.op.multiply(data, data)
    return relax.op.log(data) if node.op_type == "ReduceLogSum" else relax.op.abs(data)


@converter("Cast", "CastLike")
def cast(node: Node) -> relax.Expr | list[relax.Expr]:
    """A cast; casting to the same dtype does nothing."""
    if (form := to_float8(node)) is not None:
        return rounded_to_float8(node, node.input(0), form)
    target = node.dtype(1) if node.op_type == "CastLike" else node.target_dtype("to")
    if target == node.dtype(0):
        return node.input(0)
    if target == "bool":
        return relax.op.not_equal(node.input(0), _like(node, 0))
    if target == "bfloat16":
        return to_bfloat16(node.emit, node.input(0))
    if node.dtype(0) == "bool" or np.dtype(node.dtype(0)).kind != "f" or np.dtype(target).kind == "f":
        return relax.op.astype(node.input(0), target)
    return convert_with_tvm(node)

"""Activations and other unary functions; the in-place forms are the same functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from .....errors import UnsupportedOperatorError
from .....op.base import shape_of
from ..registry import converter
from ..values import cast, dtype_of, reshape, scalar


def _function(name: str, function: Callable[[relax.Expr], relax.Expr]) -> None:
    @converter(f"aten.{name}.default")
    def convert(importer: Any, x: relax.Expr) -> relax.Expr:
        return importer.emit(function(cast(importer, x, importer.dtype)))


for _name, _operator in {
    "relu": relax.op.nn.relu,
    "sigmoid": relax.op.sigmoid,
    "tanh": relax.op.tanh,
    "silu": relax.op.nn.silu,
    "exp": relax.op.exp,
    "log": relax.op.log,
    "sqrt": relax.op.sqrt,
    "rsqrt": relax.op.rsqrt,
    "erf": relax.op.erf,
    "neg": relax.op.negative,
    "square": relax.op.square,
}.items():
    _function(_name, _operator)


def clip(importer: Any, x: relax.Expr, low: Any, high: Any) -> relax.Expr:
    """min(max(x, low), high), where either bound may be None; a clip at 0 from below is a relu."""
    x = cast(importer, x, importer.dtype)
    if isinstance(low, relax.Expr) or isinstance(high, relax.Expr):
        x = x if low is None else importer.emit(relax.op.maximum(x, cast(importer, low, dtype_of(x))))
        return x if high is None else importer.emit(relax.op.minimum(x, cast(importer, high, dtype_of(x))))
    if low is not None and high is not None:
        return importer.emit(relax.op.clip(x, low, high))
    if low == 0:
        return importer.emit(relax.op.nn.relu(x))
    if low is not None:
        return importer.emit(relax.op.maximum(x, scalar(low, dtype_of(x))))
    return importer.emit(relax.op.minimum(x, scalar(high, dtype_of(x))))


@converter("aten.clamp.default", "aten.clamp.Tensor", "aten.clip.default")
def _clamp(importer: Any, x: relax.Expr, low: Any, high: Any) -> relax.Expr:
    return clip(importer, x, low, high)


@converter("aten.prelu.default")
def _prelu(importer: Any, x: relax.Expr, slopes: relax.Expr) -> relax.Expr:
    """x where positive, else slope · x; one slope, or one for each index of the second dimension."""
    shape = shape_of(x)
    data, axis = (x if shape else reshape(importer, x, (1,))), (1 if len(shape) > 1 else 0)
    result = importer.emit(relax.op.nn.prelu(data, reshape(importer, slopes, (-1,)), axis))
    return result if shape else reshape(importer, result, ())


@converter("aten.clamp_min.default", "aten.clamp_min.Tensor")
def _clamp_min(importer: Any, x: relax.Expr, low: Any) -> relax.Expr:
    return clip(importer, x, low, None)


@converter("aten.clamp_max.default", "aten.clamp_max.Tensor")
def _clamp_max(importer: Any, x: relax.Expr, high: Any) -> relax.Expr:
    return clip(importer, x, None, high)


@converter("aten.hardtanh.default")
def _hardtanh(importer: Any, x: relax.Expr, low: float, high: float) -> relax.Expr:
    return clip(importer, x, low, high)


@converter("aten.relu6.default")
def _relu6(importer: Any, x: relax.Expr) -> relax.Expr:
    return clip(importer, x, 0, 6)


def _gate(importer: Any, x: relax.Expr) -> relax.Expr:
    return importer.emit(relax.op.clip(importer.emit(relax.op.add(x, scalar(3, dtype_of(x)))), 0, 6))


@converter("aten.hardswish.default")
def _hardswish(importer: Any, x: relax.Expr) -> relax.Expr:
    """x · clip(x + 3, 0, 6) / 6, in this order."""
    product = importer.emit(relax.op.multiply(x, _gate(importer, x)))
    return importer.emit(relax.op.divide(product, scalar(6, dtype_of(x))))


@converter("aten.hardsigmoid.default")
def _hardsigmoid(importer: Any, x: relax.Expr) -> relax.Expr:
    return importer.emit(relax.op.divide(_gate(importer, x), scalar(6, dtype_of(x))))


@converter("aten.leaky_relu.default")
def _leaky_relu(importer: Any, x: relax.Expr, slope: float) -> relax.Expr:
    return importer.emit(relax.op.nn.leakyrelu(x, slope))


@converter("aten.elu.default")
def _elu(importer: Any, x: relax.Expr, alpha: float, scale: float, input_scale: float) -> relax.Expr:
    """scale · x for x > 0, else scale · alpha · (exp(input_scale · x) − 1)."""
    dtype = dtype_of(x)
    inner = importer.emit(relax.op.multiply(x, scalar(input_scale, dtype)))
    below = relax.op.multiply(relax.op.subtract(relax.op.exp(inner), scalar(1, dtype)), scalar(alpha * scale, dtype))
    above = importer.emit(relax.op.multiply(x, scalar(scale, dtype)))
    positive = importer.emit(relax.op.greater(x, scalar(0, dtype)))
    return importer.emit(relax.op.where(positive, above, importer.emit(below)))


@converter("aten.gelu.default")
def _gelu(importer: Any, x: relax.Expr, approximate: str) -> relax.Expr:
    functions = {"none": relax.op.nn.gelu, "tanh": relax.op.nn.gelu_tanh}
    if approximate not in functions:
        raise UnsupportedOperatorError(f"gelu with approximate={approximate!r} is not supported")
    return importer.emit(functions[approximate](x))


@converter("aten.mish.default")
def _mish(importer: Any, x: relax.Expr) -> relax.Expr:
    return importer.emit(relax.op.multiply(x, relax.op.tanh(importer.emit(relax.op.nn.softplus(x)))))


@converter("aten.softmax.int", "aten._softmax.default", "aten.special_softmax.int")
def _softmax(importer: Any, x: relax.Expr, axis: int, _dtype: Any) -> relax.Expr:
    return importer.emit(relax.op.nn.softmax(cast(importer, x, importer.dtype), int(axis)))


@converter("aten.log_softmax.int", "aten._log_softmax.default")
def _log_softmax(importer: Any, x: relax.Expr, axis: int, _dtype: Any) -> relax.Expr:
    return importer.emit(relax.op.nn.log_softmax(cast(importer, x, importer.dtype), int(axis)))


@converter(
    "aten.dropout.default",
    "aten.feature_dropout.default",
    "aten.alpha_dropout.default",
)
def _dropout(importer: Any, x: relax.Expr, p: float, train: bool) -> relax.Expr:
    if train and p > 0:
        raise UnsupportedOperatorError("dropout is in training mode; export the model in eval mode")
    return x


@converter("aten.celu.default")
def _celu(importer: Any, x: relax.Expr, alpha: float) -> relax.Expr:
    """max(x, 0) + a · (exp(min(x, 0) / a) − 1)"""
    below = importer.emit(relax.op.minimum(x, scalar(0, dtype_of(x))))
    grown = importer.emit(relax.op.exp(importer.emit(relax.op.divide(below, scalar(alpha, dtype_of(x))))))
    curve = importer.emit(relax.op.subtract(grown, scalar(1, dtype_of(x))))
    curve = importer.emit(relax.op.multiply(curve, scalar(alpha, dtype_of(x))))
    return importer.emit(relax.op.add(importer.emit(relax.op.nn.relu(x)), curve))

"""Elementwise arithmetic on two operands, with PyTorch's dtype promotion, `alpha` and rounding modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from .....errors import UnsupportedOperatorError
from ....run_time import checked_divisor
from ...float16 import is_factor_of_float32
from ...norms import cumulative_sum, power
from ..registry import converter
from ..values import cast, dtype_of, scalar


def _operands(importer: Any, a: Any, b: Any) -> tuple[relax.Expr, relax.Expr]:
    """Both operands in the result's declared dtype."""
    return cast(importer, a, importer.dtype), cast(importer, b, importer.dtype)


def _product(importer: Any, function: Callable[..., relax.Expr], a: Any, b: Any) -> relax.Expr:
    """`function` of both operands, in float32 where PyTorch does so, and rounded."""
    if not is_factor_of_float32(importer.dtype, b):
        return importer.emit(function(*_operands(importer, a, b)))
    wide = importer.emit(function(cast(importer, a, "float32"), cast(importer, b, "float32")))
    return cast(importer, wide, "float16")


def _scaled(importer: Any, value: Any, alpha: Any) -> Any:
    if alpha == 1:
        return value
    if not isinstance(value, relax.Expr):
        return value * alpha
    value = cast(importer, value, importer.dtype)
    return importer.emit(relax.op.multiply(value, scalar(alpha, importer.dtype)))


@converter("aten.add.Tensor", "aten.add.Scalar")
def _add(importer: Any, a: Any, b: Any, alpha: Any) -> relax.Expr:
    return importer.emit(relax.op.add(*_operands(importer, a, _scaled(importer, b, alpha))))


@converter("aten.sub.Tensor", "aten.sub.Scalar")
def _sub(importer: Any, a: Any, b: Any, alpha: Any) -> relax.Expr:
    return importer.emit(relax.op.subtract(*_operands(importer, a, _scaled(importer, b, alpha))))


@converter("aten.rsub.Tensor", "aten.rsub.Scalar")
def _rsub(importer: Any, a: Any, b: Any, alpha: Any) -> relax.Expr:
    return importer.emit(relax.op.subtract(*_operands(importer, b, _scaled(importer, a, alpha))))


@converter("aten.mul.Tensor", "aten.mul.Scalar")
def _mul(importer: Any, a: Any, b: Any) -> relax.Expr:
    return _product(importer, relax.op.multiply, a, b)


@converter("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def _div(importer: Any, a: Any, b: Any) -> relax.Expr:
    return _product(importer, relax.op.divide, a, b)


@converter("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def _div_mode(importer: Any, a: Any, b: Any, rounding_mode: str | None) -> relax.Expr:
    if rounding_mode is None:
        return _product(importer, relax.op.divide, a, b)
    one, two = _operands(importer, a, b)
    if rounding_mode == "floor":
        return _floored(importer, one, two)
    if not dtype_of(one).startswith("float"):
        return importer.emit(relax.op.divide(one, checked_divisor(importer.emit, two, importer.label)))
    return importer.emit(relax.op.trunc(importer.emit(relax.op.divide(one, two))))


@converter("aten.floor_divide.default", "aten.floor_divide.Scalar")
def _floor_divide(importer: Any, a: Any, b: Any) -> relax.Expr:
    return _floored(importer, *_operands(importer, a, b))


def _floored(importer: Any, one: relax.Expr, two: relax.Expr) -> relax.Expr:
    """⌊one / two⌋; integer divisors must not be zero."""
    divisor = checked_divisor(importer.emit, two, importer.label)
    return importer.emit(relax.op.floor_divide(one, divisor))


@converter("aten.maximum.default", "aten.max.other")
def _maximum(importer: Any, a: Any, b: Any) -> relax.Expr:
    return importer.emit(relax.op.maximum(*_operands(importer, a, b)))


@converter("aten.minimum.default", "aten.min.other")
def _minimum(importer: Any, a: Any, b: Any) -> relax.Expr:
    return importer.emit(relax.op.minimum(*_operands(importer, a, b)))


@converter("aten.abs.default")
def _absolute(importer: Any, x: Any) -> relax.Expr:
    return relax.op.abs(cast(importer, x, importer.dtype))


@converter("aten.pow.Tensor_Scalar")
def _pow(importer: Any, x: relax.Expr, exponent: Any) -> relax.Expr:
    x = cast(importer, x, importer.dtype)
    if exponent == 2:
        return importer.emit(relax.op.multiply(x, x))
    if exponent == 0.5:
        return importer.emit(relax.op.sqrt(x))
    return _power(importer, x, exponent)


@converter("aten.pow.Scalar", "aten.pow.Tensor_Tensor")
def _power(importer: Any, base: Any, exponent: Any) -> relax.Expr:
    return power(importer.emit, *_operands(importer, base, exponent))


def _shift(name: str, function: Callable[..., relax.Expr], beyond: Callable[[Any, relax.Expr], relax.Expr]) -> None:
    overloads = ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
    signs = {"left": "__lshift__", "right": "__rshift__"}[name]

    @converter(
        *(f"aten.bitwise_{name}_shift.{overload}" for overload in overloads),
        f"aten.{signs}.Tensor",
        f"aten.{signs}.Scalar",
    )
    def shift(importer: Any, a: Any, b: Any) -> relax.Expr:
        """A count that is negative, or not less than the number of bits, shifts all of them out."""
        if not importer.dtype.startswith(("int", "uint")):
            raise UnsupportedOperatorError(f"shifts of {importer.dtype}; cast to integers before")
        x, count = _operands(importer, a, b)
        bits = np.dtype(importer.dtype).itemsize * 8
        low, high = (scalar(value, importer.dtype) for value in (0, bits))
        inside = importer.emit(relax.op.logical_and(
            importer.emit(relax.op.greater_equal(count, low)), importer.emit(relax.op.less(count, high))
        ))  # fmt: skip
        shifted = importer.emit(function(x, importer.emit(relax.op.where(inside, count, low))))
        return importer.emit(relax.op.where(inside, shifted, beyond(importer, x)))


def _sign_bits(importer: Any, x: relax.Expr) -> relax.Expr:
    bits = np.dtype(dtype_of(x)).itemsize * 8
    return importer.emit(relax.op.right_shift(x, scalar(bits - 1, dtype_of(x))))


_shift("left", relax.op.left_shift, lambda importer, x: scalar(0, dtype_of(x)))
_shift("right", relax.op.right_shift, _sign_bits)


def _comparison(name: str, function: Callable[..., Any]) -> None:
    targets = [f"aten.{name}.{overload}" for overload in ("Tensor", "Scalar")]

    @converter(*targets)
    def compare(importer: Any, a: relax.Expr, b: Any) -> relax.Expr:
        dtype = dtype_of(a)
        if isinstance(b, relax.Expr) and dtype_of(b) != dtype:
            dtype = "float32" if "float" in dtype + dtype_of(b) else "int64"
        elif isinstance(b, float) and not dtype.startswith("float"):
            dtype = "float32"
        return importer.emit(function(cast(importer, a, dtype), cast(importer, b, dtype)))


for _name, _function in {
    "eq": relax.op.equal,
    "ne": relax.op.not_equal,
    "lt": relax.op.less,
    "le": relax.op.less_equal,
    "gt": relax.op.greater,
    "ge": relax.op.greater_equal,
}.items():
    _comparison(_name, _function)


@converter("aten.cumsum.default")
def _cumsum(importer: Any, x: relax.Expr, axis: int, _dtype: Any) -> relax.Expr:
    return cumulative_sum(importer.emit, cast(importer, x, importer.dtype), int(axis))

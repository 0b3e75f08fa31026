"""Arithmetic that converters of integer operators share. Scales and zero points may be constant, and fold at import, or
be run-time values."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op import compound
from ....op.base import constant, constant_value, shape_of
from ..node import Node


def number(value: float, dtype: str = "float32") -> relax.Expr:
    """A scalar constant."""
    return constant(np.asarray(value, dtype))


def times(node: Node, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """a · b"""
    return node.emit(relax.op.multiply(a, b))


def over(node: Node, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """a / b"""
    return node.emit(relax.op.divide(a, b))


def plus(node: Node, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """a + b"""
    return node.emit(relax.op.add(a, b))


def minus(node: Node, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """a − b"""
    return node.emit(relax.op.subtract(a, b))


def cast(node: Node, value: relax.Expr, dtype: str) -> relax.Expr:
    """`value` in another dtype."""
    return value if str(value.ty.dtype) == dtype else node.emit(relax.op.astype(value, dtype))


_FUNCTIONS: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "exp": relax.op.exp,
    "erf": relax.op.erf,
    "tanh": relax.op.tanh,
    "gru_tanh": relax.op.tanh,
    "logistic": relax.op.sigmoid,
    "gru_logistic": relax.op.sigmoid,
    "gelu": relax.op.nn.gelu,
    "gelu_tanh": relax.op.nn.gelu_tanh,
    "vector_exp": relax.op.exp,
    "softplus": relax.op.nn.softplus,
}


def float_function(name: str) -> Callable[[relax.Expr], relax.Expr]:
    """A function of floats, which ONNX Runtime approximates in its own way for float32."""
    return lambda x: qnn.float_function(x, name) if str(x.ty.dtype) == "float32" else _FUNCTIONS[name](x)


def is_scalar(value: relax.Expr) -> bool:
    """Whether it has one element."""
    return math.prod(shape_of(value)) == 1


def scalar(node: Node, value: relax.Expr, what: str) -> relax.Expr:
    """A one-element value with shape (). Raises UnsupportedOperatorError naming `what` for anything longer."""
    if not is_scalar(value):
        raise node.unsupported(f"{what} with shape {shape_of(value)}; it must be a scalar")
    return compound.reshape(value, (), node.emit)


# ---- products ----------------------------------------------------------------------------------------------------


def along_rows(node: Node, value: relax.Expr) -> relax.Expr:
    """Scales or zero points of a left operand, shaped to broadcast with the product: a vector runs along its rows."""
    return compound.reshape(value, (shape_of(value)[0], 1), node.emit) if len(shape_of(value)) == 1 else value


def shifted(node: Node, data: relax.Expr, zero_point: relax.Expr) -> relax.Expr:
    """data − zero_point in int16, of shapes that broadcast; constants are shifted now."""
    return minus(node, cast(node, data, "int16"), cast(node, zero_point, "int16"))


def matmul(node: Node, x: relax.Expr, y: relax.Expr, x_zero_point: relax.Expr, y_zero_point: relax.Expr) -> relax.Expr:
    """Σ_k (x[…,m,k] − z_x[m])(y[…,k,n] − z_y[n]) in int32.

    z_x: a scalar, a vector of M, or (…, M, 1); z_y: a scalar, a vector of N, or (…, 1, N)
    """
    if is_scalar(x_zero_point):
        x_zero_point = compound.reshape(x_zero_point, (), node.emit)
    else:
        x, x_zero_point = shifted(node, x, along_rows(node, x_zero_point)), number(0, "int32")
    if is_scalar(y_zero_point):
        y_zero_point = compound.reshape(y_zero_point, (), node.emit)
    elif len(shape_of(y_zero_point)) != 1 or len(shape_of(y)) == 1:
        y, y_zero_point = shifted(node, y, y_zero_point), number(0, "int32")
    return compound.matmul(x, y, x_zero_point, y_zero_point, emit=node.emit)


# ---- results -----------------------------------------------------------------------------------------------------


def requantize(
    node: Node,
    accumulator: relax.Expr,
    input_scale: relax.Expr,
    output_scale: relax.Expr,
    output_zero_point: relax.Expr,
    out_dtype: str,
    axis: int = -1,
) -> relax.Expr:
    """saturate(rint(f32(acc) · f32(input_scale / output_scale)) + output_zero_point): ONNX Runtime's, bit for bit.

    Scales: scalars, vectors along `axis`, or tensors that broadcast against the accumulator
    """
    if all(len(shape_of(value)) <= 1 for value in (input_scale, output_scale)) and is_scalar(output_zero_point):
        zero_point = compound.reshape(output_zero_point, (), node.emit)
        return qnn.requantize(accumulator, input_scale, 0, output_scale, zero_point, axis=axis, out_dtype=out_dtype)
    multiplier = over(node, input_scale, output_scale)
    real = times(node, cast(node, accumulator, "float32"), multiplier)
    steps = node.emit(qnn.quantize(real, 1.0, 0, out_dtype="int32"))
    limit = 1 << 20  # so that adding a zero point cannot overflow
    total = plus(node, node.emit(relax.op.clip(steps, -limit, limit)), output_zero_point)
    return qnn.requantize(total, 1.0, 0, 1.0, 0, out_dtype=out_dtype)


def lookup(node: Node, data: relax.Expr, table: np.ndarray) -> relax.Expr:
    """table[data − lowest value], bound."""
    return node.emit(qnn.table(data, constant(table)))


def known(*values: relax.Expr) -> list[np.ndarray] | None:
    """The values, or None unless all are constant."""
    arrays = [constant_value(value) for value in values]
    return None if any(array is None for array in arrays) else arrays  # type: ignore[return-value]

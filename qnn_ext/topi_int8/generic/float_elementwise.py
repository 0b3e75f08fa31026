"""Elementwise rules of ordinary Relax operators on floats: the float tails of integer kernels.

Every operation is rounded separately, so that a kernel equals the interpreter bit for bit: the four basic operations,
the square root and everything composed of them are exact IEEE arithmetic; exp, erf, tanh and activations that use them
are those of numerics/elementary.py; log and pow, and all functions of float64, are calls of the C library. The same
holds for infinities and NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import tirx

from ...numerics import elementary, tir
from .elementwise import RULES
from .operands import Expr, Operand, Stage

FLOAT_RULES: set[str] = set()


def float_rule(name: str, function: Callable[..., Expr]) -> None:
    """Register function(*elements, **attributes) -> expression for the Relax operator of that name on floats."""

    def build(stage: Stage, *operands: Operand, **attributes: object) -> Expr:
        return function(*(stage.read(operand) for operand in operands), **attributes)

    RULES[name] = build
    FLOAT_RULES.add(name)


def _unary(function: Callable[[Expr], Expr]) -> Callable[[Expr], Expr]:
    return lambda x: tir.shared(x, function)


def _const(value: float, like: Expr) -> Expr:
    return tirx.const(value, tir.dtype_of(like))


def _elementary(name: str, of_float64: Callable[[Expr], Expr]) -> Callable[[Expr], Expr]:
    """The function of numerics/elementary.py for float32; `of_float64` for other floats."""
    function = getattr(elementary, name.removeprefix("nn."))
    return lambda x: function(x, elementary.TIR) if tir.dtype_of(x) == "float32" else of_float64(x)


def _silu(x: Expr) -> Expr:
    return tir.fence(x * tirx.sigmoid(x))


def _gelu(x: Expr) -> Expr:
    half = _const(0.5, x)
    inner = tirx.erf(tir.fence(x * _const(0.5**0.5, x)))
    return tir.fence(x * (half + tir.fence(inner * half)))


def _gelu_tanh(x: Expr) -> Expr:
    """½·x · (1 + tanh(√(2/π)·x · (1 + 0.044715·x·x))), multiplied from left to right."""
    cubic = _const(1.0, x) + tir.fence(_const(0.044715, x) * x * x)
    inner = _const(math.sqrt(2.0 / math.pi), x) * x * cubic
    return tir.fence(_const(0.5, x) * x * (_const(1.0, x) + tirx.tanh(inner)))


def _leaky_relu(x: Expr, alpha: float) -> Expr:
    return x if alpha == 1 else tirx.Select(x > _const(0.0, x), x, tir.fence(x * _const(alpha, x)))


def _prelu(stage: Stage, data: Operand, slope: Operand, *, axis: int) -> Expr:
    """slope: one value, or a vector along `axis`."""
    factor = stage.parameter(slope, axis)
    return tir.shared(stage.read(data), lambda x: tirx.Select(x > _const(0.0, x), x, tir.fence(x * factor)))


RULES["nn.prelu"] = _prelu
FLOAT_RULES.add("nn.prelu")

float_rule("divide", lambda a, b: a / b)
float_rule("power", tirx.power)
float_rule("negative", lambda x: -x)
float_rule("square", _unary(lambda x: tir.fence(x * x)))
for _name in ("abs", "sqrt", "rsqrt", "log", "floor", "ceil", "round"):
    float_rule(_name, getattr(tirx, _name))

for _name, _of_float64 in {
    "exp": tirx.exp,
    "tanh": tirx.tanh,
    "erf": tirx.erf,
    "sigmoid": tirx.sigmoid,
    "nn.silu": _unary(_silu),
    "nn.gelu": _unary(_gelu),
    "nn.gelu_tanh": _unary(_gelu_tanh),
}.items():
    float_rule(_name, _elementary(_name, _of_float64))
float_rule("nn.leakyrelu", lambda x, alpha: tir.shared(x, lambda x: _leaky_relu(x, alpha)))

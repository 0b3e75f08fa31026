"""Operators of one or two tensors, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.conformance.tflite_models.builder import Q

from ..rules import (
    APPROXIMATION,
    FLOAT_STEPS,
    LARGEST,
    LOGISTIC_TAIL,
    NAN_LOST,
    OVERFLOW,
    SHIFTED_OUT,
    UNDEFINED_BOUND,
    bounded,
)
from ..values import LARGEST_INPUT
from .builder import MOST_MULTIPLIER, QUANTIZED, Builder, Value, generates

INTEGERS = ("int32", "int64")
# dtypes that LiteRT's reference kernels support
UNARY: dict[str, tuple[str, ...]] = {
    "ABS": ("int8", "int16", "int32", "float32"),
    "ELU": ("int8", "float32"),
    "EXP": ("int8", "int16", "float32"),
    "GELU": ("int8", "uint8", "int16", "float32"),
    "HARD_SWISH": ("int8", "uint8", "float32"),
    "LOG": ("int8", "int16", "float32"),
    "RELU": (*QUANTIZED, "float32"),
    "RELU6": (*QUANTIZED, "float32"),
    "RELU_0_TO_1": ("int8", "uint8", "float32"),
    "RELU_N1_TO_1": ("int8", "uint8", "float32"),
    "RSQRT": ("int8", "int16", "float32"),
    "SQRT": ("int8", "int16", "float32"),
    "SIN": ("float32",),
    "COS": ("float32",),
    "SQUARE": ("float32",),
    "CEIL": ("float32",),
    "FLOOR": ("float32",),
    "ROUND": ("float32",),
    "SIGN": ("float32", "int32"),
    "NEG": ("float32", "int32", "int64"),
}
# Float functions that libraries approximate, each with different last bits
APPROXIMATED = {"ELU", "EXP", "GELU", "HARD_SWISH", "LOG", "RSQRT", "SIN", "COS", "LOGISTIC", "TANH"}
# Functions whose values exceed any range as the scales become small: fixed point cannot follow
STEEP = {"RSQRT", "SQRT", "EXP", "LOG"}
BOUNDED = {"RELU6": 6, "RELU_0_TO_1": 1, "RELU_N1_TO_1": 1}
PRESCRIBED = {"LOGISTIC": (1 / 256, "low"), "TANH": (1 / 128, "middle")}


@generates(*UNARY)
def unary(b: Builder, name: str) -> None:
    """With their own output scales; GELU with both formulas."""
    x = b.take(UNARY[name])
    options: dict[str, Any] = {"approximate": b.draw.chance(0.5)} if name == "GELU" else {}
    accident = APPROXIMATION if x.dtype == "float32" and name in APPROXIMATED else None
    if accident and name == "GELU":
        accident = bounded(APPROXIMATION, 2e-6, 2e-5)  # 1 + erf(x) cancels
    q = b.q(x.dtype)
    if name in STEEP and q is not None and max(1 / q.scale, 1 / x.q.scale) >= MOST_MULTIPLIER:  # type: ignore[union-attr]
        accident = SHIFTED_OUT
    if name == "HARD_SWISH" and q is not None:
        assert x.q is not None
        accident = SHIFTED_OUT if max(x.q.scale, x.q.scale / q.scale) >= 2.0**6 else accident
    if name in BOUNDED and q is not None and BOUNDED[name] / q.scale >= 2.0**30:
        accident = UNDEFINED_BOUND
    b.one(name, [x], x.shape, x.dtype, q, accident=accident, **options)


@generates(*PRESCRIBED)
def sigmoid(b: Builder, name: str) -> None:
    """The output's quantization is prescribed."""
    x = b.take((*QUANTIZED, "float32"))
    scale, where = PRESCRIBED[name]
    accident = (LOGISTIC_TAIL if name == "LOGISTIC" else APPROXIMATION) if x.dtype == "float32" else None
    vanishing = x.dtype == "int16" and x.q is not None and x.q.scale < 2.0**-44
    if x.q is not None and (x.q.scale * 2**12 >= MOST_MULTIPLIER or vanishing):
        accident = SHIFTED_OUT
    q = {"int8": Q(scale, -128 if where == "low" else 0), "uint8": Q(scale, 0 if where == "low" else 128)}
    b.one(name, [x], x.shape, x.dtype, {**q, "int16": Q(1 / 32768)}.get(x.dtype), accident=accident)


@generates("LEAKY_RELU")
def leaky_relu(b: Builder) -> None:
    x = b.take((*QUANTIZED, "float32"))
    alpha = float(b.draw.pick([0.1, 0.3, 1.7, -0.25, 0.0, 1e-6, 0.5]))
    b.one("LEAKY_RELU", [x], x.shape, x.dtype, b.q(x.dtype), alpha=alpha)


@generates("PRELU")
def prelu(b: Builder) -> None:
    """For int16 the slopes are int8, as LiteRT reads them."""
    x = b.take((*QUANTIZED, "float32"), rank=(2, 3, 4))
    slope = "int8" if x.dtype == "int16" else x.dtype
    shape = x.shape[1:] if b.draw.chance(0.3) else (*[1] * (len(x.shape) - 2), x.shape[-1])
    b.one("PRELU", [x, b.operand(slope, shape, b.q(slope, 0.004), True)], x.shape, x.dtype, b.q(x.dtype))


# ---- two tensors -------------------------------------------------------------------------------------------------


def partner_shape(b: Builder, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The same shape, or one that broadcasts to it."""
    manner = b.draw.between(0, 5)
    if manner < 3:
        return shape
    if manner == 3:
        return shape[-1:]
    if manner == 4:
        return ()
    return tuple(1 if b.draw.chance(0.5) else n for n in shape)


def pair(
    b: Builder, dtypes: tuple[str, ...], same_q: bool = False, low: int | None = None, most_rank: int = 5
) -> tuple[Value, Value, tuple[int, ...]]:
    """Two operands in either order, the second a tensor of the graph, a constant or an input; and the result's shape.

    low: the minimum of the second operand, which is then a new input
    """
    x = b.take(dtypes, rank=range(1, most_rank + 1))
    others = [v for v in b.values if v.dtype == x.dtype and v.shape == x.shape and (not same_q or v.q == x.q)]
    if low is not None:
        shape = partner_shape(b, x.shape)
        high = 37 if x.q is None else None
        y = b.fresh(x.dtype, shape, None, low, high) if x.dtype != "float32" else b.take(("float32",), shape=shape)
        return x, y, x.shape
    if others and b.draw.chance(0.4):
        y = b.draw.pick(others)
    else:
        q = x.q if same_q else b.q(x.dtype) if x.q else None
        y = b.operand(x.dtype, partner_shape(b, x.shape), q, b.draw.chance(0.4))
    if b.draw.chance(0.3):
        x, y = y, x
    return x, y, tuple(np.broadcast_shapes(x.shape, y.shape))


def activation(b: Builder) -> str:
    """A fused activation, none in most cases."""
    return str(b.draw.pick(["none", "none", "none", "relu", "relu6", "relu_n1_to_1"]))


@generates("ADD", "SUB")
def add(b: Builder, name: str) -> None:
    x, y, shape = pair(b, (*QUANTIZED, "float32", *INTEGERS))
    q = b.q(x.dtype, 0.08) if x.q else None
    act = activation(b) if x.dtype not in INTEGERS else "none"
    b.one(name, [x, y], shape, x.dtype, q, potScaleInt16=False, act=act)


@generates("MUL")
def mul(b: Builder) -> None:
    x, y, shape = pair(b, (*QUANTIZED, "float32", *INTEGERS))
    q = None
    if x.q and y.q:
        top = 32768 if x.dtype == "int16" else 128
        scale = b.draw.scale(1.0) * x.q.scale * y.q.scale * top
        q = Q(float(np.float32(np.clip(scale, 1e-37, 1e37))), 0 if x.dtype == "int16" else b.draw.zero_point(x.dtype))
    b.one("MUL", [x, y], shape, x.dtype, q, act=activation(b) if x.dtype not in INTEGERS else "none")


@generates("DIV")
def div(b: Builder) -> None:
    """Divisors above the zero point; hostile graphs include zeros."""
    dtype = b.dtype((*QUANTIZED, "float32", "int32"))
    zero = b.recipe.hostile
    if dtype in QUANTIZED:
        y_q = Q(b.q(dtype).scale, np.iinfo(dtype).min if dtype != "int16" else 0)  # type: ignore[union-attr]
        x = b.take((dtype,), rank=(1, 2, 3, 4))
        y = b.fresh(dtype, partner_shape(b, x.shape), y_q, y_q.zero_point + (0 if zero else 1))
        q = b.q(dtype, scale=b.draw.scale(0.2) * x.q.scale / y.q.scale / b.draw.unit)  # type: ignore[union-attr]
        accident = SHIFTED_OUT if x.q.scale / y.q.scale / q.scale < 2.0**-12 else None  # type: ignore[union-attr]
    else:
        x, y, _ = pair(b, (dtype,), low=0 if zero else 1)
        q, accident = None, LARGEST if dtype == "float32" else None
    b.one("DIV", [x, y], x.shape, dtype, q, accident=accident)


@generates("SQUARED_DIFFERENCE")
def squared_difference(b: Builder) -> None:
    x, y, shape = pair(b, ("int8", "float32", "int32"))
    q = b.q(x.dtype, scale=x.q.scale * x.q.scale * 100) if x.q else None
    b.one("SQUARED_DIFFERENCE", [x, y], shape, x.dtype, q)


@generates("MAXIMUM", "MINIMUM")
def extreme(b: Builder, name: str) -> None:
    x, y, shape = pair(b, (*QUANTIZED, "float32", *INTEGERS), same_q=True)
    accident = NAN_LOST if x.dtype == "float32" and b.may_be_nan else None
    b.one(name, [x, y], shape, x.dtype, x.q, accident=accident)


@generates("FLOOR_DIV", "FLOOR_MOD")
def floor_division(b: Builder, name: str) -> None:
    """Of tensors without quantization."""
    dtype = str(b.draw.pick(["int8", "int16", "int32", "float32"] + (["int64"] if name == "FLOOR_MOD" else [])))
    shape = b.draw.shape(b.draw.between(1, 4))
    x = b.fresh(dtype, shape, quantized=False)
    y = b.fresh(dtype, partner_shape(b, shape), None, None if b.recipe.hostile else 1, quantized=False)
    b.one(name, [x, y], shape, dtype, None)


@generates("POW")
def power(b: Builder) -> None:
    dtype = str(b.draw.pick(["int32", "float32"]))
    shape = b.draw.shape(b.draw.between(1, 4))
    x, y = b.fresh(dtype, shape, None, -7, 9), b.fresh(dtype, partner_shape(b, shape), None, 0, 9)
    b.one("POW", [x, y], shape, dtype, None, accident=None if dtype == "int32" else APPROXIMATION)


@generates("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
def comparison(b: Builder, name: str) -> None:
    """LiteRT's multipliers for both scales require scales below one."""
    x, y, shape = pair(b, (*QUANTIZED, "float32", *INTEGERS), most_rank=4)
    beyond = x.q is not None and y.q is not None and max(x.q.scale, y.q.scale) >= 1
    b.one(name, [x, y], shape, "bool", None, accident=SHIFTED_OUT if beyond else None)


@generates("LOGICAL_AND", "LOGICAL_OR")
def logical(b: Builder, name: str) -> None:
    x, y, shape = pair(b, ("bool",), most_rank=4)
    b.one(name, [x, y], shape, "bool", None)


@generates("LOGICAL_NOT")
def logical_not(b: Builder) -> None:
    x = b.take(("bool",))
    b.one("LOGICAL_NOT", [x], x.shape, "bool", None)


@generates("SELECT", "SELECT_V2")
def select(b: Builder, name: str) -> None:
    x = b.take((*QUANTIZED, "float32", *INTEGERS), rank=(1, 2, 3, 4))
    y = b.operand(x.dtype, x.shape, x.q, b.draw.chance(0.4))
    condition = b.take(("bool",), shape=x.shape)
    b.one(name, [condition, x, y], x.shape, x.dtype, x.q)


@generates("ADD_N")
def add_n(b: Builder) -> None:
    x = b.take(("float32", "int32"))
    rest = [b.take((x.dtype,), shape=x.shape) for _ in range(b.draw.between(1, 3))]
    exact = x.dtype == "int32" or len(rest) == 1
    accident = None if exact else OVERFLOW if b.recipe.hostile else FLOAT_STEPS
    b.one("ADD_N", [x, *rest], x.shape, x.dtype, None, accident=accident)


# ---- between types -----------------------------------------------------------------------------------------------


@generates("QUANTIZE")
def quantize(b: Builder) -> None:
    x = b.take((*QUANTIZED, "float32", "float32"))
    dtype = b.dtype()
    unit = None if x.dtype == "float32" and b.draw.chance(0.7) else b.draw.unit
    q = b.q(dtype, scale=b.draw.scale() * (unit or 1.0))
    assert q is not None
    accident = b.narrowed(x, LARGEST_INPUT / q.scale >= 2.0**31)
    b.one("QUANTIZE", [x], x.shape, dtype, q, accident=accident)


@generates("DEQUANTIZE")
def dequantize(b: Builder) -> None:
    x = b.take()
    b.one("DEQUANTIZE", [x], x.shape, "float32", None)


@generates("FAKE_QUANT")
def fake_quant(b: Builder) -> None:
    x = b.take(("float32",))
    low, high = -float(b.draw.rng.uniform(0.1, 9)), float(b.draw.rng.uniform(0.1, 9))
    bits = b.draw.pick([4, 8, 16])
    b.one(
        "FAKE_QUANT",
        [x],
        x.shape,
        "float32",
        None,
        min=low,
        max=high,
        numBits=bits,
        accident=bounded(FLOAT_STEPS, 1.01 * (high - low) / (2**bits - 1)),
    )


CASTS = ("int8", "uint8", "int16", "int32", "int64", "float32", "bool")
TYPE_CODES = {"float32": 0, "int32": 2, "uint8": 3, "int64": 4, "bool": 6, "int16": 7, "int8": 9}


@generates("CAST")
def cast(b: Builder) -> None:
    """Conversion of floats beyond the integer's range is undefined in C: only in hostile graphs."""
    source = str(b.draw.pick(CASTS))
    target = str(b.draw.pick([dtype for dtype in CASTS if dtype != source]))
    shape = b.draw.shape()
    low, high = (0, 100) if source == "float32" else (None, None)
    x = b.take((source,)) if b.recipe.hostile else b.fresh(source, shape, None, low, high, quantized=False)
    accident = b.narrowed(x, True) if target != "bool" else None
    b.one(
        "CAST", [x], x.shape, target, None, accident=accident, inDataType=TYPE_CODES[source],
        outDataType=TYPE_CODES[target],
    )  # fmt: skip

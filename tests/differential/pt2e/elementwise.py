"""Activations, arithmetic, comparisons and selections on quantized data."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import Value
from .builder import GENERATORS, Pt2eBuilder

generates = GENERATORS.generates
UNARY: dict[str, tuple[Any, ...]] = {
    "aten.relu.default": (),
    "aten.sigmoid.default": (),
    "aten.tanh.default": (),
    "aten.silu.default": (),
    "aten.exp.default": (),
    "aten.log.default": (),
    "aten.sqrt.default": (),
    "aten.rsqrt.default": (),
    "aten.erf.default": (),
    "aten.abs.default": (),
    "aten.neg.default": (),
    "aten.square.default": (),
    "aten.hardtanh.default": (-0.7, 1.3),
    "aten.relu6.default": (),
    "aten.hardswish.default": (),
    "aten.hardsigmoid.default": (),
    "aten.leaky_relu.default": (0.1,),
    "aten.elu.default": (0.9, 1.1, 0.8),
    "aten.gelu.default": (),
    "aten.mish.default": (),
    "aten.dropout.default": (0.5, False),
    "aten.feature_dropout.default": (0.5, False),
    "aten.alpha_dropout.default": (0.5, False),
    "aten.clamp.default": (-0.4, 1.1),
    "aten.clip.default": (-0.4, 1.1),
    "aten.clamp_min.default": (-0.3,),
    "aten.clamp_max.default": (0.6,),
}
POSITIVE = ("aten.log.default", "aten.sqrt.default", "aten.rsqrt.default", "aten.pow.Tensor_Scalar")


@generates(*UNARY)
def unary(b: Pt2eBuilder, name: str) -> None:
    """Roots and logarithms are taken of positive magnitudes, since NaN may only occur in hostile graphs."""
    x = positive(b) if name in POSITIVE else b.real()
    args = UNARY[name]
    if name == "aten.gelu.default" and b.draw.chance(0.4):
        b.finish(b.call(name, x, approximate="tanh"))
        return
    if name in ("aten.clamp.default", "aten.clip.default", "aten.leaky_relu.default") and b.draw.chance(0.4):
        unit = float(b.samples[x.key].abs().max().clamp(1e-30, 1e30)) * 0.4
        args = b.draw.pick([(0.0, None), (None, unit), (-unit, unit)]) if "cl" in name else (0.25,)
    b.finish(b.call(name, x, *args))


@generates("aten.prelu.default")
def prelu(b: Pt2eBuilder) -> None:
    """One slope, with or without a dimension, or one for each channel."""
    x = b.real()
    shape = b.samples[x.key].shape
    channels = shape[1] if len(shape) > 1 else 1
    slopes = b.draw.pick([0.25, np.float32([-0.5]), np.linspace(-0.5, 1.5, channels).astype(np.float32)])
    b.finish(b.call("aten.prelu.default", x, b.const(slopes, "float32")))


def positive(b: Pt2eBuilder) -> Value:
    """|x| plus something."""
    size = b.call("aten.abs.default", b.real())
    return b.call("aten.add.Scalar", size, float(b.draw.pick([0.5, 1.0, 1e-3])))


@generates("aten.pow.Tensor_Scalar")
def power(b: Pt2eBuilder, exponents: tuple[float, ...] = (2, 0.5, 1.5, -0.5)) -> None:
    b.finish(b.call("aten.pow.Tensor_Scalar", positive(b), b.draw.pick(exponents)))


@generates("aten.clamp.Tensor", "aten.clamp_min.Tensor", "aten.clamp_max.Tensor")
def clamp(b: Pt2eBuilder, name: str) -> None:
    x = b.real()
    low, high = b.const(-0.5, "float32"), b.const(0.75, "float32")
    ends = {"clamp": (low, high), "clamp_min": (low,), "clamp_max": (high,)}
    b.finish(b.call(name, x, *ends[name.split(".")[1]]))


# ---- two operands ------------------------------------------------------------------------------------------------


def pair(b: Pt2eBuilder) -> tuple[Value, Value]:
    """Two tensors of the same shape, or of shapes that broadcast; sometimes the same tensor twice."""
    x = b.real()
    manner = b.draw.between(0, 9)
    if manner == 0:
        return x, x
    shape = x.shape if manner < 6 else x.shape[-1:] if manner < 8 else (*x.shape[:-1], 1)
    y = b.real(len(shape), shape=shape)
    return (y, x) if manner == 9 else (x, y)


BINARY = ("add", "sub", "rsub", "mul", "maximum", "minimum", "max", "min")
OVERLOADS = {"maximum": "default", "minimum": "default", "max": "other", "min": "other"}


@generates(*(f"aten.{name}.{OVERLOADS.get(name, 'Tensor')}" for name in BINARY))
def binary(b: Pt2eBuilder, name: str) -> None:
    x, y = pair(b)
    options = {}
    if name.split(".")[1] in ("add", "sub", "rsub") and b.draw.chance(0.15):
        options["alpha"] = b.draw.pick([2, 0.3, -1])
    b.finish(b.call(name, x, y, **options))


@generates("aten.add.Scalar", "aten.sub.Scalar", "aten.rsub.Scalar", "aten.mul.Scalar")
def scalar(b: Pt2eBuilder, name: str) -> None:
    x = b.real()
    number = float(b.draw.pick([0.5, -0.25, 3.0, 0.1, 0.0]))
    if "mul" not in name:
        number *= float(b.samples[x.key].abs().max().clamp(1e-30, 1e30))
    b.finish(b.call(name, x, float(np.float32(number))))


DIVISIONS = ("aten.div.Tensor", "aten.true_divide.Tensor", "aten.div.Tensor_mode", "aten.floor_divide.default")


@generates(*DIVISIONS)
def divide(b: Pt2eBuilder, name: str) -> None:
    """By positive values; where the quotient is rounded to an integer, by a power of two, as otherwise its own rounding
    would decide."""
    options = {"rounding_mode": b.draw.pick([None, "floor", "trunc"])} if name.endswith("mode") else {}
    rounded = "floor" in name or options.get("rounding_mode") is not None
    x = b.real()
    y: Any = b.const(2.0 ** b.draw.between(-4, 2), "float32")
    if not rounded and b.draw.chance(0.6):
        y = positive(b)
        x = b.real(len(y.shape), shape=y.shape)
    b.finish(b.call(name, x, y, **options))


@generates("aten.div.Scalar", "aten.div.Scalar_mode", "aten.floor_divide.Scalar")
def divide_by_number(b: Pt2eBuilder, name: str) -> None:
    options = {"rounding_mode": b.draw.pick([None, "floor", "trunc"])} if name.endswith("mode") else {}
    rounded = "floor" in name or options.get("rounding_mode") is not None
    number = 2.0 ** b.draw.between(-4, 2) if rounded else float(b.draw.pick([3.0, 0.7, -6.0, 8.0]))
    b.finish(b.call(name, b.real(), number, **options))


# ---- selections -----------------------------------------------------------------------------------------------------

COMPARISONS = tuple(f"aten.{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge"))


@generates(*(f"{name}.{kind}" for name in COMPARISONS for kind in ("Tensor", "Scalar")))
def compare(b: Pt2eBuilder, name: str) -> None:
    """Of two tensors, or with a number that some elements may equal."""
    if name.endswith("Tensor"):
        b.call(name, *pair(b))
        return
    q = b.quantized()
    assert q.scale is not None
    b.call(name, b.dequantize(q), float(np.float32(q.scale) * np.float32(b.draw.between(-20, 20))))


def condition(b: Pt2eBuilder, shape: tuple[int, ...]) -> Value:
    """Booleans: computed earlier, or an input."""
    return b.take(("bool",), len(shape), shape=shape)


@generates("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def where(b: Pt2eBuilder, name: str) -> None:
    x = b.real()
    mask = condition(b, x.shape)
    operands: dict[str, tuple[Any, Any]] = {
        "ScalarOther": (x, 0.25),
        "ScalarSelf": (-0.5, x),
        "Scalar": (1.0, -0.5),
    }
    kind = name.split(".")[2]
    chosen = operands[kind] if kind != "self" else (x, b.real(len(x.shape), shape=x.shape))
    b.finish(b.call(name, mask, *chosen))


@generates("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(b: Pt2eBuilder, name: str) -> None:
    x = b.real()
    value = b.const(0.5, "float32") if name.endswith("Tensor") else -1.5
    b.finish(b.call(name, x, condition(b, x.shape), value))

"""Operators of one tensor, element by element: every 8-bit value, int16 over its range, floats; several scales each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .builder import Graph, Q, Spec, activation
from .quantize import every_value

QUANTIZED = ("int8", "uint8", "int16")


@dataclass(frozen=True)
class Unary:
    """What a unary operator accepts: float limits, and (input scale, zero point), (output scale, zero point) pairs."""

    limits: tuple[float, float] = (-8.0, 8.0)
    settings: tuple[tuple[float, str, float, str], ...] = (
        (0.05, "odd", 0.05, "odd"),
        (0.05, "low", 0.037, "mid"),
        (0.021, "high", 0.043, "high"),
    )
    fixed: tuple[float, str] | None = None
    """The output's 8-bit scale and zero point where the operator prescribes them; int16 then has the scale 1/32768."""


SAME_SCALE = ((0.05, "odd", 0.05, "odd"), (0.0371, "low", 0.0371, "low"), (0.021, "mid", 0.021, "mid"))
POSITIVE = ((0.05, "low", 0.05, "low"), (0.021, "low", 0.03, "odd"), (1.3, "low", 0.1, "low"))
RELUS = (
    (0.05, "odd", 0.05, "odd"),
    (0.05, "low", 0.023, "low"),
    (0.041, "mid", 0.05, "low"),
    (0.05, "mid", 0.05, "mid"),
)
OPERATORS = {
    "LOGISTIC": Unary(
        settings=((0.05, "odd", 0, ""), (0.1, "low", 0, ""), (0.0234, "high", 0, ""), (0.0078125, "mid", 0, "")),
        fixed=(1 / 256, "low"),
    ),
    "TANH": Unary(
        settings=((0.05, "odd", 0, ""), (0.1, "low", 0, ""), (0.0234, "high", 0, ""), (0.0078125, "mid", 0, "")),
        fixed=(1 / 128, "mid"),
    ),
    "RELU": Unary(settings=RELUS),
    "RELU6": Unary(settings=RELUS),
    "RELU_N1_TO_1": Unary(settings=RELUS),
    "RELU_0_TO_1": Unary(settings=RELUS),
    "HARD_SWISH": Unary(),
    "ELU": Unary(),
    "EXP": Unary(settings=((0.03, "odd", 0.2, "low"), (0.02, "high", 0.005, "low"), (0.01, "mid", 0.02, "odd"))),
    "LOG": Unary((0.0625, 16.0), POSITIVE),
    "SQRT": Unary((0.0, 16.0), POSITIVE),
    "RSQRT": Unary(
        (0.0625, 16.0), ((0.05, "low", 0.02, "low"), (0.021, "low", 0.05, "odd"), (1.3, "low", 0.01, "low"))
    ),
    "ABS": Unary(settings=((0.05, "odd", 0.05, "odd"), (0.05, "mid", 0.037, "low"), (0.021, "high", 0.021, "low"))),
    "NEG": Unary(settings=SAME_SCALE),
    "CEIL": Unary(settings=SAME_SCALE),
    "FLOOR": Unary(settings=SAME_SCALE),
    "ROUND": Unary(settings=SAME_SCALE),
    "SIN": Unary(),
    "COS": Unary(),
    "SQUARE": Unary(),
    "SIGN": Unary(settings=SAME_SCALE),
}
INTEGER_OPERATORS = ("ABS", "NEG", "SQUARE", "SIGN", "RELU", "SQRT")


def output_q(operator: Unary, dtype: str, scale: float, where: str) -> Q | None:
    """Output quantization: the prescribed one, or the setting's."""
    if operator.fixed is None:
        return activation(dtype, scale, where)
    scale, where = operator.fixed
    if dtype == "int16":
        return Q(1 / 32768)
    return Q(scale, activation(dtype, where=where).zero_point)  # type: ignore[union-attr]


def quantized_unary(name: str, dtype: str, number: int, **options: Any) -> Spec:
    """One quantized case over every value."""
    operator = OPERATORS[name]
    in_scale, in_where, out_scale, out_where = operator.settings[number]
    graph = Graph()
    positive = dtype == "int16" and name in ("LOG", "SQRT", "RSQRT")
    x, shape = every_value(graph, dtype, activation(dtype, in_scale, in_where), positive)
    y = graph.output(shape, dtype, output_q(operator, dtype, out_scale, out_where))
    graph.op(name, [x], [y], **options)
    unsound = "LiteRT negates the stored integers as if they had no zero point" if name == "NEG" else ""
    variant = f"scale_{in_scale}_zero_point_{in_where}"
    return Spec(f"{name}/{dtype}/{variant}", graph, trials=1, unsound=unsound if dtype != "uint8" else "")


def unary_specs() -> Iterator[Spec]:
    """Every operator in every quantized dtype, float32, and the integers."""
    for name, operator in OPERATORS.items():
        for dtype in QUANTIZED:
            for number in range(len(operator.settings)):
                yield quantized_unary(name, dtype, number)
        for variant, shape in {"rank4": (2, 3, 4, 5), "rank1": (127,)}.items():
            graph = Graph()
            low, high = operator.limits
            x = graph.input(shape, "float32", low=low, high=high, step=1 / 64)
            graph.op(name, [x], [graph.output(shape, "float32")])
            yield Spec(f"{name}/float32/{variant}", graph)
    for name in INTEGER_OPERATORS:
        for dtype in ("int32", "int64", "int8", "int16") if name == "NEG" else ("int32", "int64"):
            graph = Graph()
            x = graph.input((3, 7), dtype)
            graph.op(name, [x], [graph.output((3, 7), dtype)])
            yield Spec(f"{name}/{dtype}/rank2", graph)
    yield from float_edges()
    yield from sixteen_bit_power_of_two()


def float_edges() -> Iterator[Spec]:
    """Rounding operators at ties, signs and large values."""
    halves = np.array([-2.5, -1.5, -0.5, -0.0, 0.0, 0.5, 1.5, 2.5, 3.5, 8388607.5, -8388607.5, 0.49999997, 1e10])
    for name in ("ROUND", "CEIL", "FLOOR", "ABS", "NEG"):
        graph = Graph()
        x = graph.input(halves.shape, "float32", values=halves)
        graph.op(name, [x], [graph.output(halves.shape, "float32")])
        yield Spec(f"{name}/float32/ties", graph, trials=1)


def sixteen_bit_power_of_two() -> Iterator[Spec]:
    """int16 LOGISTIC and TANH with the power-of-two input scales of the older converter."""
    for name in ("LOGISTIC", "TANH"):
        for exponent in (11, 12, 13, 15):
            graph = Graph()
            x, shape = every_value(graph, "int16", Q(2.0**-exponent))
            graph.op(name, [x], [graph.output(shape, "int16", Q(1 / 32768))])
            yield Spec(f"{name}/int16/scale_power_of_two_{exponent}", graph, trials=1)


def parametric_specs() -> Iterator[Spec]:
    """LEAKY_RELU, GELU, PRELU."""
    for dtype in (*QUANTIZED, "float32"):
        for number, setting in enumerate(RELUS):
            for alpha in (0.1, 0.3, 1.7, -0.25):
                yield parametric("LEAKY_RELU", dtype, f"alpha_{alpha}_{number}", setting, alpha=alpha)
            for approximate in (False, True):
                variant = f"{'approximate' if approximate else 'exact'}_{number}"
                yield parametric("GELU", dtype, variant, setting, approximate=approximate)
    yield from prelu_specs()


def parametric(name: str, dtype: str, variant: str, setting: tuple[float, str, float, str], **options: Any) -> Spec:
    """A unary operator with options."""
    in_scale, in_where, out_scale, out_where = setting
    graph = Graph()
    if dtype == "float32":
        shape: tuple[int, ...] = (3, 33)
        x = graph.input(shape, dtype)
    else:
        x, shape = every_value(graph, dtype, activation(dtype, in_scale, in_where))
    graph.op(name, [x], [graph.output(shape, dtype, activation(dtype, out_scale, out_where))], **options)
    return Spec(f"{name}/{dtype}/{variant}", graph, trials=4 if dtype == "float32" else 1)


def prelu_specs() -> Iterator[Spec]:
    """PRELU: slopes per channel, one for all, and per element; negative slopes included."""
    slopes = {"per_channel": (1, 1, 5), "shared": (1, 1, 1), "per_element": (3, 4, 5), "vector": (5,)}
    for dtype in (*QUANTIZED, "float32"):
        for variant, shape in slopes.items():
            for mode, (where_in, where_alpha, where_out) in {
                "": ("odd", "mid", "odd"),
                "ends_": ("high", "odd", "low"),
            }.items():
                graph = Graph()
                x = graph.input((2, 3, 4, 5), dtype, activation(dtype, 0.05, where_in))
                count = int(np.prod(shape))
                if dtype == "float32":
                    alpha = graph.const((np.arange(count) % 7 - 2).reshape(shape) / 8, dtype)
                else:
                    values = (np.arange(count) * 37 % 250).reshape(shape) + np.iinfo(
                        "int8" if dtype != "uint8" else dtype
                    ).min
                    slope_dtype = "int8" if dtype == "int16" else dtype  # LiteRT reads int16 slopes as int8
                    alpha = graph.const(values, slope_dtype, activation(slope_dtype, 0.004, where_alpha))
                y = graph.output((2, 3, 4, 5), dtype, activation(dtype, 0.043, where_out))
                graph.op("PRELU", [x, alpha], [y])
                yield Spec(f"PRELU/{dtype}/{mode}{variant}", graph)

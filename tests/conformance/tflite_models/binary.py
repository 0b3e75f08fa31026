"""Operators of two tensors: arithmetic, comparisons, logic; broadcasting, constants, activations, zero points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .builder import Graph, Q, Spec, activation, rng_for, zero_point

QUANTIZED = ("int8", "uint8", "int16")
INTEGERS = ("int32", "int64")


@dataclass(frozen=True)
class Pair:
    """The shapes, zero points and scales of one binary operator."""

    x: tuple[int, ...] = (2, 3, 4, 5)
    y: tuple[int, ...] = (2, 3, 4, 5)
    act: str = "none"
    where: tuple[str, str, str] = ("odd", "odd", "odd")
    scales: tuple[float, float, float] = (0.05, 0.03, 0.06)
    const: str = ""
    """Which operand is a constant: "", "x" or "y"."""


SHAPES = {
    "same_shape": Pair(),
    "broadcast_channel": Pair(y=(5,), where=("low", "mid", "odd")),
    "broadcast_scalar": Pair(y=(), where=("high", "odd", "high")),
    "scalar_first": Pair(x=(), where=("low", "mid", "low")),
    "broadcast_both": Pair((1, 4, 1, 5), (3, 1, 2, 1), where=("odd", "low", "mid")),
    "broadcast_width": Pair((2, 1, 1, 6), (2, 3, 4, 6)),
    "rank5": Pair((2, 2, 1, 3, 2), (2, 2, 1, 3, 2)),
    "rank5_broadcast": Pair((2, 1, 2, 1, 3), (1, 3, 2, 2, 1)),
    "constant": Pair((2, 3, 7), (7,), const="y"),
    "constant_first": Pair((1,), (2, 3, 7), const="x", where=("low", "odd", "odd")),
}
ARITHMETIC = {
    **SHAPES,
    "relu": Pair(act="relu", where=("mid", "odd", "low")),
    "relu6": Pair(act="relu6", where=("odd", "mid", "low")),
    "relu_n1_to_1": Pair(act="relu_n1_to_1"),
    "zero_points_low": Pair((3, 41), (3, 41), where=("low", "low", "low")),
    "zero_points_high": Pair((3, 41), (3, 41), where=("high", "high", "high")),
    "zero_points_mixed": Pair((3, 41), (3, 41), where=("low", "high", "mid")),
    "unequal_scales": Pair((3, 41), (3, 41), scales=(0.5, 0.004, 0.4)),
    "unequal_scales_swapped": Pair((3, 41), (3, 41), scales=(0.004, 0.5, 0.4)),
    "equal_scales": Pair((3, 41), (3, 41), scales=(0.05, 0.05, 0.05), where=("odd", "odd", "odd")),
    "fine_output": Pair((3, 41), (3, 41), scales=(0.05, 0.03, 0.017)),
    "coarse_output": Pair((3, 41), (3, 41), scales=(0.05, 0.03, 2.0)),
    "random": Pair((16, 40), (16, 40), scales=(0.0371, 0.0513, 0.0689), where=("odd", "mid", "odd")),
}
FUSED = ("ADD", "SUB", "MUL", "DIV")
COMPARISONS = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")


def numeric_range(operator: str, dtype: str, second: bool) -> dict[str, Any]:
    """Operand values for which results are defined: divisors positive, powers representable."""
    divides = second and operator in ("DIV", "FLOOR_DIV", "FLOOR_MOD")
    if dtype == "float32":
        if operator == "POW":
            return {"low": -2.0, "high": 3.0} if second else {"low": 0.25, "high": 4.0}
        return {"low": 0.5, "high": 8.0} if divides else {}
    if operator == "POW" and dtype in INTEGERS:
        return {"low": 0, "high": 5} if second else {"low": -7, "high": 9}
    if divides:
        return {"low": 1, "high": 37}
    if operator in COMPARISONS and dtype in INTEGERS:
        return {"low": -6, "high": 6}
    return {}


def few_values(dtype: str, q: Q | None) -> dict[str, Any]:
    """A range of few values around real zero, so that operands are often equal."""
    if dtype == "float32":
        return {"low": -1.0, "high": 1.0, "step": 0.5}
    if q is None:
        return {"low": 0, "high": 1} if dtype == "bool" else {"low": -2, "high": 2}
    info = np.iinfo(dtype)
    reach = 40 if dtype == "int16" else 3  # LiteRT compares multiples of 1/256, about twenty int16 steps here
    return {"low": max(info.min, q.zero_point - reach), "high": min(info.max, q.zero_point + reach)}


def output_end(operator: str, where: tuple[str, str, str]) -> str:
    """A product's or quotient's zero point, placed so that results of the usual sign do not all saturate."""
    ends = [w for w in where[:2] if w in ("low", "high")]
    if operator == "SQUARED_DIFFERENCE" or (len(ends) == 2 and ends[0] == ends[1]):
        return "low"
    if operator == "DIV" and ends:
        return where[2] if len(ends) == 1 and where[1] not in ends else "odd"
    return "mid" if where[2] in ("low", "high") else where[2]


def operand(graph: Graph, name: str, shape: tuple, dtype: str, q: Q | None, const: bool, limits: dict[str, Any]) -> int:
    """A model input, or a constant with values from the same range."""
    if not const:
        return graph.input(shape, dtype, q, **limits)
    rng = rng_for(name)
    if dtype == "float32":
        low, high = limits.get("low", -4.0), limits.get("high", 4.0)
        step = limits.get("step", 1 / 256)
        return graph.const(np.round(rng.uniform(low, high, shape) / step) * step, dtype)
    if dtype == "bool":
        return graph.const(rng.integers(0, 2, shape), dtype)
    info = np.iinfo(dtype if q else "int8")
    values = rng.integers(limits.get("low", info.min), limits.get("high", info.max), shape, endpoint=True)
    return graph.const(values, dtype, q)


def numerator_range(dtype: str, q: Q) -> dict[str, Any]:
    """Numerators away from zero: where one is tiny against the output's scale LiteRT shifts by more than 31 bits."""
    info, radius = np.iinfo(dtype), 5000 if dtype == "int16" else 20
    if q.zero_point + radius > info.max:
        return {"low": info.min, "high": q.zero_point - radius}
    if q.zero_point - radius < info.min:
        return {"low": q.zero_point + radius, "high": info.max}
    return {"avoid": (q.zero_point, radius)}


def divisor_range(dtype: str, q: Q) -> dict[str, Any]:
    """Divisors of one sign, away from zero."""
    if dtype == "int16":
        return {"low": 9000}
    if q.zero_point + 110 > np.iinfo(dtype).max:
        return {"low": q.zero_point - 110, "high": q.zero_point - 30}
    return {"low": q.zero_point + 30, "high": q.zero_point + 110}


def input_range(operator: str, dtype: str, variant: str, q: Q | None, second: bool) -> dict[str, Any]:
    """The values of one operand."""
    if operator in ("EQUAL", "NOT_EQUAL") and (variant in SHAPES or dtype == "float32"):
        return few_values(dtype, q)
    if operator == "DIV" and q is not None:
        return divisor_range(dtype, q) if second else numerator_range(dtype, q)
    return numeric_range(operator, dtype, second)


def output_q(operator: str, dtype: str, pair: Pair) -> Q | None:
    """Quantization of the result: products and quotients need wider scales than sums."""
    factor = {"MUL": 2.0, "SQUARED_DIFFERENCE": 8.0, "DIV": 4.0}.get(operator)
    if factor is None or dtype not in QUANTIZED:
        return activation(dtype, pair.scales[2], pair.where[2])
    scale = pair.scales[2] * factor / (64 if dtype == "int16" else 1)
    return Q(scale, zero_point(dtype, output_end(operator, pair.where)))


def binary(operator: str, dtype: str, variant: str, pair: Pair, *, out: str = "", **options: Any) -> Spec:
    """One binary case. `out` is the output dtype if it differs from the inputs'."""
    name = f"{operator}/{dtype}/{variant}"
    graph = Graph()
    indices = []
    for number, (side, shape) in enumerate((("x", pair.x), ("y", pair.y))):
        q = activation(dtype, pair.scales[number], pair.where[number])
        limits = input_range(operator, dtype, variant, q, side == "y")
        indices.append(operand(graph, name + side, shape, dtype, q, pair.const == side, limits))
    q = None if out else output_q(operator, dtype, pair)
    z = graph.output(np.broadcast_shapes(pair.x, pair.y), out or dtype, q)
    if pair.act != "none":
        options["act"] = pair.act
    graph.op(operator, indices, [z], **options)
    return Spec(name, graph)


def arithmetic_specs() -> Iterator[Spec]:
    """ADD, SUB, MUL, DIV, SQUARED_DIFFERENCE, MAXIMUM, MINIMUM, FLOOR_DIV, FLOOR_MOD, POW."""
    for operator in ("ADD", "SUB", "MUL", "SQUARED_DIFFERENCE", "DIV"):
        for dtype in (*QUANTIZED, "float32", *INTEGERS):
            for variant, pair in ARITHMETIC.items():
                if pair.act != "none" and operator not in FUSED:
                    continue
                if operator == "DIV" and variant in ("coarse_output", "unequal_scales_swapped"):
                    continue  # such small output multipliers are beyond LiteRT's shift
                if dtype in QUANTIZED or variant in SHAPES or pair.act != "none":
                    options = {"potScaleInt16": False} if operator in ("ADD", "SUB") else {}
                    yield binary(operator, dtype, variant, pair, **options)
    for operator in ("ADD", "SUB"):
        power = Pair((3, 41), (3, 41), scales=(2.0**-4, 2.0**-5, 2.0**-4))
        yield binary(operator, "int16", "power_of_two_scales", power, potScaleInt16=True)
    for operator in ("MAXIMUM", "MINIMUM"):
        for dtype in (*QUANTIZED, "float32", *INTEGERS):
            for variant, pair in SHAPES.items():
                yield binary(operator, dtype, variant, replace(pair, where=("odd",) * 3, scales=(0.05,) * 3))
    for operator in ("FLOOR_DIV", "FLOOR_MOD", "POW"):
        for dtype in ("float32", *INTEGERS, "int8", "int16"):
            for variant in ("same_shape", "broadcast_channel", "broadcast_both", "constant"):
                yield unquantized(operator, dtype, variant)
    for operator in ("ADD", "MUL"):
        for variant in ("same_shape", "broadcast_channel"):
            yield unquantized(operator, "int16", variant, "unquantized_")


def unquantized(operator: str, dtype: str, variant: str, prefix: str = "") -> Spec:
    """A binary case whose tensors carry no quantization, also for int8 and int16."""
    pair = SHAPES[variant]
    graph, name = Graph(), f"{operator}/{dtype}/{prefix}{variant}"
    indices = [
        operand(graph, name + side, shape, dtype, None, pair.const == side, numeric_range(operator, dtype, side == "y"))
        for side, shape in (("x", pair.x), ("y", pair.y))
    ]
    graph.op(operator, indices, [graph.output(np.broadcast_shapes(pair.x, pair.y), dtype)])
    return Spec(name, graph)


def comparison_specs() -> Iterator[Spec]:
    """Comparisons give bool; quantized operands may differ in scale and zero point."""
    extra = {
        "unequal_scales": Pair((8, 40), (8, 40), scales=(0.05, 0.04, 1.0), where=("odd", "mid", "odd")),
        "equal_scales": Pair((8, 40), (8, 40), scales=(0.05, 0.05, 1.0)),
        "zero_points_mixed": Pair((3, 41), (3, 41), where=("low", "high", "mid"), scales=(0.05, 0.05, 1.0)),
    }
    for operator in COMPARISONS:
        for dtype in (*QUANTIZED, "float32", *INTEGERS, "bool"):
            variants = {**SHAPES, **extra} if dtype in QUANTIZED else SHAPES
            for variant, pair in variants.items():
                if operator in ("EQUAL", "NOT_EQUAL") and variant in SHAPES and variant != "broadcast_channel":
                    pair = replace(pair, scales=(0.05, 0.05, 1.0), where=("odd", "odd", "odd"))
                yield binary(operator, dtype, variant, pair, out="bool")


def logical_specs() -> Iterator[Spec]:
    """LOGICAL_AND, LOGICAL_OR, LOGICAL_NOT."""
    for operator in ("LOGICAL_AND", "LOGICAL_OR"):
        for variant in ("same_shape", "broadcast_channel", "broadcast_both", "constant"):
            yield binary(operator, "bool", variant, SHAPES[variant], out="bool")
    graph = Graph()
    x = graph.input((3, 5), "bool")
    graph.op("LOGICAL_NOT", [x], [graph.output((3, 5), "bool")])
    yield Spec("LOGICAL_NOT/bool/rank2", graph)


def select_specs() -> Iterator[Spec]:
    """SELECT (a scalar, a vector or a full condition) and SELECT_V2 (broadcasting)."""
    shapes = {
        "SELECT": {"full": ((3, 4), (3, 4), (3, 4)), "scalar": ((), (2, 5), (2, 5)), "rows": ((3,), (3, 4), (3, 4))},
        "SELECT_V2": {
            "full": ((3, 4), (3, 4), (3, 4)),
            "scalar": ((), (2, 5), (2, 5)),
            "broadcast": ((3, 1), (1, 4), (2, 3, 4)),
            "broadcast_one": ((2, 3, 4), (), (4,)),
        },
    }
    for operator, variants in shapes.items():
        for dtype in (*QUANTIZED, "float32", *INTEGERS, "bool"):
            for variant, (c, x, y) in variants.items():
                graph, q = Graph(), activation(dtype)
                ins = [graph.input(c, "bool"), graph.input(x, dtype, q), graph.input(y, dtype, q)]
                graph.op(
                    operator, ins, [graph.output(np.broadcast_shapes(c if x != y or c == () else x, x, y), dtype, q)]
                )
                yield Spec(f"{operator}/{dtype}/{variant}", graph)

"""Reductions over one or several axes, ARG_MAX and ARG_MIN, CUMSUM, SOFTMAX and LOG_SOFTMAX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .builder import Graph, Q, Spec, activation

QUANTIZED = ("int8", "uint8", "int16")
REDUCTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...] | int, bool]] = {
    "height_width": ((2, 5, 4, 3), (1, 2), False),
    "height_width_keep": ((2, 5, 4, 3), (1, 2), True),
    "global_49": ((1, 7, 7, 5), (1, 2), True),
    "last": ((3, 4, 17), -1, False),
    "last_keep": ((3, 4, 17), (-1,), True),
    "first": ((6, 5), (0,), False),
    "middle": ((2, 9, 5), (1,), False),
    "negative_pair": ((2, 3, 4, 5), (-1, -3), True),
    "repeated_axis": ((2, 6, 3), (1, -2), False),
    "all": ((3, 4, 5), (0, 1, 2), False),
    "all_keep": ((3, 4, 5), (0, 1, 2), True),
    "unit_axis": ((4, 1, 6), (1,), False),
    "rank1": ((33,), (0,), False),
    "channels": ((1, 3, 3, 8), (3,), False),
    "pairs": ((3, 2, 5), (1,), False),
}
QUANTIZATIONS = {
    "": ((0.05, "odd"), (0.05, "odd")),
    "rescaled_": ((0.05, "odd"), (0.035, "mid")),
    "low_ends_": ((0.05, "low"), (0.043, "low")),
    "high_ends_": ((0.05, "high"), (0.07, "high")),
}


def reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...] | int, keep: bool) -> tuple[int, ...]:
    """Shape after reducing."""
    gone = {a % len(shape) for a in np.atleast_1d(axes)}
    return tuple(1 if i in gone else n for i, n in enumerate(shape) if keep or i not in gone)


def reduction(operator: str, dtype: str, variant: str, mode: str = "") -> Spec:
    """One reduction case."""
    shape, axes, keep = REDUCTIONS[variant]
    (in_scale, in_where), (out_scale, out_where) = QUANTIZATIONS[mode]
    count = int(np.prod(shape) // max(1, np.prod(reduced_shape(shape, axes, False))))
    graph = Graph()
    limits: dict[str, Any] = {}
    if operator == "REDUCE_PROD" and dtype == "float32":
        limits = {"low": -1.5, "high": 1.5}
    elif operator == "REDUCE_PROD" and dtype in ("int32", "int64"):
        limits = {"low": 1, "high": 3}
    if operator == "SUM":
        out_scale *= 6 if "ends" not in mode else max(2.0, count)
    if operator == "REDUCE_PROD":
        in_scale, out_scale = in_scale / 3, out_scale / (2 if "low" not in mode else 0.3)
    x = graph.input(shape, dtype, activation(dtype, in_scale, in_where), **limits)
    y = graph.output(reduced_shape(shape, axes, keep), dtype, activation(dtype, out_scale, out_where))
    graph.op(operator, [x, graph.const(axes, "int32")], [y], keepDims=keep)
    # The reference resolver's SUM reads int8 as if it were uint8; the builtin kernel is right.
    kernels = "builtin" if (operator, dtype) == ("SUM", "int8") else "reference"
    unsound = "LiteRT reads and writes beyond the 16-bit tensors" if (operator, dtype) == ("SUM", "int16") else ""
    return Spec(f"{operator}/{dtype}/{mode}{variant}", graph, kernels=kernels, unsound=unsound)


def reduce_specs() -> Iterator[Spec]:
    """MEAN, SUM, REDUCE_MAX, REDUCE_MIN, REDUCE_PROD, REDUCE_ANY, REDUCE_ALL."""
    for operator in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"):
        rescales = operator in ("MEAN", "SUM", "REDUCE_PROD")
        for dtype in (*QUANTIZED, "float32", "int32", "int64"):
            for variant in REDUCTIONS:
                yield reduction(operator, dtype, variant)
            for mode in ("rescaled_", "low_ends_", "high_ends_") if rescales and dtype in QUANTIZED else ():
                for variant in ("height_width", "height_width_keep", "last", "all", "middle"):
                    yield reduction(operator, dtype, variant, mode)
    for operator in ("REDUCE_ANY", "REDUCE_ALL"):
        for variant in ("height_width", "last_keep", "all", "rank1", "pairs"):
            yield reduction(operator, "bool", variant)


def arg_specs() -> Iterator[Spec]:
    """ARG_MAX and ARG_MIN: ties, axes, both index types."""
    for operator in ("ARG_MAX", "ARG_MIN"):
        for dtype in ("int8", "uint8", "int16", "float32", "int32", "int64", "bool"):
            for variant, shape, axis, index in (
                ("last", (3, 4, 11), -1, "int32"),
                ("first", (7, 5), 0, "int64"),
                ("middle", (2, 6, 4), 1, "int32"),
                ("rank1", (19,), 0, "int32"),
            ):
                graph = Graph()
                limits = {"low": -3, "high": 3} if dtype in ("int32", "int64") else {}
                x = graph.input(shape, dtype, activation(dtype), **limits)
                y = graph.output(reduced_shape(shape, axis, False), index)
                graph.op(operator, [x, graph.const(axis, "int32")], [y], outputType=2 if index == "int32" else 4)
                yield Spec(f"{operator}/{dtype}/{variant}", graph)


def cumsum_specs() -> Iterator[Spec]:
    """CUMSUM: exclusive, reverse, every axis."""
    for dtype in ("float32", "int32", "int64", "int8"):
        for variant, axis, options in (
            ("plain", 1, {}),
            ("exclusive", 0, {"exclusive": True}),
            ("reverse", -1, {"reverse": True}),
            ("exclusive_reverse", 1, {"exclusive": True, "reverse": True}),
        ):
            graph = Graph()
            x = graph.input((3, 4, 5), dtype)
            y = graph.output((3, 4, 5), dtype)
            graph.op("CUMSUM", [x, graph.const(axis, "int32")], [y], **options)
            yield Spec(f"CUMSUM/{dtype}/{variant}", graph)


SOFTMAX_SHAPES = {
    "rank2": ((3, 10), 1.0, 0.1),
    "one_row_wide": ((1, 301), 1.0, 0.05),
    "rank4": ((1, 3, 2, 7), 1.0, 0.1),
    "rank3": ((2, 3, 5), 1.0, 0.2),
    "rank1": ((12,), 1.0, 0.1),
    "beta": ((3, 10), 0.5, 0.1),
    "beta2": ((3, 10), 2.0, 0.1),
    "steep": ((4, 10), 1.0, 1.7),
    "gentle": ((3, 10), 1.0, 0.02),
    "flat": ((4, 10), 1.0, 0.002),
    "two_classes": ((9, 2), 1.0, 0.03),
}
SOFTMAX_OUTPUT = {"int8": Q(1 / 256, -128), "uint8": Q(1 / 256, 0), "int16": Q(1 / 32768, 0), "float32": None}
LOG_SOFTMAX_OUTPUT = {"int8": Q(16 / 256, 127), "uint8": Q(16 / 256, 255), "int16": Q(16 / 32768, 0), "float32": None}


def softmax_specs() -> Iterator[Spec]:
    """SOFTMAX with several betas and input scales; LOG_SOFTMAX."""
    for dtype in (*QUANTIZED, "float32"):
        for variant, (shape, beta, scale) in SOFTMAX_SHAPES.items():
            where = "low" if variant == "rank4" else "odd"
            graph = Graph()
            x = graph.input(shape, dtype, activation(dtype, scale, where))
            graph.op("SOFTMAX", [x], [graph.output(shape, dtype, SOFTMAX_OUTPUT[dtype])], beta=beta)
            yield Spec(f"SOFTMAX/{dtype}/{variant}", graph)
            if beta == 1.0:
                graph = Graph()
                x = graph.input(shape, dtype, activation(dtype, scale, where))
                graph.op("LOG_SOFTMAX", [x], [graph.output(shape, dtype, LOG_SOFTMAX_OUTPUT[dtype])])
                yield Spec(f"LOG_SOFTMAX/{dtype}/{variant}", graph)
    graph = Graph()
    x = graph.input((3, 10), "int8", activation("int8", 0.1))
    graph.op("SOFTMAX", [x], [graph.output((3, 10), "int16", Q(1 / 65536, -32768))], beta=1.0)
    yield Spec("SOFTMAX/int8/to_int16", graph)

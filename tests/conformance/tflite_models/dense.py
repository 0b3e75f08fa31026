"""FULLY_CONNECTED and BATCH_MATMUL: ranks, absent bias, per-channel, hybrid, 16x8, adjoints and broadcasting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .builder import Graph, Q, Spec, activation, rng_for
from .weights import FLOAT_KINDS, INTEGER_KINDS, Kind, add_weights, near_zero


@dataclass(frozen=True)
class Dense:
    """One fully connected layer."""

    shape: tuple[int, ...] = (2, 17)
    units: int = 5
    act: str = "none"
    keep: bool = False
    bias: bool = True
    in_where: str = "odd"
    out_where: str = "odd"
    gain: float = 1.0
    depth: int = 0
    """The length of a weight row where it is not the input's last dimension."""


DENSE_VARIANTS = {
    "basic": Dense(),
    "one_row": Dense((1, 32), 10, in_where="low"),
    "batch5_relu": Dense((5, 24), 8, act="relu", in_where="high", out_where="low"),
    "relu6": Dense((2, 9), 6, act="relu6", out_where="low"),
    "relu_n1_to_1": Dense((2, 9), 6, act="relu_n1_to_1", gain=0.5),
    "wide": Dense((1, 130), 33, in_where="mid", out_where="mid"),
    "one_unit": Dense((3, 16), 1, out_where="high"),
    "keep_num_dims_3d": Dense((2, 3, 8), 7, keep=True),
    "keep_num_dims_4d": Dense((1, 2, 2, 6), 4, keep=True, in_where="low"),
    "flatten_4d": Dense((2, 2, 2, 3), 5, depth=12),
    "rank3_without_keep": Dense((2, 3, 8), 7),
    "no_bias": Dense((2, 16), 6, bias=False),
    "small_multiplier": Dense((2, 16), 6, gain=0.01),
    "multiplier_above_one": Dense((2, 4), 6, gain=200.0),
}
FEW = ("basic", "batch5_relu", "keep_num_dims_3d", "no_bias", "wide")


def dense(key: str, variant: str, layer: Dense, asymmetric: bool = False) -> Spec:
    """A FULLY_CONNECTED case with constant weights."""
    kind = Kind(key)
    name = f"FULLY_CONNECTED/{kind.name}/{kind.suffix}{'asymmetric_' if asymmetric else ''}{variant}"
    graph, rng = Graph(), rng_for(name)
    source = activation(kind.activation, where=layer.in_where)
    x = graph.input(layer.shape, kind.activation, source, **near_zero(source, layer.gain))
    depth = layer.depth or layer.shape[-1]
    made = add_weights(
        graph, kind, rng, (layer.units, depth), 0, source, out_where=layer.out_where, gain=layer.gain,
        with_bias=layer.bias,
    )  # fmt: skip
    rows = int(np.prod(layer.shape)) // depth
    shape = (*layer.shape[:-1], layer.units) if layer.keep else (rows, layer.units)
    y = graph.output(shape, kind.activation, made.output)
    operands = [x, made.weight] + ([made.bias] if layer.bias else [])
    options = {"quantizedBiasType": 2} if kind.bias32 else {}
    graph.op(
        "FULLY_CONNECTED", operands, [y], act=layer.act, keepNumDims=layer.keep, asymmetricQuantizeInputs=asymmetric,
        **options,
    )  # fmt: skip
    return Spec(name, graph)


def dense_of_two_inputs(dtype: str) -> Spec:
    """FULLY_CONNECTED whose weights are a second model input; the bias is absent, written as -1."""
    graph = Graph()
    x = graph.input((3, 12), dtype, activation(dtype))
    weight_dtype = "int8" if dtype == "int16" else dtype
    q = None if dtype == "float32" else Q(0.01, 0 if weight_dtype == "int8" else 100)
    w = graph.input((4, 12), weight_dtype, q, low=-127 if weight_dtype == "int8" else None)
    scale = 0.05 * 0.01 * 74 * 74 * 9 / 127
    y = graph.output((3, 4), dtype, activation(dtype, scale))
    graph.op("FULLY_CONNECTED", [x, w, -1], [y], version=6 if dtype != "int16" else 7)
    return Spec(f"FULLY_CONNECTED/{dtype}/weights_from_input", graph)


def dense_specs() -> Iterator[Spec]:
    """FULLY_CONNECTED in every kind."""
    for key in INTEGER_KINDS + FLOAT_KINDS:
        for variant, layer in DENSE_VARIANTS.items():
            if key in ("int8", "int8_per_tensor", "uint8", "int16", "hybrid") or variant in FEW:
                yield dense(key, variant, layer)
            if key.startswith("hybrid") and variant in FEW:
                yield dense(key, variant, layer, asymmetric=True)
    for dtype in ("int8", "uint8", "int16", "float32"):
        yield dense_of_two_inputs(dtype)


@dataclass(frozen=True)
class Matmul:
    """One batched matrix product: operand shapes as stored."""

    x: tuple[int, ...] = (2, 3, 7)
    y: tuple[int, ...] = (2, 7, 4)
    adj_x: bool = False
    adj_y: bool = False
    const_y: bool = False
    in_where: str = "odd"
    out_where: str = "odd"


MATMUL_VARIANTS = {
    "basic": Matmul(),
    "rank2": Matmul((5, 6), (6, 3), in_where="low"),
    "adj_x": Matmul((2, 7, 3), (2, 7, 4), adj_x=True, out_where="low"),
    "adj_y": Matmul((2, 3, 7), (2, 4, 7), adj_y=True, in_where="high"),
    "adj_both": Matmul((2, 7, 3), (2, 4, 7), adj_x=True, adj_y=True, in_where="mid", out_where="mid"),
    "rank4": Matmul((2, 3, 4, 5), (2, 3, 5, 6), out_where="high"),
    "broadcast_y": Matmul((3, 4, 5), (5, 2)),
    "broadcast_batch": Matmul((1, 3, 4, 5), (2, 1, 5, 3)),
    "constant_y": Matmul((2, 3, 16), (16, 5), const_y=True),
    "constant_adj_y": Matmul((2, 3, 16), (5, 16), adj_y=True, const_y=True),
    "attention": Matmul((1, 2, 8, 16), (1, 2, 8, 16), adj_y=True),
}


def matmul(dtype: str, variant: str, case: Matmul, asymmetric: bool = False) -> Spec:
    """A BATCH_MATMUL case; hybrid ones have constant int8 on the right."""
    name = f"BATCH_MATMUL/{dtype}/{'asymmetric_' if asymmetric else ''}{variant}"
    graph, rng = Graph(), rng_for(name)
    act = "float32" if dtype == "hybrid" else dtype
    right = "int8" if dtype == "hybrid" else dtype
    x = graph.input(case.x, act, activation(act, where=case.in_where))
    y_q = Q(0.02) if dtype == "hybrid" else activation(right, 0.02, "mid" if case.in_where == "mid" else "odd")
    if case.const_y or dtype == "hybrid":
        low, high = (-127, 127) if right != "uint8" else (0, 255)
        values = rng.integers(low, high, case.y, endpoint=True)
        y = graph.const(values / 64 if right == "float32" else values, right, y_q)
    else:
        y = graph.input(case.y, right, y_q)
    rows, depth = (case.x[-1], case.x[-2]) if case.adj_x else case.x[-2:]
    columns = case.y[-2] if case.adj_y else case.y[-1]
    shape = (*np.broadcast_shapes(case.x[:-2], case.y[:-2]), rows, columns)
    scale = 0.05 * 0.02 * 74 * 74 * 2.5 * float(np.sqrt(depth)) / 127
    out = graph.output(
        shape, act, activation(act, 2 * scale if case.in_where in ("low", "high") else scale, case.out_where)
    )
    options = {"adjX": case.adj_x, "adjY": case.adj_y, "asymmetricQuantizeInputs": asymmetric}
    graph.op("BATCH_MATMUL", [x, y], [out], **options)
    faulty = dtype == "hybrid" and variant == "rank4"
    return Spec(name, graph, unsound="LiteRT scales some batches with another batch's scale" if faulty else "")


def batch_matmul_specs() -> Iterator[Spec]:
    """BATCH_MATMUL in every dtype."""
    for dtype in ("int8", "int16", "uint8", "float32", "hybrid"):
        for variant, case in MATMUL_VARIANTS.items():
            yield matmul(dtype, variant, case)
    yield matmul("hybrid", "constant_adj_y", MATMUL_VARIANTS["constant_adj_y"], asymmetric=True)
    yield matmul("hybrid", "constant_y", MATMUL_VARIANTS["constant_y"], asymmetric=True)

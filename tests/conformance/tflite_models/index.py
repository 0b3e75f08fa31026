"""Operators that pick or make values: gather, tile, broadcast, one-hot, top-k, reverse, shape, fill, range, add_n."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .builder import Graph, Spec, activation
from .shape import EVERY, move


def gather_specs() -> Iterator[Spec]:
    """GATHER with axis and batch_dims, constant and computed indices; GATHER_ND."""
    cases = {
        "rows": ((5, 3), [4, 0, 0, 2], 0, 0, (4, 3)),
        "last": ((2, 3, 5), [1, 4], -1, 0, (2, 3, 2)),
        "matrix_of_indices": ((6, 2), [[0, 5], [3, 3], [1, 2]], 0, 0, (3, 2, 2)),
        "scalar_index": ((4, 3), 2, 0, 0, (3,)),
        "middle": ((2, 4, 3), [3, 1, 1], 1, 0, (2, 3, 3)),
        "batch_dims1": ((2, 4, 3), [[0, 3], [2, 1]], 1, 1, (2, 2, 3)),
        "batch_dims1_axis2": ((2, 2, 4), [[0, 3, 1], [2, 1, 0]], 2, 1, (2, 2, 3)),
    }
    for dtype in EVERY:
        for variant, (shape, indices, axis, batch, target) in cases.items():
            yield move("GATHER", dtype, variant, shape, [indices], [target], axis=axis, batchDims=batch)
        yield move("GATHER", dtype, "int64_indices", (5, 3), [np.array([4, 1])], [(2, 3)], axis=0)
        graph, q = Graph(), activation(dtype)
        ins = [graph.input((5, 3), dtype, q), graph.input((4,), "int32", low=0, high=4)]
        graph.op("GATHER", ins, [graph.output((4, 3), dtype, q)], axis=0)
        yield Spec(f"GATHER/{dtype}/indices_from_input", graph)
        yield move("GATHER_ND", dtype, "elements", (3, 4), [[[0, 1], [2, 3], [2, 0]]], [(3,)])
        yield move("GATHER_ND", dtype, "slices", (3, 4, 2), [[[2], [0]]], [(2, 4, 2)])
        yield move("GATHER_ND", dtype, "batch_of_indices", (3, 4, 2), [[[[0, 1]], [[2, 3]]]], [(2, 1, 2)])
        yield move("GATHER_ND", dtype, "int64_indices", (3, 4), [np.array([[0, 1], [2, 3]])], [(2,)])


def repeat_specs() -> Iterator[Spec]:
    """TILE, BROADCAST_TO, REVERSE_V2."""
    for dtype in EVERY:
        yield move("TILE", dtype, "rank2", (2, 3), [[2, 3]], [(4, 9)])
        yield move("TILE", dtype, "rank4", (1, 2, 2, 3), [[2, 1, 3, 1]], [(2, 2, 6, 3)])
        yield move("TILE", dtype, "int64_multiples", (2, 3), [np.array([1, 2])], [(2, 6)])
        yield move("TILE", dtype, "ones", (2, 3), [[1, 1]], [(2, 3)])
        yield move("BROADCAST_TO", dtype, "rows", (1, 3), [[4, 3]], [(4, 3)])
        yield move("BROADCAST_TO", dtype, "more_dims", (3, 1), [[2, 3, 5]], [(2, 3, 5)])
        yield move("BROADCAST_TO", dtype, "scalar", (), [[2, 3]], [(2, 3)])
        yield move("BROADCAST_TO", dtype, "int64_shape", (1, 3), [np.array([2, 3])], [(2, 3)])
        yield move("REVERSE_V2", dtype, "last", (2, 3, 4), [[2]], [(2, 3, 4)])
        yield move("REVERSE_V2", dtype, "first", (5, 2), [[0]], [(5, 2)])
        yield move("REVERSE_V2", dtype, "negative", (2, 3, 4), [[-2]], [(2, 3, 4)])
        yield move("REVERSE_V2", dtype, "two_axes", (2, 3, 4), [[1, 2]], [(2, 3, 4)])


def one_hot_specs() -> Iterator[Spec]:
    """ONE_HOT: axis, index types, indices outside the depth."""
    for dtype in ("float32", "int32", "int64", "int8", "uint8", "int16", "bool"):
        for variant, axis, index, target in (
            ("last", -1, "int32", (2, 3, 5)),
            ("first", 0, "int32", (5, 2, 3)),
            ("middle", 1, "int64", (2, 5, 3)),
        ):
            graph, q = Graph(), activation(dtype)
            indices = graph.input((2, 3), index, low=-1, high=6)
            on, off = (1, 0) if dtype == "bool" else (7, 2)
            operands = [indices, graph.const(5, "int32"), graph.const(on, dtype, q), graph.const(off, dtype, q)]
            graph.op("ONE_HOT", operands, [graph.output(target, dtype, q)], axis=axis)
            yield Spec(f"ONE_HOT/{dtype}/{variant}", graph)


def topk_specs() -> Iterator[Spec]:
    """TOPK_V2: ties keep the lower index; k from 1 to the whole row."""
    for dtype in ("float32", "int8", "uint8", "int16", "int32", "int64"):
        for variant, shape, k in (
            ("rank1", (17,), 5),
            ("rank2", (3, 12), 4),
            ("rank3", (2, 2, 7), 1),
            ("all", (2, 6), 6),
        ):
            graph, q = Graph(), activation(dtype)
            limits = {"low": -4, "high": 4} if dtype in ("int32", "int64") else {}
            x = graph.input(shape, dtype, q, **limits)
            target = (*shape[:-1], k)
            outs = [graph.output(target, dtype, q), graph.output(target, "int32")]
            graph.op("TOPK_V2", [x, graph.const(k, "int32")], outs)
            yield Spec(f"TOPK_V2/{dtype}/{variant}", graph)


def create_specs() -> Iterator[Spec]:
    """SHAPE, RANK, ZEROS_LIKE, FILL, RANGE, ADD_N."""
    for dtype in EVERY:
        for code, out in ((2, "int32"), (4, "int64")):
            graph = Graph()
            x = graph.input((2, 3, 4), dtype, activation(dtype))
            graph.op("SHAPE", [x], [graph.output((3,), out)], outType=code)
            yield Spec(f"SHAPE/{dtype}/to_{out}", graph)
        graph = Graph()
        x = graph.input((2, 3, 4), dtype, activation(dtype))
        graph.op("RANK", [x], [graph.output((), "int32")])
        yield Spec(f"RANK/{dtype}/rank3", graph)
        yield move("ZEROS_LIKE", dtype, "rank2", (3, 4), [], [(3, 4)])
        for index in ("int32", "int64"):
            graph, q = Graph(), activation(dtype)
            value = graph.input((), dtype, q)
            graph.op("FILL", [graph.const([2, 3], index), value], [graph.output((2, 3), dtype, q)])
            yield Spec(f"FILL/{dtype}/dims_{index}", graph)
        for count in (2, 3, 5):
            graph, q = Graph(), activation(dtype)
            parts = [graph.input((2, 3, 4), dtype, q) for _ in range(count)]
            graph.op("ADD_N", parts, [graph.output((2, 3, 4), dtype, q)])
            yield Spec(f"ADD_N/{dtype}/{count}_inputs", graph)
    for dtype, start, limit, delta, count in (
        ("int32", 2, 11, 3, 3),
        ("int32", 5, -6, -2, 6),
        ("float32", 0.5, 3.0, 0.5, 5),
        ("int64", 0, 4, 1, 4),
    ):
        graph = Graph()
        x = graph.input((count,), dtype)
        made = graph.tensor((count,), dtype)
        graph.op("RANGE", [graph.const(v, dtype) for v in (start, limit, delta)], [made])
        graph.op("ADD", [x, made], [graph.output((count,), dtype)])
        yield Spec(f"RANGE/{dtype}/from_{start}_to_{limit}_then_add", graph)

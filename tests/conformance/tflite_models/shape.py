"""Operators that move data: concatenation, splitting, slicing, padding, transposing, tiling, space and depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .builder import Graph, Q, Spec, activation

QUANTIZED = ("int8", "uint8", "int16")
PLAIN = ("float32", "int32", "int64", "bool")
EVERY = (*QUANTIZED, *PLAIN)


def move(
    operator: str,
    dtype: str,
    variant: str,
    shape: Sequence[int],
    constants: Sequence[Any],
    out_shapes: Sequence[Sequence[int]],
    *,
    data_position: int = 0,
    q: Q | None = None,
    **options: Any,
) -> Spec:
    """A case with one data input, int32 constants around it, and outputs of the same dtype and quantization."""
    graph = Graph()
    q = q or activation(dtype)
    x = graph.input(shape, dtype, q)
    operands = [graph.const(c, None if isinstance(c, np.ndarray) else "int32") for c in constants]
    operands.insert(data_position, x)
    outputs = [graph.output(s, dtype, q) for s in out_shapes]
    graph.op(operator, operands, outputs, **options)
    return Spec(f"{operator}/{dtype}/{variant}", graph)


CONCATENATIONS: dict[str, tuple[list[tuple[int, ...]], int]] = {
    "channels": ([(1, 3, 4, 5), (1, 3, 4, 2)], 3),
    "negative_axis": ([(2, 3), (2, 4), (2, 1)], -1),
    "rows": ([(2, 3), (5, 3)], 0),
    "middle": ([(2, 1, 4), (2, 3, 4)], 1),
    "rank1": ([(3,), (4,), (5,)], 0),
    "five_inputs": ([(1, 2, 3)] * 5, 2),
    "one_input": ([(2, 3)], 1),
}


def concat_specs() -> Iterator[Spec]:
    """CONCATENATION; uint8 allows inputs whose scales differ from the output's."""
    for dtype in EVERY:
        for variant, (shapes, axis) in CONCATENATIONS.items():
            yield concat(dtype, variant, shapes, axis, [0.05] * len(shapes), ["odd"] * len(shapes))
    for dtype in QUANTIZED:
        shapes = [(2, 40), (2, 41), (2, 3)]
        yield concat(dtype, "unequal_scales", shapes, 1, [0.05, 0.02, 0.11], ["odd", "low", "high"])
        yield concat(dtype, "unequal_zero_points", shapes, 1, [0.05] * 3, ["odd", "low", "mid"])
        yield concat(dtype, "last_equals_output", shapes, 1, [0.031, 0.2, 0.05], ["high", "mid", "odd"])
    yield concat("uint8", "relu6", [(2, 3), (2, 4)], 1, [0.05, 0.05], ["odd", "odd"], act="relu6")
    graph, q = Graph(), activation("int8")
    parts = [graph.input((2, 3), "int8", q), graph.const(np.arange(4).reshape(2, 2), "int8", q)]
    graph.op("CONCATENATION", parts, [graph.output((2, 5), "int8", q)], axis=1)
    yield Spec("CONCATENATION/int8/constant_part", graph)


def concat(
    dtype: str, variant: str, shapes: list[tuple[int, ...]], axis: int, scales: list, wheres: list, **options: Any
) -> Spec:
    """One CONCATENATION case; the output has scale 0.05 and the odd zero point."""
    graph = Graph()
    qs = [activation(dtype, s, w) for s, w in zip(scales, wheres, strict=True)]
    parts = [graph.input(shape, dtype, q) for shape, q in zip(shapes, qs, strict=True)]
    total = list(shapes[0])
    total[axis] = sum(shape[axis] for shape in shapes)
    graph.op("CONCATENATION", parts, [graph.output(total, dtype, activation(dtype))], axis=axis, **options)
    return Spec(f"CONCATENATION/{dtype}/{variant}", graph)


def split_specs() -> Iterator[Spec]:
    """SPLIT, SPLIT_V, PACK, UNPACK."""
    for dtype in EVERY:
        thirds = [(2, 3, 2)] * 3
        yield move("SPLIT", dtype, "last", (2, 3, 6), [-1], thirds, data_position=1, numSplits=3)
        yield move("SPLIT", dtype, "second", (2, 6, 3), [1], [(2, 3, 3)] * 2, data_position=1, numSplits=2)
        yield move("SPLIT", dtype, "rows", (4, 5), [0], [(2, 5)] * 2, data_position=1, numSplits=2)
        yield move("SPLIT_V", dtype, "last", (2, 9), [[2, 4, 3], 1], [(2, 2), (2, 4), (2, 3)], numSplits=3)
        yield move("SPLIT_V", dtype, "inferred", (2, 9), [[2, -1, 3], -1], [(2, 2), (2, 4), (2, 3)], numSplits=3)
        yield move("SPLIT_V", dtype, "rows", (5, 2, 3), [[1, 4], 0], [(1, 2, 3), (4, 2, 3)], numSplits=2)
        yield move("UNPACK", dtype, "rows", (3, 4), [], [(4,)] * 3, num=3, axis=0)
        yield move("UNPACK", dtype, "last", (2, 3, 4), [], [(2, 3)] * 4, num=4, axis=-1)
        yield move("UNPACK", dtype, "middle", (2, 3, 4), [], [(2, 4)] * 3, num=3, axis=1)
        for variant, axis, shape in (("first", 0, (3, 2, 4)), ("last", -1, (2, 4, 3)), ("middle", 1, (2, 3, 4))):
            graph, q = Graph(), activation(dtype)
            parts = [graph.input((2, 4), dtype, q) for _ in range(3)]
            graph.op("PACK", parts, [graph.output(shape, dtype, q)], valuesCount=3, axis=axis)
            yield Spec(f"PACK/{dtype}/{variant}", graph)


def reshape_specs() -> Iterator[Spec]:
    """RESHAPE, SQUEEZE, EXPAND_DIMS, TRANSPOSE."""
    for dtype in EVERY:
        yield move("RESHAPE", dtype, "flatten", (2, 3, 4), [[2, 12]], [(2, 12)], newShape=[2, 12])
        yield move("RESHAPE", dtype, "inferred", (2, 3, 4), [[-1, 6]], [(4, 6)], newShape=[-1, 6])
        yield move("RESHAPE", dtype, "more_dims", (12,), [[1, 2, 1, 6]], [(1, 2, 1, 6)], newShape=[1, 2, 1, 6])
        yield move("RESHAPE", dtype, "shape_in_options", (2, 6), [], [(3, 4)], newShape=[3, 4])
        yield move("RESHAPE", dtype, "to_scalar", (1, 1), [np.array([], dtype="int32")], [()])
        yield move("SQUEEZE", dtype, "all", (1, 3, 1, 4), [], [(3, 4)], squeezeDims=[])
        yield move("SQUEEZE", dtype, "one", (1, 3, 1, 4), [], [(1, 3, 4)], squeezeDims=[2])
        yield move("SQUEEZE", dtype, "negative", (1, 3, 1, 4), [], [(1, 3, 4)], squeezeDims=[-2])
        yield move("EXPAND_DIMS", dtype, "first", (3, 4), [0], [(1, 3, 4)])
        yield move("EXPAND_DIMS", dtype, "last", (3, 4), [[-1]], [(3, 4, 1)])
        yield move("EXPAND_DIMS", dtype, "middle", (3, 4), [1], [(3, 1, 4)])
        for order in (
            (1, 0),
            (0, 2, 1),
            (2, 0, 1),
            (0, 3, 1, 2),
            (0, 2, 3, 1),
            (3, 2, 1, 0),
            (0, 1, 4, 2, 3),
            (5, 3, 1, 0, 2, 4),
        ):
            shape = (2, 3, 4, 5, 2, 3)[: len(order)] if len(order) < 6 else (2, 1, 3, 2, 2, 3)
            target = [shape[i] for i in order]
            yield move("TRANSPOSE", dtype, "".join(map(str, order)), shape, [list(order)], [target])


def slice_specs() -> Iterator[Spec]:
    """SLICE and STRIDED_SLICE: masks, negative strides and indices, new and shrunk axes."""
    for dtype in EVERY:
        yield move("SLICE", dtype, "inner", (4, 5, 6), [[1, 0, 2], [2, 5, 3]], [(2, 5, 3)])
        yield move("SLICE", dtype, "to_end", (4, 5), [[1, 2], [-1, 2]], [(3, 2)])
        yield move("SLICE", dtype, "rank4", (2, 3, 4, 5), [[0, 1, 1, 0], [1, 2, -1, 3]], [(1, 2, 3, 3)])
        yield move("SLICE", dtype, "rank5", (2, 2, 3, 2, 4), [[1, 0, 1, 0, 1], [1, 2, 2, 2, 2]], [(1, 2, 2, 2, 2)])
        for variant, shape, begin, end, strides, target, options in STRIDED_SLICES:
            yield move("STRIDED_SLICE", dtype, variant, shape, [begin, end, strides], [target], **options)


STRIDED_SLICES: tuple[tuple[str, tuple, list, list, list, tuple, dict[str, Any]], ...] = (
    ("plain", (4, 5), [1, 0], [3, 5], [1, 2], (2, 3), {}),
    ("begin_end_masks", (4, 5), [2, 1], [1, 3], [1, 1], (4, 4), {"beginMask": 1, "endMask": 3}),
    ("negative_stride", (4, 5), [-1, 4], [-5, 0], [-1, -2], (4, 2), {}),
    ("reverse_masked", (7,), [0], [0], [-1], (7,), {"beginMask": 1, "endMask": 1}),
    ("negative_indices", (4, 5), [-3, -4], [-1, -1], [1, 1], (2, 3), {}),
    ("shrink", (4, 5, 3), [2, 0, 0], [3, 5, 3], [1, 1, 1], (5, 3), {"shrinkAxisMask": 1}),
    (
        "shrink_last_negative",
        (4, 5),
        [0, -1],
        [4, 0],
        [1, 1],
        (4,),
        {"beginMask": 1, "endMask": 1, "shrinkAxisMask": 2},
    ),
    ("new_axis", (4, 5), [0, 0, 1], [0, 4, 4], [1, 1, 1], (1, 4, 3), {"newAxisMask": 1}),
    ("ellipsis", (2, 3, 4, 5), [0, 0, 1], [1, 0, 4], [1, 1, 2], (1, 3, 4, 2), {"ellipsisMask": 2}),
    ("beyond_end", (4, 5), [1, 2], [9, 9], [2, 1], (2, 3), {}),
    ("rank4", (1, 6, 6, 2), [0, 1, 1, 0], [1, 6, 6, 2], [1, 2, 2, 1], (1, 3, 3, 2), {}),
    ("rank5", (2, 3, 2, 3, 2), [0, 1, 0, 0, 1], [2, 3, 2, 3, 2], [1, 1, 1, 2, 1], (2, 2, 2, 2, 1), {}),
    ("fewer_indices", (4, 5, 2), [1], [3], [1], (2, 5, 2), {}),
)


def pad_value_q(dtype: str) -> tuple[Q | None, Any]:
    """Quantization and value of PADV2's constant."""
    return activation(dtype), {"bool": 1, "uint8": 200}.get(dtype, 7)


def pad_specs() -> Iterator[Spec]:
    """PAD, PADV2, MIRROR_PAD; 32- and 64-bit paddings."""
    paddings = {
        "image": ((1, 3, 4, 2), [[0, 0], [1, 2], [2, 0], [0, 0]]),
        "channels": ((1, 2, 3, 4), [[0, 0], [0, 0], [0, 0], [1, 3]]),
        "everywhere": ((2, 3), [[1, 2], [3, 0]]),
        "nothing": ((2, 3), [[0, 0], [0, 0]]),
        "rank5": ((1, 2, 2, 2, 3), [[0, 1], [0, 0], [1, 0], [0, 0], [0, 2]]),
    }
    for dtype in EVERY:
        for variant, (shape, padding) in paddings.items():
            target = [n + sum(p) for n, p in zip(shape, padding, strict=True)]
            yield move("PAD", dtype, variant, shape, [padding], [target])
            graph, (q, value) = Graph(), pad_value_q(dtype)
            ins = [graph.input(shape, dtype, q), graph.const(padding, "int32"), graph.const([value], dtype, q)]
            graph.op("PADV2", ins, [graph.output(target, dtype, q)])
            yield Spec(f"PADV2/{dtype}/{variant}", graph)
        for mode, code in (("reflect", 0), ("symmetric", 1)):
            yield move("MIRROR_PAD", dtype, f"{mode}_rank2", (3, 4), [[[1, 2], [2, 3]]], [(6, 9)], mode=code)
            image = [[0, 0], [1, 2], [1, 1], [0, 0]]
            yield move("MIRROR_PAD", dtype, f"{mode}_image", (1, 3, 4, 2), [image], [(1, 6, 6, 2)], mode=code)
    for dtype in ("int8", "float32"):
        padding = np.array([[1, 2], [3, 0]], dtype="int64")
        yield move("PAD", dtype, "int64_paddings", (2, 3), [padding], [(5, 6)])
    for where in ("low", "mid", "high"):
        for dtype in ("int8", "uint8"):
            q = activation(dtype, where=where)
            yield move("PAD", dtype, f"zero_point_{where}", (2, 3), [[[1, 2], [3, 0]]], [(5, 6)], q=q)


def space_specs() -> Iterator[Spec]:
    """SPACE_TO_DEPTH, DEPTH_TO_SPACE, SPACE_TO_BATCH_ND, BATCH_TO_SPACE_ND."""
    for dtype in EVERY:
        yield move("SPACE_TO_DEPTH", dtype, "block2", (1, 4, 6, 3), [], [(1, 2, 3, 12)], blockSize=2)
        yield move("SPACE_TO_DEPTH", dtype, "block3_batch", (2, 3, 6, 1), [], [(2, 1, 2, 9)], blockSize=3)
        yield move("DEPTH_TO_SPACE", dtype, "block2", (1, 2, 3, 12), [], [(1, 4, 6, 3)], blockSize=2)
        yield move("DEPTH_TO_SPACE", dtype, "block3_batch", (2, 1, 2, 9), [], [(2, 3, 6, 1)], blockSize=3)
        s2b, b2s = "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"
        none = [[0, 0], [0, 0]]
        yield move(s2b, dtype, "block2", (1, 4, 6, 3), [[2, 2], none], [(4, 2, 3, 3)])
        yield move(s2b, dtype, "padded", (2, 3, 5, 1), [[2, 3], [[1, 0], [0, 1]]], [(12, 2, 2, 1)])
        yield move(s2b, dtype, "rank3", (1, 6, 2), [[3], [[0, 0]]], [(3, 2, 2)])
        yield move(b2s, dtype, "block2", (4, 2, 3, 3), [[2, 2], none], [(1, 4, 6, 3)])
        yield move(b2s, dtype, "cropped", (12, 2, 2, 1), [[2, 3], [[1, 0], [0, 1]]], [(2, 3, 5, 1)])
        yield move(b2s, dtype, "rank3", (3, 2, 2), [[3], [[0, 0]]], [(1, 6, 2)])

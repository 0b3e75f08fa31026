"""Tiny .tflite files that demand excessive resources: name -> (file, limit that refuses it or part of another message).

Run as a program it imports them all, see `tests.frontends.explosions`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np

from tests.frontends.explosions import attack
from tests.frontends.tflite.schema_models import TYPES, Sketch

OPS = schema.BuiltinOperator
FLOAT, INT32, INT64 = TYPES.FLOAT32, TYPES.INT32, TYPES.INT64
IMAGE = (1, 4, 4, 1)
DTYPES = {np.dtype(name): getattr(TYPES, name.upper()) for name in ("float32", "int32", "int64", "int8")}


def options(kind: str, **values: Any) -> Any:
    """A table of operator options."""
    table = getattr(schema, f"{kind}OptionsT")()
    for name, value in values.items():
        setattr(table, name, value)
    return table


def const(sketch: Sketch, value: Any, dtype: Any = np.int32) -> int:
    array = np.asarray(value, dtype)
    return sketch.tensor(array.shape, DTYPES[array.dtype], array)


def model(fill: Callable[[Sketch, int], int], shape: Sequence[int] = (1, 8), dtype: int = FLOAT) -> bytes:
    """A model of x: `fill` adds operators and returns the output tensor."""
    sketch = Sketch()
    x = sketch.tensor(tuple(shape), dtype, name="x")
    y = fill(sketch, x)
    sketch.graph.inputs, sketch.graph.outputs = [x], [y]
    return sketch.bytes()


def call(sketch: Sketch, code: int, inputs: Sequence[int], table: Any = None, dtype: int = FLOAT) -> int:
    """Adds an operator; returns its result, whose shape is left open."""
    y = sketch.tensor((), dtype)
    sketch.operator(code, list(inputs), [y], table)
    return y


def single(
    code: int, *operands: Any, table: Any = None, shape: Sequence[int] = (1, 8), dtype: int = FLOAT, out: int = FLOAT
) -> bytes:
    """One operator of x and constants: integers become int32."""
    return model(lambda s, x: call(s, code, [x, *(const(s, o) for o in operands)], table, out), shape, dtype)


def made(code: int, *operands: Any, table: Any = None, out: int = FLOAT) -> bytes:
    """x + Σ k, with k = one operator of constants."""

    def fill(sketch: Sketch, x: int) -> int:
        arrays = [np.asarray(operand) for operand in operands]
        inputs = [const(sketch, array, array.dtype) for array in arrays]
        k = call(sketch, code, inputs, table, out)
        if out != FLOAT:
            k = call(sketch, OPS.CAST, [k])
        axes = call(sketch, OPS.RANK, [k], dtype=INT32)
        axes = call(sketch, OPS.RANGE, [const(sketch, 0), axes, const(sketch, 1)], dtype=INT32)
        return call(sketch, OPS.ADD, [x, call(sketch, OPS.SUM, [k, axes])], options("Add"))

    return model(fill)


def chain(
    code: int, times: int, *operands: Any, table: Any = None, twice: bool = False, of: int | None = None
) -> bytes:
    """The same operator repeated on x, or on a constant of `of` elements."""

    def fill(sketch: Sketch, x: int) -> int:
        k = x if of is None else const(sketch, f32(1, of), np.float32)
        extra = [const(sketch, operand) for operand in operands]
        for _ in range(times):
            k = call(sketch, code, [k, k] if twice else [k, *extra], table)
        if of is None:
            return k
        return call(sketch, OPS.ADD, [x, call(sketch, OPS.SUM, [k, const(sketch, [0, 1])])], options("Add"))

    return model(fill)


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def i32(value: Any) -> np.ndarray:
    return np.asarray(value, np.int32)


SAME = schema.Padding.SAME
CONCAT = options("Concatenation", axis=0)


def convolution(sketch: Sketch, x: int, **values: Any) -> int:
    w = const(sketch, f32(1, 2, 2, 1), np.float32)
    b = const(sketch, f32(1), np.float32)
    table = options("Conv2D", strideW=1, strideH=1, **values)
    return call(sketch, OPS.CONV_2D, [x, w, b], table)


def transposed(size: Sequence[int], stride: int) -> Callable[[Sketch, int], int]:
    def fill(sketch: Sketch, x: int) -> int:
        inputs = [const(sketch, size), const(sketch, f32(1, 2, 2, 1), np.float32), x]
        return call(sketch, OPS.TRANSPOSE_CONV, inputs, options("TransposeConv", strideW=stride, strideH=stride))

    return fill


def pooled(size: int) -> bytes:
    table = options("Pool2D", filterWidth=size, filterHeight=size, strideW=1, strideH=1, padding=SAME)
    return single(OPS.AVERAGE_POOL_2D, table=table, shape=IMAGE)


def lstm(steps: int) -> bytes:
    def fill(sketch: Sketch, x: int) -> int:
        weights = [const(sketch, f32(1, 1), np.float32) for _ in range(8)]
        biases = [const(sketch, f32(1), np.float32) for _ in range(4)]
        states = []
        for _ in range(2):
            states.append(sketch.tensor((1, 1), FLOAT))
            sketch.graph.tensors[states[-1]].isVariable = True
        inputs = [x, *weights, -1, -1, -1, *biases, -1, -1, *states, -1, -1, -1, -1]
        table = options("UnidirectionalSequenceLSTM", fusedActivationFunction=schema.ActivationFunctionType.TANH)
        return call(sketch, OPS.UNIDIRECTIONAL_SEQUENCE_LSTM, inputs, table)

    return model(fill, (1, steps, 1))


def variable(shape: Sequence[int]) -> bytes:
    """A streaming filter whose memory is large."""

    def fill(sketch: Sketch, x: int) -> int:
        units, frames = shape
        feature, time = const(sketch, f32(units, 8), np.float32), const(sketch, f32(units, 1), np.float32)
        state = sketch.tensor((1, units * frames), FLOAT)
        sketch.graph.tensors[state].isVariable = True
        return call(sketch, OPS.SVDF, [x, feature, time, -1, state], options("SVDF", rank=1))

    return model(fill)


def sparse(rows: int) -> bytes:
    """Weights that the file only gives the sizes of."""

    def fill(sketch: Sketch, x: int) -> int:
        w = const(sketch, f32(1), np.float32)
        tensor = sketch.graph.tensors[w]
        tensor.shape = [rows, 8]
        tensor.sparsity = schema.SparsityParametersT()
        tensor.sparsity.traversalOrder = [0, 1]
        dense, compressed = schema.DimensionMetadataT(), schema.DimensionMetadataT()
        dense.format, dense.denseSize = schema.DimensionType.DENSE, rows
        compressed.format = schema.DimensionType.SPARSE_CSR
        compressed.arraySegmentsType = compressed.arrayIndicesType = schema.SparseIndexVector.Int32Vector
        compressed.arraySegments, compressed.arrayIndices = schema.Int32VectorT(), schema.Int32VectorT()
        compressed.arraySegments.values, compressed.arrayIndices.values = [0, 1], [0]
        tensor.sparsity.dimMetadata = [dense, compressed]
        return call(sketch, OPS.FULLY_CONNECTED, [x, w], options("FullyConnected"))

    return model(fill)


def subgraphs(code: int, table: Any) -> bytes:
    """A subgraph that calls itself, and that the main one calls."""
    sketch = Sketch()
    x = sketch.tensor((1, 8), FLOAT)
    sketch.operator(code, [], [], table)
    y = call(sketch, OPS.NEG, [x])
    sketch.graph.inputs, sketch.graph.outputs = [x], [y]
    inner = schema.SubGraphT()
    inner.tensors, inner.inputs, inner.outputs = [], [], []
    inner.operators = [sketch.graph.operators[0]]
    sketch.model.subgraphs.append(inner)
    return sketch.bytes()


def sliced(times: int) -> bytes:
    """Split in two and joined, with each part twice: the elements double."""

    def fill(sketch: Sketch, x: int) -> int:
        axis = const(sketch, 1)
        for _ in range(times):
            parts = [sketch.tensor((), FLOAT) for _ in range(2)]
            sketch.operator(OPS.SPLIT, [axis, x], parts, options("Split", numSplits=2))
            x = call(sketch, OPS.CONCATENATION, [*parts, *parts], options("Concatenation", axis=1))
        return x

    return model(fill)


def unpacked(parts: int) -> bytes:
    """As many results as the unpacked axis has elements."""

    def fill(sketch: Sketch, x: int) -> int:
        results = [sketch.tensor((), FLOAT) for _ in range(parts)]
        sketch.operator(OPS.UNPACK, [x], results, options("Unpack", num=parts, axis=1))
        return results[0]

    return model(fill, (1, parts))


def resized(name: str, sizes: Sequence[int]) -> bytes:
    kind = "".join(word.title() for word in name.split("_"))
    return single(getattr(OPS, name), sizes, table=options(kind), shape=IMAGE)


def picked(rows: int) -> bytes:
    """A constant row gathered repeatedly."""
    return made(OPS.GATHER, f32(1, 1 << 15), np.zeros(rows, np.int32), table=options("Gather"))


def one_hot(depth: int) -> bytes:
    def fill(sketch: Sketch, x: int) -> int:
        values = [const(sketch, value, np.float32) for value in (1, 0)]
        return call(sketch, OPS.ONE_HOT, [x, const(sketch, depth), *values], options("OneHot", axis=-1))

    return model(fill, dtype=INT32)


def outer(rows: int, columns: int, code: int = OPS.ADD, table: str = "Add") -> bytes:
    return made(code, f32(rows, 1), f32(1, columns), table=options(table))


CASES: dict[str, tuple[bytes, str]] = {
    "input": (single(OPS.NEG, shape=(1 << 30, 1 << 30)), "cannot be computed"),
    "input whose elements overflow 64 bits": (single(OPS.NEG, shape=(1 << 30,) * 5), "cannot be computed"),
    "dimensions": (single(OPS.NEG, shape=(1,) * 5000), "32"),
    "tile": (single(OPS.TILE, [1 << 28, 1]), "cannot be computed"),
    "tile that overflows": (single(OPS.TILE, [2**31 - 1, 2**31 - 1]), "cannot be computed"),
    "tiled constant": (made(OPS.TILE, f32(1, 1), i32([1 << 14, 1 << 14])), ""),
    "tiles of tiles": (chain(OPS.TILE, 40, [2, 1]), "cannot be computed"),
    "tiles of a constant": (chain(OPS.TILE, 40, [2, 1], of=8), "cannot be computed"),
    "pad": (single(OPS.PAD, [[0, 0], [0, 1 << 30]]), ""),
    "pad that overflows": (single(OPS.PAD, [[2**31 - 1] * 2, [2**31 - 1] * 2]), "cannot be computed"),
    "padded constant": (made(OPS.PAD, f32(1, 1), i32([[0, 1 << 14], [0, 1 << 14]])), ""),
    "pads of pads": (chain(OPS.PAD, 40, [[1, 1 << 20], [0, 0]]), ""),
    "mirror": (single(OPS.MIRROR_PAD, [[0, 0], [7, 7]], table=options("MirrorPad", mode=0), shape=(1 << 20, 8)), ""),
    "bilinear": (resized("RESIZE_BILINEAR", [1 << 30, 4]), "cannot be computed"),
    "bilinear axis": (resized("RESIZE_BILINEAR", [1 << 26, 4]), "folded"),
    "nearest": (resized("RESIZE_NEAREST_NEIGHBOR", [1 << 30, 4]), "cannot be computed"),
    "nearest axis": (resized("RESIZE_NEAREST_NEIGHBOR", [1 << 26, 4]), "folded"),
    "resized constant": (
        made(OPS.RESIZE_NEAREST_NEIGHBOR, f32(*IMAGE), i32([1 << 14, 1 << 14]), table=options("ResizeNearestNeighbor")),
        "folded",
    ),
    "broadcast": (single(OPS.BROADCAST_TO, [1 << 28, 8]), "cannot be computed"),
    "broadcast constant": (made(OPS.BROADCAST_TO, f32(1), i32([1 << 28])), "folded"),
    "fill": (made(OPS.FILL, i32([1 << 28]), np.float32(1)), "folded"),
    "fill that overflows": (made(OPS.FILL, i32([2**31 - 1] * 4), np.float32(1)), "cannot be computed"),
    "fill of many dimensions": (made(OPS.FILL, i32([1] * 5000), np.float32(1)), "32"),
    "range": (made(OPS.RANGE, i32(0), i32(1 << 30), i32(1), out=INT32), "folded"),
    "range of floats": (made(OPS.RANGE, np.float32(0), np.float32(1e30), np.float32(1e-30)), "far out of range"),
    "range in 64 bits": (made(OPS.RANGE, np.int64(-(2**63)), np.int64(2**63 - 1), np.int64(1), out=INT64), "no range"),
    "one hot": (one_hot(1 << 30), "cannot be computed"),
    "zeros like": (single(OPS.ZEROS_LIKE, shape=(1 << 15, 1 << 15)), "folded"),
    "space to batch": (
        single(OPS.SPACE_TO_BATCH_ND, [1, 1], [[0, 1 << 30], [0, 0]], shape=IMAGE),
        "cannot be computed",
    ),
    "blocks of space to batch": (
        single(OPS.SPACE_TO_BATCH_ND, [1 << 14, 1 << 14], [[0, (1 << 14) - 4]] * 2, shape=IMAGE),
        "",
    ),
    "batch to space": (single(OPS.BATCH_TO_SPACE_ND, [1 << 30, 1 << 30], [[0, 0]] * 2, shape=IMAGE), "do not divide"),
    "depth to space": (
        single(OPS.DEPTH_TO_SPACE, table=options("DepthToSpace", blockSize=1 << 30), shape=IMAGE),
        "cannot be divided",
    ),
    "transposed convolution": (model(transposed([1, 1 << 30, 1 << 30, 1], 1), IMAGE), "padding"),
    "transposed convolution with strides": (
        model(transposed([1, 1 << 20, 1 << 20, 1], 1 << 18), IMAGE),
        "cannot be computed",
    ),
    "dilated window": (
        model(lambda s, x: convolution(s, x, dilationWFactor=1 << 30, dilationHFactor=1 << 30), IMAGE),
        "padding",
    ),
    "pooled": (pooled(1 << 30), "padding"),
    "pooled image": (pooled(1 << 16), "cannot be computed"),
    "concatenated": (model(lambda s, x: call(s, OPS.CONCATENATION, [x] * 5000, CONCAT)), "operands"),
    "doubled input": (chain(OPS.CONCATENATION, 40, table=CONCAT, twice=True), "cannot be computed"),
    "doubled constant": (chain(OPS.CONCATENATION, 40, table=CONCAT, twice=True, of=8), "cannot be computed"),
    "packed": (model(lambda s, x: call(s, OPS.PACK, [x] * 5000, options("Pack", valuesCount=5000))), "operands"),
    "packs of packs": (chain(OPS.PACK, 40, table=options("Pack", valuesCount=2), twice=True), "cannot be computed"),
    "doubled halves": (sliced(40), "cannot be computed"),
    "parts": (unpacked(5000), "operands"),
    "added": (model(lambda s, x: call(s, OPS.ADD_N, [x] * 5000)), "operands"),
    "outer sum": (outer(1 << 16, 1 << 15), "cannot be computed"),
    "outer sum that fits": (outer(1 << 15, 1 << 14), ""),
    "outer product": (outer(1 << 15, 1 << 15, OPS.BATCH_MATMUL, "BatchMatMul"), ""),
    "rows of a table": (picked(1 << 15), ""),
    "steps": (lstm(1 << 20), ""),
    "memory of a filter": (variable((1, 1 << 28)), "constants"),
    "sparse weights": (sparse(1 << 28), "a sparse tensor of shape (268435456, 8)"),
    "initialization that calls itself": (
        subgraphs(OPS.CALL_ONCE, options("CallOnce", initSubgraphIndex=1)),
        "initialization subgraph called within another",
    ),
    "loop": (
        subgraphs(OPS.WHILE, options("While", condSubgraphIndex=1, bodySubgraphIndex=1)),
        "expected 0 and 1",
    ),
    "branch": (subgraphs(OPS.IF, options("If", thenSubgraphIndex=1, elseSubgraphIndex=1)), "input 0 is missing"),
    "call": (subgraphs(OPS.CALL, options("Call", subgraph=1)), "nested too deeply"),
    "cumulated": (single(OPS.CUMSUM, 1, table=options("Cumsum"), shape=(1 << 14, 1 << 14)), ""),
    "largest of many": (single(OPS.TOPK_V2, 1 << 30, shape=(1, 8)), "cannot take"),
    "slice": (single(OPS.SLICE, [0, 0], [1 << 30, 1 << 30]), "reach beyond"),
    "sizes": (single(OPS.RESHAPE, [-1, *[1] * 5000], table=options("Reshape")), "32"),
}


def main() -> None:
    from qnn_ext import from_tflite

    attack(from_tflite, single(OPS.NEG), {name: content for name, (content, _) in CASES.items()})


if __name__ == "__main__":
    sys.exit(main())

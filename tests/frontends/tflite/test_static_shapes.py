"""Shapes, sizes, axes and paddings computed from static shapes are static: against LiteRT."""

import numpy as np
import pytest

from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.tflite_models.builder import Graph, Q
from tests.conformance.tflite_models.runner import invoke

from .schema_models import TYPES

SHAPE = (2, 6, 8, 3)
SCALE = Q(0.1, 3)


class ShapeGraph(Graph):
    """A graph whose input has `SHAPE`, with the operators that shape arithmetic is written in."""

    def __init__(self, dtype="int8"):
        super().__init__()
        self.x = self.value(SHAPE, dtype)
        self.packed.inputs = [self.x]
        self.shape = self.apply("SHAPE", [self.x], outType=TYPES.INT32)

    def value(self, shape=(), dtype="int8"):
        """A tensor; without dimensions, as the file declares a shape known only at run time."""
        return self.tensor(shape, dtype, SCALE if dtype == "int8" else None)

    def apply(self, operator, inputs, dtype="int32", **options):
        """The result of an operator on tensors, or on numbers, which become constants."""
        result = self.value((), dtype)
        operands = [operand if isinstance(operand, int) else self.const(*operand) for operand in inputs]
        self.op(operator, operands, [result], **options)
        return result

    def dim(self, index):
        """One dimension of the input."""
        bounds = [([bound], "int32") for bound in (index, index + 1, 1)]
        return self.apply("STRIDED_SLICE", [self.shape, *bounds], shrinkAxisMask=1)

    def pack(self, *dims):
        """A vector of dimensions: tensors, or constants in brackets."""
        operands = [dim if isinstance(dim, int) else (dim[0], "int32") for dim in dims]
        return self.apply("PACK", operands, valuesCount=len(dims), axis=0)

    def pairs(self, *dims):
        """A matrix of two columns."""
        return self.apply("RESHAPE", [self.pack(*dims), ([len(dims) // 2, 2], "int32")])

    def finish(self, operator, inputs, dtypes=("int8",), **options):
        """The last operator, whose results are the outputs."""
        self.packed.outputs = [self.value((), dtype) for dtype in dtypes]
        self.op(operator, inputs, self.packed.outputs, **options)


def assert_equals_litert(graph):
    dtype = graph.dtypes[graph.x]
    values = np.random.default_rng(0).integers(-128, 128, SHAPE).astype(dtype)
    expected = invoke(graph.build(), [[values]], "default", stateful=False)[0]
    found = Interpreter(from_tflite(graph.build())).run([values]).values()
    for result, reference in zip(found, expected, strict=True):
        np.testing.assert_array_equal(result, reference)
        assert (result.shape, result.dtype) == (reference.shape, reference.dtype)


def arithmetic(operator, *operands, **options):
    """An operator on dimensions of the input (their indices) and constants (in brackets)."""

    def build(g):
        return g.apply(operator, [g.dim(i) if isinstance(i, int) else (i[0], "int32") for i in operands], **options)

    return build


def reduction(operator):
    def build(g):
        first = g.apply("SLICE", [g.shape, ([0], "int32"), ([2], "int32")])
        return g.apply(operator, [first, ([0], "int32")], keepDims=False)

    return build


def through_float(g):
    half = g.apply("CAST", [g.dim(1)], "float32", inDataType=TYPES.INT32, outDataType=TYPES.FLOAT32)
    half = g.apply("CEIL", [g.apply("MUL", [half, (0.4, "float32")], "float32")], "float32")
    return g.apply("CAST", [half], inDataType=TYPES.FLOAT32, outDataType=TYPES.INT32)


def selected(g):
    larger = g.apply("GREATER", [g.dim(1), g.dim(0)], "bool")
    return g.apply("SELECT_V2", [larger, g.dim(1), g.dim(0)])


def unpacked(g):
    dims = [g.value((), "int32") for _ in range(4)]
    g.op("UNPACK", [g.shape], dims, num=4, axis=0)
    return dims[1]


PRODUCERS = {
    "ADD": arithmetic("ADD", 0, 1),
    "SUB": arithmetic("SUB", 1, 0),
    "MUL": arithmetic("MUL", 0, [3]),
    "DIV": arithmetic("DIV", 2, 0),
    "FLOOR_DIV": arithmetic("FLOOR_DIV", 2, 3),
    "FLOOR_MOD": arithmetic("FLOOR_MOD", 2, 3),
    "POW": arithmetic("POW", 0, [2]),
    "MAXIMUM": arithmetic("MAXIMUM", 0, 3),
    "MINIMUM": arithmetic("MINIMUM", 1, [4]),
    "NEG": lambda g: g.apply("ABS", [g.apply("NEG", [g.dim(0)])]),
    "GATHER": lambda g: g.apply("GATHER", [g.shape, (1, "int32")], axis=0),
    "REDUCE_PROD": reduction("REDUCE_PROD"),
    "REDUCE_MAX": reduction("REDUCE_MAX"),
    "SUM": reduction("SUM"),
    "MEAN": reduction("MEAN"),
    "CAST": through_float,
    "SELECT_V2": selected,
    "UNPACK": unpacked,
    "RANK": lambda g: g.apply("RANK", [g.x]),
}


@pytest.mark.parametrize("producer", PRODUCERS.values(), ids=PRODUCERS)
def test_a_dimension_computed_by(producer):
    graph = ShapeGraph()
    value = graph.const(7, "int8", SCALE)
    graph.finish("FILL", [graph.pack(producer(graph)), value])
    assert_equals_litert(graph)


def one(g):
    return g.apply("SUB", [g.dim(3), g.dim(0)])


def resize(g):
    size = g.apply("SLICE", [g.shape, ([1], "int32"), ([2], "int32")])
    g.finish("RESIZE_NEAREST_NEIGHBOR", [g.x, g.apply("MUL", [size, ([2, 3], "int32")])])


def strided_slice(g):
    begin, strides = g.pack([0], one(g), [0], [0]), g.pack(one(g), g.dim(0), [3], [1])
    g.finish("STRIDED_SLICE", [g.x, begin, g.shape, strides])


def broadcast(g):
    shape = g.apply("BROADCAST_ARGS", [g.shape, ([3, 1, 1, 8, 1], "int32")])
    g.finish("BROADCAST_TO", [g.x, shape])


def split(g):
    g.finish("SPLIT", [g.dim(0), g.x], ["int8"] * 4, numSplits=4)


def split_v(g):
    g.finish("SPLIT_V", [g.x, g.pack(one(g), g.dim(0), [-1]), one(g)], ["int8"] * 3, numSplits=3)


def transposed_convolution(g):
    weight = np.random.default_rng(1).integers(-127, 128, (4, 3, 3, 3))
    height, width = (g.apply("ADD", [g.apply("MUL", [g.dim(i), (2, "int32")]), one(g)]) for i in (1, 2))
    operands = [g.pack(g.dim(0), height, width, [4]), g.const(weight, "int8", Q(0.02)), g.x]
    g.finish("TRANSPOSE_CONV", operands, padding="VALID", strideH=2, strideW=2)


CONSUMERS = {
    "RESHAPE": lambda g: g.finish("RESHAPE", [g.x, g.pack(g.dim(0), [-1], g.dim(2))]),
    "RESIZE_NEAREST_NEIGHBOR": resize,
    "TILE": lambda g: g.finish("TILE", [g.x, g.pack(one(g), [2], [1], g.dim(0))]),
    "BROADCAST_TO": broadcast,
    "SLICE": lambda g: g.finish("SLICE", [g.x, g.pack(one(g), one(g), [0], [1]), g.pack(one(g), g.dim(3), [-1], [2])]),
    "STRIDED_SLICE": strided_slice,
    "PAD": lambda g: g.finish("PAD", [g.x, g.pairs([0], [0], one(g), g.dim(0), g.dim(3), [0], [0], [0])]),
    "EXPAND_DIMS": lambda g: g.finish("EXPAND_DIMS", [g.x, one(g)]),
    "TRANSPOSE": lambda g: g.finish("TRANSPOSE", [g.x, g.pack([0], g.dim(0), one(g), g.dim(3))]),
    "GATHER": lambda g: g.finish("GATHER", [g.x, g.pack(one(g), [0])], axis=2),
    "RANGE": lambda g: g.finish("RANGE", [one(g), g.dim(2), g.dim(0)], ["int32"]),
    "ARG_MAX": lambda g: g.finish("ARG_MAX", [g.x, one(g)], ["int32"], outputType=TYPES.INT32),
    "TOPK_V2": lambda g: g.finish("TOPK_V2", [g.x, g.dim(0)], ["int8", "int32"]),
    "MEAN": lambda g: g.finish("MEAN", [g.x, g.pack(one(g), g.dim(0))], keepDims=False),
    "SPLIT": split,
    "SPLIT_V": split_v,
    "SPACE_TO_BATCH_ND": lambda g: g.finish(
        "SPACE_TO_BATCH_ND", [g.x, g.pack(g.dim(0), g.dim(0)), g.pairs([0], [0], [0], g.dim(0))]
    ),
    "TRANSPOSE_CONV": transposed_convolution,
}


@pytest.mark.parametrize("consumer", CONSUMERS.values(), ids=CONSUMERS)
def test_a_computed_operand_of(consumer):
    graph = ShapeGraph()
    consumer(graph)
    assert_equals_litert(graph)


def test_cumulative_sum_along_a_computed_axis():
    graph = ShapeGraph("float32")
    graph.finish("CUMSUM", [graph.x, one(graph)], ["float32"], exclusive=False, reverse=False)
    assert_equals_litert(graph)


def test_one_hot_of_a_computed_depth():
    graph = ShapeGraph("int32")
    graph.finish("ONE_HOT", [graph.x, graph.dim(2), *(graph.const(v, "float32") for v in (3, 1))], ["float32"], axis=-1)
    assert_equals_litert(graph)

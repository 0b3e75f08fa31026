"""TFLM_DECODE: weights compressed by TensorFlow Lite Micro's tool, against the model without compression."""

import numpy as np
import pytest

from qnn_ext.errors import ModelFormatError, UnsupportedOperatorError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.tflite_models.builder import Graph, Q

SHAPE = (6, 3, 3, 4)
SCALES = Q(np.linspace(0.01, 0.02, 6, dtype=np.float32), np.zeros(6, np.int64))


def compressed(values, axis=None, bits=3, header=()):
    """The bytes of the indices, from the highest bit on, and of their description with bytes replaced by `header`."""
    rows = [values] if axis is None else np.moveaxis(values, axis, 0)
    found = [np.unique(row, return_inverse=True) for row in rows]
    width = max(len(table) for table, _ in found)
    indices = np.stack([places.reshape(row.shape) for (_, places), row in zip(found, rows, strict=True)])
    indices = indices[0] if axis is None else np.moveaxis(indices, 0, axis)
    text = "".join(f"{int(index):0{bits}b}" for index in indices.reshape(-1))
    codes = np.packbits(np.array([int(digit) for digit in text], np.uint8))
    described = np.zeros(16, np.uint8)
    described[[1, 4, 5, 6]] = 1, 1, (15 if axis is None else axis) << 4 | bits, width
    for place, value in header:
        described[place] = value
    tables = np.concatenate([np.pad(table, (0, width - len(table))) for table, _ in found])
    return codes, np.concatenate([described, np.frombuffer(tables.tobytes(), np.uint8)])


def convolution(weight, parts=None):
    """A convolution, whose weights are decoded if `parts` are given."""
    graph = Graph()
    x = graph.input((1, 8, 8, 4), "int8", Q(0.05, 3))
    if parts is None:
        w = graph.const(weight, q=SCALES)
    else:
        # the tool leaves the weights' quantization at the indices, too
        w = graph.tensor(weight.shape, str(weight.dtype), SCALES)
        graph.op("TFLM_DECODE", [graph.const(parts[0], q=SCALES), graph.const(parts[1])], [w], custom=b"")
    bias = graph.const(np.arange(-3, 3, dtype=np.int32) * 100, q=Q(SCALES.scale * 0.05, SCALES.zero_point))
    y = graph.output((1, 8, 8, 6), "int8", Q(0.1, -2))
    graph.op("CONV_2D", [x, w, bias], [y], padding="SAME", strideW=1, strideH=1)
    return graph.build()


@pytest.fixture
def weight(rng):
    """At most four values in each channel, eight in all."""
    values = np.int8([-120, -77, -3, 0, 1, 9, 64, 127])
    return np.stack([rng.choice(rng.choice(values, 4, replace=False), SHAPE[1:]) for _ in range(SHAPE[0])])


@pytest.mark.parametrize("numerics", ["tflite", "float32"])
@pytest.mark.parametrize("axis, bits", [(None, 3), (None, 5), (0, 2), (0, 7), (3, 3)])
def test_equals_the_model_without_compression(rng, weight, axis, bits, numerics):
    x = rng.integers(-128, 128, (1, 8, 8, 4)).astype(np.int8)
    plain, decoded = (
        Interpreter(from_tflite(model, numerics=numerics))(x)
        for model in (convolution(weight), convolution(weight, compressed(weight, axis, bits)))
    )
    np.testing.assert_array_equal(decoded, plain)


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64", "float32", "uint8"])
def test_dtypes(rng, dtype):
    values = rng.choice(np.arange(40, 47).astype(dtype), (3, 4))
    graph = Graph()
    x, y, w = graph.input((3, 4), dtype), graph.output((6, 4), dtype), graph.tensor((3, 4), dtype)
    graph.op("TFLM_DECODE", [graph.const(part) for part in compressed(values, 1)], [w], custom=b"")
    graph.op("CONCATENATION", [x, w], [y], axis=0)
    x = rng.integers(0, 9, (3, 4)).astype(dtype)
    np.testing.assert_array_equal(Interpreter(from_tflite(graph.build()))(x), np.concatenate([x, values]))


@pytest.mark.parametrize(
    "header, error, text",
    [
        ([(0, 1)], UnsupportedOperatorError, r"compressed as kind 1, .*import the model as it was before"),
        ([(1, 2)], UnsupportedOperatorError, r"kind 0, versions 2 and 1, is not supported"),
        ([(5, 4 << 4 | 3)], ModelFormatError, r"TFLM_DECODE #0 .*tables along axis 4"),
        ([(5, 15 << 4 | 7)], ModelFormatError, r"81 bytes of 7-bit indices .* do not describe int8"),
        ([(5, 15 << 4)], ModelFormatError, r"0-bit indices"),
        ([(5, 3)], ModelFormatError, r"of 6 tables with \d values"),
        ([(6, 2)], ModelFormatError, r"of 1 tables with 2 values"),
    ],
)
def test_damaged_descriptions(weight, header, error, text):
    with pytest.raises(error, match=text):
        from_tflite(convolution(weight, compressed(weight, header=header)))


def test_short_descriptions(weight):
    codes, description = compressed(weight)
    with pytest.raises(ModelFormatError, match="a description of 9 bytes"):
        from_tflite(convolution(weight, (codes, description[:9])))


def test_what_is_computed_is_not_decoded():
    graph = Graph()
    x, y = graph.input((4,), "uint8"), graph.output((4,), "int8")
    graph.op("TFLM_DECODE", [x, graph.const(np.zeros(32, np.uint8))], [y], custom=b"")
    with pytest.raises(UnsupportedOperatorError, match=r"TFLM_DECODE #0.* no constant .*before it was compressed"):
        from_tflite(graph.build())


def test_a_tensor_is_decoded_once(weight):
    graph = Graph()
    x, y, w = graph.input(SHAPE, "int8"), graph.output((12, 3, 3, 4), "int8"), graph.tensor(SHAPE, "int8")
    parts = [graph.const(part) for part in compressed(weight)]
    graph.op("TFLM_DECODE", [*parts, *parts], [w, w], custom=b"")
    graph.op("CONCATENATION", [x, w], [y], axis=0)
    with pytest.raises(ModelFormatError, match="already has a value"):
        from_tflite(graph.build())

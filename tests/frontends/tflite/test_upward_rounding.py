"""Where LiteRT's optimized kernels round twice, both times upwards: against LiteRT itself."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import Interpreter
from tests.conformance.tflite_models.builder import Graph, Q, tensor_type

RATIOS = (0.5, 0.375, 0.1875, 0.625, 0.125)


def litert(model, *values, kernels="default"):
    pytest.importorskip("ai_edge_litert")
    from tests.conformance.tflite_models.runner import invoke

    return invoke(model, [[*values]], kernels, False)[0][0]


def requantization(rng, source, target, size, ratio):
    """A QUANTIZE between two dtypes, and its input."""
    values = rng.integers(np.iinfo(source).min, np.iinfo(source).max + 1, (1, size)).astype(source)
    offsets = [0 if dtype == "int16" else (40 if dtype == "int8" else 100) for dtype in (source, target)]
    graph = Graph()
    x = graph.input((1, size), source, Q(float(np.float32(0.05 * ratio)), offsets[0]), values=values)
    output = graph.output((1, size), target, Q(float(np.float32(0.05)), offsets[1]))
    graph.op("QUANTIZE", [x], [output])
    return graph.build(), values


@pytest.mark.parametrize("size", [7, 16, 40, 256])
@pytest.mark.parametrize(
    ("source", "target"),
    [("int8", "uint8"), ("uint8", "int8"), ("int8", "int16"), ("int16", "int8"), ("int8", "int8"), ("uint8", "uint8")],
)
def test_quantize(source, target, size, rng):
    """Between 8-bit tensors only whole vectors of 16 elements are rounded so."""
    for ratio in (*RATIOS, 2.0**-9 * 1.5):  # the last one XNNPACK does not take
        model, values = requantization(rng, source, target, size, ratio)
        found = Interpreter(qnn_ext.from_tflite(model)).run([values])
        np.testing.assert_array_equal(next(iter(found.values())), litert(model, values), err_msg=f"{ratio}")


def test_quantize_compiled(rng):
    model, values = requantization(rng, "int8", "uint8", 40, 0.375)
    mod = qnn_ext.from_tflite(model)
    expected = Interpreter(mod)(values)
    np.testing.assert_array_equal(qnn_ext.build(mod, num_threads=1)(values), expected)
    other = Interpreter(qnn_ext.from_tflite(model, numerics="tflite"))(values)
    assert np.any(expected[:, :32] != other[:, :32])
    np.testing.assert_array_equal(expected[:, 32:], other[:, 32:])


@pytest.mark.parametrize("bias", ["int32", "int64", None, "declared"])
@pytest.mark.parametrize("channels", [1, 3])
def test_fully_connected_of_16_bits(bias, channels, rng):
    """Ratios of 3/8 and the like put many sums on midpoints. An int64 bias takes the reference kernel, and so does one
    that is only declared."""
    values = rng.integers(-300, 300, (64, 3)).astype("int16")
    weight = rng.integers(-3, 4, (channels, 3)).astype("int8")
    for ratio in RATIOS:
        graph = Graph()
        x = graph.input(values.shape, "int16", Q(0.25), values=values)
        w = graph.const(weight, "int8", Q(0.5))
        b = [] if bias in (None, "declared") else [graph.const(np.arange(channels), bias, Q(0.125))]
        output = graph.output((64, channels), "int16", Q(float(np.float32(0.125 / ratio))))
        options = {"quantizedBiasType": tensor_type("int64")} if bias == "declared" else {}
        graph.op("FULLY_CONNECTED", [x, w, *b], [output], **options)
        model = graph.build()
        found = Interpreter(qnn_ext.from_tflite(model))(values)
        np.testing.assert_array_equal(found, litert(model, values), err_msg=f"{ratio}")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("channels", [1, 8, 11])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_transposed_convolution_with_a_computed_output_shape(dtype, channels, bias, rng):
    """XNNPACK does not take it: Keras' models with an open batch."""
    offset = 128 if dtype == "uint8" else 0
    values = (rng.integers(-128, 128, (1, 5, 7, 4)) + offset).astype(dtype)
    weight = (rng.integers(-9, 10, (channels, 2, 2, 4)) + offset).astype(dtype)
    for ratio in RATIOS:
        graph = Graph()
        sizes = [graph.const(np.int32(size)) for size in (1, 10, 14, channels)]
        shape = graph.tensor((4,), "int32")
        graph.op("PACK", sizes, [shape], axis=0, valuesCount=4)
        scales = np.full(channels, 0.5) if dtype == "int8" else 0.5
        operands = [shape, graph.const(weight, None, Q(scales, offset))]
        operands.append(graph.input(values.shape, dtype, Q(0.25, offset + 3), values=values))
        if bias:
            operands.append(graph.const(rng.integers(-99, 99, channels), "int32", Q(np.multiply(scales, 0.25), 0)))
        output = graph.output((1, 10, 14, channels), dtype, Q(float(np.float32(0.125 / ratio)), offset - 5))
        graph.op("TRANSPOSE_CONV", operands, [output], padding="SAME", strideH=2, strideW=2, act="none")
        model = graph.build()
        found = Interpreter(qnn_ext.from_tflite(model))(values)
        np.testing.assert_array_equal(found, litert(model, values), err_msg=f"{ratio}")


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolution_with_weights_of_run_time(dtype, groups, rng):
    """XNNPACK does not take them. LiteRT has no optimized kernel for groups."""
    offset = 128 if dtype == "uint8" else 0
    shape = (8, 3, 3, 4 // groups)
    values = (rng.integers(-128, 128, (1, 6, 6, 4)) + offset).astype(dtype)
    weight = (rng.integers(-9, 10, shape) + offset).astype(dtype)
    for ratio in RATIOS:
        graph = Graph()
        x, w = graph.input(values.shape, dtype, Q(0.25, 3 + offset)), graph.input(shape, dtype, Q(0.5, offset))
        bias = graph.const(np.arange(8), "int32", Q(0.125))
        output = graph.output((1, 6, 6, 8), dtype, Q(float(np.float32(0.125 / ratio)), offset - 4))
        graph.op("CONV_2D", [x, w, bias], [output], strideH=1, strideW=1, padding="SAME")
        model = graph.build()
        for numerics, kernels in (("float32", "default"), ("tflite", "reference")):
            (found,) = Interpreter(qnn_ext.from_tflite(model, numerics=numerics)).run([values, weight]).values()
            expected = litert(model, values, weight, kernels=kernels)
            np.testing.assert_array_equal(found, expected, err_msg=f"{ratio} {kernels}")

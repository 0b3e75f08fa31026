"""Products of floats with int8 weights, whose activations are quantized at run time: LiteRT's bits, with XNNPACK and in
its reference kernels."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.tflite_models.builder import Graph, Q
from tests.conformance.tflite_models.runner import invoke

UNITS = 12
WINDOW = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1, "padding": "SAME"}
LAYERS = {  # the data's shape, the weights' shape and the axis of their channels, the result's shape, options
    "FULLY_CONNECTED": ((40, 9), (UNITS, 9), 0, (40, UNITS), {"asymmetricQuantizeInputs": True}),
    "CONV_2D": ((2, 7, 6, 5), (UNITS, 3, 3, 5), 0, (2, 7, 6, UNITS), WINDOW),
    "DEPTHWISE_CONV_2D": ((2, 7, 6, UNITS), (1, 3, 3, UNITS), 3, (2, 7, 6, UNITS), {**WINDOW, "depthMultiplier": 1}),
    "TRANSPOSE_CONV": (
        *((1, 5, 4, 5), (UNITS, 3, 3, 5), 0, (1, 10, 8, UNITS)),
        {"strideH": 2, "strideW": 2, "padding": "SAME", "version": 3},
    ),
}


def layer(operator, per_channel=True, bias=True):
    shape, weights, axis, result, options = LAYERS[operator]
    graph, made = Graph(), np.random.default_rng(1)
    scales = made.uniform(0.001, 0.01, UNITS if per_channel else 1).astype(np.float32)
    q = Q(scales, np.zeros(len(scales), int), axis) if per_channel else Q(scales[0])
    weight = graph.const(made.integers(-127, 128, weights).astype(np.int8), q=q)
    offsets = graph.const(made.normal(0, 0.3, UNITS).astype(np.float32)) if bias else -1
    operands = [graph.input(shape, "float32"), weight, offsets]
    if operator == "TRANSPOSE_CONV":
        operands = [graph.const(np.int32(result)), weight, operands[0], *operands[2 : 2 + bias]]
    graph.op(operator, operands, [graph.output(result, "float32")], **options)
    return graph.build()


def trials(shape, rng):
    """Numbers, some on a grid, so that quantization meets midpoints, and on one side of zero."""
    drawn = rng.uniform(-1, 1, shape)
    return [[values.astype(np.float32)] for values in (drawn, np.round(drawn * 64) / 64 * 1.37, np.abs(drawn))]


@pytest.mark.parametrize(
    "operator,numerics,per_channel,bias",
    [
        *(
            ("FULLY_CONNECTED", numerics, scales, bias)
            for numerics in ("float32", "tflite")
            for scales in (True, False)
            for bias in (True, False)
        ),
        *(("CONV_2D", numerics, scales, True) for numerics in ("float32", "tflite") for scales in (True, False)),
        *(("DEPTHWISE_CONV_2D", numerics, True, True) for numerics in ("float32", "tflite")),
        ("TRANSPOSE_CONV", "float32", True, True),
        ("TRANSPOSE_CONV", "float32", False, False),
    ],
)
def test_equals_litert(operator, numerics, per_channel, bias, rng):
    model, feeds = layer(operator, per_channel, bias), trials(LAYERS[operator][0], rng)
    expected = invoke(model, feeds, "reference" if numerics == "tflite" else "default", stateful=False)
    module = from_tflite(model, numerics=numerics)
    for runner in (Interpreter(module), *([qnn_ext.build(module, num_threads=1)] if bias else [])):
        for feed, (wanted,) in zip(feeds, expected, strict=True):
            (found,) = runner.run(feed).values()
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("leading", [(2, 3), (1, 3)])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_many_matrices(leading, asymmetric, is_constant, rng):
    """LiteRT's own kernel takes the scales of other matrices where several dimensions lead. Sums of columns that are
    not constant are those of the first call."""
    graph = Graph()
    q, shape = Q(np.float32(0.02)), (2, 3, 8, 6)
    x = graph.input((*leading, 5, 8), "float32")
    values = rng.integers(-127, 128, shape).astype(np.int8)
    y = graph.const(values, q=q) if is_constant else graph.input(shape, "int8", q)
    options = {"adjX": False, "adjY": False, "asymmetricQuantizeInputs": asymmetric}
    graph.op("BATCH_MATMUL", [x, y], [graph.output((2, 3, 5, 6), "float32")], **options)
    content = graph.build()
    inputs = [[rng.normal(0, 1, (*leading, 5, 8)).astype(np.float32)] for _ in range(2 if is_constant else 1)]
    if not is_constant:
        inputs[0].append(values)
    module = from_tflite(content, numerics="tflite")
    for one, (wanted,) in zip(inputs, invoke(content, inputs, "reference", False), strict=True):
        np.testing.assert_array_equal(Interpreter(module)(*one), wanted)

"""UNIDIRECTIONAL_SEQUENCE_RNN against LiteRT, over two calls, between which it keeps its state."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import ModelFormatError, UnsupportedOperatorError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.tflite_models.builder import Graph, Q
from tests.conformance.tflite_models.runner import invoke

BATCH, STEPS, DEPTH, UNITS = 2, 5, 6, 8
RELU, TANH, SIGN_BIT = 1, 4, 5


def layer(time_major=False, activation=TANH, hybrid=False, asymmetric=False, bias=UNITS, variable=True):
    rng, graph = np.random.default_rng(3), Graph()
    shape = (STEPS, BATCH, DEPTH) if time_major else (BATCH, STEPS, DEPTH)
    x = graph.input(shape, "float32", low=-1, high=1)

    def weights(*size):
        values = rng.integers(-127, 128, size).astype(np.int8)
        return graph.const(values, q=Q(1 / 300)) if hybrid else graph.const((values / 300).astype(np.float32))

    inputs = [x, weights(UNITS, DEPTH), weights(UNITS, UNITS), graph.const(rng.normal(0, 0.2, bias).astype(np.float32))]
    kind = (BATCH, UNITS), "float32"
    state = graph.tensor(*kind, variable=True) if variable else graph.input(*kind)
    options = {"timeMajor": time_major, "fusedActivationFunction": activation, "asymmetricQuantizeInputs": asymmetric}
    output = graph.output((*shape[:2], UNITS), "float32")
    graph.op("UNIDIRECTIONAL_SEQUENCE_RNN", [*inputs, state], [output], **options)
    return graph.build()


@pytest.mark.parametrize(
    "options",
    [{}, {"time_major": True, "activation": RELU}, {"hybrid": True}, {"hybrid": True, "asymmetric": True}],
)
def test_equals_litert(options, rng):
    content = layer(**options)
    module = from_tflite(content, numerics="tflite")
    trials = [[rng.uniform(-1, 1, module.inputs[0].shape).astype(np.float32)] for _ in range(2)]
    expected = invoke(content, trials, "reference", True)
    for runner in (Interpreter(module), qnn_ext.build(module)):
        for (x,), (wanted,) in zip(trials, expected, strict=True):
            if options.get("hybrid"):
                np.testing.assert_array_equal(runner(x), wanted)
            else:
                np.testing.assert_allclose(runner(x), wanted, rtol=1e-5, atol=1e-6)
    assert np.abs(expected[0][0] - expected[1][0]).max() > 0.1


@pytest.mark.parametrize(
    "options,error,message",
    [
        ({"bias": UNITS + 1}, ModelFormatError, r"bias \(9,\) do not match"),
        ({"variable": False}, ModelFormatError, "the hidden state must be a variable tensor"),
        ({"activation": SIGN_BIT}, UnsupportedOperatorError, "activation SIGN_BIT"),
    ],
)
def test_refused(options, error, message):
    with pytest.raises(error, match=rf"UNIDIRECTIONAL_SEQUENCE_RNN #0 .*{message}"):
        from_tflite(layer(**options))


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_single_step_equals_litert(hybrid, rng):
    graph, made = Graph(), np.random.default_rng(3)
    x = graph.input((BATCH, DEPTH), "float32", low=-1, high=1)
    matrices = [made.integers(-127, 128, (UNITS, size)).astype(np.int8) for size in (DEPTH, UNITS)]
    weights = [
        graph.const(one, q=Q(1 / 300)) if hybrid else graph.const((one / 300).astype(np.float32)) for one in matrices
    ]
    bias = graph.const(made.normal(0, 0.2, UNITS).astype(np.float32))
    state = graph.tensor((BATCH, UNITS), "float32", variable=True)
    output = graph.output((BATCH, UNITS), "float32")
    graph.op("RNN", [x, *weights, bias, state], [output], fusedActivationFunction=TANH)
    content = graph.build()
    module = from_tflite(content, numerics="tflite")
    trials = [[rng.uniform(-1, 1, (BATCH, DEPTH)).astype(np.float32)] for _ in range(2)]
    expected = invoke(content, trials, "reference", True)
    for runner in (Interpreter(module), qnn_ext.build(module)):
        for (data,), (wanted,) in zip(trials, expected, strict=True):
            np.testing.assert_allclose(runner(data), wanted, rtol=1e-5, atol=1e-6)


def basic_lstm(units=UNITS, dtype="float32"):
    graph, made = Graph(), np.random.default_rng(3)
    x = graph.input((BATCH, DEPTH), dtype, low=-1, high=1)
    hidden = graph.input((BATCH, UNITS), dtype, low=-1, high=1)
    matrix = graph.const(made.normal(0, 0.3, (4 * units, DEPTH + UNITS)).astype(np.float32))
    bias = graph.const(made.normal(0, 0.2, 4 * units).astype(np.float32))
    state = graph.input((BATCH, UNITS), dtype, low=-1, high=1)
    results = [graph.output((BATCH, size), dtype) for size in (UNITS, UNITS, DEPTH + UNITS, 4 * UNITS)]
    options = {"fusedActivationFunction": TANH, "kernelType": 1, "cellClip": 0.0, "projClip": 0.0}
    graph.op("LSTM", [x, hidden, matrix, bias, state], results, **options)
    return graph.build()


def test_a_basic_lstm_equals_litert(rng):
    content = basic_lstm()
    module = from_tflite(content)
    trial = [rng.uniform(-1, 1, spec.shape).astype(np.float32) for spec in module.inputs]
    (expected,) = invoke(content, [trial], "reference", False)
    for runner in (Interpreter(module), qnn_ext.build(module)):
        for found, wanted in zip(runner.run(trial).values(), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(ModelFormatError, match="of a basic LSTM's inputs do not match"):
        from_tflite(basic_lstm(units=UNITS + 1))


def byte_lstm(zero_point=128, state_scale=2.0**-11):
    """A basic LSTM of uint8 activations, whose cells are beyond what its outputs can hold."""
    graph, made, units, depth = Graph(), np.random.default_rng(5), 12, 7
    activation, state = Q(1 / 128, zero_point), Q(state_scale)
    x, hidden = (graph.input((BATCH, size), "uint8", activation) for size in (depth, units))
    matrix = graph.const(made.integers(0, 256, (4 * units, depth + units)).astype(np.uint8), q=Q(0.02, 119))
    bias = graph.const(made.integers(-9000, 9000, 4 * units).astype(np.int32), q=Q(np.float32(0.02) / 128))
    cell = graph.input((BATCH, units), "int16", state)
    results = [graph.output((BATCH, units), "uint8", activation), graph.output((BATCH, units), "int16", state)]
    results += [graph.output((BATCH, depth + units), "uint8", activation)]
    results += [graph.output((BATCH, 4 * units), "int16", Q(2.0**-12))]
    options = {"fusedActivationFunction": TANH, "kernelType": 1, "cellClip": 0.0, "projClip": 0.0}
    graph.op("LSTM", [x, hidden, matrix, bias, cell], results, **options)
    return graph.build()


def drawn(rng, spec):
    info = np.iinfo(spec.dtype)
    return rng.integers(info.min, info.max + 1, spec.shape).astype(spec.dtype)


@pytest.mark.parametrize("numerics,kernels", [("tflite", "reference"), ("float32", "default")])
def test_a_basic_lstm_of_bytes_equals_litert(numerics, kernels, rng):
    content = byte_lstm()
    module = from_tflite(content, numerics=numerics)
    trials = [[drawn(rng, spec) for spec in module.inputs] for _ in range(4)]
    trials[0][2] = np.full_like(trials[0][2], np.iinfo(np.int16).min)
    expected = invoke(content, trials, kernels, False)
    for runner in (Interpreter(module), qnn_ext.build(module)):
        for trial, references in zip(trials, expected, strict=True):
            for found, wanted in zip(runner.run(trial).values(), references, strict=True):
                np.testing.assert_array_equal(found, wanted)
                assert found.dtype == wanted.dtype


@pytest.mark.parametrize("changes", [{"zero_point": 127}, {"state_scale": 2.0**-12}])
def test_a_basic_lstm_of_other_scales(changes):
    with pytest.raises(UnsupportedOperatorError, match=r"LSTM #0 .*it must have scale"):
        from_tflite(byte_lstm(**changes))

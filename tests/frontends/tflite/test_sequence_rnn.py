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

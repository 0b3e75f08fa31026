"""BIDIRECTIONAL_SEQUENCE_LSTM and BIDIRECTIONAL_SEQUENCE_RNN against LiteRT, over two calls: they keep their states."""

from dataclasses import replace

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import ModelFormatError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.tflite_models.builder import Graph, Q
from tests.conformance.tflite_models.recurrent import Lstm, LstmBuilder
from tests.conformance.tflite_models.runner import invoke

BATCH, STEPS, DEPTH, UNITS, BESIDE = 2, 4, 6, 8, 3


def lstm(mode="float32", auxiliary=False, crossed=False, merge=False, time_major=False, asymmetric=False, **changes):
    """auxiliary: an auxiliary input, crossed: with weights."""
    layer = replace(Lstm(batch=BATCH, time=STEPS, depth=DEPTH, cells=UNITS), **changes)
    made = LstmBuilder("bidirectional", mode, layer)
    depth = BESIDE if crossed else DEPTH
    order, outputs = ((STEPS, BATCH) if time_major else (BATCH, STEPS)), layer.outputs or UNITS
    x = made.graph.input((*order, DEPTH), "float32")
    forward, backward = made.operands(x), made.operands(x)
    inputs = [*forward[:18], *backward[1:18], *forward[18:20], *backward[18:20]]
    inputs.append(made.graph.input((*order, depth), "float32") if auxiliary or crossed else -1)
    for _ in range(2):
        inputs += made.gates(lambda _: made.matrix(UNITS, depth)[0], skip=not crossed)
    made.graph.op(
        "BIDIRECTIONAL_SEQUENCE_LSTM", inputs, results(made.graph, order, outputs, merge), act="tanh",
        cellClip=layer.cell_clip, projClip=layer.projection_clip, mergeOutputs=merge, timeMajor=time_major,
        asymmetricQuantizeInputs=asymmetric,
    )  # fmt: skip
    return made.graph.build()


def rnn(
    mode="float32",
    auxiliary=False,
    crossed=False,
    merge=False,
    time_major=False,
    asymmetric=False,
    act="tanh",
    missing=0,
):
    """As in `lstm`, but LiteRT steps through the auxiliary input as if it were as deep as the other one."""
    rng, graph = np.random.default_rng(3), Graph()
    order = (STEPS, BATCH) if time_major else (BATCH, STEPS)

    def weights(*size):
        values = rng.integers(-127, 128, size).astype(np.int8)
        return graph.const(values, q=Q(1 / 300)) if mode == "hybrid" else graph.const((values / 300).astype(np.float32))

    inputs = [graph.input((*order, DEPTH), "float32")]
    for _ in range(2):
        bias = graph.const(rng.normal(0, 0.2, UNITS).astype(np.float32))
        state = graph.tensor((BATCH, UNITS), "float32", variable=True)
        inputs += [weights(UNITS, DEPTH), weights(UNITS, UNITS), bias, state]
    inputs.append(graph.input((*order, DEPTH), "float32") if auxiliary or crossed else -1)
    inputs += [weights(UNITS, DEPTH) if crossed else -1 for _ in range(2 - missing)]
    graph.op(
        "BIDIRECTIONAL_SEQUENCE_RNN", inputs, results(graph, order, UNITS, merge), act=act, mergeOutputs=merge,
        timeMajor=time_major, asymmetricQuantizeInputs=asymmetric,
    )  # fmt: skip
    return graph.build()


def results(graph, order, size, merge):
    return [graph.output((*order, 2 * size), "float32")] if merge else [
        graph.output((*order, size), "float32") for _ in range(2)
    ]  # fmt: skip


def check(content, rng):
    module = from_tflite(content, numerics="tflite")
    trials = [[rng.uniform(-1, 1, spec.shape).astype(np.float32) for spec in module.inputs] for _ in range(2)]
    expected = invoke(content, trials, "reference", True)
    for runner in (Interpreter(module), qnn_ext.build(module)):
        for feed, wanted in zip(trials, expected, strict=True):
            for found, one in zip(runner.run(feed).values(), wanted, strict=True):
                np.testing.assert_allclose(found, one, rtol=1e-5, atol=1e-6)
    assert np.abs(expected[0][0] - expected[1][0]).max() > 0.01


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"merge": True, "time_major": True, "peephole": True, "cifg": True, "cell_clip": 0.5},
        {"outputs": 5, "projection_bias": True, "projection_clip": 0.3},
        {"auxiliary": True},
        {"crossed": True},
        {"mode": "hybrid"},
        {"mode": "hybrid", "asymmetric": True, "crossed": True, "cifg": True},
    ],
    ids=str,
)
def test_lstm_equals_litert(options, rng):
    check(lstm(**options), rng)


@pytest.mark.parametrize(
    "options",
    [
        {"act": "relu"},
        {"merge": True, "time_major": True, "crossed": True},
        {"auxiliary": True, "time_major": True},
        {"mode": "hybrid", "merge": True},
        {"mode": "hybrid", "asymmetric": True},
    ],
    ids=str,
)
def test_rnn_equals_litert(options, rng):
    check(rnn(**options), rng)


def test_a_missing_input_is_refused():
    with pytest.raises(ModelFormatError, match=r"RNN #0 .*has 12 inputs, found 11"):
        from_tflite(rnn(missing=1))

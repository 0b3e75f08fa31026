"""The switchable module: float, quantized, or anything between, by the switches of its sites."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.quantize.annotate import annotate, sites
from qnn_ext.quantize.config import QConfig
from qnn_ext.quantize.ranges import Range
from qnn_ext.quantize.realize import simulate
from qnn_ext.quantize.switchable import observations, switchable
from tests.quantize.networks import float_module

CONFIG = QConfig(nbit_input=5, dtype_input="uint8")


@pytest.fixture
def annotated(rng):
    weights = [rng.uniform(-1, 1, size=(6, 6)).astype(np.float32) for _ in range(2)]

    def body(emit, x):
        hidden = emit(relax.op.nn.relu(emit(relax.op.matmul(x, relax.const(weights[0])))), "hidden")
        return emit(relax.op.matmul(hidden, relax.const(weights[1])))

    return annotate(float_module((2, 6), body), CONFIG)


def ranges_of(annotated):
    ones = np.ones(6)
    return {site.name: Range(-1.0, 1.0) if site.value is None else Range(-ones, ones) for site in sites(annotated)}


def test_all_and_none(annotated, rng):
    ranges = ranges_of(annotated)
    program = switchable(annotated, observations(annotated, ranges, CONFIG), ["hidden"])
    run = qnn_ext.Interpreter(program.module)
    x = rng.uniform(-1.2, 1.2, size=(2, 6)).astype(np.float32)
    off, hidden = run(x, np.zeros(4, bool))
    np.testing.assert_array_equal(off, qnn_ext.Interpreter(annotated)(x))
    on, clipped = run(x, np.ones(4, bool))
    np.testing.assert_allclose(on, qnn_ext.Interpreter(simulate(annotated, ranges, CONFIG))(x), rtol=1e-6, atol=1e-6)
    assert (hidden == 0).any() and not np.array_equal(hidden, clipped), "its operands are quantized, or are not"
    np.testing.assert_array_equal(qnn_ext.build(program.module, num_threads=1)(x, np.ones(4, bool))[0], on)


def test_one_site(annotated, rng):
    observed = observations(annotated, ranges_of(annotated), CONFIG)
    run = qnn_ext.Interpreter(switchable(annotated, observed, []).module)
    x = rng.uniform(-1.2, 1.2, size=(2, 6)).astype(np.float32)
    first = next(i for i, one in enumerate(observed) if one.tensor == "x")
    expected = qnn_ext.Interpreter(annotated)(observed[first].simulate(x))
    np.testing.assert_array_equal(run(x, np.arange(4) == first), expected)


def test_what_the_integers_can_say(annotated):
    observed = next(one for one in observations(annotated, ranges_of(annotated), CONFIG) if one.tensor == "x")
    assert observed.limits == (0, 31)
    low, high = observed.ends
    step = float(observed.qparams.scale)
    assert (low, high) == pytest.approx((-16 * step, 15 * step), abs=1e-6)
    values = np.array([low, high, low - 0.4 * step, high + 0.6 * step, low - 0.6 * step], np.float32)
    assert observed.saturated(values) == 2
    np.testing.assert_allclose(observed.simulate(values), [low, high, low, high, low], atol=1e-6)

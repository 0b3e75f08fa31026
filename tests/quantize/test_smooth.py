"""SmoothQuant: the same function, and outliers of activations in the weights."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext.errors import QuantizationError
from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant
from qnn_ext.quantize import QConfig, quantize, smooth
from qnn_ext.quantize.analysis import fidelity
from qnn_ext.quantize.smooth import smoothed_groups, smoothing_scales

from .networks import float_module

RNG = np.random.default_rng(5)
CHANNELS = 12
GAMMA = np.where(np.arange(CHANNELS) == 3, 60, 1).astype(np.float32)  # one channel of outliers
BETA = RNG.normal(size=CHANNELS).astype(np.float32)
WEIGHTS = [RNG.normal(size=(CHANNELS, n)).astype(np.float32) / 4 for n in (6, 7)]
DATA = [RNG.normal(size=(2, 5, CHANNELS)).astype(np.float32) for _ in range(4)]


def as_one_operator(emit, x):
    return emit(relax.op.nn.layer_norm(x, constant(GAMMA), constant(BETA), axes=[-1]))


def as_several(emit, x):
    return emit(relax.op.add(emit(relax.op.multiply(emit(relax.op.tanh(x)), constant(GAMMA))), constant(BETA)))


def network(normalized, further=lambda emit, y: []):
    def body(emit, x):
        y = normalized(emit, x)
        one, two = (emit(relax.op.matmul(y, constant(w))) for w in WEIGHTS)
        return emit(relax.op.concat([one, two, *further(emit, y)], -1))

    return float_module((2, 5, CHANNELS), body)


def run(module):
    interpreter = Interpreter(module)
    return np.concatenate([interpreter(x) for x in DATA])


@pytest.mark.parametrize("normalized", [as_one_operator, as_several])
def test_same_function_and_better_integers(normalized):
    module = network(normalized)
    exact = run(module)
    smoothed = smooth(module, DATA, 0.5)
    np.testing.assert_allclose(run(smoothed), exact, rtol=1e-4, atol=1e-4)
    found = {
        alpha: fidelity(exact, run(quantize(module, dataset=DATA, config=QConfig(smooth=alpha)))).sqnr
        for alpha in (None, 0.5)
    }
    assert found[0.5] > found[None] + 3, found


def test_tensors_with_other_readers_stay():
    module = network(as_one_operator, lambda emit, y: [emit(relax.op.sigmoid(y))])
    assert smoothed_groups(module) == []
    assert smooth(module, DATA) is module


def test_scales_of_the_paper():
    activations, weights = np.array([16.0, 1.0, 0.0, 4.0]), np.array([1.0, 4.0, 2.0, 0.0])
    scales = smoothing_scales(activations, weights, 0.5)
    np.testing.assert_allclose(scales[2:], 1)
    assert scales[0] / scales[1] == pytest.approx(np.sqrt(16 / 1) / np.sqrt(1 / 4))
    np.testing.assert_array_equal(smoothing_scales(np.zeros(3), weights[:3], 0.5), np.ones(3))


def test_it_needs_data():
    with pytest.raises(QuantizationError, match="smooth needs data"):
        quantize(network(as_one_operator), config=QConfig(smooth=0.5, calibrate_mode="global_scale"))
    with pytest.raises(QuantizationError, match="the data set is empty"):
        smooth(network(as_one_operator), [])
    with pytest.raises(QuantizationError, match="smooth must be None or a number between 0 and 1"):
        QConfig(smooth=1.5)

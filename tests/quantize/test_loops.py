"""Models with loops: their products are quantized as those around them are."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import quantize
from qnn_ext.compiling.coverage import coverage
from qnn_ext.errors import QuantizationError
from qnn_ext.frontends.loops import loop
from qnn_ext.frontends.recurrent_layers import Options, run_float_layers
from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant
from tests.cases.loops import as_model, assembled

R = relax.op


def network(rng):
    """Dense, a recurrence with a product, dense."""
    first, inner, last = (constant(rng.normal(0, 0.3, (8, 8)).astype(np.float32)) for _ in range(3))

    def walk(a, x):
        x = a.emit(R.nn.relu(a.emit(R.matmul(x, first))))
        sequence = a.emit(R.reshape(x, (5, 1, 8)))

        def body(states, slices):
            new = a.emit(R.tanh(a.emit(R.add(slices[0], a.emit(R.matmul(states[0], inner))))))
            return [new], [new]

        _, (outputs,) = loop(a, body, [constant(np.zeros((1, 8), np.float32))], [sequence], 5)
        return [a.emit(R.matmul(a.emit(R.reshape(outputs, (5, 8))), last))]

    return as_model(assembled([("x", (5, 8), "float32")], walk))


def test_products_in_a_loop(rng):
    model = network(rng)
    data = [rng.normal(size=(5, 8)).astype(np.float32) for _ in range(8)]
    stages = quantize.stages(model, None, data, quantize.QConfig())
    found = [site for site in quantize.sites(stages["annotate"]) if "." in site.name][-2:]
    assert [(site.role, site.shape) for site in found] == [("input", (1, 8)), ("weight", (8, 8))]
    quantized = stages.result
    assert [product.is_integer for product in coverage(quantized).products] == [True, True, True]
    expected, result = Interpreter(model)(data[0]), qnn_ext.build(quantized)(data[0])
    np.testing.assert_array_equal(result, Interpreter(quantized)(data[0]))
    assert 0 < np.abs(result - expected).max() < 0.1


def recurrent(rng, kind, hidden=32, steps=6):
    """Two directions of an LSTM or GRU, and a layer behind them."""
    gates = {"lstm": 4, "gru": 3}[kind]
    shapes = [(gates * hidden, 16), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,)] * 2
    bound = hidden**-0.5
    weights = [constant(rng.uniform(-bound, bound, shape).astype(np.float32)) for shape in shapes]
    last = constant(rng.normal(0, 0.3, (2 * hidden, 8)).astype(np.float32))

    def walk(a, x):
        zeros = [constant(np.zeros((2, 1, hidden), np.float32))] * (2 if kind == "lstm" else 1)
        sequence, *_ = run_float_layers(a, kind, x, zeros, weights, True, Options(1, True, False))
        return [a.emit(R.matmul(a.emit(R.reshape(sequence, (steps, 2 * hidden))), last))]

    return as_model(assembled([("x", (steps, 1, 16), "float32")], walk))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_recurrent_layers(kind, dynamic, rng):
    """The ranges of the states are those of all steps."""
    model = recurrent(rng, kind)
    data = [rng.normal(size=(6, 1, 16)).astype(np.float32) for _ in range(4)]
    quantized = quantize.quantize(model, None, data, quantize.QConfig(dynamic=dynamic))
    assert all(product.is_integer for product in coverage(quantized).products)
    result, expected = qnn_ext.build(quantized)(data[0]), Interpreter(model)(data[0])
    assert np.square(expected).sum() > 1000 * np.square(result - expected).sum()
    if not dynamic:  # sums of floats, of which the ranges at run time are made, may differ in the last bit
        np.testing.assert_array_equal(result, Interpreter(quantized)(data[0]))


def test_ranges_are_those_of_all_rounds():
    """A state that doubles in each round: 1, 2, 4, 8."""
    twice = constant(2 * np.eye(4, dtype=np.float32))

    def walk(a, x):
        (final,), _ = loop(a, lambda states, _: ([a.emit(R.matmul(states[0], twice))], []), [x], [], 4)
        return [final]

    model = as_model(assembled([("x", (1, 4), "float32")], walk))
    data = [np.float32([[1, 0, -0.5, 0]])]
    stages = quantize.stages(model, None, data, quantize.QConfig(calibrate_mode="minmax"))
    (name,) = [site.name for site in quantize.sites(stages["annotate"]) if site.role == "input"]
    assert (float(stages.table[name].low), float(stages.table[name].high)) == (-4, 8)


def test_a_layer_in_a_loop_can_stay_in_float(rng):
    model, data = network(rng), [rng.normal(size=(5, 8)).astype(np.float32)]
    name = next(
        site.layer for site in quantize.sites(quantize.stages(model, None, data)["annotate"]) if "." in site.layer
    )
    quantized = quantize.quantize(model, None, data, quantize.QConfig(overrides={name: {"precision": "float32"}}))
    assert [product.is_integer for product in coverage(quantized).products] == [True, False, True]
    with pytest.raises(QuantizationError, match="matches no layer"):
        quantize.quantize(model, None, data, quantize.QConfig(overrides={f"{name}x": {"precision": "float32"}}))


@pytest.mark.parametrize("settings", [{"bias_correction": True}, {"calibrate_mode": "output_error"}], ids=str)
def test_settings_that_look_at_the_sites_outside(settings, rng):
    data = [rng.normal(size=(5, 8)).astype(np.float32) for _ in range(2)]
    quantized = quantize.quantize(network(rng), None, data, quantize.QConfig(**settings))
    assert all(product.is_integer for product in coverage(quantized).products)

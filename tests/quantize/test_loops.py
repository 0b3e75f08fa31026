"""Models with loops: their products are quantized as those around them are."""

import warnings

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import quantize
from qnn_ext.compiling.coverage import coverage
from qnn_ext.errors import QuantizationError, QuantizationWarning
from qnn_ext.frontends.loops import branch, loop
from qnn_ext.frontends.recurrent_layers import Options, run_float_layers
from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant
from qnn_ext.quantize.analysis import fidelity
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


# ---- loops whose rounds are known at run time, loops in loops, branches --------------------------------------------

INNER = {"w": np.random.default_rng(5).normal(0, 0.4, (8, 8)).astype(np.float32)}


def at_run_time():
    """h ← tanh(h·w) as long as a sum of y is below 1."""
    weight = constant(INNER["w"])

    def walk(a, x, y):
        one = constant(np.float32(1))

        def body(states, _):
            h = a.emit(R.tanh(a.emit(R.matmul(states[0], weight))))
            total = a.emit(R.add(states[1], y))
            return a.emit(R.less(total, one)), [h, total], []

        (final, _), _ = loop(a, body, [x, y], [], 2**31 - 1, condition=a.emit(R.less(y, one)))
        return [final]

    return as_model(assembled([("x", (1, 8), "float32"), ("y", (), "float32")], walk))


def nested():
    """Two rounds, each of three rounds h ← tanh(h·w) and one h ← tanh(h·w)."""
    weight = constant(INNER["w"])

    def walk(a, x):
        def step(states, _):
            return [a.emit(R.tanh(a.emit(R.matmul(states[0], weight))))], []

        def outer(states, _):
            inner, _ = loop(a, step, states, [], 3)
            return step(inner, [])

        (final,), _ = loop(a, outer, [x], [], 2)
        return [final]

    return as_model(assembled([("x", (1, 8), "float32")], walk))


def nested_at_run_time():
    """The inner loop takes as many rounds as the element of n of the outer one's round says."""
    weight = constant(INNER["w"])

    def walk(a, x, n):
        def outer(states, slices):
            def step(inner, _):
                h = a.emit(R.tanh(a.emit(R.matmul(inner[0], weight))))
                count = a.emit(R.add(inner[1], constant(np.int64(1))))
                return a.emit(R.less(count, slices[0])), [h, count], []

            going = a.emit(R.less(constant(np.int64(0)), slices[0]))
            (h, _), _ = loop(a, step, [states[0], constant(np.int64(0))], [], 2**31 - 1, condition=going)
            return [h], [h]

        _, (outputs,) = loop(a, outer, [x], [n], 3)
        return [outputs]

    return as_model(assembled([("x", (1, 8), "float32"), ("n", (3,), "int64")], walk))


def chosen():
    """x·w or −x, by c."""
    weight = constant(INNER["w"])

    def walk(a, x, c):
        return branch(a, c, lambda: [a.emit(R.matmul(x, weight))], lambda: [a.emit(R.negative(x))])

    return as_model(assembled([("x", (1, 8), "float32"), ("c", (), "bool")], walk))


def normalized_convolution(rng, emit, x):
    """A convolution with bias of 4 channels, and a batch normalization."""
    filters = constant(rng.normal(0, 0.1, (4, 4, 3, 3)).astype(np.float32))
    scale, shift = (constant(rng.normal(1, 0.3, 4).astype(np.float32)) for _ in range(2))
    mean, variance = constant(np.full(4, 0.1, np.float32)), constant(np.full(4, 0.9, np.float32))
    x = emit(R.nn.conv2d(x, filters, padding=(1, 1)))
    x = emit(R.add(x, constant(rng.normal(0, 0.3, (1, 4, 1, 1)).astype(np.float32))))
    normalized = emit(R.nn.batch_norm(x, scale, shift, mean, variance, axis=1, training=False))
    return emit(relax.TupleGetItem(normalized, 0))


def convolutions():
    """By c: the convolution of a convolution, or three rounds x ← tanh(conv(x))."""
    rng = np.random.default_rng(6)

    def walk(a, x, c):
        def one():
            return [normalized_convolution(rng, a.emit, a.emit(R.nn.relu(normalized_convolution(rng, a.emit, x))))]

        def other():
            def body(states, _):
                return [a.emit(R.tanh(normalized_convolution(rng, a.emit, states[0])))], []

            return loop(a, body, [x], [], 3)[0]

        return branch(a, c, one, other)

    return as_model(assembled([("x", (1, 4, 5, 5), "float32"), ("c", (), "bool")], walk))


def of(rng, *others):
    return [rng.normal(size=(1, 8)).astype(np.float32), *others]


RUNS = {
    "run time": (at_run_time, lambda rng: of(rng, np.float32(rng.uniform(0.2, 1.1)))),
    "nested": (nested, lambda rng: of(rng)),
    "nested at run time": (nested_at_run_time, lambda rng: of(rng, rng.integers(0, 5, 3))),
    "branch": (chosen, lambda rng: of(rng, np.asarray(rng.random() < 0.7))),
    "convolutions": (
        convolutions,
        lambda rng: [rng.normal(size=(1, 4, 5, 5)).astype(np.float32), np.asarray(rng.random() < 0.5)],
    ),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["auto", "entropy"])
def test_every_kind_of_loop(name, dynamic, mode, rng):
    make, draw = RUNS[name]
    model, data = make(), [tuple(draw(rng)) for _ in range(16)]
    config = quantize.QConfig(dynamic=True) if dynamic else quantize.QConfig(calibrate_mode=mode)
    quantized = quantize.quantize(model, None, data, config)
    assert all(product.is_integer for product in coverage(quantized).products)
    engine, exact, simulated = qnn_ext.build(quantized), Interpreter(model), Interpreter(quantized)
    for inputs in data:
        expected, found = exact(*inputs), engine(*inputs)
        assert np.abs(found - expected).max() < 0.1
        if not dynamic:
            np.testing.assert_array_equal(found, simulated(*inputs))


def test_ranges_of_the_last_rounds(rng):
    """x doubles until it is large; 70 rounds, of which the last 64 are seen: from 2⁶ to 2⁶⁹ times the smallest."""
    twice = constant(2 * np.eye(4, dtype=np.float32))

    def walk(a, x, limit):
        def again(h):
            return a.emit(R.less(a.emit(R.max(h)), limit))

        def body(states, _):
            h = a.emit(R.matmul(states[0], twice))
            return again(h), [h], []

        return loop(a, body, [x], [], 2**31 - 1, condition=again(x))[0]

    model = as_model(assembled([("x", (1, 4), "float32"), ("limit", (), "float32")], walk))
    x = np.float32([[1, 0, -0.5, 0]])
    data = [(x, np.float32(2.0**70)), (x * 2, np.float32(2))]  # the second takes no round
    stages = quantize.stages(model, None, data, quantize.QConfig(calibrate_mode="minmax"))
    (name,) = [site.name for site in quantize.sites(stages["annotate"]) if site.role == "input"]
    assert (float(stages.table[name].low), float(stages.table[name].high)) == (-(2.0**68), 2.0**69)


def test_a_branch_that_calibration_never_takes(rng):
    """Its range is unknown: the layer still runs."""
    data = [tuple(of(rng, np.asarray(False))) for _ in range(4)]
    quantized = quantize.quantize(chosen(), None, data)
    x = np.ones((1, 8), np.float32)
    assert np.isfinite(qnn_ext.build(quantized)(x, np.asarray(True))).all()


def test_layers_of_loops_in_loops_have_names(rng):
    model, data = nested(), [of(rng)[0]]
    names = [
        site.layer for site in quantize.sites(quantize.stages(model, None, data)["annotate"]) if site.role == "input"
    ]
    assert sorted(name.count(".") for name in names) == [1, 2]
    deepest = max(names, key=lambda name: name.count("."))
    quantized = quantize.quantize(model, None, data, quantize.QConfig(overrides={deepest: {"precision": "float32"}}))
    assert sorted(product.is_integer for product in coverage(quantized).products) == [False, True]


def only_inside(rng):
    """A loop with the only product, whose state holds one value that is far larger than the others."""
    inner = rng.normal(0, 0.2, (8, 8)).astype(np.float32)
    inner[0] = 0  # so that its rounding costs the others alone
    spread = constant(np.r_[100, np.ones(7)].astype(np.float32))
    inner = constant(inner)

    def walk(a, x):
        def body(states, _):
            wide = a.emit(R.multiply(states[0], spread))
            return [a.emit(R.tanh(a.emit(R.add(x, a.emit(R.matmul(wide, inner))))))], []

        (final,), _ = loop(a, body, [constant(np.zeros((1, 8), np.float32))], [], 4)
        return [final]

    return as_model(assembled([("x", (1, 8), "float32")], walk))


@pytest.mark.parametrize("make", [network, only_inside])
def test_analysis_measures_loops_too(make, rng):
    """Outputs have the errors that the integers have, where all products are in a loop as well."""
    model = make(rng)
    data = [rng.normal(size=model.inputs[0].shape).astype(np.float32) for _ in range(8)]
    config = quantize.QConfig(calibrate_mode="minmax")
    stages = quantize.stages(model, None, data, config)
    found = quantize.analyze(stages["annotate"], stages.table, data, config)
    exact, integers = (qnn_ext.build(module, num_threads=1) for module in (model, stages.result))
    expected = fidelity(*(np.concatenate([engine(x) for x in data]) for engine in (exact, integers)))
    (outputs,) = found.outputs.values()
    assert outputs.sqnr == pytest.approx(expected.sqnr, abs=0.5)
    assert len(found.layers) == (2 if make is network else 0)


def test_layers_in_loops_are_kept_wider(rng):
    """Accuracy control finds the product in a loop that 8 bits are too few for."""
    model = only_inside(rng)
    data = [rng.normal(size=(1, 8)).astype(np.float32) for _ in range(8)]
    config = quantize.QConfig(calibrate_mode="minmax", target="x86-64")

    def sqnr(module):
        exact, found = (qnn_ext.build(one, num_threads=1) for one in (model, module))
        return fidelity(*(np.concatenate([engine(x) for x in data]) for engine in (exact, found))).sqnr

    plain = sqnr(quantize.quantize(model, dataset=data, config=config))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QuantizationWarning)
        found = quantize.control_accuracy(model, dataset=data, config=config, min_sqnr=plain + 6)
    (layer,) = found.report.chosen.in_16_bits
    assert "." in layer and sqnr(found.stages.result) >= plain + 6

"""Ranges chosen by the error of the layers that read a tensor, and by that of the model's outputs."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant
from qnn_ext.quantize import QConfig, annotate, calibrate, choose, fold, quantize, realize, simulate
from qnn_ext.quantize.analysis import fidelity
from qnn_ext.quantize.choose import choose_ranges, comparable, is_better, weight_errors
from qnn_ext.quantize.engines import shared_engine_of, shared_engines
from qnn_ext.quantize.ranges import Range
from qnn_ext.quantize.switchable import observations

from .networks import float_module

RNG = np.random.default_rng(6)
DATA = [RNG.normal(size=(16, 10)).astype(np.float32) for _ in range(8)]
for _batch in DATA:
    _batch[0, 0] = 60.0  # an outlier in the first channel
START = RNG.bit_generator.state


def network(first: float):
    """A dense layer that reads the channel with outliers with this weight."""
    w = RNG.normal(size=(10, 6)).astype(np.float32)
    w[0] = first
    return float_module((16, 10), lambda emit, x: emit(relax.op.matmul(x, constant(w))))


def chosen(module, **ranges):
    config = QConfig()
    annotated = annotate(fold(module, config), config)
    table = calibrate(annotated, DATA, config)
    candidates = {"x": [Range(*found, name) for name, found in ranges.items()]}
    return choose_ranges(annotated, candidates, table, DATA, config)["x"].method


def test_an_outlier_is_kept_where_it_matters():
    ranges = {"narrow": (-4, 4), "wide": (-4, 60)}
    assert chosen(network(0.0), **ranges) == "narrow"
    assert chosen(network(3.0), **ranges) == "wide"


def test_never_worse_than_each_calibrator():
    module = network(0.01)
    exact = np.concatenate([Interpreter(module)(x) for x in DATA])

    def sqnr(mode):
        integers = Interpreter(quantize(module, dataset=DATA, config=QConfig(calibrate_mode=mode)))
        return fidelity(exact, np.concatenate([integers(x) for x in DATA])).sqnr

    others = max(map(sqnr, ("minmax", "mse", "percentile", "kl_divergence")))
    assert sqnr("output_error") > others - 0.1  # weights are quantized too


def test_tensors_that_no_weight_multiplies_keep_the_default():
    module = float_module((4, 10), lambda emit, x: emit(relax.op.matmul(x, emit(relax.op.permute_dims(x)))))
    config = QConfig(calibrate_mode="output_error")
    data = [x[:4] for x in DATA]
    annotated = annotate(fold(module, config), config)
    assert calibrate(annotated, data, config)["x"].method == "mse"


@pytest.mark.parametrize("first, clips", [(0.0, True), (3.0, False)], ids=["nothing reads the outlier", "it matters"])
def test_auto_is_the_best_mode_for_the_outputs(first, clips):
    module = network(first)
    exact = [Interpreter(module)(x) for x in DATA]

    def sqnr(mode):
        config = QConfig(calibrate_mode=mode)
        annotated = annotate(fold(module, config), config)
        table = calibrate(annotated, DATA, config)
        integers = Interpreter(realize(annotated, table, config))
        return fidelity(np.stack(exact), np.stack([integers(x) for x in DATA])).sqnr, table["x"]

    with shared_engines():
        found, chosen = sqnr("auto")
        others = dict(map(sqnr, ("mse", "minmax", "percentile", "entropy", "kl_divergence")))
    assert found >= max(others) - 0.46 and (chosen.high < 30) == clips  # less is not clearly better
    assert max(others) > min(others) + 3


def errors(module, data, choices):
    """The range of x, and the error of the outputs that each choice leaves on the data that it comes from."""
    found = {}
    exact = [Interpreter(module)(x) for x in data]
    for name, config in choices.items():
        annotated = annotate(fold(module, config), config)
        table = calibrate(annotated, data, config)
        results = [Interpreter(simulate(annotated, table, config))(x) for x in data]
        found[name] = fidelity(np.stack(exact), np.stack(results)).sqnr
    return found


def test_auto_finds_what_only_a_setting_of_onnx_runtime_does():
    """One value of 100 that no weight reads, and few of 20 that matter: all but percentile 99.999 keep all or none."""
    rng = np.random.default_rng(1)
    data = [rng.normal(size=(256, 100)).astype(np.float32) for _ in range(16)]
    for batch in data:
        batch[0, 0] = 100 if batch is data[3] else 0
        batch[:4, 1] = (20, -20, 18, -18)
        batch[8:, 1] = 0
    weight = rng.normal(size=(100, 4)).astype(np.float32)
    weight[0], weight[1] = 0, 5
    module = float_module((256, 100), lambda emit, x: emit(relax.op.matmul(x, constant(weight))))
    former = ("mse", "minmax", "percentile", "entropy")
    with shared_engines():
        found = errors(
            module,
            data,
            {
                **{mode: QConfig(calibrate_mode=mode) for mode in former},
                "of ONNX Runtime": QConfig(calibrate_mode="percentile", percentile=99.999),
                "auto": QConfig(),
            },
        )
    assert found["auto"] >= found["of ONNX Runtime"] > max(found[mode] for mode in former) + 3


def heavy_tailed(rng, count):
    """Samples of different sizes: among the next hundred are some with values that 16 have not shown."""
    sizes = rng.gamma(4, size=(count, 1, 1, 1))
    return list((sizes * rng.laplace(size=(count, 1, 8, 24))).astype(np.float32))


def perceptron(rng):
    hidden, out = (constant((rng.normal(size=size) / 5).astype(np.float32)) for size in ((24, 32), (32, 6)))

    def body(emit, x):
        return emit(relax.op.matmul(emit(relax.op.nn.relu(emit(relax.op.matmul(x, hidden)))), out))

    return float_module((1, 8, 24), body)


def test_auto_leaves_room_for_data_that_it_has_not_seen():
    gains = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        module, seen, new = perceptron(rng), heavy_tailed(rng, 16), heavy_tailed(rng, 128)
        exact = np.stack([Interpreter(module)(x) for x in new])
        found = {}
        with shared_engines():
            for mode in ("auto", "minmax", "mse", "percentile"):
                integers = Interpreter(quantize(module, dataset=seen, config=QConfig(calibrate_mode=mode)))
                found[mode] = fidelity(exact, np.stack([integers(x) for x in new])).sqnr
        gains.append(found.pop("auto") - max(found.values()))
    assert np.mean(gains) > 3 and min(gains) > 0


def test_weights_are_judged_with_activations_in_float():
    module, config = network(3.0), QConfig()
    annotated = annotate(fold(module, config), config)
    table = calibrate(annotated, DATA, config)
    with shared_engines():
        (errors,) = weight_errors([annotated], table, ["x"], [[x] for x in DATA], config)
    (weight,) = (one for one in observations(annotated, table, config) if one.site.value is not None)
    exact, rounded = (np.stack([x @ value for x in DATA]) for value in (weight.site.value, _simulated(weight)))
    expected = np.square(exact - rounded).sum() / np.square(exact).sum()
    assert errors.shape == (4,) and errors.sum() == pytest.approx(expected, rel=1e-3)


def _simulated(weight):
    return weight.simulate(weight.site.value)


@pytest.mark.parametrize(
    "errors, others, better",
    [
        ([1, 1, 1, 1], [2, 2, 2, 2], True),
        ([1, 1, 1, 2], [2, 2, 2, 2], True),
        ([1, 1, 2, 2], [2, 2, 2, 2], False),
        ([1, 2, 2, 2.5], [9, 1, 2, 2], False),
        ([2, 2, 2, 2], [2, 2, 2, 2], False),
        ([1], [2], True),
        ([2, 2], [np.inf, np.inf], True),
        ([np.inf, np.inf], [np.inf, np.inf], False),
    ],
)
def test_better_by_more_than_chance_makes(errors, others, better):
    assert is_better(np.float64(errors), np.float64(others)) == better


def test_the_best_of_many_choices_must_be_surely_better():
    """Folds of a network for text, of which one of fifteen choices was better by chance, and 1.6 dB worse elsewhere."""
    usual, best = np.array([3.02, 2.15, 2.92, 2.13]), np.array([2.56, 2.22, 2.31, 1.91])
    assert is_better(best, usual) and not choose._is_surely_better(best, usual)
    assert choose._is_surely_better(np.array([1.0, 1.0, 1.0, 9.0]), np.full(4, 9.0))
    assert is_better(usual - 0.1, usual) and not choose._is_surely_better(usual - 0.1, usual)


def test_layers_that_share_a_weight_share_the_program():
    """Each of their weights is a constant of its own, quantized or not."""
    w = constant(RNG.normal(size=(10, 10)).astype(np.float32))
    module = float_module(
        (16, 10), lambda emit, x: emit(relax.op.matmul(emit(relax.op.nn.relu(emit(relax.op.matmul(x, w)))), w))
    )
    config = QConfig()
    annotated = annotate(fold(module, config), config)
    observed = {one.site.name: one for one in observations(annotated, calibrate(annotated, DATA, config), config)}
    with shared_engines():
        programs = [shared_engine_of(comparable(annotated, some, []).module)._engine for some in ({}, observed)]
    assert programs[0] is programs[1]

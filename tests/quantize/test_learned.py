"""Learned rounding: errors of layers on the data never grow, and the integers are those that realize finds."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

from qnn_ext.errors import QuantizationError
from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant
from qnn_ext.quantize import (
    CalibrationTable,
    QConfig,
    annotate,
    calibrate,
    fold,
    quantize,
    realize,
    round_weights,
    sites,
    stages,
)
from qnn_ext.quantize.analysis import fidelity
from qnn_ext.quantize.dataset import batches
from qnn_ext.quantize.learned import DAMPING, decoded, encoded, result_errors, round_matrices
from qnn_ext.quantize.patches import sampled, weighted_products
from qnn_ext.quantize.switchable import observations

from .networks import float_module

RNG = np.random.default_rng(8)
START = RNG.bit_generator.state
HOW = ("gptq", "adaround")


def correlated(*shape: int) -> np.ndarray:
    """Values with a few strong directions, as activations have, so that rounding errors can make up for each other."""
    mixing = RNG.normal(size=(shape[-1], shape[-1])) * np.linspace(2, 0.05, shape[-1])
    return (RNG.normal(size=shape) @ mixing).astype(np.float32)


@pytest.mark.parametrize("shape", [(1, 7, 20), (5, 1, 9), (2, 16, 70)])
def test_the_result_of_each_output_gets_no_worse(shape):
    groups, _, length = shape
    rows = correlated(groups, 200, length)
    moment = rows.transpose(0, 2, 1) @ rows
    real = RNG.normal(size=shape) * 3
    integers = {how: round_matrices(real, moment, -7, 7, how) for how in ("nearest", *HOW)}
    mean = np.trace(moment, axis1=1, axis2=2).reshape(-1, 1, 1) / length
    damped = moment + DAMPING * mean * np.eye(length)
    errors = {how: result_errors(real, found, damped) for how, found in integers.items()}
    np.testing.assert_array_equal(integers["nearest"], np.clip(np.rint(real), -7, 7))
    for found in integers.values():
        assert np.array_equal(found, np.rint(found)) and np.abs(found).max() <= 7
    assert (errors["gptq"] <= errors["nearest"] * (1 + 1e-9)).all()
    assert (errors["adaround"] <= errors["gptq"] * (1 + 1e-9)).all()
    assert errors["gptq"].sum() < 0.6 * errors["nearest"].sum()
    if length == 70:  # short rows leave nothing to gain
        assert errors["adaround"].sum() < 0.99 * errors["gptq"].sum()


def test_data_that_are_zero_leave_nearest_rounding():
    real = RNG.normal(size=(2, 3, 4)) * 3
    np.testing.assert_array_equal(round_matrices(real, np.zeros((2, 4, 4)), -7, 7, "gptq"), np.rint(real))
    moment = np.zeros((2, 4, 4))
    moment[:, :2, :2] = np.eye(2)  # two inputs are dead
    assert np.abs(round_matrices(real, moment, -99, 99, "adaround") - real).max() <= 0.5


LAYERS = {
    "dense": ((6, 12), lambda emit, x: relax.op.matmul(x, _weight(12, 5))),
    "dense of a sequence": ((2, 3, 12), lambda emit, x: relax.op.matmul(x, _weight(12, 5))),
    "conv1d": ((1, 6, 9), lambda emit, x: relax.op.nn.conv1d(x, _weight(4, 6, 3), strides=2, padding=(1, 2))),
    "conv2d": (
        (2, 6, 9, 8),
        lambda emit, x: relax.op.nn.conv2d(
            x, _weight(4, 6, 3, 2), strides=(2, 1), padding=(1, 0, 2, 3), dilation=(2, 1)
        ),
    ),
    "grouped": ((1, 6, 7, 7), lambda emit, x: relax.op.nn.conv2d(x, _weight(9, 2, 3, 3), groups=3)),
    "depthwise": ((1, 6, 7, 7), lambda emit, x: relax.op.nn.conv2d(x, _weight(6, 1, 3, 3), groups=6, padding=(1, 1))),
    "channels last": (
        (1, 7, 7, 6),
        lambda emit, x: relax.op.nn.conv2d(x, _weight(3, 3, 6, 4), data_layout="NHWC", kernel_layout="HWIO"),
    ),
}


def _weight(*shape: int):
    return constant(RNG.normal(size=shape).astype(np.float32))


def prepared(name: str, config: QConfig):
    shape, layer = LAYERS[name]
    module = float_module(shape, lambda emit, x: emit(layer(emit, x)))
    data = [correlated(*shape) for _ in range(8)]
    annotated = annotate(fold(module, config), config)
    return module, annotated, calibrate(annotated, data, config), data


@pytest.mark.parametrize("name", LAYERS)
def test_rows_times_weights_are_the_results(name):
    """All positions, in order: the rows' products with the matrix are the layer's results, channel by channel."""
    config = QConfig()
    module, annotated, table, data = prepared(name, config)
    (product,) = weighted_products(annotated, observations(annotated, table, config))
    everything = {product.site.site.name: 10**6}
    (rows, *_) = (rows for _, rows in sampled(annotated, [product], batches(data, module.inputs), everything))
    results = np.matmul(rows, product.weight.matrices.transpose(0, 2, 1))  # (groups, n, outputs)
    exact = Interpreter(module)(data[0])
    exact = np.moveaxis(exact, product.weight.output_axis, -1).reshape(rows.shape[1], -1)
    np.testing.assert_allclose(results.transpose(1, 0, 2).reshape(exact.shape), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", LAYERS)
def test_the_layers_error_on_its_data_falls(name, how):
    config = QConfig(nbit_weight=3, weight_rounding=how, calibrate_mode="minmax")
    module, annotated, table, data = prepared(name, config)
    rounded = round_weights(annotated, table, data, config)
    weight = next(site for site in sites(rounded) if site.value is not None)
    (observed,) = (one for one in observations(rounded, table, config) if one.site.value is not None)
    np.testing.assert_array_equal(observed.simulate(weight.value), weight.value), "values of integers"
    run, exact = (np.concatenate([Interpreter(m)(x).ravel() for x in data]) for m in (rounded, module))
    nearest = np.concatenate([Interpreter(_nearest(annotated, table, config))(x).ravel() for x in data])
    before, after = (float(np.square(one - exact, dtype=np.float64).sum()) for one in (nearest, run))
    assert after < before or (after == before and name == "depthwise"), "nine weights leave no choice"


def _nearest(annotated, table, config):
    from qnn_ext.quantize.learned import _with_weights

    found = [one for one in observations(annotated, table, config) if one.site.value is not None]
    return _with_weights(annotated, {one.site.name: one.simulate(one.site.value) for one in found})


@pytest.mark.parametrize("bias_correction", [False, True])
def test_the_integer_module_has_these_weights(bias_correction):
    config = QConfig(nbit_weight=4, weight_rounding="gptq", bias_correction=bias_correction)
    module, annotated, table, data = prepared("conv2d", config)
    expected = realize(round_weights(annotated, table, data, config), table, config)
    found = quantize(module, dataset=data, config=config)
    x = data[0]
    if not bias_correction:
        np.testing.assert_array_equal(Interpreter(found)(x), Interpreter(expected)(x))
    else:
        means = [
            np.abs(np.mean([Interpreter(m)(x) - Interpreter(module)(x) for x in data], axis=(0, 1, 3, 4)))
            for m in (found, expected)
        ]
        assert means[0].mean() < 0.9 * means[1].mean(), "corrected against the weights before rounding"
    plain = quantize(module, dataset=data, config=QConfig(nbit_weight=4))
    exact = Interpreter(module)(x)
    assert fidelity(exact, Interpreter(found)(x)).sqnr > fidelity(exact, Interpreter(plain)(x)).sqnr


def test_it_needs_data():
    module, _, table, _ = prepared("dense", QConfig())
    with pytest.raises(QuantizationError, match="weight_rounding needs data"):
        quantize(module, table=table, config=QConfig(weight_rounding="gptq"))


def correlated_layers(few_rows: bool):
    """Two layers, a weight of the second of which multiplies inputs that are alike; few_rows: once in a sample."""
    mixing = correlated(24, 24)

    def body(emit, x):
        y = emit(
            relax.op.nn.conv2d(x, constant((mixing @ RNG.normal(size=(24, 3))).astype(np.float32)[:, :, None, None]))
        )
        y = emit(relax.op.nn.relu(y))
        y = emit(relax.op.mean(y, [2, 3])) if few_rows else y
        return emit(relax.op.matmul(y, _weight(24, 8)) if few_rows else relax.op.nn.conv2d(y, _weight(8, 24, 1, 1)))

    return float_module((1, 3, 8, 8), body)


def test_auto_rounds_what_holds_on_other_data(tmp_path):
    module = correlated_layers(few_rows=False)
    data = RNG.normal(size=(16, 1, 3, 8, 8)).astype(np.float32)
    config = QConfig(balance=False, equalize=False, nbit_weight=4)
    held = RNG.normal(size=(8, 1, 3, 8, 8)).astype(np.float32)
    exact = np.stack([Interpreter(module)(x) for x in held])

    def sqnr(integers):
        return fidelity(exact, np.stack([Interpreter(integers)(x) for x in held])).sqnr

    done = stages(module, dataset=list(data), config=config)
    assert done.table.roundings
    nearest = quantize(module, dataset=list(data), config=replace(config, weight_rounding="nearest"))
    assert sqnr(done.result) > sqnr(nearest) + 3
    done.table.save(tmp_path / "table.json")
    again = quantize(module, config=config, table=tmp_path / "table.json")  # without data
    np.testing.assert_array_equal(Interpreter(again)(held[0]), Interpreter(done.result)(held[0]))


def test_auto_leaves_what_makes_outputs_worse(monkeypatch):
    """Whatever the errors of layers promise: here every weight is a step off."""
    data = list(RNG.normal(size=(16, 1, 3, 8, 8)).astype(np.float32))
    config = QConfig(balance=False, equalize=False)
    module = correlated_layers(few_rows=False)
    assert stages(module, dataset=data, config=config).table.roundings
    learned = sys.modules["qnn_ext.quantize.learned"]
    monkeypatch.setattr(
        learned, "round_matrices", lambda real, moment, low, high: np.clip(np.rint(real) + 1, low, high)
    )
    monkeypatch.setattr(learned, "_CLEARLY", np.inf)
    assert stages(module, dataset=data, config=config).table.roundings == {}


@pytest.mark.parametrize("of_half, of_both, taken", [(0.99, 0.99, True), (0.99, 1.01, False), (1.01, 0.99, False)])
def test_auto_leaves_what_makes_outputs_worse_on_other_or_its_own_data(of_half, of_both, taken, monkeypatch):
    errors = [np.full(4, error) for error in (1, of_half, of_both)]
    monkeypatch.setattr(sys.modules["qnn_ext.quantize.learned"], "weight_errors", lambda *given: errors)
    data = list(RNG.normal(size=(16, 1, 3, 8, 8)).astype(np.float32))
    config = QConfig(balance=False, equalize=False, smooth=None)
    assert bool(stages(correlated_layers(few_rows=False), dataset=data, config=config).table.roundings) == taken


def test_large_data_are_rounded_for_as_well():
    """Whose squares are beyond float32."""
    large = np.float32(2.0**70)
    data = RNG.normal(size=(16, 1, 3, 8, 8)).astype(np.float32)
    module = correlated_layers(few_rows=False)
    config = QConfig(balance=False, equalize=False)
    found, expected = (stages(module, dataset=list(x), config=config).table.roundings for x in (data * large, data))
    assert found.keys() == expected.keys() and found


def test_auto_leaves_what_a_few_rows_say():
    module = correlated_layers(few_rows=True)
    data = RNG.normal(size=(4, 1, 3, 8, 8)).astype(np.float32)
    assert "matmul" not in " ".join(stages(module, dataset=list(data)).table.roundings)
    assert stages(module, dataset=list(data[:1])).table.roundings == {}  # nothing to judge it on
    assert stages(module, dataset=list(data), config=QConfig(calibrate_mode="minmax")).table.roundings == {}


@pytest.mark.parametrize("wrong", ["", "AAAA", encoded(np.zeros(5))])
def test_roundings_of_another_model_are_refused(wrong, tmp_path):
    module = correlated_layers(few_rows=False)
    data = list(RNG.normal(size=(8, 1, 3, 8, 8)).astype(np.float32))
    table = stages(module, dataset=data).table
    weight = next(name for name in table.ranges if name.endswith(".weight"))
    for roundings in ({weight: wrong}, {"none.weight": encoded(np.zeros(5))}):
        with pytest.raises(QuantizationError, match="roundings of the calibration table do not fit"):
            quantize(module, table=replace(table, roundings=roundings))
    path = tmp_path / "table.json"
    path.write_text(
        '{"format": "qnn_ext calibration table", "version": 1, "model": "", "roundings": [1], "ranges": {}}'
    )
    with pytest.raises(QuantizationError, match='"roundings" must map'):
        CalibrationTable.load(path)


def test_steps_as_text():
    steps = RNG.integers(-3, 4, (5, 7))
    np.testing.assert_array_equal(decoded(encoded(steps), (5, 7)), steps)
    assert decoded(encoded(steps), (5, 6)) is None and decoded("not base64!", (5, 7)) is None

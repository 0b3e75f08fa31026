"""equalize and smooth "auto": used where they gain, kept in the table, left alone where the user chose the ranges."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

from qnn_ext.errors import QuantizationError, QuantizationWarning
from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant
from qnn_ext.quantize import CalibrationTable, QConfig, control_accuracy, fold, quantize, stages
from qnn_ext.quantize.analysis import fidelity
from qnn_ext.quantize.dataset import batches
from qnn_ext.quantize.rescale import Rescaling, _is_lower, rescaled, settled

from .networks import float_module

RNG = np.random.default_rng(17)
CHANNELS = 24
SPREAD = np.exp(RNG.normal(size=CHANNELS) * 1.5)
DATA = RNG.normal(size=(12, 3, 8, 8)).astype(np.float32)
START = RNG.bit_generator.state
NOT_BALANCED = QConfig(balance=False)
NEITHER = QConfig(balance=False, equalize=False, smooth=None)


def depthwise(spread, alike=False):
    """conv → relu → depthwise → relu → conv, whose channels in between have these scales. alike: and but for these the
    same weights"""
    first, middle, last = (
        RNG.normal(size=shape) for shape in ((CHANNELS, 3, 3, 3), (CHANNELS, 1, 3, 3), (5, CHANNELS, 1, 1))
    )

    if alike:
        first, middle, last = (
            first[:1].repeat(CHANNELS, 0),
            middle[:1].repeat(CHANNELS, 0),
            last[:, :1].repeat(CHANNELS, 1),
        )

    def body(emit, x):
        column = spread.reshape(-1, 1, 1, 1)
        weights = [constant(w.astype(np.float32)) for w in (first * column, middle, last / spread.reshape(1, -1, 1, 1))]
        y = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, weights[0], padding=1))))
        y = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(y, weights[1], padding=1, groups=CHANNELS))))
        return emit(relax.op.nn.conv2d(y, weights[2]))

    return float_module((1, 3, 8, 8), body)


def normalized(spread):
    """A layer normalization with these factors, and a matrix product that undoes them."""
    weight = (RNG.normal(size=(CHANNELS, 6)) / spread[:, None]).astype(np.float32)

    def body(emit, x):
        y = emit(relax.op.reshape(x, (1, 192)))
        y = emit(relax.op.matmul(y, constant(RNG.normal(size=(192, CHANNELS)).astype(np.float32))))
        factors = constant(spread.astype(np.float32)), constant(np.zeros(CHANNELS, np.float32))
        y = emit(relax.op.nn.layer_norm(y, *factors, axes=[-1]))
        return emit(relax.op.matmul(y, constant(weight)))

    return float_module((1, 3, 8, 8), body)


def run(module):
    interpreter = Interpreter(module)
    return np.concatenate([interpreter(x[None]) for x in DATA])


def sqnr(module, integers):
    return fidelity(run(module), run(integers)).sqnr


@pytest.mark.parametrize("config", [QConfig(), NOT_BALANCED], ids=["any", "not balanced"])
@pytest.mark.parametrize("network", [depthwise, normalized])
def test_channels_that_differ_are_rescaled(network, config, tmp_path):
    module = network(SPREAD)
    done = stages(module, dataset=DATA, config=config)
    assert sqnr(module, done.result) > sqnr(module, quantize(module, dataset=DATA, config=NEITHER)) + 3
    np.testing.assert_allclose(run(done["fold"]), run(module), rtol=1e-3, atol=1e-4)
    assert done.table.scales
    done.table.save(tmp_path / "table.json")
    again = quantize(module, config=config, table=tmp_path / "table.json")  # without data
    np.testing.assert_array_equal(run(again), run(done.result))


@pytest.mark.parametrize(
    "errors, others, lower",
    [
        ([1, 3, 1, 3], [2, 3, 2, 3], True),
        ([1.9, 1.9, 1.9, 1.9], [2, 2, 2, 2.2], True),
        ([1.95, 1.95, 1.95, 1.95], [2, 2, 2, 2], False),
        ([1.1, 1.1, 1.1, 1.1], [1, 1, 1, 9], True),
        ([1.5, 1.5, 1.5, 1.5], [1, 1, 1, 5], False),
        ([1, 1, 1, 5], [1.5, 1.5, 1.5, 1.5], False),
        ([0, 0, 0, 0], [0, 0, 0, 0], False),
        ([np.inf, 1, 1, 1], [2, 2, 2, 2], False),
    ],
)
def test_lower_by_a_twentieth_in_most_parts_of_the_data(errors, others, lower):
    assert _is_lower(np.float64(errors), np.float64(others)) == lower


def test_small_models_are_judged_on_more_samples(monkeypatch):
    counts = []

    def errors(module, samples, config):
        counts.append(len(samples))
        return np.float64([1, 1, 1, 2]) if len(counts) > 1 else np.float64([1.2, 1.2, 1.2, 2])

    monkeypatch.setattr(sys.modules["qnn_ext.quantize.rescale"], "usual_errors", errors)
    data = RNG.normal(size=(80, 3, 8, 8)).astype(np.float32)
    module = fold(depthwise(SPREAD), QConfig())
    assert settled(module, QConfig(), batches(data, module.inputs)).balance is True and counts == [64, 64]


def test_equal_channels_stay():
    module = depthwise(np.ones(CHANNELS), alike=True)
    done = stages(module, dataset=DATA, config=NOT_BALANCED)
    assert done.table == stages(module, dataset=DATA, config=NEITHER).table and not done.table.scales


@pytest.mark.parametrize(
    "config",
    [QConfig(calibrate_mode="minmax"), QConfig(overrides={"*": {"range": (-9.0, 9.0)}})],
    ids=["mode", "range"],
)
def test_ranges_of_the_user_are_of_tensors_as_they_are(config):
    module = depthwise(SPREAD)
    assert not stages(module, dataset=DATA, config=config).table.scales


@pytest.mark.filterwarnings("ignore:.*all values are zero")
def test_little_data():
    module = depthwise(SPREAD)
    assert stages(module, dataset=DATA[:1]).table.scales
    with pytest.warns(QuantizationWarning, match="the data set is constant") as caught:
        assert not stages(module, dataset=np.zeros_like(DATA)).table.scales
    assert sum("constant" in str(one.message) for one in caught) == 1
    with pytest.raises(QuantizationError, match="data set is empty"):
        stages(module, dataset=DATA[:0])


def test_a_search_begins_with_them():
    module = depthwise(SPREAD)
    plain = sqnr(module, quantize(module, dataset=DATA, config=NEITHER))
    found = control_accuracy(module, dataset=DATA, config=NOT_BALANCED, min_sqnr=plain + 3)
    assert found.config.equalize is True and found.config.smooth is None
    assert found.report.chosen.setting == "as configured" and found.report.chosen.share == 1


@pytest.mark.parametrize("scales", [{99: [1.0]}, {0: [1.0, 2.0]}], ids=["group", "channels"])
def test_scales_of_another_model_are_refused(scales):
    module = depthwise(SPREAD)
    table = stages(module, dataset=DATA).table
    with pytest.raises(QuantizationError, match="scales of the calibration table do not fit"):
        quantize(module, table=replace(table, scales=scales))
    with pytest.raises(QuantizationError, match="do not fit"):
        rescaled(module, Rescaling(scales))


DAMAGED = ["[1]", '{"a": [1]}', '{"0": 1}', '{"0": [true]}', '{"0": [Infinity]}']


@pytest.mark.parametrize("field", ["scales", "biases"])
@pytest.mark.parametrize("bad", [*DAMAGED, '{"0": [0]}'])
def test_tables_with_damaged_numbers_are_refused(field, bad, tmp_path):
    path = tmp_path / "table.json"
    path.write_text(
        f'{{"format": "qnn_ext calibration table", "version": 1, "model": "", "{field}": {bad}, "ranges": {{}}}}'
    )
    if field == "biases" and bad not in DAMAGED:  # 0 is no scale
        assert CalibrationTable.load(path).biases == {0: [0.0]}
        return
    with pytest.raises(QuantizationError, match=f'"{field}" must map'):
        CalibrationTable.load(path)

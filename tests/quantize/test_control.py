"""Accuracy control: goals are kept by the integers, and what was measured is not measured again."""

import itertools
import json
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.errors import AccuracyError, QuantizationError, QuantizationWarning
from qnn_ext.interpreter import Interpreter
from qnn_ext.quantize import QConfig, annotate, control, control_accuracy, control_settings, quantize, sites
from qnn_ext.quantize.alternatives import SEEN, Choice
from qnn_ext.quantize.analysis import fidelity
from qnn_ext.quantize.dataset import batches
from qnn_ext.quantize.engines import shared_engines
from qnn_ext.quantize.judge import Goal, Judge
from qnn_ext.quantize.kept_back import Others, kept_back
from qnn_ext.quantize.trials import JOURNAL

from .networks import float_module, recurrent_module, run_sequence
from .residual import residual_network

RNG = np.random.default_rng(9)
DATA = RNG.normal(size=(6, 4, 6, 6)).astype(np.float32)
DATA[:, 1] *= 30  # the first layer reads channels of very different ranges
START = RNG.bit_generator.state

FIXED = QConfig(calibrate_mode="minmax", target="x86-64")


@pytest.fixture(scope="module", autouse=True)
def one_cache():
    """The searches of all tests compile a program once."""
    with shared_engines():
        yield


@pytest.fixture(autouse=True)
def layers_only(monkeypatch, request):
    """Searches try no settings, but for the tests of those."""
    if "setting" not in request.node.name:
        monkeypatch.setattr(control, "_SETTINGS", ())


@pytest.fixture(scope="module")
def module():
    return residual_network(np.random.default_rng(3))


def results(module) -> np.ndarray:
    return np.concatenate([Interpreter(module)(x[None]) for x in DATA])


def sqnr(module, other) -> float:
    return fidelity(results(module), results(other)).sqnr


@pytest.fixture(scope="module")
def plain(module) -> float:
    """The SQNR of 8 bits as configured."""
    return sqnr(module, quantize(module, dataset=DATA, config=FIXED))


def search(module, config=FIXED, **goal):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QuantizationWarning)
        return control_accuracy(module, dataset=DATA, config=config, **goal)


def test_what_is_good_enough_is_left_alone(module, plain):
    found = search(module, min_sqnr=plain - 0.5)
    assert found.config == replace(FIXED, balance=False, equalize=False, smooth=None)  # "auto" is settled
    assert found.report.chosen.share == 1
    assert found.report.chosen.compiled and found.report.chosen.sqnr == pytest.approx(plain, abs=0.01)
    assert [trial.compiled for trial in found.report.trials] == [False, True]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("keep", ["auto", "int16", "float32"])
def test_the_integers_keep_the_goal_with_the_fewest_layers(module, plain, keep):
    goal = plain + 2
    found = search(module, min_sqnr=goal, keep=keep)
    assert sqnr(module, found.stages.result) >= goal
    chosen = found.report.chosen
    assert len(chosen.in_16_bits) + len(chosen.in_float) > 0
    if keep != "auto":
        assert not (chosen.in_float if keep == "int16" else chosen.in_16_bits)
    precisions = {name: values["precision"] for name, values in found.config.overrides.items()}
    assert sorted(precisions) == sorted((*chosen.in_16_bits, *chosen.in_float))
    again = search(module, min_sqnr=goal, keep=keep)
    assert again.config == found.config, "deterministic"
    figures = [(trial.setting, trial.sqnr, trial.share) for trial in found.report.trials]
    assert [(trial.setting, trial.sqnr, trial.share) for trial in again.report.trials] == figures
    np.testing.assert_array_equal(results(again.stages.result), results(found.stages.result))


def test_16_bits_do_not_clip(module):
    """A calibrator that clips for the sake of 8 bits would spoil 16."""
    config = QConfig(calibrate_mode="percentile", percentile=90.0, target="x86-64")
    clipped = sqnr(module, quantize(module, dataset=DATA, config=config))
    found = search(module, config, min_sqnr=40, keep="int16")
    assert clipped < 25 and sqnr(module, found.stages.result) >= 40


def test_what_stays_in_8_bits_keeps_the_ranges_of_the_simulation(module, plain, monkeypatch):
    """Whatever "auto" would choose for the rest of the model alone."""
    choices = []

    def choose(*args):
        choices.append(SEEN if not choices else Choice("percentile", 90.0))
        return choices[-1]

    monkeypatch.setattr(sys.modules["qnn_ext.quantize.calibrate"], "choose_alternative", choose)
    found = search(module, QConfig(target="x86-64", equalize=False, smooth=None), min_sqnr=plain + 4)
    chosen = found.report.chosen
    assert chosen.in_16_bits or chosen.in_float
    activations = [one for name, one in found.stages.table.ranges.items() if not name.endswith(".weight")]
    assert len(activations) > 2 and {one.method for one in activations} == {"minmax"}
    simulated = [trial.sqnr for trial in found.report.trials if trial.setting == chosen.setting and not trial.compiled]
    assert chosen.sqnr == pytest.approx(simulated[-1], abs=1)
    again = quantize(module, table=found.stages.table, config=found.config)
    np.testing.assert_array_equal(results(again), results(found.stages.result))


def test_sums_alone_are_not_quantized(module):
    """Without products in 8 bits, sums are not quantized either: nothing is left to try."""
    with pytest.raises(AccuracyError, match="no setting tried reaches SQNR of at least 70 dB"):
        search(module, QConfig(target="x86-64"), min_sqnr=70)


def test_a_small_share_in_8_bits_is_a_warning(module, plain):
    with pytest.warns(QuantizationWarning, match=r"dB takes \d+ % of the multiply-accumulates in more than 8 bits"):
        control_accuracy(module, dataset=DATA, config=FIXED, min_sqnr=plain + 8)


def test_settings_come_before_layers(module):
    """Two layers in between whose channels differ: equalization alone suffices for one scale per weight."""
    spread = np.exp(RNG.normal(size=(8, 1, 1, 1)) * 2).astype(np.float32)

    def body(emit, x):
        first, second = (RNG.normal(size=shape).astype(np.float32) for shape in ((8, 4, 3, 3), (5, 8, 1, 1)))
        y = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, relax.const(first * spread), padding=(1, 1)))))
        return emit(relax.op.nn.conv2d(y, relax.const(second / spread.reshape(1, 8, 1, 1))))

    network = float_module((1, 4, 6, 6), body)
    config = QConfig(per_channel=False, calibrate_mode="minmax", target="x86-64")
    before = sqnr(network, quantize(network, dataset=DATA, config=config))
    found = search(network, config, min_sqnr=before + 5)
    assert found.report.chosen.setting == "equalize" and found.report.chosen.share == 1
    assert found.config.equalize and not found.config.overrides


def test_settings_with_the_same_ranges_are_calibrated_once(module, monkeypatch):
    """Weights rounded in other ways, and corrected biases, have the ranges that the first setting has found."""
    monkeypatch.setattr(control, "_SETTINGS", (("weight_rounding", ("gptq", "adaround")), ("bias_correction", (True,))))
    with_tables = sys.modules["qnn_ext.quantize.stages"]
    calibrate, count = with_tables.calibrate, []
    monkeypatch.setattr(with_tables, "calibrate", lambda *given: count.append(given) or calibrate(*given))
    config = QConfig(target="x86-64", balance=False, equalize=False, smooth=None)
    monkeypatch.setattr(control, "_FAR", np.inf)
    monkeypatch.setattr(control._Search, "_is_limited", lambda *_: False)

    def figures():
        with pytest.raises(AccuracyError) as caught:
            search(module, config, min_sqnr=400, keep="int16")
        return [(trial.setting, trial.sqnr, trial.in_16_bits) for trial in caught.value.report.trials]

    found, before = figures(), len(count)
    assert before == 1 and sum(not layers for _, _, layers in found) == 4
    monkeypatch.setattr(control_settings.Setting, "_known_ranges", lambda self: None)
    assert figures() == found and len(count) == before + 4


def test_filters_of_a_spectrum_are_tried_in_8_and_16_bits():
    """They are most of a network's multiply-accumulates, and in float by default. The power behind them stays there."""
    rng = np.random.default_rng(3)

    def body(emit, x):
        first, second = (rng.normal(size=shape).astype(np.float32) for shape in ((8, 4, 3, 3), (5, 8, 1, 1)))
        power = emit(relax.op.square(emit(relax.op.nn.conv2d(x, relax.const(first)), "filters")))
        level = emit(relax.op.log(emit(relax.op.add(power, relax.const(np.float32(1e-2))))))
        return emit(relax.op.nn.conv2d(level, relax.const(second)), "network")

    spectral = float_module((1, 4, 6, 6), body)
    in_float, in_8_bits, in_16_bits = (
        sqnr(spectral, quantize(spectral, dataset=DATA, config=replace(FIXED, overrides=overrides)))
        for overrides in ({}, {"filters": {"precision": "int8"}}, {"filters": {"precision": "int16"}})
    )
    assert in_float > in_16_bits + 3 > in_8_bits + 6
    found = search(spectral, min_sqnr=in_8_bits - 1)
    assert found.report.chosen.setting == "filters in 8 bits" and found.report.chosen.share == 1
    assert sqnr(spectral, found.stages.result) == pytest.approx(in_8_bits, abs=0.1)
    wide, best = (search(spectral, min_sqnr=least) for least in (in_8_bits + 2, in_16_bits + 2))
    assert wide.report.chosen.setting == "filters in 16 bits" and wide.report.chosen.share < 0.5
    assert sqnr(spectral, wide.stages.result) == pytest.approx(in_16_bits, abs=0.1)
    assert best.report.chosen.setting == "as configured" and best.report.chosen.share < 0.5
    tried = [(trial.setting, trial.reached) for trial in best.report.trials[:2]]
    assert tried == [("filters in 8 bits", False), ("filters in 16 bits", False)]
    narrow = search(spectral, min_sqnr=in_8_bits + 2, keep="float32")
    assert "filters in 16 bits" not in [trial.setting for trial in narrow.report.trials]


@pytest.mark.parametrize(("large", "few"), [(1 << 28, 64), (1, 4)])
def test_noise_is_measured_on_all_samples_of_small_models(module, plain, monkeypatch, large, few):
    """On a few samples the noise of a layer may be another: of a classifier, most is in those near a decision."""
    seen = []

    def noise(judge, runner, samples):
        seen.append(samples)
        return measured(judge, runner, samples)

    measured = control.Judge.noise
    monkeypatch.setattr(control.Judge, "noise", noise)
    monkeypatch.setattr(sys.modules["qnn_ext.quantize.choose"], "_LARGE", large)
    search(module, min_sqnr=plain + 2)
    assert set(seen) == {few}


def test_an_expensive_layer_is_kept_if_nothing_else_will_do():
    """Layers go one after the other, in order of noise for each multiply-accumulate: the one with most of these goes
    last, however noisy it is."""
    rng = np.random.default_rng(5)
    data = rng.normal(size=(8, 1, 8, 6, 6)).astype(np.float32)
    data[:, :, 0] *= 6

    def body(emit, x):
        first, second = (rng.normal(size=shape).astype(np.float32) for shape in ((8, 8, 3, 3), (2, 8, 1, 1)))
        return emit(relax.op.nn.conv2d(emit(relax.op.nn.conv2d(x, relax.const(first)), "first"), relax.const(second)))

    module = float_module((1, 8, 6, 6), body)

    def found(config):
        expected, integers = (
            np.concatenate([run(x) for x in data])
            for run in map(Interpreter, (module, quantize(module, dataset=list(data), config=config)))
        )
        return fidelity(expected, integers).sqnr

    names = [site.layer for site in sites(annotate(module, FIXED)) if site.role == "weight"]
    cheap, expensive = (
        found(replace(FIXED, overrides={name: {"precision": "float32"}})) for name in (names[1], names[0])
    )
    assert expensive > cheap + 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QuantizationWarning)
        done = control_accuracy(module, dataset=list(data), config=FIXED, min_sqnr=expensive - 0.5, keep="float32")
    assert done.report.chosen.in_float == (names[0],)


def test_a_metric(module):
    labels = results(module).argmax(1)
    seen = []

    def agreement(model) -> float:
        seen.append(type(model))
        answers = [int(np.asarray(model(x[None])).argmax()) for x in DATA]
        by_name = model.run({"x": DATA[:1]})["y"]
        np.testing.assert_array_equal(by_name, model(DATA[:1]))
        return float(np.mean(answers == labels))

    quantized = quantize(module, dataset=DATA, config=FIXED, metric=agreement, max_drop=0.0)
    assert np.array_equal(results(quantized).argmax(1), labels)
    assert qnn_ext.Engine in seen, "the integers were asked too"


def test_a_goal_out_of_reach_names_the_best(module):
    with pytest.raises(AccuracyError, match=r"SQNR of at least 400 dB; the best was .* dB, .* 8 bits") as caught:
        search(module, min_sqnr=400, keep="int16")
    report = caught.value.report
    assert report.chosen is None and report.best.sqnr == max(trial.sqnr for trial in report.trials)
    values = itertools.chain([1.0], itertools.repeat(float("nan")))  # of a correlation with results that are all equal
    with pytest.raises(AccuracyError, match=r"metric of at least 1 − 0\.5; the best was .* metric -inf"):
        search(module, metric=lambda model: next(values), max_drop=0.5)


def test_settings_are_not_tried_for_a_goal_far_away(module):
    """Which only layers in more bits may reach, if "auto" has found the rest."""
    with pytest.raises(AccuracyError, match=r"8 bits are more than 15 dB below it") as caught:
        search(module, QConfig(target="x86-64"), min_sqnr=400, keep="float32")
    assert {trial.setting.partition(",")[0] for trial in caught.value.report.trials} == {"as configured"}


def test_settings_of_activations_are_not_tried_where_weights_are_not_accurate_enough(module, monkeypatch):
    """Nor is the noise of layers measured."""
    monkeypatch.setattr(control_settings.Setting, "alone_runner", None)
    with pytest.raises(
        AccuracyError, match=r"with every layer in 16 bits, too, .* Lower the goal.*keep='auto'"
    ) as caught:
        search(module, min_sqnr=90, keep="int16")
    tried = caught.value.report.trials
    rounded = {"as configured", "weight_rounding=gptq", "weight_rounding=adaround"}
    assert {trial.setting.partition(", ")[0] for trial in tried} == rounded
    assert caught.value.report.best.in_16_bits


def test_a_trial_that_is_infinitely_good_is_no_answer(module):
    values = itertools.chain([1.0], itertools.repeat(np.inf))
    with pytest.raises(QuantizationError, match="metric returned inf for a quantized model"):
        search(module, metric=lambda model: next(values), max_drop=0.5)


@pytest.mark.parametrize("reference", [20.0, -20.0], ids=["accuracy", "an error's negative"])
def test_a_drop_may_be_a_share_of_the_float_models_metric(reference):
    goal = Goal(metric=len, max_drop=0.01, drop_type="relative")
    assert goal.reached(np.inf, reference - 0.19, reference) and not goal.reached(np.inf, reference - 0.21, reference)
    assert goal.described(reference) == f"metric of at least {reference:g} − 1 %"


def test_a_search_for_a_relative_drop(module):
    values = itertools.chain([200.0], itertools.repeat(199.0))
    goal = {"metric": lambda model: next(values), "max_drop": 0.01}
    assert search(module, **goal, drop_type="relative").report.chosen.share == 1
    values = itertools.chain([200.0], itertools.repeat(199.0))
    with pytest.raises(AccuracyError, match=r"metric of at least 200 − 0\.01;"):
        search(module, **goal)


def test_a_metric_may_be_an_array_of_one_element(module):
    assert search(module, metric=lambda model: np.ones((1,)), max_drop=0).report.reference == 1.0


def test_a_goal_that_only_float_reaches(module):
    """A model in which nothing is quantized would be no answer."""
    with pytest.raises(AccuracyError, match=r"the best was .* in float: .* dB"):
        search(module, min_sqnr=400, keep="float32")


def test_an_interrupted_search_goes_on(module, plain, counted, tmp_path):
    goal = {"min_sqnr": plain + 4}
    expected = search(module, **goal)
    total, counted["count"] = counted["count"], 0
    counted["after"] = total // 2
    with pytest.raises(KeyboardInterrupt):
        search(module, work=tmp_path, **goal)
    first, counted["after"] = counted["count"], None
    with open(tmp_path / JOURNAL, "a", encoding="utf-8") as file:
        file.write('{"key": "torn')
    found = search(module, work=tmp_path, **goal)
    assert counted["count"] == total and first == total // 2, "nothing is measured twice"
    assert found.config == expected.config
    figures = [(trial.setting, trial.sqnr) for trial in expected.report.trials]
    assert [(trial.setting, trial.sqnr) for trial in found.report.trials] == figures
    assert any(trial.repeated for trial in found.report.trials)
    np.testing.assert_array_equal(results(found.stages.result), results(expected.stages.result))
    search(module, work=tmp_path, **goal)
    assert counted["count"] == total
    lines = (tmp_path / JOURNAL).read_text(encoding="utf-8").splitlines()
    keys = [json.loads(line)["key"] for line in lines if line != '{"key": "torn']
    assert len(keys) == len(set(keys)) == total


def test_other_data_are_measured_anew(module, plain, counted, tmp_path):
    search(module, work=tmp_path, min_sqnr=plain - 1)
    before = counted["count"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QuantizationWarning)
        control_accuracy(module, dataset=DATA[::-1].copy(), config=FIXED, min_sqnr=1, work=tmp_path)
    assert counted["count"] == 2 * before


def test_validation_data_judge_and_others_calibrate(module, counted, tmp_path):
    found = search(module, min_sqnr=1, validation_data=DATA[:3], work=tmp_path)
    exact, integers = results(module), results(found.stages.result)
    assert found.report.chosen.sqnr == pytest.approx(fidelity(exact[:3], integers[:3]).sqnr, abs=0.01)
    expected = quantize(module, dataset=DATA, config=FIXED)
    np.testing.assert_array_equal(integers, results(expected))
    before = counted["count"]
    search(module, min_sqnr=1, validation_data=DATA[3:], work=tmp_path)
    assert counted["count"] == 2 * before, "other data are measured anew"


def test_batches_that_do_not_calibrate_judge(module):
    """Every fourth, whose values are beyond the ranges that the others give."""
    data = np.concatenate([DATA, DATA[::-1], DATA[:4]])
    data[3::4] *= 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QuantizationWarning)
        found = control_accuracy(module, dataset=data, config=FIXED, min_sqnr=1)
    assert found.report.goal == "SQNR of at least 1 dB (4 of 16 batches do not calibrate)"
    integers = found.stages.result
    others = np.delete(data, np.s_[3::4], axis=0)
    np.testing.assert_array_equal(
        Interpreter(integers)(others[:1]), Interpreter(quantize(module, dataset=others, config=FIXED))(others[:1])
    )
    exact, quantized = (np.concatenate([Interpreter(one)(x[None]) for x in data]) for one in (module, integers))
    noise, signal = np.square(exact - quantized), np.square(exact)
    noise, signal = (values.reshape(16, -1).sum(axis=1, dtype=np.float64) for values in (noise, signal))
    of_all = noise.mean() + noise.std(ddof=1) / 4
    worst = max(of_all, noise[3::4].mean())
    assert worst > 1.2 * noise.mean()
    assert found.report.chosen.sqnr == pytest.approx(10 * np.log10(signal.mean() / worst), abs=0.01)


class Noisy:
    """Runs a model and adds noise of an energy to each of its results in turn."""

    def __init__(self, module, energies):
        self._module, self._energies = Interpreter(module), list(energies)

    def reset_state(self):
        self._left = iter(self._energies)

    def run(self, inputs):
        result = np.float64(self._module(*inputs))
        return {"y": result + np.sqrt(next(self._left) / result.size)}


def test_luck_in_single_batches_is_not_expected_elsewhere(module):
    data = np.concatenate([DATA, DATA[:2]])
    judge = Judge(module, batches(data, module.inputs), 64, Goal(30.0), kept_back=[3, 7])
    usual, lucky = np.full((2, 8), 1e-2)
    usual[5], lucky[5] = 10, 1e-2
    first, luck, tenth, exact = (judge.figures(Noisy(module, e)) for e in (usual, lucky, usual / 10, np.zeros(8)))
    assert luck["sqnr"] > first["sqnr"] + 20
    of_most = 10 * np.log10(1000) / 8  # one of eight logarithms falls by this factor
    for found, gain in ((first, 0), (luck, of_most), (tenth, 10)):
        assert judge.like(found, first["noise"])["sqnr"] == pytest.approx(first["sqnr"] + gain, abs=0.01)
    assert judge.like(exact, first["noise"])["sqnr"] > 100
    assert judge.like(first, luck["noise"])["sqnr"] == first["sqnr"], "bad luck counts"


@pytest.mark.parametrize(
    "count, samples, sequence, expected",
    [
        (7, 64, False, []),
        (8, 64, False, [3, 7]),
        (200, 10, False, [3, 7]),
        (9, 64, True, [7, 8]),
        (100, 16, True, [12, 13, 14, 15]),
        (40, 4, False, []),
    ],
)
def test_which_batches_do_not_calibrate(module, count, samples, sequence, expected):
    data = batches([DATA[:1]] * count, module.inputs)
    assert kept_back(data, samples, sequence) == expected
    unknown = batches(lambda: [DATA[:1]] * count, module.inputs)
    assert kept_back(unknown, samples, sequence) == expected
    others = Others(data, expected)
    assert len(list(others)) == others.count == count - len(expected)


def test_states_start_anew_for_each_trial():
    """A recurrent network, judged on a sequence."""
    rng = np.random.default_rng(4)
    module = recurrent_module(rng)
    data = rng.normal(size=(12, 6)).astype(np.float32)
    plain = run_sequence(quantize(module, dataset=data, config=FIXED), data)
    exact = run_sequence(module, data)
    goal = fidelity(exact, plain).sqnr + 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QuantizationWarning)
        found = control_accuracy(module, dataset=data, validation_data=data, config=FIXED, min_sqnr=goal)
    reached = fidelity(exact, run_sequence(found.stages.result, data)).sqnr
    assert reached >= goal and found.report.chosen.sqnr == pytest.approx(reached, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give min_sqnr, or metric with max_drop"),
        ({"metric": len}, "metric and max_drop belong together"),
        ({"metric": 3, "max_drop": 1}, "metric must be a function"),
        ({"min_sqnr": float("nan")}, "min_sqnr must be finite"),
        ({"min_sqnr": "30"}, "min_sqnr must be a number"),
        ({"min_sqnr": 30, "keep": "int4"}, "keep must be one of 'auto', 'int16', 'float32'"),
        ({"min_sqnr": 30, "samples": 0}, "samples must be a whole number of at least 1, found 0"),
        ({"min_sqnr": 30, "samples": "8"}, "samples must be a whole number of at least 1, found '8'"),
        ({"min_sqnr": 30, "samples": None}, "samples must be a whole number of at least 1, found None"),
        ({"min_sqnr": 30, "sensitivity_samples": 2.5}, "sensitivity_samples must be a whole number"),
        ({"min_sqnr": 30, "dataset": None}, "needs data"),
        (
            {"min_sqnr": 30, "config": QConfig(dynamic=True)},
            "and dynamic or give it a group_size",
        ),
        ({"min_sqnr": 30, "keep": "int16", "config": QConfig(weight_only=True)}, "get 8 bits, then float"),
        ({"metric": lambda model: None, "max_drop": 1}, "metric must return a number"),
        ({"metric": lambda model: float("nan"), "max_drop": 1}, "metric returned NaN for the float model"),
        ({"metric": lambda model: -np.inf, "max_drop": 1}, "metric returned -inf for the float model"),
        (
            {"metric": lambda model: np.ones((2, 3)), "max_drop": 1},
            r"found ndarray of shape \(2, 3\): return one of its",
        ),
        ({"metric": lambda model: {"top1": 0.5}, "max_drop": 1}, "found {'top1': 0.5}: return one of its values"),
        (
            {"metric": lambda model: "0.5", "max_drop": 1},
            "must return a number, higher for a better model, found '0.5'",
        ),
        ({"metric": lambda model: [0.0] * 99, "max_drop": 1}, r"found \[0.0, 0.0, .* …: return"),
        ({"metric": len, "max_drop": "1 %"}, "max_drop must be a number, found '1 %': .* give drop_type='relative'"),
        ({"metric": len, "max_drop": -1}, "If lower is better, as for an error, let metric return its negative"),
        ({"metric": len, "max_drop": 1, "drop_type": "percent"}, "must be 'absolute' or 'relative', found 'percent'"),
        ({"metric": len, "max_drop": 5, "drop_type": "relative"}, "max_drop between 0 and 1, .* found 5: 0.01 is one"),
        ({"min_sqnr": 30, "drop_type": "relative"}, "needs a max_drop between 0 and 1"),
    ],
)
def test_mistakes(module, arguments, message):
    with pytest.raises(QuantizationError, match=message):
        control_accuracy(module, **{"dataset": DATA, **arguments})


def test_mistakes_of_quantize(module):
    with pytest.raises(QuantizationError, match="work keeps the measurements of a search"):
        quantize(module, dataset=DATA, work="folder")
    with pytest.raises(QuantizationError, match="validation_data are for a search"):
        quantize(module, dataset=DATA, validation_data=DATA)
    with pytest.raises(QuantizationError, match="drop_type says what max_drop is"):
        quantize(module, dataset=DATA, drop_type="relative")
    with pytest.raises(QuantizationError, match="a search for accuracy calibrates for itself"):
        quantize(module, dataset=DATA, table="ranges.json", min_sqnr=3)


def test_every_setting_is_a_field_at_its_default():
    default = QConfig()
    for name, values in control._SETTINGS:
        assert all(getattr(QConfig(**{name: value}), name) != getattr(default, name) for value in values)

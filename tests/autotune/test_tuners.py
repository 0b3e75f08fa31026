"""Tuners: every one measures, checks, records and decides; a log is resumed; failures are recorded and skipped."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from qnn_ext import TuningError
from qnn_ext.autotune import Tuner, log_to_file, make_task, measure_option, read_log, space_of
from qnn_ext.autotune import measure as measuring
from qnn_ext.autotune.timing import race
from qnn_ext.autotune.tuners import TUNERS, GATuner, diverse, make_tuner
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import DenseWorkload

from .conftest import NoBuilder, Pretend


def fastest_at(place: int):
    """Times with one valley, as those of register tiles have."""
    return lambda index: 1.0 + 0.05 * abs(index - place)


def tuner_or_skip(name, task):
    if name == "xgb":
        pytest.importorskip("xgboost", reason="needs xgboost")
    return make_tuner(name, task)


@pytest.mark.parametrize("name", TUNERS)
def test_finds_the_best(name, task, tmp_path):
    runner, log = Pretend(fastest_at(7)), tmp_path / "log.jsonl"
    tuner = tuner_or_skip(name, task)
    size = len(tuner.space)
    decision = tuner.tune(size, measure_option(NoBuilder(), runner), callbacks=[log_to_file(log)])
    assert decision.best.configuration == tuner.space.configurations[7] and decision.measured == size
    assert sorted(runner.measured) == list(range(1, size)), "each once, the default never"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == size and lines[-1]["decided"] == size
    assert lines[-1]["configuration"] == asdict(decision.best.configuration)


@pytest.mark.parametrize("name", ["xgb", "ga"])
def test_learns_where_to_look(name):
    """In a large space with a valley far from the predicted order, half of the space suffices."""
    task = make_task(DenseWorkload(64, 256, 512, "uint8", "int8"), make_target("avx512_vnni", 1))
    order = {item: index for index, item in enumerate(space_of(task).configurations)}
    assert len(order) > 48

    def slow(index):
        configuration = space_of(task).configurations[index]
        return 1.0 + abs(configuration.columns - 3) + abs(configuration.blocks - 5)

    tuner = tuner_or_skip(name, task)
    decision = tuner.tune(32, measure_option(NoBuilder(), Pretend(slow)))
    assert decision.best.seconds <= 2.0


@pytest.mark.parametrize("loss_type", ["reg", "rank", "rank-binary"])
@pytest.mark.parametrize("feature_type", ["itervar", "knob"])
def test_losses_and_features(loss_type, feature_type):
    """Each model finds a valley far from the predicted order; each is another one."""
    pytest.importorskip("xgboost", reason="needs xgboost")
    task = make_task(DenseWorkload(64, 256, 512, "uint8", "int8"), make_target("avx512_vnni", 1))
    configurations = space_of(task).configurations
    runner = Pretend(lambda i: 1.0 + abs(configurations[i].columns - 3) + abs(configurations[i].blocks - 5))
    tuner = make_tuner("xgb", task, loss_type=loss_type, feature_type=feature_type)
    assert tuner.tune(40, measure_option(NoBuilder(), runner)).best.seconds <= 2.0
    assert type(tuner._model).__name__ == ("CostModel" if loss_type == "reg" else "RankModel")


def test_binary_ranks(task):
    """Only the faster half counts: two configurations within it score the same where speeds would tell them apart."""
    pytest.importorskip("xgboost", reason="needs xgboost")
    tuner = make_tuner("xgb", task, loss_type="rank-binary")
    configurations = tuner.space.configurations[:8]
    runner = Pretend(lambda index: 1.0 + index)
    tuner._model.update(list(runner.run(task, None, [(item, "") for item in configurations])))
    scores = tuner._model.predict(configurations)
    assert scores[:4].min() > scores[4:].max()


def test_plans(task):
    """The trees are fitted again once a plan is measured; a plan is at most an eighth of the space."""
    pytest.importorskip("xgboost", reason="needs xgboost")
    fits = []
    most = max(8, len(space_of(task)) // 8)
    for plan_size, wanted in ((4, 4), (64, most)):
        tuner = make_tuner("xgb", task, plan_size=plan_size)
        assert tuner.plan_size == wanted
        update, count = tuner._model.update, []
        tuner._model.update = lambda results, update=update, count=count: (count.append(len(results)), update(results))
        tuner.tune(2 * wanted, measure_option(NoBuilder(), Pretend(fastest_at(7))))
        fits.append(count)
    assert fits == [[0, 4], [0, most]]


def test_diversity():
    """The best first, then those that add new decisions, in their order where they add as many."""
    task = make_task(DenseWorkload(64, 256, 512, "uint8", "int8"), make_target("avx512_vnni", 1))
    ranked = space_of(task).configurations[:24]
    chosen = diverse(ranked, 4)
    assert chosen[0] == ranked[0] and len(set(chosen)) == 4

    def decisions(items):
        return len({pair for item in items for pair in asdict(item).items()})

    assert decisions(chosen) > decisions(ranked[:4])
    assert diverse(ranked, 24) != ranked and set(diverse(ranked, 24)) == set(ranked)


def test_generations(monkeypatch):
    """pop_size children have the same parents, the elite_num fastest; mutation_prob 0 only mixes their decisions."""
    task = make_task(DenseWorkload(64, 256, 512, "uint8", "int8"), make_target("avx512_vnni", 1))
    tuner = make_tuner("ga", task, pop_size=12, elite_num=2, mutation_prob=0.0)
    parents, bred = [], GATuner._child

    def child(self):
        mixed = bred(self)
        genes = [self._genes(parent.configuration) for parent in self._parents]
        assert all(value in column for value, column in zip(mixed, zip(*genes, strict=True), strict=True))
        parents.append(tuple(parent.configuration for parent in self._parents))
        return mixed

    monkeypatch.setattr(GATuner, "_child", child)
    tuner.tune(36, measure_option(NoBuilder(), Pretend(fastest_at(30))))
    assert len(parents) == 24 and len(set(parents[0])) == 2
    assert len(set(parents[:12])) == 1 and len(set(parents[12:])) == 1


@pytest.mark.parametrize("name", ["random", "gridsearch"])
def test_range_of_indices(name, task):
    runner = Pretend(fastest_at(7))
    make_tuner(name, task, range_idx=(3, 6)).tune(16, measure_option(NoBuilder(), runner))
    assert sorted(runner.measured) == [3, 4, 5, 6]


@pytest.mark.parametrize(
    "name,options,message",
    [
        ("gridsearch", {"range_idx": (2, 10**6)}, r"range_idx must lie within 0 … \d+, found \(2, 1000000\)"),
        ("random", {"plan_size": 2}, "tuner 'random' has no option 'plan_size'; it has range_idx"),
        ("ga", {"elite_num": 9}, "1 ≤ elite_num ≤ pop_size"),
        ("ga", {"mutation_prob": 1.5}, "0 ≤ mutation_prob ≤ 1"),
        ("xgb", {"loss_type": "mse"}, "loss_type must be one of reg, rank, rank-binary, found 'mse'"),
        ("xgb", {"feature_type": "curve"}, "no loops from which other features"),
        ("xgb", {"plan_size": 0}, "must be at least 1"),
        ("xgb", {"diversity_filter_ratio": 0.5}, "must be at least 1"),
    ],
)
def test_wrong_options(name, options, message, task):
    with pytest.raises(TuningError, match=message):
        make_tuner(name, task, **options)


def test_default_stays_where_nothing_is_faster(task, tmp_path):
    tuner = make_tuner("random", task)
    decision = tuner.tune(8, measure_option(NoBuilder(), Pretend(lambda index: 1.0 - 0.005 * (index == 3))))
    assert decision.best.configuration == tuner.space.default and decision.best.ratio == 1


def test_resumes(task, tmp_path):
    log, runner = tmp_path / "log.jsonl", Pretend(fastest_at(4))
    option = measure_option(NoBuilder(), runner)

    def interrupt(tuner: Tuner, results):
        if tuner.new == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_tuner("gridsearch", task).tune(12, option, callbacks=[log_to_file(log), interrupt])
    assert len(read_log(log).records) == 5
    resumed = make_tuner("gridsearch", task)
    first = resumed.tune(12, option, callbacks=[log_to_file(log)])
    assert resumed.new == 7 and len(resumed.curve) == 12
    again = make_tuner("gridsearch", task)
    size = log.stat().st_size
    assert again.tune(12, option, callbacks=[log_to_file(log)]) == first
    assert again.new == 0 and log.stat().st_size == size


def test_stops_early(task):
    runner = Pretend()
    make_tuner("gridsearch", task).tune(40, measure_option(NoBuilder(), runner), early_stopping=8)
    assert len(runner.measured) <= 16 < len(space_of(task))


def test_wrong_results_are_recorded_and_never_chosen(task, tmp_path):
    log = tmp_path / "log.jsonl"
    runner = Pretend(fastest_at(2), broken=(2,))
    tuner = make_tuner("gridsearch", task)
    decision = tuner.tune(6, measure_option(NoBuilder(), runner), callbacks=[log_to_file(log)])
    assert tuner.space.configurations.index(decision.best.configuration) in (1, 3)
    assert [record.error for record in read_log(log).records].count("wrong: 1 of 2 outputs differ") == 1


def test_measures_on_this_machine(task, option):
    """Compiles, checks and times in other processes; the time of a kernel of 0.04 MOP is microseconds."""
    tuner = make_tuner("gridsearch", task)
    decision = tuner.tune(3, option)
    assert tuner.new == 3 and not any(result.error for result in tuner.results.values())
    assert all(1e-9 < result.seconds < 1e-3 and 0.2 < result.ratio < 5 for result in tuner.results.values())
    assert decision.best.ratio <= 1


def test_a_wrong_kernel_gets_no_time(task, option):
    """A library that computes something else, as if a schedule were wrong: its packed weights are off by one."""
    configuration = space_of(task).configurations[1]
    (default,) = option.builder.build(task, [None])
    (built,) = option.builder.build(task, [configuration])
    constants = Path(built).with_suffix(".npz")
    with np.load(constants) as file:
        arrays = [file[name] for name in file.files]
    arrays[0] = arrays[0] + 1
    np.savez(constants, *arrays)
    (result,) = option.runner.run(task, default, [(configuration, built)])
    assert result.error.startswith("wrong: ") and "differ from the interpreter" in result.error
    assert result.seconds == 0 and result.ratio == float("inf")


def test_a_crash_costs_only_its_own_job(task, option, tmp_path):
    """A file that is not a library only fails its own measurement; the next one is measured."""
    configurations = space_of(task).configurations[1:3]
    (default,) = option.builder.build(task, [None])
    good, bad = option.builder.build(task, configurations)
    Path(bad).write_bytes(b"no library")
    results = {
        r.configuration: r
        for r in option.runner.run(task, default, [(configurations[1], bad), (configurations[0], good)])
    }
    assert results[configurations[1]].error.startswith(("run: ", "crash: "))
    assert not results[configurations[0]].error


def test_unknown_tuner(task):
    with pytest.raises(TuningError, match="unknown tuner 'bayes': use xgb, ga, random, gridsearch"):
        make_tuner("bayes", task)


def test_runner_options_are_checked():
    with pytest.raises(TuningError, match="must all be positive"):
        measuring.LocalRunner(repeat=0)


def test_race_keeps_the_first_and_drops_the_hopeless():
    calls = [0, 0, 0]

    def timer(index, seconds):
        def run(number):
            calls[index] += 1
            return seconds

        return run

    assert race([timer(0, 3.0), timer(1, 1.0), timer(2, 2.0)], rounds=8) == [3.0, 1.0, 2.0]
    assert calls == [9, 9, 3]

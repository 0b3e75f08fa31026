"""Builds that measure: what is measured, what is kept for the next build, and on which machine that may be."""

from __future__ import annotations

import numpy as np
import pytest

import qnn_ext
from qnn_ext import QnnModule, TargetError, TensorSpec, TuningError
from qnn_ext.autotune import Measure, best_configuration, extract_from_program, measure, measured, read_log, space_of
from qnn_ext.autotune.kernel import product
from qnn_ext.autotune.measure import MeasureOption
from qnn_ext.running.engine import Engine
from tests.cases.bundled import DATA
from tests.cpus import cpu_target

from .conftest import NoBuilder, Pretend, small_task

IMAGE = np.random.default_rng(0).integers(-128, 128, (1, 8, 8, 1), dtype=np.int8)


@pytest.fixture(scope="module")
def module():
    return qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite")


@pytest.fixture
def pretend(monkeypatch):
    """The second tile of every kernel takes half the time of the first; whole models all take the same."""
    runner = Pretend(lambda index: 0.5 if index == 1 else 1.0 + index)
    monkeypatch.setattr(measured, "measure_option", lambda: MeasureOption(NoBuilder(), runner))
    return runner


def tasks_of(module) -> list:
    tasks = [task for task in extract_from_program(module, cpu_target("native", 1)) if len(space_of(task)) > 1]
    if not tasks:
        pytest.skip("the kernels for this CPU have nothing to choose from")
    return tasks


def test_the_fastest_few_are_used_and_kept(module, pretend, tmp_path):
    """Each distinct product once; the next build measures nothing and makes the same choice."""
    target = cpu_target("native", 1)
    tasks = tasks_of(module)
    how = Measure(candidates=2)
    with measured.measured_tiles(module, target, None, how, tmp_path / "cache") as history:
        engine = qnn_ext.build(module, target)
    expected = [index for task in tasks for index in range(1, min(2, len(space_of(task)) - 1) + 1)]
    assert sorted(pretend.measured) == sorted(expected)
    assert history.applied == {task.name: space_of(task).configurations[1] for task in tasks}
    np.testing.assert_array_equal(engine(IMAGE), qnn_ext.Interpreter(module)(IMAGE))
    pretend.measured.clear()
    with measured.measured_tiles(module, target, None, how, tmp_path / "cache") as again:
        qnn_ext.build(module, target)
    assert pretend.measured == [] and again.applied == history.applied
    (log,) = (tmp_path / "cache").iterdir()
    assert {record.key for record in read_log(log).records} == {task.key() for task in tasks}


def test_measured_for_real(tmp_path):
    """One tile against the default of a product: its results stay the same, and the log is one of tuning."""
    task, log = small_task(), tmp_path / "measured.jsonl"
    single = product(task.workload)
    inputs = (TensorSpec("x", single.inputs[0].shape, str(single.inputs[0].dtype)),)
    outputs = (TensorSpec("y", single.expected.shape, str(single.expected.dtype)),)
    model = QnnModule(single.module, inputs, outputs)
    engine = qnn_ext.build(model, task.target, measure=Measure(candidates=1, log=log))
    np.testing.assert_array_equal(engine(*single.inputs), single.expected)
    records = read_log(log).records
    assert {record.key for record in records if record.decided} == {task.key()}
    assert not any(record.error for record in records)
    assert best_configuration(log, task) in (None, *space_of(task).configurations)


def test_no_time_left(module, pretend, tmp_path):
    """Products that there is no time for keep their predicted tiles; without a folder nothing is kept."""
    target = cpu_target("native", 1)
    tasks_of(module)
    with measured.measured_tiles(module, target, None, Measure(seconds=1e-9), tmp_path) as history:
        qnn_ext.build(module, target)
    assert pretend.measured == [] and history.applied == {} and list(tmp_path.iterdir()) == []
    with measured.measured_tiles(module, target, None, Measure(candidates=1)):
        assert pretend.measured


def test_records_are_those_of_one_kind_of_cpu(monkeypatch, tmp_path):
    here = measured.machine_log(tmp_path)
    assert measured.machine_log(tmp_path) == here
    monkeypatch.setattr(measured, "cpu_name", lambda: "another CPU")
    other = measured.machine_log(tmp_path)
    monkeypatch.setattr(measured, "host_caches", lambda: None)
    assert len({here, other, measured.machine_log(tmp_path)}) == 3


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("rpi4", "cannot run kernels for cortex-a72, so it cannot time them: tune over RPC"),
        ("sm_80", "timed on CPUs, and sm_80 is a GPU: build for it without measuring"),
        (["native", "x86-64"], "takes one target"),
    ],
)
def test_targets_that_cannot_be_measured_here(module, monkeypatch, target, message):
    monkeypatch.setattr(measure, "can_run", lambda features, architecture: False)
    monkeypatch.setattr(Engine, "best_of", None)  # nothing is built
    with pytest.raises(TargetError, match=message):
        qnn_ext.build(module, target, measure=True)


def test_settings(module):
    for values in ({"candidates": 0}, {"seconds": 0}, {"seconds": float("nan")}):
        with pytest.raises(TuningError, match="must both be positive"):
            Measure(**values)


def test_command_line(cli, fails, pretend, tmp_path, monkeypatch):
    monkeypatch.setenv("QNN_EXT_CACHE", str(tmp_path / "cache"))
    model, output = DATA / "digits_cnn_int8.tflite", tmp_path / "digits.qnn"
    code, _, _ = cli("compile", model, "-o", output, "--measure", "--threads", "1", "--json")
    assert code == 0 and qnn_ext.load(output)(IMAGE).shape == (1, 10)
    assert len(list((tmp_path / "cache").glob("*.jsonl"))) == 1
    assert "give one of them" in fails("compile", model, "--measure", "--tuning", output)

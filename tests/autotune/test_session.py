"""Tuning a whole model: every task, resumed, reported; the command line with its mistakes."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import QnnModule, TensorSpec, TuningError
from qnn_ext.autotune import Result, apply_history_best, extract_from_program, read_log, tune
from qnn_ext.errors import QuantizationError, TargetError, TuningWarning
from qnn_ext.op import dense
from qnn_ext.op.base import module_of
from qnn_ext.targets.architectures import host_architecture
from tests.cpus import cpu_target

from .conftest import NoBuilder, Pretend

MODEL = Path(qnn_ext.__file__).parent / "data" / "digits_cnn_int8.tflite"


@pytest.fixture
def module():
    return qnn_ext.from_tflite(MODEL)


@pytest.mark.parametrize(("target", "problem"), [("sm_80", "kernels are timed on CPUs"), ("rpi4", "tune over RPC")])
def test_targets_that_cannot_be_timed_here(module, tmp_path, target, problem):
    if target == "rpi4" and host_architecture() == "aarch64":
        pytest.skip("this machine runs the board's code")
    with pytest.raises(TargetError, match=problem):
        tune(module, target, 2, tmp_path / "log.jsonl")


def test_all_tasks_of_a_model(module, tmp_path):
    log = tmp_path / "log.jsonl"
    target = cpu_target("native", 1)
    runner = Pretend(lambda index: 1.0 - 0.1 * (index == 1))
    report = tune(module, target, 2, log, runner, NoBuilder(), "gridsearch")
    decided = {outcome.task.name: outcome.decision.best.configuration for outcome in report.outcomes}
    assert all(outcome.new == len(outcome.curve) <= 2 and not outcome.errors for outcome in report.outcomes)
    again = tune(module, target, 2, log, runner, NoBuilder(), "gridsearch")
    assert not any(outcome.new for outcome in again.outcomes)
    assert {outcome.task.name: outcome.decision.best.configuration for outcome in again.outcomes} == decided
    assert "0 configurations measured" in again.summary() and len(again.rows()) == len(decided)
    assert again.markdown().count("\n| ") == len(decided)

    with warnings.catch_warnings(), apply_history_best(log) as history:
        warnings.simplefilter("error")
        engine = qnn_ext.build(module, target)
    assert history.applied.items() <= decided.items() and history.applied
    image = np.random.default_rng(0).integers(-128, 128, (1, 8, 8, 1), dtype=np.int8)
    np.testing.assert_array_equal(engine(image), qnn_ext.Interpreter(module)(image))


def test_plot(module, tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    report = tune(
        module, cpu_target("native", 1), 2, tmp_path / "log.jsonl", Pretend(lambda i: 1.0 / (1 + i)), NoBuilder(), "ga"
    )
    report.plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_parameters_and_operators(module):
    """Weights may be inputs whose values are given; tasks may be those of some operators only."""
    target = cpu_target("haswell", 1)
    tasks = extract_from_program(module, target)
    convolutions = extract_from_program(module, target, ops=["nn.conv2d"])
    assert convolutions and {task.name for task in convolutions} < {task.name for task in tasks}
    assert len(convolutions) + len(extract_from_program(module, target, ops=["dense"])) == len(tasks)
    with pytest.raises(TuningError, match=r"'nn\.relu' has no kernels to tune; conv2d, dense and batch_matmul have"):
        extract_from_program(module, target, ops=["nn.relu"])

    x, w = (relax.Var(name, relax.TensorType((size, 16), "int8")) for name, size in (("x", 8), ("w", 32)))
    specs = TensorSpec("x", (8, 16), "int8"), TensorSpec("w", (32, 16), "int8")
    open_weights = QnnModule(
        module_of(dense(x, w, 0, 0, 0.5, 0.5), [x, w]), specs, (TensorSpec("y", (8, 32), "int32"),)
    )
    (task,) = extract_from_program(open_weights, target, {"w": np.ones((32, 16), np.int8)})
    assert (task.workload.m, task.workload.k, task.workload.n) == (8, 16, 32)
    with pytest.raises(QuantizationError, match="there is no input 'v'"):
        extract_from_program(open_weights, target, {"v": np.ones(1)})


def test_a_default_that_fails_is_reported(module, tmp_path):
    class Broken(NoBuilder):
        def build(self, task, configurations):
            return [Result(task, item, error="compile: no memory") for item in configurations]

    with pytest.warns(TuningWarning, match="not tuned, as its default configuration fails: compile: no memory"):
        report = tune(module, cpu_target("native", 1), 2, tmp_path / "log.jsonl", Pretend(), Broken(), "ga")
    assert all(row[-1] == "not measured" for row in report.rows()) and not (tmp_path / "log.jsonl").exists()


# ---- command line ------------------------------------------------------------------------------------------------


def test_command_line(cli, tmp_path):
    """Measured for real, one configuration for each task; then compiled with the log."""
    log, output = tmp_path / "tuning.jsonl", tmp_path / "digits.qnn"
    options = ["--threads", 1, "--trials", 1, "--tuner", "gridsearch", "--log", log, "--json"]
    code, out, err = cli("tune", MODEL, *options)
    assert code == 0, err
    data = json.loads(out)
    assert data["before_ms"] > 0 and data["after_ms"] > 0 and sum(task["measured"] for task in data["tasks"]) > 3
    assert not any(task["errors"] for task in data["tasks"])
    assert len(read_log(log).records) >= sum(task["measured"] + 1 for task in data["tasks"])
    code, _, err = cli("compile", MODEL, "--threads", 1, "--tuning", log, "-o", output)
    assert code == 0 and output.exists(), err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--key", "board"], "give the tracker's address too, --rpc HOST:PORT"),
        (["--rpc", "tracker"], "--rpc HOST:PORT --key KEY"),
        (["--rpc", "127.0.0.1:1", "--key", "board"], "no tracker at 127.0.0.1:1"),
        (["--target", "avx2,x86-64"], "one target at a time"),
    ],
)
def test_mistakes(cli, options, message):
    code, out, err = cli("tune", MODEL, *options)
    assert (code, out) == (1, "") and err.startswith("error: ") and err.count("\n") == 1 and message in err


def test_compile_with_what_is_no_log(cli, tmp_path):
    (tmp_path / "photo.jsonl").write_bytes(b"\xff\xd8\n")
    code, _, err = cli("compile", MODEL, "--tuning", tmp_path / "photo.jsonl", "-o", tmp_path / "x.qnn")
    assert code == 1 and "is not a tuning log" in err and not (tmp_path / "x.qnn").exists()

"""autotvm: the flow of tune_relay_x86.py and tune_relay_arm.py, and what is left of each name."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

import numpy as np
import pytest

from qnn_ext import autotune
from qnn_ext.autotune.measure import Decision, Result
from qnn_ext.autotune.records import line_of, log_of, read_log
from qnn_ext.compat.absent import NotHonouredError
from qnn_ext.compat.tvm import IRModule, autotvm, cpu, relay
from qnn_ext.compat.tvm.autotvm.graph_tuner import DPTuner, PBQPTuner
from qnn_ext.compat.tvm.autotvm.tuner import GATuner, GridSearchTuner, RandomTuner, XGBTuner
from qnn_ext.errors import TuningError, TuningWarning

TARGET = "llvm -mcpu=haswell -num-cores=1"
rng = np.random.default_rng(5)


def network() -> IRModule:
    """A convolution and a dense layer, quantized."""
    qparams = [relay.const(value) for value in (0, 0, 1.0, 1.0)]
    x = relay.var("x", shape=(1, 16, 8, 8), dtype="uint8")
    kernel = relay.const(rng.integers(-128, 128, (32, 16, 3, 3)).astype(np.int8))
    y = relay.qnn.op.conv2d(x, kernel, *qparams, kernel_size=(3, 3), channels=32)
    y = relay.qnn.op.requantize(
        y, relay.const(1.0), relay.const(0), relay.const(1e4), relay.const(0), out_dtype="uint8"
    )
    weight = relay.const(rng.integers(-128, 128, (10, 32 * 36)).astype(np.int8))
    return IRModule.from_expr(relay.qnn.op.dense(relay.nn.batch_flatten(y), weight, *qparams, units=10))


@pytest.fixture(scope="module")
def module():
    return network()


@pytest.fixture(scope="module")
def tasks(module):
    return autotvm.task.extract_from_program(module["main"], target=TARGET, params={})


@pytest.fixture
def log(tasks, tmp_path):
    """A log in which the second configuration of each task is twice as fast as the default, and was chosen."""
    path = tmp_path / "tuning.log"
    lines = []
    for task in tasks:
        better, other = task.native, task.config_space.get(2).configuration
        chosen = Result(better, task.config_space.get(1).configuration, 0.5, 1.0)
        lines += [line_of(Result(better, other, 0.9, 1.0)), line_of(chosen), line_of(chosen, 2)]
    path.write_text("\n".join(lines) + "\n")
    return path


# ---- tasks -------------------------------------------------------------------------------------------------------


def test_tasks(module, tasks):
    assert len(tasks) == 2
    ops = {"nn.conv2d": "Conv2dWorkload", "qnn.dense": "DenseWorkload"}
    for name, kind in ops.items():
        found = autotvm.task.extract_from_program(module, target=TARGET, ops=(relay.op.get(name),))
        assert [type(task.args[0]).__name__ for task in found] == [kind]
    assert len(autotvm.task.extract_from_multiple_program([module, module], [{}, {}], TARGET)) == 2
    task = tasks[0]
    assert task.flop == task.native.gops * 1e9 and len(task.config_space) == len(autotune.space_of(task.native))
    assert task.config_space.index_of(task.config_space.get(1).configuration) == 1
    created = autotvm.task.create(task.name, task.args, TARGET)
    assert created.workload == task.workload


def test_tasks_of_float_models():
    x = relay.var("x", shape=(1, 8), dtype="float32")
    expr = relay.nn.dense(x, relay.const(np.ones((4, 8), np.float32)))
    assert len(autotvm.task.extract_from_program(IRModule.from_expr(expr), {}, TARGET)) == 1
    with pytest.warns(TuningWarning, match="once it is quantized"):
        assert autotvm.task.extract_from_program(IRModule.from_expr(expr), {}, "llvm -mcpu=x86-64") == []


# ---- tuning ------------------------------------------------------------------------------------------------------


class Instruments:
    """In place of builder and runner: configuration i takes 1 + |i − 3| seconds, the default 2."""

    def __init__(self, task) -> None:
        self.task, self.measured = task, []

    def native(self):
        return self

    def build(self, task, configurations):
        return ["default" if one is None else f"{self.task.config_space.index_of(one)}" for one in configurations]

    def run(self, task, default, libraries):
        for configuration, path in libraries:
            self.measured.append(int(path))
            yield Result(task, configuration, 1.0 + abs(int(path) - 3), 2.0)

    def race(self, task, libraries):
        seconds = [2.0 if path == "default" else 1.0 + abs(int(path) - 3) for _, path in libraries]
        return [Result(task, one, second, 2.0) for (one, _), second in zip(libraries, seconds, strict=True)]

    def close(self):
        pass


@pytest.mark.parametrize("kind", [GridSearchTuner, RandomTuner, GATuner, XGBTuner])
def test_tuners(tasks, tmp_path, kind):
    """With the options of the tutorials, a log, and a callback of the script's own."""
    if kind is XGBTuner:
        pytest.importorskip("xgboost")
    options = {XGBTuner: {"loss_type": "rank"}, GATuner: {"pop_size": 50}}.get(kind, {})
    task, path, seen = tasks[0], tmp_path / "log", []
    instruments, tuner = Instruments(task), kind(task, **options)
    tuner.tune(
        n_trial=8,
        early_stopping=None,
        measure_option=autotvm.measure_option(builder=instruments, runner=instruments),
        callbacks=[
            autotvm.callback.log_to_file(str(path)),
            lambda tuner, inputs, results: seen.extend(zip(inputs, results, strict=True)),
            monitor := autotvm.callback.Monitor(),
        ],
    )
    assert len(instruments.measured) == len(seen) == len(monitor.trial_scores()) == 8
    best = min(instruments.measured, key=lambda index: abs(index - 3))
    assert tuner.best_config.index == best
    assert tuner.best_flops == pytest.approx(task.flop / (1 + abs(best - 3)))
    assert [inp.config.index for inp, _ in seen] == instruments.measured
    assert all(result.error_no == autotvm.MeasureErrorNo.NO_ERROR for _, result in seen)
    assert len(read_log(path).records) == 9  # 8 measurements and the decision

    again = Instruments(task)
    tuner = RandomTuner(task)
    tuner.load_history(autotvm.record.load_from_file(path))
    tuner.tune(8, autotvm.measure_option(again, again), callbacks=[autotvm.callback.progress_bar(8, prefix="again")])
    assert again.measured == []


def test_tuner_options(tasks):
    """They reach the tuner behind the façade; what has no meaning today says so."""
    instruments = Instruments(tasks[0])
    tuner = RandomTuner(tasks[0], range_idx=(4, 6))
    tuner.tune(8, autotvm.measure_option(instruments, instruments))
    assert sorted(instruments.measured) == [4, 5, 6]
    with pytest.raises(TuningError, match="1 ≤ elite_num ≤ pop_size"):
        GATuner(tasks[0], pop_size=2)
    with pytest.raises(TuningError, match=r"si_prefix must be one of .*, found 'x'"):
        autotvm.callback.progress_bar(1, si_prefix="x")
    pytest.importorskip("xgboost")
    with pytest.raises(TuningError, match="loss_type must be one of"):
        XGBTuner(tasks[0], loss_type="log")
    with pytest.warns(TuningWarning, match="'curve' becomes 'itervar'"):
        XGBTuner(tasks[0], feature_type="curve")
    with pytest.warns(TuningWarning, match="optimizer has no effect"):
        XGBTuner(tasks[0], optimizer="reg")


def test_measure_options(monkeypatch):
    """Nothing runs and nothing connects before it is measured; AutoTVM's short timeouts are stretched."""
    runner = autotvm.RPCRunner("rpi4", "no.such.host.invalid", 1, number=5, timeout=3)
    option = autotvm.measure_option(builder=autotvm.LocalBuilder(build_func="default"), runner=runner)
    with pytest.raises(TuningError, match=r"there is no tracker at no\.such\.host\.invalid:1"):
        option.native()
    option = autotvm.measure_option(autotvm.LocalBuilder(timeout=5), autotvm.LocalRunner(number=1, repeat=10))
    native = option.native()
    assert native is option.native() and (native.builder.timeout, native.runner.timeout) == (60, 30)
    assert (native.runner._timing.rounds, native.runner._timing.number) == (10, 1)
    option.close()
    assert autotvm.LocalRunner(min_repeat_ms=100)._timing()["number"] is None


# ---- records -----------------------------------------------------------------------------------------------------


def test_records(log, tmp_path, tasks):
    pairs = list(autotvm.record.load_from_file(log))
    assert [result.costs[0] for _, result in pairs] == [0.9, 0.5, 0.5] * len(tasks)
    lines = log.read_text().splitlines()
    assert [autotvm.record.encode(*pair) for pair in pairs] == lines
    assert autotvm.record.decode(lines[0])[0].config == asdict(tasks[0].config_space.get(2).configuration)
    autotvm.record.pick_best(log, tmp_path / "best")
    assert (tmp_path / "best").read_text().splitlines() == lines[2::3]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("form", ["path", "paths", "pairs", "lines", "file", "records"])
def test_apply_history_best(module, log, form):
    """The chosen configurations are in the build, whatever the records are given as."""
    with open(log, encoding="utf-8") as file:
        source = {
            "path": str(log),
            "paths": [log, str(log)],
            "file": file,
            "pairs": autotvm.record.load_from_file(log),
            "lines": log.read_text().splitlines(),
            "records": read_log(log).records,
        }[form]
        context = autotvm.apply_history_best(source)
    with context, autotvm.FallbackContext(), context:
        tuned = relay.build(module, TARGET).engine.source()
    with autotune.apply_history_best(log) as history:
        assert tuned == relay.build(module, TARGET).engine.source()
    assert len(history.applied) == 2
    assert tuned != relay.build(module, TARGET).engine.source()


def test_tune_relay_x86(module, tmp_path, log):
    """The end of the tutorial: graph tuning keeps the kernels' records, and a missing log leaves the defaults."""
    with pytest.warns(TuningWarning, match="there is no layout to tune"):
        executor = DPTuner(module["main"], {"x": (1, 16, 8, 8)}, str(log), [relay.op.get("nn.conv2d")], TARGET)
    executor.benchmark_layout_transform(min_exec_num=2000)
    executor.run()
    executor.write_opt_sch2record_file(str(tmp_path / "graph.log"))
    assert (tmp_path / "graph.log").read_text() == log.read_text()
    assert PBQPTuner is DPTuner
    with autotvm.apply_graph_best(str(tmp_path / "graph.log")):
        lib = relay.build_module.build(module, target=TARGET, params={})
    data = rng.integers(0, 256, (1, 16, 8, 8)).astype(np.uint8)
    expected = relay.create_executor("graph", module, cpu(), TARGET).evaluate()(data).numpy()
    np.testing.assert_array_equal(lib.engine(data), expected)
    with pytest.warns(TuningWarning, match="has no records: defaults are used"):
        context = autotvm.apply_history_best(str(tmp_path / "none.log"))
    with context:
        relay.build(module, TARGET)


OLD = json.dumps(
    {"input": ["llvm", "conv2d", [], {}], "config": {"index": 1}, "result": [[0.1], 0, 1, 2], "version": 1}
)


def test_old_logs(tmp_path):
    """A log of AutoTVM's says so, in the façade and in today's API."""
    path = tmp_path / "old.log"
    path.write_text(f"{OLD}\n{OLD}\n")
    with pytest.raises(TuningError, match="a log of TVM's AutoTVM, whose templates are gone: tune again"):
        read_log(path)
    with pytest.raises(TuningError, match="one of TVM's AutoTVM"):
        list(autotvm.record.load_from_file(path))
    with pytest.raises(TuningError, match="is no record of a tuning log"):
        autotvm.record.decode("nonsense")
    assert autotvm.record.decode(json.dumps({"format": 0})) is None


def test_log_of(log):
    """Open files, lines and records, as well as paths; damaged lines are counted alike."""
    whole = read_log(log)
    lines = log.read_text().splitlines()
    with open(log, encoding="utf-8") as file:
        assert log_of(file).records == log_of(lines).records == log_of(whole.records).records == whole.records
    damaged = log_of([*lines, "{"])
    assert damaged.records == whole.records and sum(damaged.ignored.values()) == 1
    with pytest.raises(TuningError, match="none of its lines is a record"):
        log_of(["nonsense"])


@pytest.mark.parametrize(
    ("call", "today"),
    [
        (lambda: autotvm.template("mine"), "te schedules are gone from TVM"),
        (lambda: autotvm.get_config(), "te schedules are gone from TVM"),
        (lambda: autotvm.task.create("conv2d_NCHWc.x86", ((1, 3), "float32"), TARGET), "extract_from_program"),
        (lambda: autotvm.LocalBuilder(build_func="ndk"), "Android is not supported"),
    ],
)
def test_refusals(call, today):
    with pytest.raises(NotHonouredError, match=f"cannot be honoured: .*{re.escape(today)}"):
        call()


def test_decision_is_kept(tasks):
    """A tuner's decision can be asked for."""
    instruments = Instruments(tasks[1])
    tuner = GridSearchTuner(tasks[1], range_idx=None)
    tuner.tune(4, autotvm.measure_option(instruments, instruments))
    assert isinstance(tuner.decision, Decision) and tuner.decision.best.ratio == 0.5


def test_tutorial_flow_without_tasks(tmp_path):
    """As tune_relay_cuda.py ends for a network that has nothing to tune: it is built with the defaults."""
    log, best = tmp_path / "net.log.tmp", tmp_path / "net.log"
    x = relay.var("x", shape=(1, 4))
    with pytest.warns(TuningWarning, match="no products of these operators"):
        assert autotvm.task.extract_from_program(relay.Function([x], relay.nn.relu(x)), {}, TARGET) == []
    with pytest.warns(TuningWarning, match=r"net\.log\.tmp has no records: nothing was tuned"):
        autotvm.record.pick_best(str(log), str(best))
    log.unlink()
    with pytest.warns(TuningWarning, match=r"net\.log has no records"), autotvm.apply_history_best(str(best)):
        relay.build(relay.Function([x], relay.nn.relu(x)), TARGET)

"""The benchmark of GPUs, as far as it goes without one: what is planned, the report, and what happens to failures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.cuda import __main__ as bench
from benchmarks.cuda.compiling import Built, Compiled, compile_here, in_float16
from benchmarks.cuda.peak import DP4A, M8N8K16, M16N8K32, THREADS, expected, instruction_of, peak_module
from benchmarks.cuda.plan import Budget, Item, plan
from benchmarks.cuda.report import Gemm, Report, Row, agreement, markdown, to_json
from benchmarks.cuda.runners import gemm_kernel, operands
from benchmarks.models import BUNDLED, Model
from benchmarks.turns import Times
from benchmarks.worker import WorkerError
from qnn_ext import TargetError
from qnn_ext.frontends.onnx import from_onnx
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import DenseWorkload
from tests.cuda.meaning import run


def times(seconds: float) -> Times:
    return Times((seconds,) * 3, seconds)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_plan_puts_large_batches_last(tmp_path):
    (tmp_path / "resnet50.onnx-static.onnx").touch()
    (tmp_path / "resnet50.float32.onnx").touch()
    items = plan([BUNDLED], tmp_path, ["resnet50", "bert_base"], [8, 1])
    networks = [item for item in items if item.network in ("resnet50", "bert_base")]
    assert items.index(networks[0]) > 5 and items[-4:] == networks
    assert [(item.network, item.batch, item.missing) for item in networks] == [
        ("resnet50", 1, False),
        ("bert_base", 1, True),
        ("resnet50", 8, True),
        ("bert_base", 8, True),
    ]
    assert networks[2].model.path.name == "resnet50_b8.onnx-static.onnx"
    assert networks[0].float_twin == tmp_path / "resnet50.float32.onnx" and networks[1].float_twin is None
    assert not any("float32" in item.model.name for item in items)


def test_a_budget_shrinks():
    clock = Clock()
    budget = Budget(100, clock)
    assert budget.limit(240) == 100 and budget.allows(100)
    clock.now = 95
    assert budget.limit(240) == 5 and not budget.allows(10)
    clock.now = 200
    assert budget.left == 0


def test_agreement():
    a = np.array([1.0, np.nan, 3.0, 4.0])
    assert agreement([a], [a]) == (1.0, 0.0)
    assert agreement([a], [np.array([1.0, np.nan, 3.0, 6.0])]) == (0.75, 2.0)
    with pytest.raises(ValueError, match="different shapes"):
        agreement([a], [a[:3]])


def test_the_report():
    report = Report("GPU", "sm_80", {"qnn-ext": "1"}, "mma.m16n8k32", 100e12, left_out={"int_mm": "no PyTorch"})
    report.gemms.append(Gemm(100, 100, 100, {"qnn_ext": times(4e-8)}, {"torch._int_mm": "no"}))
    row = Row("resnet50", "resnet50.onnx", 8, macs=1_000_000_000, exact=(0.5, 3.0))
    row.times = {"qnn_ext": times(1e-4), "CUDAExecutionProvider": times(2e-4)}
    report.rows += [row, Row("b", "b.onnx", 1, failures={"built": "TargetError: x"})]
    data = json.loads(json.dumps(to_json(report)))
    assert data["gemms"][0]["of_peak"] == {"qnn_ext": pytest.approx(0.5)}
    assert data["rows"][0]["of_peak"] == pytest.approx(0.2)
    assert data["rows"][0]["samples_per_second"] == {"qnn_ext": 80_000, "CUDAExecutionProvider": 40_000}
    assert data["rows"][1]["of_peak"] is None
    text = markdown(report)
    assert "| resnet50.onnx | 8 | 50.000 % | 3 |" in text
    assert "| 100 × 100 × 100 | 50.0 (50 %) |" in text
    assert "| resnet50 | 8 | 0.100 (80000/s) |  |  |  | 0.200 (40000/s) | 20.0 % |" in text
    assert "| b.onnx | 1 | built | TargetError: x |" in text
    assert "int_mm is skipped: no PyTorch." in text


def no_gpu(name: str) -> str:
    raise TargetError(
        "target 'cuda' means this machine's GPU, but this machine has no NVIDIA driver: give an architecture"
    )


def test_without_a_gpu_one_line_and_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr(bench.gpu, "architecture_of", no_gpu)
    assert bench.main([]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert printed.err.startswith("error: no GPU to measure: ") and "no NVIDIA driver" in printed.err


class FakeWorker:
    """Loads what its file's name says: broken does not load, wrong computes something else."""

    def __init__(self, task) -> None:
        self.task = task

    def wait(self, limit: float) -> SimpleNamespace:
        if "broken" in self.task.path:
            raise WorkerError("does not load")
        value = 2.0 if "wrong" in self.task.path else 1.0
        return SimpleNamespace(outputs=[np.array([value])], name=self.task.runtime, work=1e9)

    def close(self) -> None:
        pass


def fake_compile(item: Item, form: str, target: str, folder: Path, limit: float) -> Compiled:
    if "unbuilt" in item.model.path.name:
        raise WorkerError("QnnError: no")
    return Compiled([np.zeros(1)], [np.array([1.0])], 500, 1.0, Built(item.model.path.name, 1.0))


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU that takes a millisecond for everything, and no network to make."""
    monkeypatch.setattr(bench.gpu, "architecture_of", lambda name: "sm_80")
    monkeypatch.setattr(bench, "_device_name", lambda: "GPU")
    monkeypatch.setattr(bench, "Worker", FakeWorker)
    monkeypatch.setattr(bench, "compile_item", fake_compile)
    monkeypatch.setattr(bench, "take_turns", lambda workers, *_: ({name: times(1e-3) for name in workers}, {}))
    monkeypatch.setattr(bench, "available_peers", lambda: (["onnxruntime-cuda", "int_mm"], {}))


def items(*names: str) -> list[Item]:
    return [Item(Model(Path("/nowhere", name)), name.partition(".")[0], 1) for name in names]


@pytest.mark.parametrize(
    ("name", "code", "failure"),
    [
        ("good.onnx", 0, {}),
        ("wrong.onnx", 1, {}),
        ("broken.onnx", 1, {"qnn_ext": "does not load"}),
        ("unbuilt.onnx", 1, {"built": "QnnError: no"}),
    ],
    ids=["good", "wrong", "broken", "unbuilt"],
)
def test_a_run(gpu, monkeypatch, tmp_path, capsys, name, code, failure):
    monkeypatch.setattr(bench, "plan", lambda *_: items("good.onnx", name))
    assert bench.main(["--json", str(tmp_path / "found.json"), "--markdown", str(tmp_path / "found.md")]) == code
    data = json.loads((tmp_path / "found.json").read_text())
    assert data["peak"] == 1e12 and len(data["gemms"]) == len(bench.GEMMS)
    assert set(data["gemms"][0]["times"]) == {"qnn_ext", "cuda:int_mm"}
    row = data["rows"][-1]
    assert row["failures"] == failure
    assert row["exact"] == (None if failure else [0.0, 1.0] if "wrong" in name else [1.0, 0.0])
    assert set(row["times"]) == (set() if failure else {"qnn_ext", "onnxruntime-cuda"})
    assert capsys.readouterr().out.strip() == (tmp_path / "found.md").read_text().strip()


def test_steps_behind_the_end_are_named(gpu, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "plan", lambda *_: items("good.onnx"))
    assert bench.main(["--minutes", "0", "--json", str(tmp_path / "found.json")]) == 0
    data = json.loads((tmp_path / "found.json").read_text())
    assert data["rows"] == [] and data["not_reached"][0] == "the peak"
    assert "Not reached within the time limit: the peak, check of good.onnx" in capsys.readouterr().out


def test_what_is_not_built_in_time_is_no_failure_of_ours(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "plan", lambda *_: items("good.onnx"))
    monkeypatch.setattr(bench, "BUILDING", 0)
    assert bench.main(["--json", str(tmp_path / "found.json")]) == 0
    (row,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert row["failures"] == {"built": bench.LATE} and not row["times"]


def test_a_network_that_cannot_be_made_says_why(gpu, monkeypatch, tmp_path):
    missing = plan([tmp_path], tmp_path, ["resnet50"], [1])
    monkeypatch.setattr(bench, "plan", lambda *_: missing)
    failed = SimpleNamespace(returncode=1, stderr="Traceback\nModuleNotFoundError: No module named 'torchvision'\n")
    monkeypatch.setattr(bench.subprocess, "run", lambda *_, **__: failed)
    assert bench.main(["--json", str(tmp_path / "found.json")]) == 0
    (row,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert row["failures"]["made"].endswith("No module named 'torchvision'")


@pytest.mark.parametrize("instruction", [DP4A, M8N8K16, M16N8K32], ids=lambda found: found.name)
def test_the_peak_kernel_computes(instruction):
    architecture = {DP4A: "sm_61", M8N8K16: "sm_75", M16N8K32: "sm_80"}[instruction]
    assert instruction_of(architecture) == instruction
    seed = np.full(16, -3, np.int8)
    got = run(peak_module(instruction, 2, 5), make_target(architecture), [seed], ([2, THREADS], "int32"))
    assert (got == expected(instruction, seed, 5)).all()


@pytest.mark.parametrize("architecture", ["sm_61", "sm_80"])
def test_the_product_kernel_computes(architecture):
    target, (m, k, n) = make_target(architecture), (20, 64, 40)
    module, implementation = gemm_kernel(m, k, n, target)
    a, b, top = operands(m, k, n)
    packed = implementation.pack_weight(DenseWorkload(m, k, n, "int8", "int8"), b)
    got = run(module, target, [a, packed], ([m, n], "int32"))
    np.testing.assert_array_equal(got[: len(top)], top)


def test_models_are_built_without_a_gpu(tmp_path):
    pytest.importorskip("tflite")
    item = Item(Model(BUNDLED / "digits_cnn_uint8.tflite"), "digits", 1)
    found = compile_here(item, "int8", "sm_80", tmp_path)
    assert Path(found.built.path).stat().st_size > 0
    assert found.integer_share == 1 and found.expected[0].shape == (1, 10)
    with pytest.raises(FileNotFoundError, match="no float32 file"):
        compile_here(item, "float32", "sm_80", tmp_path)


def test_float_builds_of_a_network(tmp_path):
    pytest.importorskip("onnx")
    shutil.copy(BUNDLED / "digits_cnn_qdq.onnx", tmp_path / "digits.onnx-static.onnx")
    shutil.copy(BUNDLED / "digits_cnn_float32.onnx", tmp_path / "digits.float32.onnx")
    np.savez(tmp_path / "digits.onnx-static.npz", input_0=np.zeros((1, 1, 8, 8), np.float32), ort_0=np.zeros((1, 10)))
    item = Item(Model(tmp_path / "digits.onnx-static.onnx"), "digits", 1)
    for form in ("float32", "float16"):
        found = compile_here(item, form, "sm_80", tmp_path)
        assert found.integer_share == 0 and Path(found.built.path).name.endswith(f"{form}.qnn")
    module = in_float16(from_onnx(item.float_twin))
    assert 'dtype="float16"' in module.ir.script()

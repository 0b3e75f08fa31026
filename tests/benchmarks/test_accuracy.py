"""The benchmark of accuracy: its networks train the same way each time, and its tables say what was measured."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="the networks are trained with PyTorch")
pytest.importorskip("onnx", reason="the networks are ONNX files")
pytest.importorskip("matplotlib", reason="text is rendered with its fonts")
pytest.importorskip("onnxruntime", reason="the comparison needs the extra 'bench'")

import onnxruntime

from benchmarks import standins
from benchmarks.accuracy import Row, markdown, worst_sqnr


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(standins, "CALIBRATION", 2)
    monkeypatch.setattr(standins, "HELD_OUT", 2)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", standins.NAMES)
def test_networks_are_the_same_each_time(name, tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    one, two = (standins.make(name, tmp_path / folder, steps=1) for folder in ("one", "two"))
    np.testing.assert_array_equal(one.held_out, two.held_out)
    results = []
    for made in (one, two):
        session = onnxruntime.InferenceSession(str(made.path), providers=["CPUExecutionProvider"])
        results.append([session.run(None, {"x": sample[None]}) for sample in made.held_out])
    np.testing.assert_array_equal(results[0][0][0], results[1][0][0])
    assert np.isfinite(one.score(results[0]))
    before = one.path.stat().st_mtime_ns
    assert standins.make(name, tmp_path / "one").path.stat().st_mtime_ns == before, "trained once"


def test_scores():
    truth = np.array([[0, 1, 0, 2, 0, 2]])
    read = np.eye(3)[np.array([[1, 1, 0, 2, 0, 2]])]
    assert standins.TASKS["text"].score([read], truth) == 100, "runs of a letter count once"
    objects = np.array([[[1, 10, 10, 30, 30], [-1, -1, -1, -1, -1], [0, 50, 50, 70, 70]]], np.float32)
    found = np.array([[[20, 20, 20, 20, 0, 0.9, 0], [60, 60, 20, 20, 0, 0.9, 0]]], np.float32).transpose(0, 2, 1)
    assert standins.TASKS["shapes"].score([found], objects) == 50, "one of them has the wrong class"


def test_table():
    exact = [[np.array([3.0]), np.array([1.0])]]
    assert worst_sqnr(exact, [[np.array([3.3]), np.array([1.01])]]) == pytest.approx(20)
    rows = [
        Row("net", "float", "", np.inf, None, "99 %", 0.0),
        Row("net", "qnn_ext", "default", 36.25, 1.0, "98 %", 3.0),
        Row("net", "qnn_ext", "no setting tried", float("nan"), None, "", 9.0),
    ]
    text = markdown(rows)
    assert "| net | qnn_ext | default | **36.2 dB** | 100.0 % | 98 % | 3 s |" in text
    assert text.count("**") == 2

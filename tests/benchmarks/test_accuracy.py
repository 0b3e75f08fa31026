"""The benchmark of accuracy control: its networks are the same each time, and ours is not behind ONNX Runtime."""

import numpy as np
import pytest

from benchmarks.standins import NAMES, make

pytest.importorskip("onnx", reason="the networks are ONNX files")
pytest.importorskip("onnxruntime", reason="the comparison needs the extra 'bench'")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", NAMES)
def test_networks_are_the_same_each_time(name, tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    one, two = (make(name, tmp_path / folder, samples=2) for folder in ("one", "two"))
    assert one.path.read_bytes() == two.path.read_bytes()
    np.testing.assert_array_equal(one.held_out, two.held_out)
    assert one.calibration.shape == one.held_out.shape and np.isfinite(one.held_out).all()
    assert make(name, tmp_path / "two", samples=2, seed=1).path.read_bytes() != one.path.read_bytes()


@pytest.mark.exhaustive("tests/quantize/test_control.py")
def test_rows(tmp_path):
    from benchmarks.accuracy import markdown, measure

    rows = list(measure(make("audio", tmp_path, samples=4), min_sqnr=20.0, methods=("MinMax",)))
    theirs, ours, controlled = rows
    assert [row.tool for row in rows] == ["ONNX Runtime", "qnn_ext", "qnn_ext"]
    assert ours.sqnr > theirs.sqnr - 1 and controlled.sqnr > theirs.sqnr and ours.share == 1
    text = markdown(rows)
    assert text.count("**") == 2 and f"| audio | qnn_ext | default | {ours.sqnr:.1f} dB | 100.0 % |" in text

"""What the quantization benchmark is there to show, on its networks: close to float, and not behind ONNX Runtime."""

import json
import tempfile
from pathlib import Path

import pytest

from benchmarks.quantization import Row, load_case, main, markdown, our_row, quantized_by_onnxruntime
from tests.quantize.digits import NETWORKS

pytest.importorskip("onnx", reason="reading ONNX models needs the extra 'onnx'")


@pytest.mark.parametrize("name", NETWORKS)
def test_close_to_float_and_ahead_of_onnxruntime(name):
    quantization = pytest.importorskip("onnxruntime.quantization", reason="the comparison needs the extra 'bench'")
    from onnxruntime.quantization.shape_inference import quant_pre_process

    case = load_case(name)
    exact = case.row("float", "", None, None, None)
    ours = our_row(case, "percentile", True, False, calibrate_mode="percentile")
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(str(case.path), str(prepared))
        run = quantized_by_onnxruntime(case, prepared, quantization.CalibrationMethod.Percentile, True, False)
        theirs = case.row("ONNX Runtime", "percentile", True, False, run)
    assert ours.problem == ""
    assert ours.accuracy >= exact.accuracy - 0.005
    assert ours.agreement >= theirs.agreement  # with float; a single image decides between accuracies
    assert ours.sqnr >= theirs.sqnr


def test_table():
    rows = [
        Row("net", "float", "", None, None, 0.99, 1.0, float("inf")),
        Row("net", "qnn_ext", "mse", True, False, 0.9875, 0.995, 36.25),
        Row("net", "qnn_ext", "minmax", False, True, 0.98, 0.99, 30.0),
        Row("net", "qnn_ext", "dynamic", True, False, 0.0, 0.0, float("nan"), "refused"),
    ]
    text = markdown(rows)
    assert "### net" in text and "| float | | | | 99.00 % | | |" in text
    assert "| qnn_ext | mse | per channel | asymmetric | 98.75 % | 99.50 % | **36.2 dB** |" in text
    assert "| qnn_ext | minmax | per tensor | symmetric | 98.00 % | 99.00 % | 30.0 dB |" in text
    assert "| qnn_ext | dynamic | per channel | asymmetric | refused | | |" in text


def test_command_line(monkeypatch, tmp_path, capsys):
    row = Row("cnn", "qnn_ext", "mse", True, False, 0.99, 1.0, 36.0)
    monkeypatch.setattr("benchmarks.quantization.measure", lambda networks, modes: iter([row]))
    files = {kind: tmp_path / f"table.{kind}" for kind in ("json", "markdown")}
    monkeypatch.setattr("sys.argv", ["quantization", *(f"--{kind}={path}" for kind, path in files.items())])
    main()
    assert "**36.0 dB**" in capsys.readouterr().out
    assert json.loads(files["json"].read_text())[0]["sqnr"] == 36.0
    assert files["markdown"].read_text() == markdown([row])

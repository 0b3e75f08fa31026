"""`qnn-ext report`: the file it writes, and one clear line for every mistake."""

from __future__ import annotations

import pytest

import qnn_ext
from tests.report.test_page import Reader

MODEL = qnn_ext.__path__[0] + "/data/digits_cnn_int8.tflite"


def test_several_models_in_one_page(cli, tmp_path):
    compiled, output = tmp_path / "m.qnn", tmp_path / "out.html"
    qnn_ext.build(qnn_ext.from_tflite(MODEL), num_threads=1).save(compiled)
    code, out, _ = cli("report", MODEL, compiled, "-o", output, "--threads", "1")
    assert code == 0 and str(output) in out
    models = Reader(output.read_text(encoding="utf-8")).data["models"]
    assert [one["name"] for one in models] == ["digits_cnn_int8.tflite", "m.qnn"]
    assert models[0]["graph"] and not models[1]["graph"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["-o", "page.txt"], "must end in .html or .htm"),
        (["--labels", "labels.txt"], "give --data"),
        (["--float", MODEL], "give --data"),
    ],
)
def test_mistakes(cli, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("report", MODEL, *arguments)
    assert code == 1 and message in err and not out
    assert not list(tmp_path.iterdir())

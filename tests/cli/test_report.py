"""`qnn-ext report`: the file it writes, and one clear line for every mistake."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

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


def test_bench_writes_when_kernels_ran(cli, tmp_path):
    names = ("trace", "export-layers", "export-times")
    files = {name: tmp_path / f"{name}.json" for name in names}
    options = [option for name, path in files.items() for option in (f"--{name}", path)]
    code, _, _ = cli("bench", MODEL, "--repeat", "3", "--number", "1", "--threads", "1", *options)
    assert code == 0
    trace, layers, times = (json.loads(path.read_text(encoding="utf-8")) for path in files.values())
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    runs = [event for event in trace["traceEvents"] if event.get("cat") == "run"]
    assert len(runs) == len(times) == layers[0]["count"] == 3
    assert len(kernels) == 3 * (len(layers) - 1)
    assert [event["name"] for event in kernels[: len(layers) - 1]] == [layer["name"] for layer in layers[1:]]
    for run, row in zip(runs, times, strict=True):
        inside = [event for event in kernels if run["ts"] - 1e-3 <= event["ts"] <= run["ts"] + run["dur"]]
        assert len(inside) == len(layers) - 1
        assert sum(event["dur"] for event in inside) == pytest.approx(run["dur"], rel=1e-6)
        assert run["dur"] == pytest.approx(1e3 * row["computeMs"])
    assert all(one["endComputeMs"] <= two["startComputeMs"] for one, two in itertools.pairwise(times))
    assert sum(layer["percentage"] for layer in layers[1:]) == pytest.approx(100)


def test_a_trace_does_not_replace_the_model(cli, tmp_path):
    copy = tmp_path / "m.tflite"
    copy.write_bytes(Path(MODEL).read_bytes())
    code, _, err = cli("bench", copy, "--trace", copy)
    assert code == 1 and "is an input of this command" in err
    assert copy.read_bytes() == Path(MODEL).read_bytes()

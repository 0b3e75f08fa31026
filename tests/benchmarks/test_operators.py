"""The operators that the benchmark measures: well-formed, and computed as ONNX Runtime does."""

import numpy as np
import pytest

import qnn_ext
from benchmarks import __main__ as bench
from benchmarks.models import read_archive
from benchmarks.operators import OPERATORS, model_of, write_operators

onnx = pytest.importorskip("onnx")


@pytest.mark.parametrize("name", OPERATORS)
def test_well_formed(name):
    onnx.checker.check_model(model_of(OPERATORS[name]), full_check=True)


def test_equal_to_onnx_runtime(tmp_path):
    pytest.importorskip("onnxruntime")
    write_operators(["hardswish", "argmax_channels"], tmp_path)
    for name in ("hardswish", "argmax_channels"):
        engine = qnn_ext.build(qnn_ext.from_onnx(tmp_path / f"{name}.onnx"), num_threads=1)
        inputs, outputs = read_archive(tmp_path / f"{name}.npz")
        np.testing.assert_array_equal(*engine.run(inputs).values(), *outputs["ort"])


def test_only_those_asked_for_are_made(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(bench, "write_operators", lambda names, folder: made.extend(names))
    options = bench._parse(["--operators", "--only", "pad_"])
    assert bench._models(options, tmp_path) == [] and made == ["pad_constant", "pad_reflect", "pad_edge"]

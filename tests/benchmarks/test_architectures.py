"""The networks that the benchmark makes: well-formed, of the sizes in the papers, and computed as ONNX Runtime does."""

import numpy as np
import pytest

import qnn_ext
from benchmarks import __main__ as bench
from benchmarks.architectures import ARCHITECTURES, Graph, write_architectures
from benchmarks.models import read_archive

onnx = pytest.importorskip("onnx")

PARAMETERS = {
    "resnext50_32x4d": 25.0,
    "regnet_y_400mf": 4.3,
    "shufflenet_v2": 2.3,
    "efficientnet_b0": 5.3,
    "efficientnet_lite0": 4.7,
    "mobilenet_v3_large": 5.5,
    "yolov8n": 3.2,
    "unet": 7.8,
}
"""Millions, as published; U-Net's are those of half the original's channels, YOLOv8n's with its boxes decoded."""


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_size_and_types(name):
    make, size = ARCHITECTURES[name]
    graph = Graph(size)
    model = graph.model(make(graph))
    model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    onnx.checker.check_model(model, full_check=True)
    count = sum(np.prod(tensor.dims) for tensor in model.graph.initializer) / 1e6
    assert count == pytest.approx(PARAMETERS[name], rel=0.06)


def test_equal_to_onnx_runtime(tmp_path):
    pytest.importorskip("onnxruntime")
    write_architectures(["shufflenet_v2"], tmp_path)
    engine = qnn_ext.build(qnn_ext.from_onnx(tmp_path / "shufflenet_v2.onnx"), num_threads=1)
    inputs, outputs = read_archive(tmp_path / "shufflenet_v2.npz")
    np.testing.assert_array_equal(*engine.run(inputs).values(), *outputs["ort"])


def test_only_those_asked_for_are_made(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(bench, "write_architectures", lambda names, folder: made.extend(names))
    options = bench._parse(["--architectures", "--only", "net_b0", "mobilenet"])
    assert bench._models(options, tmp_path) == [] and made == ["efficientnet_b0", "mobilenet_v3_large"]
    made.clear()
    bench._models(bench._parse(["--architectures", "unet"]), tmp_path)
    assert made == ["unet"]

"""The benchmark of mixed models: what stays in float is counted, and set against both pure versions."""

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the network is an ONNX file")
pytest.importorskip("onnxruntime", reason="its tool quantizes the network")

import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.mixed import row


def test_the_excluded_layer_is_the_float_share(tmp_path):
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((8, 8, 1, 1)).astype(np.float32) for _ in range(2)]
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w0"], ["h"], name="first"),
            helper.make_node("Conv", ["h", "w1"], ["y"], name="second"),
        ],
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 6, 6])],
        [numpy_helper.from_array(weight, f"w{index}") for index, weight in enumerate(weights)],
    )
    path = tmp_path / "two.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    cells = [cell.strip() for cell in row(path, ["first"], 1).strip("| ").split("|")]
    assert cells[:3] == ["two.onnx", "1", "50.0 %"]
    mixed, int8, real, parts, ratio = map(float, cells[3:])
    assert abs(parts - (int8 + real) / 2) <= 0.011  # all rounded to 0.01 ms
    assert ratio > 0 and mixed >= 0

"""Nearest neighbours whose positions lie beside integers, where float32 decides: as ONNX Runtime takes them."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import qnn_ext

ort = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("nearest", ["floor", "ceil", "round_prefer_floor"])
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"])
def test_nearest_neighbours(coordinates, nearest):
    for length, size in [(14, 2), (7, 3), (23, 10), (21, 22), (29, 13)]:
        values = {
            kind: helper.make_tensor_value_info(kind, TensorProto.INT8, (1, 1, 2, n))
            for kind, n in (("x", length), ("y", size))
        }
        node = helper.make_node(
            "Resize",
            ["x", "", "", "sizes"],
            ["y"],
            mode="nearest",
            coordinate_transformation_mode=coordinates,
            nearest_mode=nearest,
        )
        sizes = numpy_helper.from_array(np.array([1, 1, 2, size], np.int64), "sizes")
        graph = helper.make_graph([node], "resize", [values["x"]], [values["y"]], [sizes])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9).SerializeToString()
        x = np.arange(2 * length, dtype=np.int8).reshape(1, 1, 2, length)
        (expected,) = ort.InferenceSession(model).run(None, {"x": x})
        np.testing.assert_array_equal(qnn_ext.Interpreter(qnn_ext.from_onnx(model))(x), expected)

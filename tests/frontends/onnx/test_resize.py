"""Nearest neighbours whose positions lie beside integers and midpoints, where the last bit decides: as ONNX Runtime
takes them."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import qnn_ext

ort = pytest.importorskip("onnxruntime")

COORDINATES = ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners", "half_pixel_symmetric"]
NEAREST = ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]


def compare(length, size, opset, op="Resize", **attributes):
    """`size`: the result's length, or a float for a scale."""
    x_info, y_info = (
        helper.make_tensor_value_info(name, TensorProto.INT8, (1, 1, 2, n)) for name, n in (("x", length), ("y", None))
    )
    scaled = isinstance(size, float)
    target = np.array([1, 1, 1 if scaled else 2, size], np.float32 if scaled else np.int64)
    inputs = ["x", "target"] if opset <= 10 else ["x", "", "target"] if scaled else ["x", "", "", "target"]
    node = helper.make_node(op, inputs, ["y"], mode="nearest", **attributes)
    graph = helper.make_graph([node], "resize", [x_info], [y_info], [numpy_helper.from_array(target, "target")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4 + (opset > 10) * 5)
    content = model.SerializeToString()
    x = np.arange(2 * length, dtype=np.int8).reshape(1, 1, 2, length)
    (expected,) = ort.InferenceSession(content).run(None, {"x": x})
    np.testing.assert_array_equal(qnn_ext.Interpreter(qnn_ext.from_onnx(content))(x), expected)


@pytest.mark.parametrize("nearest", NEAREST)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_nearest_neighbours(coordinates, nearest):
    """Midpoints missed by a bit (28 · 1.2, 20 → 6), lengths that are no integers before (6 · 0.6), 20 · 0.7 = 14 in
    float32, one element, and a scale that leaves the length."""
    for length, size in [
        (14, 2), (7, 3), (23, 10), (21, 22), (29, 13), (20, 6), (44, 26), (11, 0.1), (28, 1.2), (6, 0.6), (20, 0.7),
        (4, 1.2),
    ]:  # fmt: skip
        compare(length, size, 19, coordinate_transformation_mode=coordinates, nearest_mode=nearest)


@pytest.mark.parametrize("scale", [0.7, 0.99, 1.0, 1.04, 2.5])
def test_before_version_11(scale):
    compare(23, scale, 10)
    if scale >= 1:
        compare(23, scale, 9, op="Upsample")


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"cubic_coeff_a": -0.5},
        {"exclude_outside": 1},
        {"coordinate_transformation_mode": "align_corners"},
        {"coordinate_transformation_mode": "asymmetric", "cubic_coeff_a": -0.6},
    ],
)
@pytest.mark.parametrize(("shape", "size"), [((16, 12), (48, 36)), ((16, 12), (37, 20)), ((20, 30), (7, 11))])
def test_cubic_equals_onnx_runtime(shape, size, attributes, rng):
    """In float32, the width first: integers quantized behind it fall on the same side of midpoints."""
    x_info = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3, *shape))
    y_info = helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 3, *size))
    node = helper.make_node("Resize", ["x", "", "", "target"], ["y"], mode="cubic", **attributes)
    target = numpy_helper.from_array(np.array([2, 3, *size], np.int64), "target")
    graph = helper.make_graph([node], "resize", [x_info], [y_info], [target])
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    x = rng.normal(0, 1, (2, 3, *shape)).astype(np.float32)
    (expected,) = ort.InferenceSession(content).run(None, {"x": x})
    module = qnn_ext.from_onnx(content)
    np.testing.assert_array_equal(qnn_ext.Interpreter(module)(x), expected)
    np.testing.assert_array_equal(qnn_ext.build(module, num_threads=1)(x), expected)

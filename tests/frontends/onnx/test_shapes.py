"""Open dimensions: fixed by `shapes`, by input or by name; clear errors otherwise."""

import numpy as np
import pytest

from qnn_ext import ShapeError
from qnn_ext.frontends.onnx import from_onnx

from .graphs import interpret, model, node, operators, run_ort, value


def image_model(*shape):
    """A convolution over images of this declared shape."""
    weights = np.ones((2, 3, 3, 3), np.float32)
    return model([node("Conv", ["x", "w"], ["y"])], [value("x", shape)], [value("y", None)], {"w": weights})


@pytest.mark.parametrize(
    "shapes",
    [{"x": (1, 3, 8, 9)}, {"H": 8, "W": 9}, {"x": [1, 3, 8, 9]}, {"H": np.int64(8), "W": 9}],
)
def test_fixed_by_input_or_by_name(shapes):
    module = from_onnx(image_model(1, 3, "H", "W"), shapes=shapes)
    assert module.inputs[0].shape == (1, 3, 8, 9) and module.outputs[0].shape == (1, 2, 6, 7)
    assert not module.inputs[0].dynamic_batch


def test_a_static_shape_can_be_changed():
    assert from_onnx(image_model(1, 3, 8, 8), shapes={"x": (4, 3, 16, 12)}).outputs[0].shape == (4, 2, 14, 10)


def test_open_dimensions_are_named_with_the_remedy():
    with pytest.raises(ShapeError, match=r"x \(1, 3, H, W\).*shapes=\{'H': 1, 'W': 1\}"):
        from_onnx(image_model(1, 3, "H", "W"))
    with pytest.raises(ShapeError, match=r"x \(1, 3, H, 9\)"):
        from_onnx(image_model(1, 3, "H", "W"), shapes={"W": 9})


def test_unnamed_open_dimensions():
    with pytest.raises(ShapeError, match=r"x \(1, 3, \?, \?\).*shapes="):
        from_onnx(image_model(1, 3, None, None))


def test_unknown_rank():
    proto = model([node("Relu", ["x"], ["y"])], [value("x", None)], [value("y", None)])
    with pytest.raises(ShapeError, match="'x' has no declared shape"):
        from_onnx(proto)
    assert from_onnx(proto, shapes={"x": (2, 3)}).outputs[0].shape == (2, 3)


@pytest.mark.parametrize(
    "shapes, message",
    [
        ({"z": (1, 3, 8, 8)}, "a shape is given for 'z'.*inputs are 'x'.*open dimensions are 'H', 'W'"),
        ({"x": (3, 8, 8)}, "has 4 dimensions"),
        ({"x": (1, 3, 0, 8)}, "at least 1"),
        ({"x": (1, 3, -1, 8)}, "at least 1"),
        ({"x": (1, 3, 8.5, 8)}, "sequence of integers"),
        ({"x": 8}, "sequence of integers"),
        ({"x": "abcd"}, "sequence of integers"),
        ({"H": 0, "W": 3}, "at least 1"),
    ],
)
def test_senseless_shapes(shapes, message):
    with pytest.raises(ShapeError, match=message):
        from_onnx(image_model(1, 3, "H", "W"), shapes=shapes)


def test_shape_arithmetic_vanishes(rng):
    """Flatten as exporters write it: Shape → Gather → Unsqueeze → Concat → Reshape."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Unsqueeze", ["n", "axes"], ["n1"]),
        node("Concat", ["n1", "rest"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"zero": np.int64(0), "axes": np.asarray([0]), "rest": np.asarray([-1])}
    proto = model(nodes, [value("x", (2, 3, 4))], [value("y", None)], constants)
    module = from_onnx(proto)
    assert operators(module) == ["reshape"]
    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(interpret(proto, {"x": x})[0], run_ort(proto, {"x": x})[0])


@pytest.mark.parametrize("start, end", [(None, None), (1, None), (None, -1), (-2, 3), (5, 9)])
def test_part_of_a_shape(start, end):
    attributes = {k: v for k, v in (("start", start), ("end", end)) if v is not None}
    nodes = [node("Shape", ["x"], ["s"], **attributes), node("Size", ["x"], ["n"]), node("Relu", ["x"], ["y"])]
    outputs = [value("s", None, np.int64), value("n", (), np.int64), value("y", (2, 3, 4))]
    proto = model(nodes, [value("x", (2, 3, 4))], outputs)
    x = np.zeros((2, 3, 4), np.float32)
    for found, expected in zip(interpret(proto, {"x": x}), run_ort(proto, {"x": x}), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_branches_of_open_shapes_are_chosen_by_an_input():
    """A merged decoder: the error says which input to bind."""
    branches = [
        model([node(operator, ["x"], [f"{name}_y"])], [], [value(f"{name}_y", None)]).graph
        for name, operator in (("then", "Relu"), ("else", "Neg"))
    ]
    nodes = [
        node("Identity", ["use_cache"], ["copy"]),
        node("If", ["copy"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    inputs = [value("x", ("N", "S")), value("use_cache", (1,), np.bool_)]
    proto = model(nodes, inputs, [value("y", None)])
    with pytest.raises(
        ShapeError, match=r"shapes=\{'N': 1, 'S': 1\}.*by 'use_cache': bind it.*constants=.*--constant use_cache=…"
    ):
        from_onnx(proto)
    with pytest.raises(ShapeError) as caught:
        from_onnx(proto, constants={"use_cache": True})
    assert "--constant" not in str(caught.value)
    assert operators(from_onnx(proto, {"N": 2, "S": 3}, constants={"use_cache": False})) == ["negative"]

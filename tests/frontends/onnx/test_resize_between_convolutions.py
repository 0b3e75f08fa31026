"""Linear interpolation of bytes between integer convolutions, where ONNX Runtime has the channels last and computes in
fixed point, and elsewhere, where it computes in float."""

import numpy as np
import pytest

from .graphs import interpret, model, node, run_ort, value

F32, U8 = np.float32, np.uint8
RESIZE = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
CONV = ["scale", "zero", "weight", "step", "none", "scale", "zero"]
MICROSOFT = "com.microsoft"


def convolution(source, result):
    return node("QLinearConv", [source, *CONV], [result], kernel_shape=[1, 1])


def resize(source, result):
    return node("Resize", [source, "", "factors"], [result], **RESIZE)


def added(left, right, result):
    inputs = [left, "scale", "zero", right, "scale", "zero", "scale", "zero"]
    return node("QLinearAdd", inputs, [result], domain=MICROSOFT)


GRAPHS = {
    "between": [convolution("x", "a"), resize("a", "b"), convolution("b", "y")],
    "two": [convolution("x", "a"), resize("a", "b"), resize("b", "c"), convolution("c", "y")],
    "sum": [
        convolution("x", "a"),
        convolution("x", "b"),
        added("a", "b", "c"),
        resize("c", "d"),
        node("MaxPool", ["d"], ["e"], kernel_shape=[2, 2]),
        convolution("e", "y"),
    ],
    "returned": [convolution("x", "a"), resize("a", "b"), added("b", "b", "y")],
    "sum with an input": [convolution("x", "a"), added("a", "x", "b"), resize("b", "c"), convolution("c", "y")],
    "joined": [
        convolution("x", "a"),
        convolution("x", "b"),
        node(
            "QLinearConcat",
            ["scale", "zero", *("a", "scale", "zero"), *("b", "scale", "zero")],
            ["c"],
            domain=MICROSOFT,
            axis=1,
        ),
        resize("c", "y"),
    ],
    "first": [resize("x", "a"), convolution("a", "y")],
    "last": [convolution("x", "a"), resize("a", "y")],
}


@pytest.mark.parametrize("name", list(GRAPHS))
@pytest.mark.parametrize("factor", [2.0, 1.6])
def test_bytes_between_convolutions(name, factor, rng):
    constants = {"scale": F32(0.02), "zero": U8(120), "step": F32(0.01), "none": np.int8(0)}
    constants["weight"] = rng.integers(-99, 99, (4, 4, 1, 1)).astype(np.int8)
    constants["factors"] = np.array([1, 1, factor, factor], F32)
    image = value("x", (1, 4, 9, 11), U8)
    proto = model(GRAPHS[name], [image], [value("y", None, U8)], constants, opset=18)
    feed = {"x": rng.integers(0, 256, (1, 4, 9, 11)).astype(U8)}
    (expected,) = run_ort(proto, feed, optimized=True)
    np.testing.assert_array_equal(interpret(proto, feed)[0], expected)

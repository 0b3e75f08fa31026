"""Float convolutions in quantized models: built engines have ONNX Runtime's bits, which adds blocks of channels."""

import numpy as np
import pytest

import qnn_ext

from .graphs import model, node, run_ort, value

F32 = np.float32
SIZE = 10


def numbers(rng, *shape):
    return rng.standard_normal(shape).astype(F32)


def check(rng, nodes, constants, channels, rank=2):
    """The results of the model, one of which is quantized, beside a product of integers that takes most of its time."""
    nodes = [*nodes, node("DynamicQuantizeLinear", ["y"], ["q", "s", "z"]), node("MatMulInteger", ["u", "ones"], ["p"])]
    inputs = [value("x", (1, channels, *[SIZE] * rank), F32), value("u", (8, 512), np.uint8)]
    outputs = [value("y", None, F32), value("q", None, np.uint8), value("p", None, np.int32)]
    constants = {**constants, "ones": np.ones((512, 2048), np.int8)}
    proto = model(nodes, inputs, outputs, constants, 20)
    feeds = {"x": numbers(rng, 1, channels, *[SIZE] * rank), "u": np.ones((8, 512), np.uint8)}
    found = qnn_ext.build(qnn_ext.from_onnx(proto), num_threads=1).run(feeds)
    for ours, theirs in zip(found.values(), run_ort(proto, feeds, optimized=True), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels, results, kernel", [
    (3, 16, 3), (3, 30, 7), (1, 16, 5), (8, 8, 2), (8, 24, 1), (16, 32, 3), (24, 20, 5), (64, 16, 3), (300, 16, 1),
])  # fmt: skip
def test_blocks_of_channels(rng, channels, results, kernel, stride):
    """Single channels where there are fewer than a vector holds, 128 for a product of matrices, else a vector."""
    attributes = {"pads": [kernel // 2] * 4, "strides": [stride] * 2}
    weights = {"w": numbers(rng, results, channels, kernel, kernel), "b": numbers(rng, results)}
    check(rng, [node("Conv", ["x", "w", "b"], ["c"], **attributes), node("Relu", ["c"], ["y"])], weights, channels)


def test_dilated(rng):
    conv = node("Conv", ["x", "w"], ["y"], dilations=[2, 3], pads=[1, 0, 2, 3], strides=[1, 2])
    check(rng, [conv], {"w": numbers(rng, 16, 3, 3, 3)}, 3)


@pytest.mark.parametrize("shape, groups, rank", [
    ((24, 16, 5), 1, 1), ((16, 64, 3), 1, 1), ((8, 1, 3), 8, 1), ((16, 2, 3, 3), 4, 2), ((18, 18, 3, 3), 1, 2),
    ((30, 30, 1, 1), 1, 2), ((30, 1, 5, 5), 30, 2), ((12, 1, 3, 3), 6, 2), ((1, 20, 3, 3), 1, 2),
])  # fmt: skip
@pytest.mark.parametrize("stride, dilation", [(1, 1), (2, 1), (1, 2)])
def test_expanded_to_products_of_matrices(rng, shape, groups, rank, stride, dilation):
    """Over one dimension, groups that are no blocks, and numbers of channels that do not move: channel by channel."""
    attributes = {"pads": [1] * rank + [2] * rank, "strides": [stride] * rank, "dilations": [dilation] * rank}
    weights = {"w": numbers(rng, *shape), "b": numbers(rng, shape[0])}
    conv = node("Conv", ["x", "w", "b"], ["y"], group=groups, **attributes)
    check(rng, [conv], weights, shape[1] * groups, rank)


@pytest.mark.parametrize("shape, groups", [((32, 32, 3, 3), 1), ((32, 1, 3, 3), 32), ((32, 32, 1, 1), 1)])
@pytest.mark.parametrize("operands", ["result first", "result last", "input"])
def test_residuals(rng, shape, groups, operands):
    """What is in blocks is in the place of the result before the convolution begins; the bias comes last."""
    constants = {"w": numbers(rng, 32, 32, 3, 3), "v": numbers(rng, *shape)}
    constants |= {"b": numbers(rng, 32), "c": numbers(rng, 32)}
    kernel = shape[-1]
    second = {"group": groups, "pads": [kernel // 2] * 4}
    added = {"result first": ["k", "r"], "result last": ["r", "k"], "input": ["k", "x"]}[operands]
    nodes = [
        node("Conv", ["x", "w", "b"], ["a"], pads=[1] * 4),
        node("Relu", ["a"], ["r"]),
        node("Conv", ["r", "v", "c"], ["k"], **second),
        node("Add", added, ["s1"]),
        node("Relu", ["s1"], ["y"]),
    ]
    check(rng, nodes, constants, 32)


@pytest.mark.parametrize("bias", [False, True])
def test_batch_normalization(rng, bias):
    """ONNX Runtime has it in the weights and the bias."""
    constants = {"w": numbers(rng, 16, 3, 3, 3), **({"b": numbers(rng, 16)} if bias else {})}
    constants |= {"g": rng.random(16).astype(F32), "h": numbers(rng, 16), "m": numbers(rng, 16)}
    constants |= {"v": rng.random(16).astype(F32) + F32(0.5)}
    conv = node("Conv", ["x", "w", *(["b"] if bias else [])], ["c"])
    check(rng, [conv, node("BatchNormalization", ["c", "g", "h", "m", "v"], ["y"])], constants, 3)


@pytest.mark.parametrize("integers", [False, True], ids=["many", "few"])
def test_few_large_convolutions_are_in_order(rng, integers):
    """Where they are many, they are computed as fast as possible."""
    size, channels = 40, 64
    constants = {"w": numbers(rng, channels, channels, 3, 3), "s": F32(0.05), "z": np.uint8(128), "t": F32(0.02)}
    constants |= {"v": rng.integers(-127, 127, (channels, channels, 7, 7), np.int8, endpoint=True), "o": np.int8(0)}
    nodes = [
        node("Conv", ["x", "w"], ["y"], pads=[1] * 4),
        node("QuantizeLinear", ["y", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["v", "t", "o"], ["f"]),
        *([node("Conv", ["d", "f"], ["c"], pads=[3] * 4)] if integers else []),
        node("QuantizeLinear", ["c" if integers else "d", "s", "z"], ["r"]),
    ]
    shape = (1, channels, size, size)
    proto = model(nodes, [value("x", shape, F32)], [value("y", None, F32), value("r", None, np.uint8)], constants, 20)
    engine = qnn_ext.build(qnn_ext.from_onnx(proto), num_threads=1)
    assert any("winograd" in kernel.operators for kernel in engine.kernels) != integers
    x = numbers(rng, *shape)
    found = list(engine.run({"x": x}).values())
    expected = run_ort(proto, {"x": x}, optimized=True)
    if integers:
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])
    else:
        np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-3)


MOVES = {
    "Reshape": node("Reshape", ["c", "shape"], ["m"]),
    "Flatten": node("Flatten", ["c"], ["m"]),
    "Transpose": node("Transpose", ["c"], ["m"], perm=[0, 2, 3, 1]),
    "MaxPool": node("MaxPool", ["c"], ["m"], kernel_shape=[2, 2]),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("relu", ["", "before", "behind"])
def test_float_weights_between_integers(rng, move, relu):
    """ONNX Runtime rounds them to int8 if the result is quantized, which it does before it moves it, not before a
    Flatten: as of layers that a quantizer was told to skip."""
    constants = {"w": numbers(rng, 8, 16, 3, 3), "b": numbers(rng, 8), "shape": np.array([1, 8, -1])}
    constants |= {"s": F32(0.02), "z": np.uint8(128), "t": F32(0.3)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("Conv", ["d", "w", "b"], ["c0"]),
        node("Relu" if relu == "before" else "Identity", ["c0"], ["c"]),
        MOVES[move],
        node("Relu" if relu == "behind" else "Identity", ["m"], ["n"]),
        node("QuantizeLinear", ["n", "t", "z"], ["r"]),
        node("DequantizeLinear", ["r", "t", "z"], ["y"]),
    ]
    proto = model(nodes, [value("x", (1, 16, SIZE, SIZE), F32)], [value("y", None, F32)], constants, 20)
    x = numbers(rng, 1, 16, SIZE, SIZE)
    (expected,) = run_ort(proto, {"x": x}, optimized=True)
    np.testing.assert_array_equal(qnn_ext.build(qnn_ext.from_onnx(proto), num_threads=1)(x), expected)

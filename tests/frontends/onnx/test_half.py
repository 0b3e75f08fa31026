"""Models of float16: what is computed in float32, and where values are rounded, as in ONNX Runtime with all
optimizations."""

import numpy as np
import pytest

from .graphs import interpret, model, node, onnx, run_ort, value

HALF = np.float16
RNG = np.random.default_rng(0)


def check(nodes, shape, constants=None, outputs=("y",), dtypes=(HALF,), opset=21):
    """The interpreter gives ONNX Runtime's float16 bit for bit for each of several inputs."""
    results = [value(name, None, dtype) for name, dtype in zip(outputs, dtypes, strict=True)]
    proto = model(nodes, [value("x", shape, HALF)], results, constants, opset)
    for scale in (1, 30, 0.01):
        feed = {"x": (RNG.standard_normal(shape) * scale).astype(HALF)}
        for ours, theirs in zip(interpret(proto, feed), run_ort(proto, feed, optimized=True), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)


def numbers(*shape):
    return (RNG.standard_normal(shape) + 3).astype(HALF)


def test_a_chain_is_rounded_once():
    nodes = [
        node("Mul", ["x", "a"], ["m"]),
        node("Add", ["m", "b"], ["s"]),
        node("Div", ["s", "c"], ["d"]),
        node("Sqrt", ["e"], ["y"]),
        node("Abs", ["d"], ["e"]),
    ]
    check(nodes, (4, 40), {name: numbers(40) for name in "abc"})


def test_a_value_that_is_also_a_result():
    nodes = [node("Mul", ["x", "a"], ["m"]), node("Sub", ["m", "b"], ["y"])]
    check(nodes, (4, 40), {"a": numbers(40), "b": numbers(40)}, ("m", "y"), (HALF, HALF))


@pytest.mark.parametrize("moves", [1, 2])
def test_moves_between_computing_operators(moves):
    """One move runs in float32 like its neighbours, two in a row in float16."""
    nodes = [
        node("Mul", ["x", "a"], ["v0"]),
        node("Transpose", ["v0"], ["v1"], perm=[1, 0]),
        node("Mul", [f"v{moves}", "s"], ["y"]),
    ]
    if moves == 2:
        nodes.insert(2, node("Reshape", ["v1", "shape"], ["v2"]))
    check(nodes, (40, 40), {"a": numbers(40), "s": numbers(1), "shape": np.int64([1600])})


@pytest.mark.parametrize("neighbour", ["Mul", "Identity"])
def test_a_kernel_for_float16(neighbour):
    """LayerNormalization reads and writes float16 unless all its neighbours have no kernel for it."""
    last = node("Mul", ["n", "s"], ["y"]) if neighbour == "Mul" else node("Identity", ["n"], ["y"])
    nodes = [node("Mul", ["x", "a"], ["m"]), node("LayerNormalization", ["m", "g", "b"], ["n"]), last]
    check(nodes, (5, 40), {"a": numbers(40), "g": numbers(40), "b": numbers(40), "s": numbers(1)})


def test_what_leaves_float16_is_of_rounded_values():
    nodes = [
        node("Mul", ["x", "a"], ["m"]),
        node("Cast", ["m"], ["c"], to=onnx.TensorProto.FLOAT),
        node("Mul", ["c", "s"], ["y"]),
        node("QuantizeLinear", ["m", "q"], ["z"]),
    ]
    constants = {"a": numbers(40), "s": np.float32([3]), "q": HALF(0.05)}
    check(nodes, (4, 40), constants, ("y", "z"), (np.float32, np.uint8))


def test_products_and_sums_are_in_float32():
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Softmax", ["m"], ["p"]), node("ReduceSum", ["p", "a"], ["y"])]
    check(nodes, (3, 400), {"w": (numbers(400, 50) - 3), "a": np.int64([0])})


def test_a_quantized_network():
    """Data are dequantized to float32, weights to float16."""
    rng = np.random.default_rng(1)
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        node("DequantizeLinear", ["q", "xs", "xz"], ["d"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["f"], axis=0),
        node("Conv", ["d", "f"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("QuantizeLinear", ["r", "ys", "yz"], ["p"]),
        node("DequantizeLinear", ["p", "ys", "yz"], ["y"]),
    ]
    constants = {
        "xs": HALF(0.0203), "xz": np.uint8(120), "ys": HALF(0.031), "yz": np.uint8(0),
        "w": rng.integers(-127, 128, (6, 3, 3, 3)).astype(np.int8),
        "ws": (rng.random(6) * 0.01 + 0.001).astype(HALF), "wz": np.zeros(6, np.int8),
    }  # fmt: skip
    check(nodes, (1, 3, 9, 9), constants)


@pytest.mark.parametrize("opset", [19, 21, 23, 24])
@pytest.mark.parametrize("precision", [None, onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16])
@pytest.mark.parametrize("known", [False, True])
def test_the_division_of_a_quantization(opset, precision, known):
    """Before operator set 23 it is in float32, then in the dtype of the scale, unless the node names one."""
    if precision is not None and opset < 23:
        pytest.skip("the attribute came with operator set 23")
    attributes = {} if precision is None else {"precision": precision}
    rng = np.random.default_rng(4)
    weight = rng.standard_normal((8, 3000)).astype(HALF)
    scale = (np.abs(weight).max(1) / 127).astype(HALF)
    nodes = [node("QuantizeLinear", ["w" if known else "x", "s", "z"], ["y"], axis=0, **attributes)]
    nodes += [node("Identity", ["x"], ["same"])] * known
    constants = {"s": scale, "z": np.zeros(8, np.int8)} | ({"w": weight} if known else {})
    results = [value("y", None, np.int8)] + [value("same", None, HALF)] * known
    proto = model(nodes, [value("x", weight.shape, HALF)], results, constants, opset)
    feed = {"x": weight}
    np.testing.assert_array_equal(interpret(proto, feed)[0], run_ort(proto, feed, optimized=True)[0])


def test_a_float32_base_with_a_float16_exponent_stays_float32():
    nodes = [
        node("Cast", ["x"], ["w"], to=onnx.TensorProto.FLOAT),
        node("Abs", ["w"], ["b"]),
        node("Pow", ["b", "e"], ["y"]),
    ]
    proto = model(nodes, [value("x", (6,), HALF)], [value("y", None)], {"e": numbers(6)})
    assert interpret(proto, {"x": numbers(6)})[0].dtype == np.float32

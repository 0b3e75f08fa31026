"""Sums and means of dequantized tensors against ONNX Runtime, bit for bit, in whichever layout it has there."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.frontends.onnx import from_onnx

from .graphs import interpret, model, node, operators, require_exact_ort, run_ort, value

FEW = {"s": np.float32(0.037), "z": np.uint8(131), "w": np.float32(0.01), "v": np.int8(0), "b": np.float32(0.00037)}


def _pair(x, result):
    """Nodes that quantize a tensor and dequantize it."""
    return [
        node("QuantizeLinear", [x, "s", "z"], [f"{result}_q"]),
        node("DequantizeLinear", [f"{result}_q", "s", "z"], [result]),
    ]


def _convolution(x, weight, result):
    return [
        node("DequantizeLinear", [weight, "w", "v"], [f"{weight}_d"]),
        node("DequantizeLinear", [f"{weight}_b", "b"], [f"{weight}_bias"]),
        node("Conv", [x, f"{weight}_d", f"{weight}_bias"], [f"{result}_f"]),
        *_pair(f"{result}_f", result),
    ]


def _network(rng, channels, size, batch, behind, operator="ReduceMean"):
    """A convolution times its sigmoid, means over its pixels, and what is computed from these."""
    constants = dict(FEW)
    for name, shape in (("first", (channels, 3, 1, 1)), ("second", (8, channels, 1, 1))):
        constants[name] = rng.integers(-127, 128, shape).astype(np.int8)
        constants[f"{name}_b"] = rng.integers(-500, 500, shape[0]).astype(np.int32)
    constants["axes"] = np.array([2, 3])
    nodes = [
        *_pair("x", "d"),
        *_convolution("d", "first", "c"),
        *[node("Sigmoid", ["c"], ["g_f"]), *_pair("g_f", "g"), node("Mul", ["c", "g"], ["m_f"]), *_pair("m_f", "m")],
        node(operator, ["m", "axes"], ["y"], keepdims=int(behind != "rows")),
    ]
    outputs = [value("y", None)]
    if behind == "convolution":
        nodes += [*_pair("y", "e"), *_convolution("e", "second", "z1")]
        outputs.append(value("z1", None))
    return model(nodes, [value("x", (batch, 3, *size))], outputs, constants)


@pytest.mark.parametrize("operator", ["ReduceMean", "ReduceSum"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("behind", ["nothing", "rows", "convolution"])
def test_over_pixels_of_a_convolution(operator, batch, behind, rng):
    """In front of another one exact; where they are the last, ONNX Runtime has moved the channels to the front, and
    integers here, whose channels stay last, may be a last bit off."""
    proto = _network(rng, 21, (9, 7), batch, behind, operator)
    require_exact_ort(proto, optimized=True)
    x = (rng.standard_normal((batch, 3, 9, 7)) * 3).astype(np.float32)
    expected = run_ort(proto, {"x": x}, optimized=True)
    module = from_onnx(proto)
    assert ("qnn.sum" in operators(module)) == (behind != "convolution")
    for results in (qnn_ext.Interpreter(module).run({"x": x}), qnn_ext.build(module, num_threads=1).run([x])):
        for one, other in zip(results.values(), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0 if behind == "convolution" else 1e-6)


@pytest.mark.parametrize("is_split", [False, True])
def test_over_pixels_between_operators_of_integers(is_split, rng):
    """QLinearConv, with halves of its channels in another order."""
    qparams = ["w", "v", "s", "z"]
    halves = [
        node("Split", ["d"], ["d0", "d1"], axis=1, num_outputs=2),
        node("Concat", ["d1", "d0"], ["c"], axis=1),
        *_pair("c", "e"),
    ]
    nodes = [
        node("QLinearConv", ["x", "s", "z", "f", *qparams], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        *(halves if is_split else []),
        node("ReduceMean", ["e" if is_split else "d", "axes"], ["y"]),
        node("QuantizeLinear", ["y", "s", "z"], ["r"]),
        node("QLinearConv", ["r", "s", "z", "g", *qparams], ["u"]),
    ]
    constants = {**FEW, "axes": np.array([2, 3])}
    constants["f"], constants["g"] = (rng.integers(-127, 128, (n, 32, 1, 1)).astype(np.int8) for n in (32, 8))
    outputs = [value("y", None), value("u", None, np.uint8)]
    proto = model(nodes, [value("x", (1, 32, 9, 7), np.uint8)], outputs, constants)
    x = rng.integers(0, 256, (1, 32, 9, 7)).astype(np.uint8)
    found = qnn_ext.build(from_onnx(proto), num_threads=1).run([x]).values()
    for one, other in zip(found, run_ort(proto, {"x": x}, optimized=True), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "shape, axes",
    [((1, 50, 24), (1,)), ((1, 1, 50, 24), (-2,)), ((2, 7, 24), (1,)), ((4, 30, 5), (1,)), ((30, 9), (0,)),
     ((1, 6, 4, 10), (1, 2)), ((2, 3, 40), (2,)), ((2, 3, 4, 10), (2, 3)), ((5, 2, 3), (0, 1, 2))],
)  # fmt: skip
@pytest.mark.parametrize("of_floats", [False, True])
def test_over_other_axes(shape, axes, of_floats, rng):
    summed = [node("Neg", ["d"], ["n"]), node("ReduceMean", ["n" if of_floats else "d", "axes"], ["y"])]
    nodes = [*_pair("x", "d"), *summed]
    proto = model(nodes, [value("x", shape)], [value("y", None)], {**FEW, "axes": np.array(axes)})
    x = (rng.standard_normal(shape) * 3).astype(np.float32)
    (expected,) = run_ort(proto, {"x": x}, optimized=True)
    np.testing.assert_array_equal(interpret(proto, {"x": x})[0], expected)
    np.testing.assert_array_equal(qnn_ext.build(from_onnx(proto), num_threads=1)(x), expected)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16"])
@pytest.mark.parametrize(
    "operator, axes",
    [("ReduceMean", [2, 3]), ("ReduceMean", [1]), ("GlobalAveragePool", None), ("Softmax", None), ("LogSoftmax", None)],
)
def test_rows_of_more_bits(operator, axes, dtype, rng):
    """Of 16 bits, or quantized to 16 bits, ONNX Runtime computes all of them in float."""
    info = np.iinfo(dtype)
    constants = {"s": np.float32(16.0 / (info.max - info.min)), "z": np.asarray((info.max + info.min) // 2, dtype)}
    constants |= {"t": np.float32(1 / 8000), "o": np.int16(-3)} | ({} if axes is None else {"axes": np.array(axes)})
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["d"]),
        node(operator, ["d"] if axes is None else ["d", "axes"], ["r"]),
        node("QuantizeLinear", ["r", "t", "o"], ["y"]),
    ]
    shape, results = (1, 50, 21, 9), [value("y", None, np.int16)]
    if operator != "LogSoftmax":  # few of whose logarithms differ in a last bit
        results.append(value("r", None))
    proto = model(nodes, [value("x", shape, dtype)], results, constants)
    x = rng.integers(info.min, info.max + 1, shape).astype(dtype)
    expected = run_ort(proto, {"x": x}, optimized=True)
    module = from_onnx(proto)
    for found in (qnn_ext.Interpreter(module).run({"x": x}), qnn_ext.build(module, num_threads=1).run([x])):
        for one, other in zip(found.values(), expected, strict=True):
            np.testing.assert_array_equal(one, other)

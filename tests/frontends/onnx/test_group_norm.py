"""InstanceNormalization and GroupNormalization, of floats and between quantize operators, against ONNX Runtime."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import ModelFormatError, UnsupportedOperatorError
from qnn_ext.frontends.onnx import from_onnx

from .graphs import interpret, model, node, operators, run_ort, value

SHAPE = (2, 6, 9, 8)
INSTANCE, GROUP = "InstanceNormalization", "GroupNormalization"
# operator, version of the operator set, groups, values of scale and bias; from 21 on they are per channel
NORMS = [(INSTANCE, 17, None, 6), (GROUP, 18, 3, 3), (GROUP, 21, 3, 6), (GROUP, 21, 1, 6), (GROUP, 21, 6, 6)]
DTYPES = {"uint8": (0.031, 120), "int8": (0.028, -128), "int16": (1.3e-4, 7), "uint16": (1.3e-4, 65535)}


def parameters(rng, count, dtype=np.float32):
    return {"g": rng.uniform(0.5, 1.5, count).astype(dtype), "b": rng.normal(size=count).astype(dtype)}


def norm(operator, groups, *names):
    return node(operator, list(names), ["n"], "norm", **({} if groups is None else {"num_groups": groups}))


def quantized(operator, opset, groups, constants, dtype, shape=SHAPE):
    """Data and result of the same dtype; the data comes from its own quantize."""
    scale, zero_point = DTYPES[dtype]
    constants = {**constants, "s": np.float32(scale), "z": np.asarray(zero_point, dtype)}
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["d"]),
        norm(operator, groups, "d", "g", "b"),
        node("QuantizeLinear", ["n", "s", "z"], ["y"]),
    ]
    return model(nodes, [value("x", shape, dtype)], [value("y", shape, dtype)], constants, opset)


@pytest.mark.parametrize("operator, opset, groups, count", NORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_between_quantize_operators(operator, opset, groups, count, dtype, rng):
    """Groups and instances are normalized in float, with ONNX Runtime's bits."""
    if "16" in dtype:
        opset, count = 21, 6
    proto = quantized(operator, opset, groups, parameters(rng, count), dtype)
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max + 1, SHAPE).astype(dtype)
    zero_point = DTYPES[dtype][1]
    x[1] = (x[1].astype(np.int64) - zero_point) // 32 + zero_point  # a sample of small spread
    imported = from_onnx(proto)
    assert ("qnn.lane_norm" if groups is None else "qnn.lane_sum") in operators(imported)
    assert imported.notes
    (expected,) = run_ort(proto, {"x": x})
    (found,) = qnn_ext.Interpreter(imported).run({"x": x}).values()
    (compiled,) = qnn_ext.build(imported, num_threads=1).run({"x": x}).values()
    np.testing.assert_array_equal(compiled, found)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("operator, opset, groups, count", NORMS)
@pytest.mark.parametrize("shape", [SHAPE, (3, 6, 50)])
def test_floats(operator, opset, groups, count, shape, rng):
    proto = model(
        [norm(operator, groups, "x", "g", "b")],
        [value("x", shape)],
        [value("n", shape)],
        parameters(rng, count),
        opset,
    )
    x = rng.normal(size=shape).astype(np.float32)
    (expected,) = run_ort(proto, {"x": x})
    imported = from_onnx(proto)
    (found,) = qnn_ext.Interpreter(imported).run({"x": x}).values()
    (compiled,) = qnn_ext.build(imported, num_threads=1).run({"x": x}).values()
    np.testing.assert_allclose(found, expected, atol=2e-6)
    np.testing.assert_array_equal(compiled, found)


@pytest.mark.parametrize("operator, opset, groups", [(INSTANCE, 17, None), (GROUP, 21, 3)])
def test_float16(operator, opset, groups, rng):
    """Computed in float32, rounded once."""
    constants = parameters(rng, 6, np.float16)
    inputs = [value("x", SHAPE, np.float16)], [value("n", SHAPE, np.float16)]
    proto = model([norm(operator, groups, "x", "g", "b")], *inputs, constants, opset)
    x = rng.normal(size=SHAPE).astype(np.float16)
    wide = model(
        [norm(operator, groups, "x", "g", "b")],
        [value("x", SHAPE)],
        [value("n", SHAPE)],
        {name: array.astype(np.float32) for name, array in constants.items()},
        opset,
    )
    (expected,) = interpret(wide, {"x": x.astype(np.float32)})
    np.testing.assert_array_equal(interpret(proto, {"x": x})[0], expected.astype(np.float16))


def test_samples_of_channels_alone(rng):
    """GroupNormalization of (N, C): a group is its channels."""
    proto = model([norm(GROUP, 2, "x", "g", "b")], [value("x", (5, 6))], [value("n", (5, 6))], parameters(rng, 6), 21)
    x = rng.normal(size=(5, 6)).astype(np.float32)
    np.testing.assert_allclose(interpret(proto, {"x": x})[0], run_ort(proto, {"x": x})[0], atol=2e-6)


@pytest.mark.parametrize(
    "operator, count, attributes, error, message",
    [
        (GROUP, 6, {"num_groups": 4}, ModelFormatError, "num_groups must divide"),
        (GROUP, 6, {"num_groups": 0}, ModelFormatError, "num_groups must divide"),
        (GROUP, 3, {"num_groups": 3}, ModelFormatError, "must have 6 values"),
        (GROUP, 6, {"num_groups": 3, "stash_type": 10}, UnsupportedOperatorError, "stash_type"),
        (INSTANCE, 5, {}, ModelFormatError, "must have 6 values"),
    ],
)
def test_refused(operator, count, attributes, error, message, rng):
    nodes = [node(operator, ["x", "g", "b"], ["n"], "norm", **attributes)]
    proto = model(nodes, [value("x", SHAPE)], [value("n", SHAPE)], parameters(rng, count), 21)
    with pytest.raises(error, match=message):
        from_onnx(proto)

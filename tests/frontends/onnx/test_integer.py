"""ConvInteger, MatMulInteger and DynamicQuantizeLinear against ONNX Runtime, bit for bit."""

import numpy as np
import pytest

import qnn_ext

from .graphs import interpret, model, node, run_ort, value
from .single_op import MICROSOFT, compare, const, ends, full_range, single_op


@pytest.mark.parametrize("w_dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize("constant", [True, False])
def test_conv_integer(constant, zero, w_dtype, rng):
    weight = full_range(rng, w_dtype, 4, 3, 3, 2)
    inputs = [
        full_range(rng, np.uint8, 2, 3, 7, 6),
        const(weight, w_dtype) if constant else weight,
        const(ends(np.uint8)[zero], np.uint8),
        const(ends(w_dtype)[2 - zero], w_dtype),
    ]
    compare("ConvInteger", inputs, [np.int32], opset=10, pads=[1, 0, 1, 1], strides=[2, 1])


@pytest.mark.parametrize("spatial", [(9,), (4, 5, 6)])
def test_conv_integer_of_other_ranks(spatial, rng):
    inputs = [
        full_range(rng, np.uint8, 1, 2, *spatial),
        const(full_range(rng, np.uint8, 3, 2, *[2] * len(spatial)), np.uint8),
    ]
    compare("ConvInteger", inputs, [np.int32])


@pytest.mark.parametrize("a_dtype,b_dtype", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
@pytest.mark.parametrize("a_shape,b_shape", [((5, 24), (24, 9)), ((2, 5, 24), (24, 9)), ((2, 3, 4, 8), (3, 8, 5))])
def test_matmul_integer(a_shape, b_shape, a_dtype, b_dtype, rng):
    b = full_range(rng, b_dtype, *b_shape)
    per_column = full_range(rng, b_dtype, b_shape[-1]) if len(b_shape) == 2 else np.asarray(3)
    for operand in (b, const(b, b_dtype)):
        zeros = const(ends(a_dtype)[1], a_dtype), const(per_column, b_dtype)
        compare("MatMulInteger", [full_range(rng, a_dtype, *a_shape), operand, *zeros], [np.int32], opset=10)


def test_matmul_integer_without_zero_points(rng):
    compare("MatMulInteger", [full_range(rng, np.uint8, 3, 4), full_range(rng, np.int8, 4, 2)], [np.int32])


def test_matmul_integer_zero_points_per_row(rng):
    a, b = full_range(rng, np.int8, 2, 5, 8), full_range(rng, np.int8, 2, 8, 3)
    a_zero, b_zero = full_range(rng, np.int8, 2, 5, 1), full_range(rng, np.int8, 2, 1, 3)
    model, feed = single_op("MatMulInteger", [a, b, const(a_zero, np.int8), const(b_zero, np.int8)], [np.int32])
    expected = (a.astype(np.int32) - a_zero) @ (b.astype(np.int32) - b_zero)
    module = qnn_ext.from_onnx(model)
    np.testing.assert_array_equal(qnn_ext.Interpreter(module)(*feed.values()), expected)
    np.testing.assert_array_equal(qnn_ext.build(module).run(feed)["out0"], expected)


def test_matmul_integer16(rng):
    a, b = (rng.integers(-3000, 3000, shape).astype(np.int16) for shape in ((2, 4, 8), (8, 5)))
    model, feed = single_op("MatMulInteger16", [a, b], [np.int32], domain=MICROSOFT)
    expected = a.astype(np.int32) @ b.astype(np.int32)
    np.testing.assert_array_equal(qnn_ext.build(qnn_ext.from_onnx(model)).run(feed)["out0"], expected)


def test_dynamic_quantize_linear(rng):
    normal = rng.standard_normal((3, 40)).astype(np.float32)
    midpoints = np.float32([-2.0, 125.5, 253.0, 0.5, 1.5, 2.5])
    for data in (normal, normal + 9, normal - 9, np.zeros((2, 2), np.float32), midpoints, np.float32([[1e-40, 3e38]])):
        compare("DynamicQuantizeLinear", [data], [np.uint8, np.float32, np.uint8], opset=11)


@pytest.mark.parametrize("data", [[0, 0, 0], [-0.7, 0.1, 0.45], [3, 3, 3]])
def test_dynamic_quantization_of_what_is_known_at_import(data, rng):
    """As of noise times 0: the scale of zeros is 1."""
    nodes = [
        node("DynamicQuantizeLinear", ["k"], ["q", "s", "z"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("Add", ["x", "d"], ["y"]),
    ]
    outputs = [value("y", None), value("s", None), value("z", None, np.uint8)]
    proto = model(nodes, [value("x", (3,))], outputs, {"k": np.float32(data)})
    feed = {"x": rng.normal(size=3).astype(np.float32)}
    for found, wanted in zip(interpret(proto, feed), run_ort(proto, feed), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_dynamically_quantized_product_keeps_its_integer_kernel(rng):
    """DynamicQuantizeLinear → MatMulInteger with constant weights: uint8 × int8, the zero point corrected after."""
    weight = const(full_range(rng, np.int8, 32, 16), np.int8)
    bias = const(rng.standard_normal(16))
    inputs = [rng.standard_normal((4, 32)).astype(np.float32), weight, const(0.02), const(0, np.int8), bias]
    module = compare("DynamicQuantizeMatMul", inputs, [np.float32], domain=MICROSOFT)
    products = [kernel.operators for kernel in qnn_ext.build(module).kernels if kernel.macs]
    assert products == ["dense_accumulate+subtract+dequantize+add"]

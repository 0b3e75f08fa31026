"""QLinearConv and QLinearMatMul against ONNX Runtime, bit for bit."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import QnnError, UnsupportedOperatorError

from .single_op import MICROSOFT, compare, const, ends, full_range, single_op

DTYPES = [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]


def conv_inputs(rng, x_dtype, w_dtype, x_shape, w_shape, *, per_channel=True, bias=True, zero=1, w_zero=None):
    """Inputs of QLinearConv; scales such that results fill and overflow their dtype."""
    channels = w_shape[0]
    taps = int(np.prod(w_shape[1:]))
    scales = np.linspace(0.01, 0.02, channels) if per_channel else 0.013
    if w_zero is None:
        w_zero = np.zeros(channels, int) if per_channel else 0
    return [
        full_range(rng, x_dtype, *x_shape),
        const(0.1),
        const(ends(x_dtype)[zero], x_dtype),
        const(full_range(rng, w_dtype, *w_shape), w_dtype),
        const(scales),
        const(w_zero, w_dtype),
        const(0.05 * taps**0.5),
        const(ends(x_dtype)[2 - zero], x_dtype),
        const(rng.integers(-9000, 9000, channels), np.int32) if bias else None,
    ]


GEOMETRIES = {
    "1-D": ((2, 4, 17), (6, 4, 3), {"pads": [1, 2], "strides": [2]}),
    "2-D": ((2, 4, 9, 7), (6, 4, 3, 2), {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]}),
    "3-D": ((1, 4, 5, 6, 7), (6, 2, 2, 3, 3), {"pads": [1] * 6, "strides": [2, 1, 2], "group": 2}),
    "groups": ((1, 6, 8, 8), (9, 2, 3, 3), {"group": 3, "pads": [1] * 4}),
    "depthwise": ((2, 8, 9, 9), (8, 1, 3, 3), {"group": 8, "strides": [2, 2], "pads": [1] * 4}),
    "depthwise-multiplier": ((1, 4, 6, 6), (12, 1, 3, 3), {"group": 4}),
    "pointwise": ((1, 16, 5, 5), (8, 16, 1, 1), {}),
    "same-upper": ((1, 3, 8, 9), (4, 3, 2, 4), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "same-lower": ((1, 3, 8, 9), (4, 3, 2, 4), {"auto_pad": "SAME_LOWER", "strides": [1, 2]}),
    "valid": ((1, 3, 8, 9), (4, 3, 3, 3), {"auto_pad": "VALID", "kernel_shape": [3, 3]}),
}


@pytest.mark.parametrize("x_dtype,w_dtype", DTYPES)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_conv(name, x_dtype, w_dtype, rng):
    x_shape, w_shape, attributes = GEOMETRIES[name]
    compare("QLinearConv", conv_inputs(rng, x_dtype, w_dtype, x_shape, w_shape), [x_dtype], opset=10, **attributes)


@pytest.mark.parametrize("zero", [0, 2])
@pytest.mark.parametrize("x_dtype,w_dtype", DTYPES)
def test_conv_zero_points_at_the_ends(x_dtype, w_dtype, zero, rng):
    inputs = conv_inputs(
        rng, x_dtype, w_dtype, (1, 3, 6, 6), (4, 3, 3, 3), per_channel=False, zero=zero, w_zero=ends(w_dtype)[zero]
    )
    compare("QLinearConv", inputs, [x_dtype], pads=[1] * 4)


def test_conv_with_weights_and_qparams_of_run_time(rng):
    inputs = conv_inputs(rng, np.uint8, np.int8, (1, 3, 6, 6), (4, 3, 3, 3), per_channel=False)
    inputs = [item if item is None else getattr(item, "array", item) for item in inputs]
    compare("QLinearConv", inputs, [np.uint8], pads=[1] * 4)


def test_conv_without_bias(rng):
    compare("QLinearConv", conv_inputs(rng, np.uint8, np.uint8, (1, 2, 5, 5), (3, 2, 2, 2), bias=False), [np.uint8])


def test_conv_channels_last(rng):
    inputs = conv_inputs(rng, np.uint8, np.int8, (2, 4, 9, 7), (6, 4, 3, 3))
    inputs[0] = np.ascontiguousarray(inputs[0].transpose(0, 2, 3, 1))
    compare("QLinearConv", inputs, [np.uint8], domain=MICROSOFT, channels_last=1, pads=[1] * 4, strides=[2, 1])


def test_conv_errors_name_the_node(rng):
    inputs = conv_inputs(rng, np.uint8, np.int8, (1, 4, 9, 7), (6, 4, 3, 3))
    for attributes, message in (
        ({"kernel_shape": [5, 5]}, "kernel_shape"),
        ({"pads": [1, 1]}, "pads"),
        ({"strides": [0, 1]}, "strides"),
        ({"auto_pad": "SOMEHOW"}, "auto_pad"),
        ({"group": 3}, "groups"),
    ):
        model, _ = single_op("QLinearConv", inputs, [np.uint8], **attributes)
        with pytest.raises(QnnError, match=rf"QLinearConv 'QLinearConv'.*{message}"):
            qnn_ext.from_onnx(model)
    inputs[0] = np.zeros((1, 4, 2, 2, 2, 2), np.uint8)
    with pytest.raises(UnsupportedOperatorError, match="spatial dimensions"):
        qnn_ext.from_onnx(single_op("QLinearConv", inputs, [np.uint8])[0])


# ---- QLinearMatMul -----------------------------------------------------------------------------------------------


def matmul_inputs(rng, a_dtype, b_dtype, a_shape, b_shape, *, constant=True, per_column=True):
    columns = b_shape[-1]
    b = full_range(rng, b_dtype, *b_shape)
    scales = np.linspace(0.01, 0.02, columns) if per_column else 0.013
    zeros = full_range(rng, b_dtype, columns) if per_column else ends(b_dtype)[1]
    return [
        full_range(rng, a_dtype, *a_shape),
        const(0.1),
        const(ends(a_dtype)[1], a_dtype),
        const(b, b_dtype) if constant else b,
        const(scales),
        const(zeros, b_dtype),
        const(0.6),
        const(ends(a_dtype)[2], a_dtype),
    ]


@pytest.mark.parametrize("a_dtype,b_dtype", DTYPES)
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("a_shape,b_shape", [((5, 24), (24, 9)), ((2, 3, 5, 24), (24, 9)), ((1, 24), (24, 1))])
def test_matmul_per_column(a_shape, b_shape, constant, a_dtype, b_dtype, rng):
    compare("QLinearMatMul", matmul_inputs(rng, a_dtype, b_dtype, a_shape, b_shape, constant=constant), [a_dtype])


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    "a_shape,b_shape", [((2, 3, 5, 8), (2, 3, 8, 6)), ((3, 5, 8), (2, 1, 8, 6)), ((4, 8), (3, 8, 2))]
)
def test_matmul_batched(a_shape, b_shape, constant, rng):
    inputs = matmul_inputs(rng, np.uint8, np.int8, a_shape, b_shape, constant=constant, per_column=False)
    compare("QLinearMatMul", inputs, [np.uint8])


@pytest.mark.parametrize("shapes", [{"a": (6,), "b": (9,)}, {"a": (6, 1), "b": (1, 9)}])
def test_matmul_scales_and_zero_points_per_row(shapes, rng):
    """What the ONNX specification allows beyond ONNX Runtime: compared with the formula."""
    a, b = full_range(rng, np.int8, 6, 20), full_range(rng, np.int8, 20, 9)
    a_scale, b_scale = (rng.uniform(0.01, 0.03, shape).astype(np.float32) for shape in (shapes["a"], shapes["b"]))
    a_zero, b_zero = full_range(rng, np.int8, *shapes["a"]), full_range(rng, np.int8, *shapes["b"])
    inputs = [a, const(a_scale), const(a_zero, np.int8), const(b, np.int8), const(b_scale), const(b_zero, np.int8)]
    model, feed = single_op("QLinearMatMul", [*inputs, const(0.31), const(5, np.int8)], [np.int8])
    rows, columns = (6, 1), (1, 9)
    acc = (a.astype(int) - a_zero.reshape(rows)) @ (b.astype(int) - b_zero.reshape(columns))
    multiplier = a_scale.reshape(rows) * b_scale.reshape(columns) / np.float32(0.31)
    expected = np.clip(np.rint(acc.astype(np.float32) * multiplier) + 5, -128, 127)
    module = qnn_ext.from_onnx(model)
    np.testing.assert_array_equal(qnn_ext.Interpreter(module)(*feed.values()), expected)
    np.testing.assert_array_equal(qnn_ext.build(module).run(feed)["out0"], expected)

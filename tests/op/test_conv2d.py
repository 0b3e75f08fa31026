"""qnn.conv2d: against a sum over kernel taps of shifted operands; Relay's goldens, layouts, groups, errors."""

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import ShapeError

from .helpers import evaluate, random_integers, var


def taps(x, w, strides, padding, dilation, groups):
    """Convolution of NHWC x and OHWI w, both already without zero points, tap by tap in int64."""
    o, kh, kw, ci = w.shape
    top, left, bottom, right = padding
    x = np.pad(x.astype(np.int64), ((0, 0), (top, bottom), (left, right), (0, 0)))
    oh = (x.shape[1] - (kh - 1) * dilation[0] - 1) // strides[0] + 1
    ow = (x.shape[2] - (kw - 1) * dilation[1] - 1) // strides[1] + 1
    out = np.zeros((x.shape[0], oh, ow, o), np.int64)
    for r in range(kh):
        for s in range(kw):
            y, z = r * dilation[0], s * dilation[1]
            part = x[:, y : y + (oh - 1) * strides[0] + 1 : strides[0], z : z + (ow - 1) * strides[1] + 1 : strides[1]]
            for channel in range(o):
                first = channel // (o // groups) * ci
                out[..., channel] += (part[..., first : first + ci] * w[channel, r, s].astype(np.int64)).sum(-1)
    return out


def check(x, w, zx, zw, strides=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1):
    """The operator on NHWC, OHWI equals the taps."""
    per_channel = np.size(zw) > 1
    shifted = w.astype(np.int64) - (np.reshape(zw, (-1, 1, 1, 1)) if per_channel else zw)
    expected = taps(x.astype(np.int64) - zx, shifted, strides, padding, dilation, groups)
    scale = np.ones(w.shape[0], np.float32) if per_channel else 1.0
    result = evaluate(op.conv2d(x, w, zx, zw, 1.0, scale, strides, padding, dilation, groups))
    np.testing.assert_array_equal(result, expected)
    return result


@pytest.mark.parametrize("dtypes", [("uint8", "uint8"), ("int8", "int8"), ("uint8", "int8"), ("int16", "int8")])
@pytest.mark.parametrize("zero_points", [(0, 0), (5, 0), (0, 3), (5, 3), (-1, -2)])
@pytest.mark.parametrize(
    "strides,padding,dilation",
    [
        ((1, 1), (0, 0, 0, 0), (1, 1)),
        ((1, 1), (1, 1, 2, 2), (1, 1)),
        ((2, 2), (1, 0, 1, 0), (1, 1)),
        ((1, 3), (0, 0, 0, 0), (2, 2)),
    ],
)
def test_zero_points(rng, dtypes, zero_points, strides, padding, dilation):
    x, w = random_integers(rng, (2, 7, 8, 4), dtypes[0]), random_integers(rng, (3, 2, 3, 4), dtypes[1])
    check(x, w, *zero_points, strides, padding, dilation)


@pytest.mark.parametrize("groups,multiplier", [(2, 2), (4, 1), (4, 2), (4, 3)])
def test_groups_and_depthwise(rng, groups, multiplier):
    x = random_integers(rng, (2, 6, 6, 4), "uint8")
    w = random_integers(rng, (groups * multiplier, 3, 3, 4 // groups), "int8")
    zw = rng.integers(-9, 9, groups * multiplier).astype(np.int32)
    for zero_point in (3, zw):
        check(x, w, 128, zero_point, (2, 1), (1, 1, 1, 1), (1, 1), groups)


def test_kernel_1x1(rng):
    x, w = random_integers(rng, (2, 5, 4, 7), "uint8"), random_integers(rng, (3, 1, 1, 7), "uint8")
    check(x, w, 5, 3)
    check(x, w, 5, 3, strides=(2, 2))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kernel_layout", ["OHWI", "HWIO", "OIHW", "HWOI"])
@pytest.mark.parametrize("data_layout", ["NHWC", "NCHW"])
def test_layouts(rng, data_layout, kernel_layout, groups):
    if kernel_layout == "HWOI" and groups > 1:
        pytest.skip("HWOI with groups is the depthwise layout")
    x, w = random_integers(rng, (2, 5, 6, 4), "uint8"), random_integers(rng, (6, 3, 2, 4 // groups), "int8")
    expected = check(x, w, 7, 2, (1, 2), (1, 0, 2, 1), (1, 1), groups)
    to_data = ["NHWC".index(axis) for axis in data_layout]
    call = op.conv2d(
        x.transpose(to_data),
        w.transpose(["OHWI".index(axis) for axis in kernel_layout]),
        *(7, 2, 1.0, 1.0, (1, 2), (1, 0, 2, 1), (1, 1), groups, data_layout, kernel_layout),
    )
    np.testing.assert_array_equal(evaluate(call), expected.transpose(to_data))


@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise_hwoi(rng, multiplier):
    """A depthwise kernel (H, W, channels, multiplier): output channel c·multiplier + m is input channel c's m-th."""
    x, w = random_integers(rng, (1, 5, 5, 4), "uint8"), random_integers(rng, (3, 3, 4, multiplier), "uint8")
    zw = rng.integers(0, 9, 4 * multiplier).astype(np.int32)
    ohwi = w.transpose(2, 3, 0, 1).reshape(4 * multiplier, 3, 3, 1)
    expected = check(x, ohwi, 5, zw, groups=4)
    scale = np.ones(4 * multiplier, np.float32)
    result = evaluate(op.conv2d(x, w, 5, zw, 1.0, scale, groups=4, kernel_layout="HWOI"))
    np.testing.assert_array_equal(result, expected)


def test_padding_stands_for_zero():
    """Data that is its zero point everywhere stays 0, padded or not."""
    x, w = np.full((1, 4, 4, 2), 8, np.uint8), np.full((3, 3, 3, 2), 9, np.uint8)
    assert not check(x, w, 8, 5, padding=(1, 1, 1, 1)).any()


# ---- goldens of Relay's tests ------------------------------------------------------------------------------------


def test_large_irregular():
    x, w = np.full((1, 1, 1, 1024), 127, np.uint8), np.full((1001, 1, 1, 1024), 127, np.uint8)
    assert not evaluate(op.conv2d(x, w, 127, 127, 1.0, 1.0)).any()


def test_output_multiplier_greater_than_one():
    x = 128 + np.array([1, 1, 1, 1, 2, 2, 2, 2, 1, 2, 3, 4, 1, 2, 3, 4]).reshape(2, 1, 2, 4)
    w = 128 + np.array([1, 2, 3, 4, -1, 1, -1, 1, -1, -1, 1, 1]).reshape(3, 1, 2, 2)
    call = op.conv2d(
        *(x.astype(np.uint8), w.astype(np.uint8), 128, 128, 1.0, 1.0, (2, 2)), data_layout="NCHW", kernel_layout="OIHW"
    )
    expected = np.array([17, 17, 0, 0, 2, 2, 16, 36, 2, 2, 0, 0]).reshape(2, 3, 1, 2)
    np.testing.assert_array_equal(evaluate(call), expected)


def test_anisotropic_strides():
    x = [133, 131, 129, 125, 123, 121, 135, 133, 131, 123, 121, 119, 137, 135, 133, 121, 119, 117]
    x = np.array(x, np.uint8).reshape(1, 1, 3, 6)
    w = np.array([129, 131, 133, 135], np.uint8).reshape(1, 1, 2, 2)
    call = op.conv2d(x, w, 127, 127, 1.0, 1.0, (1, 3), data_layout="NCHW", kernel_layout="OIHW")
    np.testing.assert_array_equal(evaluate(call), np.array([124, -92, 164, -132]).reshape(1, 1, 2, 2))


# ---- range and errors --------------------------------------------------------------------------------------------


def test_int16_needs_int64():
    x, w = np.full((1, 1, 1, 8), -32768, np.int16), np.full((1, 1, 1, 8), -32768, np.int16)
    assert evaluate(op.conv2d(x, w, 0, 0, 1.0, 1.0, out_dtype="int64")).item() == 8 * 2**30
    assert evaluate(op.conv2d(x, w, 0, 0, 1.0, 1.0)).item() == 0  # wraps


def test_errors():
    x, w = var("x", (1, 4, 4, 4), "int8"), var("w", (2, 3, 3, 4), "int8")

    def call(x=x, w=w, zw=0, sw=1.0, **kwargs):
        return op.conv2d(x, w, 0, zw, 1.0, sw, **kwargs)

    with pytest.raises(ShapeError, match=r"qnn\.conv2d: 5 input channels in 1 groups do not match"):
        call(x=var("x", (1, 4, 4, 5), "int8"))
    with pytest.raises(ShapeError, match="4 dimensions"):
        call(x=var("x", (4, 4, 4), "int8"))
    with pytest.raises(ShapeError, match="data must be int8"):
        call(x=var("x", (1, 4, 4, 4), "float32"))
    with pytest.raises(ShapeError, match="does not fit into 4"):
        call(dilation=(2, 1))
    with pytest.raises(ShapeError, match="strides must be 2 ints"):
        call(strides=(0, 1))
    with pytest.raises(ShapeError, match="padding must be 4 ints"):
        call(padding=(1, 1))
    with pytest.raises(ShapeError, match="kernel_layout"):
        call(kernel_layout="IOHW")
    with pytest.raises(ShapeError, match="vector of 2"):
        call(zw=np.zeros(3, np.int32))
    with pytest.raises(ShapeError, match="finite and positive"):
        call(sw=np.float32([1.0, 0.0]))
    with pytest.raises(ShapeError, match="out_dtype"):
        call(out_dtype="int16")

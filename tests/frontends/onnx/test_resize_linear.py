"""Linear interpolation: the bits of ONNX Runtime."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import UnsupportedOperatorError

from .single_op import compare, const, full_range, run_ort, single_op

COORDINATES = ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners", "half_pixel_symmetric"]
SCALES = [(2, 2), (2.3, 1.7), (0.5, 0.6), (1, 3), (0.3, 2.5), (7, 9)]


def resized(x, scales, opset=13, **attributes):
    """The arguments of `compare` for a linear resize."""
    inputs = [x, None, const(scales)] if opset > 10 else [x, const(scales)]
    return "Resize", inputs, [x.dtype], {"opset": opset, "mode": "linear", **attributes}


def samples(rng, dtype, *shape):
    """Random integers of the whole range, or floats."""
    return rng.standard_normal(shape).astype(dtype) if dtype is np.float32 else full_range(rng, dtype, *shape)


def equal_in_the_interpreter(op, inputs, outputs, attributes):
    proto, feed = single_op(op, inputs, outputs, **attributes)
    (found,) = qnn_ext.Interpreter(qnn_ext.from_onnx(proto)).run(feed).values()
    (expected,) = run_ort(proto, feed)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8, np.int32])
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("last", [False, True])
def test_images(dtype, coordinates, last, rng):
    """With channels last, 8-bit integers are interpolated in fixed point."""
    for height, width in ((6, 7), (16, 16), (1, 5), (9, 1)):
        for scales in SCALES:
            if height * scales[0] < 1 or width * scales[1] < 1:
                continue
            if dtype is np.float32 and coordinates in ("align_corners", "pytorch_half_pixel") and scales != (2, 2):
                continue  # as the specification says, not as ONNX Runtime does
            x = samples(rng, dtype, 1, 2, height, width)
            if dtype is np.int32:
                x %= 1 << 20
            factors = (1, 1, *scales)
            if last:
                x, factors = x.transpose(0, 2, 3, 1), (1, *scales, 1)
            equal_in_the_interpreter(*resized(x, factors, coordinate_transformation_mode=coordinates))


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8])
@pytest.mark.parametrize(
    "shape, scales", [((6, 7), (2.3, 1.7)), ((4, 5, 6), (2, 1.5, 2)), ((1, 2, 3, 4, 5), (1, 1, 2, 2.3, 0.6))]
)
def test_other_ranks(dtype, shape, scales, rng):
    equal_in_the_interpreter(*resized(samples(rng, dtype, *shape), scales))


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8])
@pytest.mark.parametrize("scales", [(1, 1, 2.3, 1.7), (1, 2.3, 1.7, 1)])
def test_compiled(dtype, scales, rng):
    op, inputs, outputs, attributes = resized(samples(rng, dtype, 1, 6, 7, 6), scales)
    compare(op, inputs, outputs, **attributes)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8])
def test_before_version_11(dtype, rng):
    equal_in_the_interpreter(*resized(samples(rng, dtype, 1, 3, 6, 7), (1, 1, 2.3, 1.7), opset=10))


def test_sizes(rng):
    x = samples(rng, np.uint8, 1, 3, 6, 7)
    inputs = [x, None, None, const([1, 3, 11, 17], np.int64)]
    equal_in_the_interpreter("Resize", inputs, [np.uint8], {"opset": 13, "mode": "linear"})


def test_cropping(rng):
    x = samples(rng, np.uint8, 1, 3, 6, 7)
    inputs = [x, const([0, 0, -0.2, 0.3, 1, 1, 0.8, 1.4]), None, const([1, 3, 11, 17], np.int64)]
    attributes = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
    equal_in_the_interpreter("Resize", inputs, [np.uint8], {"opset": 13, "mode": "linear", **attributes})


@pytest.mark.parametrize("scales", [(2, 1, 2, 2), (1, 2, 2, 2)])
def test_batch_and_channels(scales, rng):
    op, inputs, outputs, attributes = resized(samples(rng, np.uint8, 1, 3, 6, 7), scales)
    with pytest.raises(UnsupportedOperatorError, match=r"mode linear on uint8 data of shape .* with scales"):
        qnn_ext.from_onnx(single_op(op, inputs, outputs, **attributes)[0])

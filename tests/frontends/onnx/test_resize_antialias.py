"""Resize with antialias=1: the bits of ONNX Runtime."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import ModelFormatError, UnsupportedOperatorError

from .single_op import compare, const, single_op
from .test_resize_linear import COORDINATES, equal_in_the_interpreter, samples


def resized(x, sizes=None, scales=None, mode="linear", roi=None, **attributes):
    """The arguments of `compare`."""
    target = [const(scales)] if sizes is None else [None, const(sizes, np.int64)]
    inputs = [x, None if roi is None else const(roi), *target]
    return "Resize", inputs, [x.dtype], {"opset": 19, "mode": mode, "antialias": 1, **attributes}


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("exclude_outside", [0, 1])
def test_equals_onnx_runtime(dtype, mode, coordinates, exclude_outside, rng):
    """Both axes shrink or one grows, windows wider than the data, channels last, volumes."""
    for shape, sizes in [
        ((1, 2, 12, 14), (1, 2, 5, 6)), ((1, 12, 14, 2), (1, 5, 6, 2)), ((1, 2, 12, 14), (1, 2, 31, 6)),
        ((2, 3, 33, 20), (2, 3, 3, 20)), ((12, 14), (5, 6)), ((1, 1, 5, 64), (1, 1, 9, 2)),
        ((1, 2, 1, 9), (1, 2, 3, 1)), ((3, 12, 14), (2, 5, 6)), ((1, 2, 6, 12, 14), (1, 2, 3, 5, 6)),
    ]:  # fmt: skip
        if mode == "cubic" and len(shape) in (3, 5):
            continue  # which ONNX Runtime refuses
        x = samples(rng, dtype, *shape)
        attributes = {"coordinate_transformation_mode": coordinates, "exclude_outside": exclude_outside}
        equal_in_the_interpreter(*resized(x, sizes, mode=mode, **attributes))


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize("scales", [(1, 1, 0.5, 0.7), (1, 1, 0.33, 2.3), (1, 1, 0.96, 0.04)])
def test_scales(dtype, scales, rng):
    """Also one that leaves the length, which then is not filtered: 20 · 0.96 is not 20, but 30 · 1.01 is 30."""
    x = samples(rng, dtype, 1, 2, 20, 30)
    equal_in_the_interpreter(*resized(x, scales=scales, mode="cubic", cubic_coeff_a=-0.5))
    equal_in_the_interpreter(*resized(x, scales=(*scales[:3], 1.01)))


@pytest.mark.parametrize("roi", [(0, 0, 0.2, 0.1, 1, 1, 0.7, 1.3), (0, 0, -0.2, 0.1, 1, 1, 0.7, 0.3)])
def test_cropped(roi, rng):
    x = samples(rng, np.float32, 1, 2, 20, 30)
    attributes = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    equal_in_the_interpreter(*resized(x, (1, 2, 7, 8), roi=roi, **attributes))


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_compiled(dtype, rng):
    op, inputs, outputs, attributes = resized(samples(rng, dtype, 1, 2, 20, 30), (1, 2, 7, 11), mode="cubic")
    compare(op, inputs, outputs, **attributes)


@pytest.mark.parametrize(
    "dtype, mode, error, remedy",
    [
        (np.int8, "linear", UnsupportedOperatorError, "cast it to float32"),
        (np.float32, "nearest", ModelFormatError, "linear or cubic"),
    ],
)
def test_refusals(dtype, mode, error, remedy, rng):
    op, inputs, outputs, attributes = resized(samples(rng, dtype, 4, 4), (2, 2), mode=mode)
    proto, _ = single_op(op, inputs, outputs, **attributes)
    with pytest.raises(error, match=remedy):
        qnn_ext.from_onnx(proto)

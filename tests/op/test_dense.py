"""qnn.dense and qnn.contrib_dense_pack against a plain int64 product of shifted operands."""

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import ShapeError

from .helpers import evaluate, random_integers, var


def product(x, w, zx, zw):
    return (x.astype(np.int64) - zx) @ (w.astype(np.int64) - np.reshape(zw, (-1, 1))).T


@pytest.mark.parametrize("weight_dtype", ["int8", "uint8"])
@pytest.mark.parametrize("data_dtype", ["int8", "uint8", "int16"])
def test_all_zero_points(rng, data_dtype, weight_dtype):
    x, w = random_integers(rng, (5, 33), data_dtype), random_integers(rng, (7, 33), weight_dtype)
    for zx, zw in [(0, 0), (3, 0), (0, 5), (7, 2)]:
        result = evaluate(op.dense(x, w, zx, zw, 0.5, 0.25))
        np.testing.assert_array_equal(result, product(x, w, zx, zw))


def test_per_channel(rng):
    x, w = random_integers(rng, (2, 10), "uint8"), random_integers(rng, (4, 10), "int8")
    zw = np.array([1, -2, 3, 0], np.int32)
    result = evaluate(op.dense(x, w, 128, zw, 0.5, np.float32([1, 2, 3, 4])))
    np.testing.assert_array_equal(result, product(x, w, 128, zw))


def test_relay_golden():
    x = np.array([[128, 131], [129, 132]], np.uint8)
    w = np.array([[124, 126], [122, 127]], np.uint8)
    result = evaluate(op.dense(x, w, 127, 127, 0.5, 0.5))
    np.testing.assert_array_equal(result, [[-7, -5], [-11, -10]])


def test_int16_needs_int64(rng):
    x = np.full((1, 64), -32768, np.int16)
    w = np.full((1, 64), -32768, np.int16)
    assert evaluate(op.dense(x, w, 0, 0, 1.0, 1.0, out_dtype="int64"))[0, 0] == 64 * 2**30
    assert evaluate(op.dense(x, w, 0, 0, 1.0, 1.0, out_dtype="int32"))[0, 0] == 0  # wraps


def test_packed_equals_plain(rng):
    x, w = random_integers(rng, (3, 12), "uint8"), random_integers(rng, (64, 12), "int8")
    zw = random_integers(rng, (64,), "int8").astype(np.int32)
    scale = np.ones(64, np.float32)
    packed = w.reshape(2, 32, 3, 4).transpose(0, 2, 1, 3)
    expected = evaluate(op.dense(x, w, 9, zw, 1.0, scale))
    np.testing.assert_array_equal(evaluate(op.contrib_dense_pack(x, packed, 9, zw, 1.0, scale)), expected)
    np.testing.assert_array_equal(evaluate(op.contrib_dense_pack(x, w, 9, zw, 1.0, scale, "NC")), expected)


@pytest.mark.parametrize(
    "shapes,kwargs,message",
    [
        (((2, 3), (4, 5)), {}, "differ in K"),
        (((2, 3, 4), (4, 4)), {}, "2 dimensions"),
        (((2, 3), (4, 3)), {"out_dtype": "int16"}, "out_dtype"),
    ],
)
def test_errors(shapes, kwargs, message):
    with pytest.raises(ShapeError, match=message):
        op.dense(var("x", shapes[0], "int8"), var("w", shapes[1], "int8"), 0, 0, 1.0, 1.0, **kwargs)


def test_wrong_dtype_scale_and_layout():
    x, w = var("x", (2, 8), "int8"), var("w", (32, 8), "int8")
    with pytest.raises(ShapeError, match="float32"):
        op.dense(var("x", (2, 8), "float32"), w, 0, 0, 1.0, 1.0)
    with pytest.raises(ShapeError, match="vector of 32"):
        op.dense(x, w, 0, 0, 1.0, np.ones(5, np.float32))
    with pytest.raises(ShapeError, match="kernel_layout"):
        op.contrib_dense_pack(x, w, 0, 0, 1.0, 1.0, "NK")
    with pytest.raises(ShapeError, match="NC32n4c has shape"):
        op.contrib_dense_pack(x, var("w", (1, 2, 16, 8), "int8"), 0, 0, 1.0, 1.0)

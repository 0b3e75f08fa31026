"""qnn.mean, sum, max, min: against exact arithmetic, against LiteRT's reference kernels, errors."""

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import QnnError, ShapeError
from qnn_ext.qparams import QParams, dtype_range

from .helpers import evaluate, random_integers, var

AXES = [(1, 2), (-1,), (0,), (), (1,), (2, -2), (0, 1, 2, 3)]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", AXES)
def test_float32(rng, axis, keepdims):
    x = random_integers(rng, (3, 7, 6, 4), "int8")
    axes = tuple({a % 4 for a in axis}) or None
    total = (x.astype(np.int64) - 5).sum(axes, keepdims=keepdims)
    count = x.size // total.size
    scale, out = np.float32(0.05), np.float32(0.031)
    same = evaluate(op.mean(x, scale, 5, scale, 7, axis=axis, keepdims=keepdims))
    np.testing.assert_array_equal(same, (np.rint(total.astype(np.float32) / np.float32(count)) + 7).clip(-128, 127))
    other = evaluate(op.mean(x, scale, 5, out, 7, axis=axis, keepdims=keepdims))
    multiplier = scale / (out * np.float32(count))
    np.testing.assert_array_equal(other, (np.rint(total.astype(np.float32) * multiplier) + 7).clip(-128, 127))
    sums = evaluate(op.sum(x, scale, 5, np.float32(0.7), 7, axis=axis, keepdims=keepdims, out_dtype="int16"))
    np.testing.assert_array_equal(sums, np.rint(total.astype(np.float32) * (scale / np.float32(0.7))) + 7)


@pytest.mark.parametrize("rounding", ["UPWARD", "TONEAREST"])
def test_relay_roundings(rounding):
    x = np.int8([[1, 2], [-1, -2], [3, 3]])
    expected = [2, -1, 3] if rounding == "UPWARD" else [2, -2, 3]
    np.testing.assert_array_equal(evaluate(op.mean(x, 1.0, 0, 1.0, 0, axis=1, rounding=rounding)), expected)


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes(rng, name):
    x = random_integers(rng, (3, 4, 5), "uint8")
    exact = getattr(np, name)(x, (0, 2))
    builder = getattr(op, name)
    np.testing.assert_array_equal(evaluate(builder(x, 0.5, 9, 0.5, 9, axis=[0, 2], out_dtype="uint8")), exact)
    halved = evaluate(builder(x, 0.5, 9, 1.0, 9, axis=[0, 2], out_dtype="uint8"))
    np.testing.assert_array_equal(halved, np.rint((exact.astype(float) - 9) / 2) + 9)


RESCALINGS = [(0.05, 0.05), (0.05, 0.023), (0.031, 0.07), (0.0123, 1.7)]


def tflite_case(rng, dtype, scales):
    """Data with saturated rows, input and output QParams."""
    low, high = dtype_range(dtype)
    x = random_integers(rng, (3, 11, 5, 4), dtype)
    x[0], x[1, :, :, 0] = high, low
    zeros = (0, 0) if dtype == "int16" else (low + 37, low + 200)
    return x, *(QParams(np.float32(s), z, dtype) for s, z in zip(scales, zeros, strict=True))


def run(builder, x, source, target, axis):
    args = (x, source.scale, source.zero_point, target.scale, target.zero_point)
    return evaluate(builder(*args, axis=axis, keepdims=True, rounding="TFLITE", out_dtype=target.dtype))


def golden(operator, x, source, target, axis, shape):
    from .litert import run_reference

    axes = np.array(axis or (0, 1, 2, 3), np.int32)
    return run_reference(operator, [(x, source)], shape, target, [(axes, None)], keepDims=True)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_tflite_mean(rng, dtype, axis):
    for scales in RESCALINGS:
        x, source, target = tflite_case(rng, dtype, scales)
        result = run(op.mean, x, source, target, axis)
        np.testing.assert_array_equal(result, golden("MEAN", x, source, target, axis, result.shape))


@pytest.mark.parametrize("axis", AXES)
def test_tflite_sum(rng, axis):
    """LiteRT's reference SUM reads every dtype as uint8, so int8 is compared by moving it there."""
    for scales in RESCALINGS:
        x, source, target = tflite_case(rng, "uint8", scales)
        result = run(op.sum, x, source, target, axis)
        np.testing.assert_array_equal(result, golden("SUM", x, source, target, axis, result.shape))
        signed = (x.astype(np.int16) - 128).astype(np.int8)
        moved = (QParams(q.scale, q.zero_point - 128, "int8") for q in (source, target))
        np.testing.assert_array_equal(run(op.sum, signed, *moved, axis).astype(int) + 128, result)


def test_errors():
    x = var("x", (2, 3), "int8")
    with pytest.raises(ShapeError, match="out of range"):
        op.mean(x, 1.0, 0, 1.0, 0, axis=2)
    with pytest.raises(ShapeError, match="nothing to reduce"):
        op.max(var("e", (2, 0), "int8"), 1.0, 0, 1.0, 0, axis=1)
    with pytest.raises(ShapeError, match="must be a scalar"):
        op.sum(x, np.ones(3, np.float32), 0, 1.0, 0)
    with pytest.raises(QnnError, match="rounding must be one of"):
        op.min(x, 1.0, 0, 1.0, 0, rounding="AWAY")

"""qnn.quantize, qnn.dequantize, qnn.requantize: Relay's goldens, every rounding, per channel, saturation, errors."""

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import QnnError, ShapeError

from .helpers import evaluate, random_integers, var

RELAY = [(r, c) for r in ("UPWARD", "TONEAREST") for c in ("int64", "float32", "float64")]
ALL = [*RELAY, ("TONEAREST_EVEN", "float32"), ("TFLITE", "int64"), ("TFLITE_UPWARD", "int64")]


def repeat(*pairs):
    """repeat((0, 9), (-1, 2)) = nine zeros and two −1."""
    return np.concatenate([np.full(count, value) for value, count in pairs])


def rescale(x, in_scale, out_scale, rounding, compute_dtype, zeros=(0, 0), out_dtype="int8", **kwargs):
    x = np.asarray(x, np.int32)
    scales = np.float32(in_scale), np.float32(out_scale)
    call = op.requantize(
        x, scales[0], zeros[0], scales[1], zeros[1], rounding=rounding, compute_dtype=compute_dtype,
        out_dtype=out_dtype, **kwargs,
    )  # fmt: skip
    return evaluate(call)


# ---- requantize --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("out_dtype", ["int8", "int16"])
@pytest.mark.parametrize("rounding,compute_dtype", ALL)
class TestEveryRounding:
    def test_same_scale(self, rounding, compute_dtype, out_dtype):
        x = np.arange(-100, 101)
        np.testing.assert_array_equal(rescale(x, 0.5, 0.5, rounding, compute_dtype, out_dtype=out_dtype), x)
        assert rescale(np.int32(7), 0.5, 0.5, rounding, compute_dtype, out_dtype=out_dtype).shape == ()

    def test_upscale(self, rounding, compute_dtype, out_dtype):
        x = np.arange(-32, 33)
        np.testing.assert_array_equal(rescale(x, 2, 1, rounding, compute_dtype, out_dtype=out_dtype), 2 * x)
        np.testing.assert_array_equal(rescale(x, 3, 1, rounding, compute_dtype, out_dtype=out_dtype), 3 * x)

    def test_divide_by_three(self, rounding, compute_dtype, out_dtype):
        x = np.arange(-60, 61)
        result = rescale(x, 1, 3, rounding, compute_dtype, out_dtype=out_dtype)
        if rounding == "TFLITE":  # ⅔ as the high product, rounded, then ½, rounded away from zero
            high = np.floor(2 * x / 3 + 0.5)
            np.testing.assert_array_equal(result, np.trunc(high / 2 + np.copysign(0.5, high)))
        elif rounding == "TFLITE_UPWARD":  # the same, but both upwards
            np.testing.assert_array_equal(result, np.floor(np.floor(2 * x / 3 + 0.5) / 2 + 0.5))
        else:
            np.testing.assert_array_equal(result, np.rint(x / 3))

    def test_saturation(self, rounding, compute_dtype, out_dtype):
        info = np.iinfo(out_dtype)
        x = np.array([info.min - 2, info.min - 1, info.min, info.max, info.max + 1, info.max + 2])
        expected = x.clip(info.min, info.max)
        np.testing.assert_array_equal(rescale(x, 1, 1, rounding, compute_dtype, out_dtype=out_dtype), expected)
        np.testing.assert_array_equal(rescale(x, 2, 1, rounding, compute_dtype, out_dtype=out_dtype)[[0, -1]],
                                      [info.min, info.max])  # fmt: skip

    def test_zero_points(self, rounding, compute_dtype, out_dtype):
        x = np.array([0, 16, 32, 48, 17, 31])
        np.testing.assert_array_equal(rescale(x, 1, 16, rounding, compute_dtype, (0, 1), out_dtype), [1, 2, 3, 4, 2, 3])
        np.testing.assert_array_equal(
            rescale(x + 5, 1, 16, rounding, compute_dtype, (5, -2), out_dtype), [-2, -1, 0, 1, -1, 0]
        )

    def test_per_channel(self, rounding, compute_dtype, out_dtype):
        x = np.arange(-30, 30).reshape(3, 20)
        scales = np.float32([0.5, 0.3, 2.0])
        result = rescale(x, scales, 0.7, rounding, compute_dtype, (np.int32([1, 2, 3]), 4), out_dtype, axis=0)
        for c in range(3):
            part = rescale(x[c], scales[c], 0.7, rounding, compute_dtype, (c + 1, 4), out_dtype)
            np.testing.assert_array_equal(result[c], part)


@pytest.mark.parametrize("rounding,compute_dtype", RELAY)
def test_downscale_goldens(rounding, compute_dtype):
    up = rounding == "UPWARD"
    for x, factor, expected in [
        (np.arange(32), 16, repeat((0, 8), (1, 16), (2, 8))),
        (-np.arange(32), 16, repeat((0, 9), (-1, 16), (-2, 7)) if up else repeat((0, 8), (-1, 16), (-2, 8))),
        (np.arange(32), 4, repeat((0, 2), *((i, 4) for i in range(1, 8)), (8, 2))),
        (
            -np.arange(32),
            4,
            repeat((0, 3), *((-i, 4) for i in range(1, 8)), (-8, 1))
            if up
            else repeat((0, 2), *((-i, 4) for i in range(1, 8)), (-8, 2)),
        ),
    ]:
        np.testing.assert_array_equal(rescale(x, 1, factor, rounding, compute_dtype), expected)


def test_midpoints_to_even():
    np.testing.assert_array_equal(rescale([1, 3, 5, -1, -3, -5], 1, 2, "TONEAREST_EVEN", None), [0, 2, 2, 0, -2, -2])


def test_tflite_rounds_twice():
    """⅜ = ¾ · ½: the product with ¾ rounds to an integer, whose half then rounds away from zero."""
    x = np.array([1, 2, 3, -1, -2, -3])
    np.testing.assert_array_equal(rescale(x, 0.375, 1.0, "TFLITE", None), [1, 1, 1, -1, -1, -1])
    np.testing.assert_array_equal(rescale(x, 0.375, 1.0, "TFLITE_UPWARD", None), [1, 1, 1, 0, 0, -1])
    np.testing.assert_array_equal(rescale(x, 0.375, 1.0, "UPWARD", "int64"), [0, 1, 1, 0, -1, -1])


def test_int64_data(rng):
    """16-bit models accumulate in int64; TFLITE then multiplies by 15 bits and rounds once."""
    x = rng.integers(-(2**40), 2**40, 1000)
    result = evaluate(op.requantize(x, 1e-9, 0, 1e-3, 0, rounding="TFLITE", out_dtype="int16"))
    exact = np.clip(x * (np.float64(np.float32(1e-9)) / np.float64(np.float32(1e-3))), -32768, 32767)
    assert np.abs(result - exact).max() <= 2
    with pytest.raises(ShapeError, match="at most 32 bits"):
        op.requantize(x, 1.0, 0, 2.0, 0, rounding="UPWARD", compute_dtype="int64")
    with pytest.raises(ShapeError, match="at most 32 bits"):
        op.requantize(x, 1.0, 0, 2.0, 0, rounding="TFLITE_UPWARD")


def test_requantize_errors():
    x = var("x", (2, 3), "int32")
    with pytest.raises(QnnError, match="rounding must be one of"):
        op.requantize(x, 1.0, 0, 1.0, 0, rounding="DOWN")
    with pytest.raises(QnnError, match="computes in float32, not in 'int64'"):
        op.requantize(x, 1.0, 0, 1.0, 0, compute_dtype="int64")
    with pytest.raises(QnnError, match="computes in int64, not in 'float64'"):
        op.requantize(x, 1.0, 0, 1.0, 0, rounding="TFLITE_UPWARD", compute_dtype="float64")
    with pytest.raises(ShapeError, match="vector of 3"):
        op.requantize(x, np.ones(2, np.float32), 0, 1.0, 0)
    with pytest.raises(ShapeError, match="axis 2 is out of range"):
        op.requantize(x, np.ones(3, np.float32), 0, 1.0, 0, axis=2)
    with pytest.raises(ShapeError, match="finite and positive"):
        op.requantize(x, 1.0, 0, 0.0, 0)
    with pytest.raises(ShapeError, match="out_dtype"):
        op.requantize(x, 1.0, 0, 1.0, 0, out_dtype="float32")
    with pytest.raises(ShapeError, match="data must be"):
        op.requantize(var("f", (2, 3), "float32"), 1.0, 0, 1.0, 0)


# ---- quantize ----------------------------------------------------------------------------------------------------

REAL = np.float32([-63.5, -63, -62.5, -62, -61.5, 62, 62.5, 63, 63.5, 64])
STEPS = np.array([0, 1, 2, 3, 4, 251, 252, 253, 254, 255])


@pytest.mark.parametrize("dtype,zero_point,offset", [("uint8", 127, 0), ("int8", -1, -128), ("uint16", 127, 0)])
def test_quantize_goldens(dtype, zero_point, offset):
    for x in (REAL, REAL.reshape(2, 5), REAL.astype(np.float64)):
        result = evaluate(op.quantize(x, 0.5, zero_point, out_dtype=dtype))
        np.testing.assert_array_equal(result, STEPS.reshape(x.shape) + offset)
        back = evaluate(op.dequantize(result, 0.5, zero_point))
        np.testing.assert_array_equal(back, x.astype(np.float32))


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_quantize_per_channel(rng, axis):
    x = rng.uniform(-30, 30, (4, 4)).astype(np.float32)
    scale, zero_point = np.float32([0.5, 0.25, 1.0, 0.125]), np.int32([1, -2, 3, 0])
    whole = evaluate(op.quantize(x, scale, zero_point, axis=axis))
    real = evaluate(op.dequantize(whole, scale, zero_point, axis=axis))
    for c in range(4):
        index = (c, slice(None)) if axis in (0, -2) else (slice(None), c)
        part = evaluate(op.quantize(x[index], scale[c], zero_point[c]))
        np.testing.assert_array_equal(whole[index], part)
        np.testing.assert_array_equal(real[index], evaluate(op.dequantize(part, scale[c], zero_point[c])))


def test_quantize_midpoints():
    x = np.float32([0.5, 1.5, 2.5, -0.5, -1.5, -2.5])
    np.testing.assert_array_equal(evaluate(op.quantize(x, 1.0, 0)), [0, 2, 2, 0, -2, -2])
    np.testing.assert_array_equal(evaluate(op.quantize(x, 1.0, 0, rounding="TONEAREST")), [1, 2, 3, -1, -2, -3])


def test_quantize_extremes():
    x = np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38])
    np.testing.assert_array_equal(evaluate(op.quantize(x, 1e-3, 5)), [-128, 127, -128, 127, -128])


def test_reciprocal():
    """PyTorch multiplies by f32(1 / scale), which can land on the other side of a midpoint."""
    x = (np.arange(-2000, 2000) * np.float32(0.35)).astype(np.float32)
    scale = np.float32(0.7)
    result = evaluate(op.quantize(x, scale, 0, out_dtype="int16", reciprocal=True))
    np.testing.assert_array_equal(result, np.rint(x * (np.float32(1) / scale)))
    np.testing.assert_array_equal(evaluate(op.quantize(x, scale, 0, out_dtype="int16")), np.rint(x / scale))


def test_quantize_errors():
    with pytest.raises(ShapeError, match="TONEAREST_EVEN or TONEAREST"):
        op.quantize(var("x", (2,), "float32"), 1.0, 0, rounding="UPWARD")
    with pytest.raises(ShapeError, match="data must be float32"):
        op.quantize(var("x", (2,), "int8"), 1.0, 0)
    with pytest.raises(ShapeError, match="zero_point must be int32"):
        op.quantize(var("x", (2,), "float32"), 1.0, np.int8(0))


# ---- dequantize --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
def test_dequantize(rng, dtype):
    x = random_integers(rng, (3, 50), dtype) if dtype != "int32" else np.int32([[113, 29, -1052]])
    result = evaluate(op.dequantize(x, 0.37, 11))
    np.testing.assert_array_equal(result, (x.astype(np.int64) - 11).astype(np.float32) * np.float32(0.37))


def test_one_element_vectors_are_scalars(rng):
    x = random_integers(rng, (3, 5), "int8")
    one = evaluate(op.dequantize(x, np.float32([0.5]), np.int32([3]), axis=0))
    np.testing.assert_array_equal(one, evaluate(op.dequantize(x, 0.5, 3)))


def test_float16_saturates():
    x = np.int32([100000, -100000, 300])
    np.testing.assert_array_equal(evaluate(op.dequantize(x, 1.0, 0, out_dtype="float16")), [65504, -65504, 300])


def test_dequantize_errors():
    with pytest.raises(ShapeError, match="out_dtype"):
        op.dequantize(var("x", (2,), "int8"), 1.0, 0, out_dtype="int32")
    with pytest.raises(ShapeError, match="data must be"):
        op.dequantize(var("x", (2,), "float32"), 1.0, 0)


def test_axis_without_meaning(rng):
    """Where scales and zero points are scalars, operands need not have the axis, as in Relay."""
    x = rng.integers(-100, 100, 5).astype(np.int8)
    real = op.dequantize(x, 0.5, 3, axis=1)
    np.testing.assert_array_equal(evaluate(real), (x.astype(np.float32) - 3) * np.float32(0.5))
    np.testing.assert_array_equal(evaluate(op.quantize(evaluate(real), 0.5, 3, axis=3)), x)
    np.testing.assert_array_equal(evaluate(op.requantize(x, 0.5, 3, 0.5, 3, axis=-4)), x)
    simulated = op.simulated_quantize(evaluate(real), 1, 0.5, 3, axis=1)
    np.testing.assert_array_equal(
        evaluate(op.simulated_dequantize(evaluate(simulated), 1, 0.5, 3, axis=1)), evaluate(real)
    )
    np.testing.assert_array_equal(evaluate(op.add(x, np.int8(3), 0.5, 3, 0.5, 3, 0.5, 3, lhs_axis=2, rhs_axis=1)), x)
    with pytest.raises(ShapeError, match="axis 1 is out of range"):
        op.dequantize(x, np.ones(5, np.float32), 3, axis=1)

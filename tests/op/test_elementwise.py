"""qnn.add, qnn.subtract, qnn.mul: Relay's goldens, the float32 rule, TFLite's reference kernels, shapes, errors."""

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import QnnError, ShapeError
from qnn_ext.qparams import QParams, dtype_range

from .helpers import evaluate, random_integers, var

BUILDERS = {"ADD": op.add, "SUB": op.subtract, "MUL": op.mul}


def call(builder, x, y, qx, qy, qo, **attributes):
    """The builder on arrays and their QParams."""
    args = (qx.scale, qx.zero_point, qy.scale, qy.zero_point, qo.scale, qo.zero_point)
    return evaluate(builder(x, y, *args, out_dtype=qo.dtype, **attributes))


def all_pairs(dtype, rng):
    """All 256 × 256 pairs of an 8-bit dtype; for int16 random pairs and the corners."""
    low, high = dtype_range(dtype)
    if dtype == "int16":
        corners = np.array([low, low + 1, -1, 0, 1, high])
        x, y = (g.ravel() for g in np.meshgrid(corners, corners))
        more = rng.integers(low, high, (2, 60000), endpoint=True)
        return np.concatenate([x, more[0]]).astype(dtype), np.concatenate([y, more[1]]).astype(dtype)
    x, y = np.meshgrid(np.arange(low, high + 1), np.arange(low, high + 1))
    return x.ravel().astype(dtype), y.ravel().astype(dtype)


# ---- Relay's goldens ---------------------------------------------------------------------------------------------

X = np.array([[1, 153, 2, 178]], np.uint8)
Y = np.array([[204, 178, 1, 8]], np.uint8)


@pytest.mark.parametrize(
    "builder,x_zp,y_zp,o_zp,expected",
    [
        (op.add, 0, 0, 0, [205, 255, 3, 186]),
        (op.subtract, 0, 0, 0, [0, 0, 1, 170]),
        (op.mul, 0, 0, 0, [1, 213, 0, 11]),
        (op.add, 5, 5, 5, [200, 255, 0, 181]),
    ],
)
@pytest.mark.parametrize("rounding", ["UPWARD", "TONEAREST", "TONEAREST_EVEN", "TFLITE"])
def test_same_io(builder, x_zp, y_zp, o_zp, expected, rounding):
    scale = np.float32(0.00784314)
    result = evaluate(builder(X, Y, scale, x_zp, scale, y_zp, scale, o_zp, rounding=rounding, out_dtype="uint8"))
    expected = np.array([expected], np.uint8)
    if builder is op.mul:
        expected = np.rint(X.astype(float) * Y * scale).clip(0, 255).astype(np.uint8)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("compute_dtype", ["int64", "float32", "float64"])
def test_relay_different_io(compute_dtype):
    x = np.array([[176, 166, 174, 114], [110, 90, 95, 60]], np.uint8)
    y = np.array([[232, 140, 173, 88], [155, 170, 100, 82]], np.uint8)
    args = (np.float32(0.0156863), 127, np.float32(0.0117647), 85, np.float32(0.0235294), 128)
    result = evaluate(op.add(x, y, *args, rounding="UPWARD", compute_dtype=compute_dtype, out_dtype="uint8"))
    rescaled = [
        np.floor((v.astype(float) - z) * (np.float64(s) / np.float64(np.float32(0.0235294))) + 0.5)
        for v, z, s in ((x, 127, np.float32(0.0156863)), (y, 85, np.float32(0.0117647)))
    ]
    np.testing.assert_array_equal(result, (rescaled[0] + rescaled[1] + 128).clip(0, 255))


def test_saturation():
    scale = np.float32(0.00784314)
    x, y = np.array([[255, 1, 1, 0]], np.uint8), np.array([[255, 255, 128, 0]], np.uint8)
    result = evaluate(op.add(x, y, scale, 0, scale, 0, scale, 0, out_dtype="uint8"))
    np.testing.assert_array_equal(result, [[255, 255, 129, 0]])
    x, y = np.array([[-128, 127, -128]], np.int8), np.array([[127, -128, -128]], np.int8)
    result = evaluate(op.subtract(x, y, scale, 0, scale, 0, scale, 0))
    np.testing.assert_array_equal(result, [[-128, 127, 0]])


# ---- float32 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_float32_rule(rng, dtype):
    x, y = all_pairs(dtype, rng)
    zero = 0 if dtype == "int16" else 3
    sx, sy, so = np.float32(0.017), np.float32(0.031), np.float32(0.023)
    left, right = x.astype(np.float32) - zero, y.astype(np.float32) - zero
    low, high = dtype_range(dtype)
    for builder, real in [
        (op.add, left * (sx / so) + right * (sy / so)),
        (op.subtract, left * (sx / so) - right * (sy / so)),
        (op.mul, (left.astype(np.int64) * right.astype(np.int64)).astype(np.float32) * (sx * sy / so)),
    ]:
        result = evaluate(builder(x, y, sx, zero, sy, zero, so, 7, out_dtype=dtype))
        np.testing.assert_array_equal(result, (np.rint(real) + 7).clip(low, high))


def test_mixed_dtypes(rng):
    """A uint8 operand shifted by 128 is the int8 operand: nothing changes."""
    x, y = random_integers(rng, (500,), "int8"), random_integers(rng, (500,), "int8")
    shifted = (x.astype(np.int16) + 128).astype(np.uint8)
    for builder in BUILDERS.values():
        for rounding in ("TONEAREST_EVEN", "TFLITE", "UPWARD"):
            plain = evaluate(builder(x, y, 0.1, 3, 0.2, -4, 0.3, 5, rounding=rounding))
            other = evaluate(builder(shifted, y, 0.1, 131, 0.2, -4, 0.3, 5, rounding=rounding))
            np.testing.assert_array_equal(plain, other)


# ---- per channel and broadcasting --------------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", ["TONEAREST_EVEN", "TFLITE", "UPWARD", "TONEAREST"])
@pytest.mark.parametrize("builder", BUILDERS.values())
def test_vectors_equal_slices(rng, builder, rounding):
    x, y = random_integers(rng, (2, 3, 4), "int8"), random_integers(rng, (3, 4), "int8")
    sx, zx = np.float32([0.1, 0.02, 0.3]), np.int32([1, -2, 3])
    sy, zy = np.float32([0.2, 0.05, 0.5]), np.int32([4, 5, -6])
    whole = evaluate(builder(x, y, sx, zx, sy, zy, 0.1, 2, lhs_axis=1, rhs_axis=0, rounding=rounding))
    for c in range(3):
        part = evaluate(builder(x[:, c], y[c], sx[c], zx[c], sy[c], zy[c], 0.1, 2, rounding=rounding))
        np.testing.assert_array_equal(whole[:, c], part)


def test_broadcast(rng):
    x, y = random_integers(rng, (2, 1, 4), "int8"), random_integers(rng, (3, 1), "int8")
    full = np.broadcast_arrays(x, y)
    for builder in BUILDERS.values():
        np.testing.assert_array_equal(
            evaluate(builder(x, y, 0.1, 3, 0.2, -4, 0.3, 5)), evaluate(builder(*full, 0.1, 3, 0.2, -4, 0.3, 5))
        )


# ---- TFLite ------------------------------------------------------------------------------------------------------

SCALES = [(0.05, 0.05, 0.05), (0.1, 0.003, 0.07), (1.0, 1.0, 3.9e-3), (0.0078, 0.031, 1.7), (2e-5, 0.4, 0.21)]


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("operator", ["ADD", "SUB", "MUL"])
def test_tflite(rng, operator, dtype, scales):
    from .litert import run_reference

    x, y = all_pairs(dtype, rng)
    low, _ = dtype_range(dtype)
    zero_points = (0, 0, 0) if dtype == "int16" else (low + 3, low + 250, low + 120)
    fine = 1 / 256 if dtype == "int16" else 1.0
    qx, qy, qo = (QParams(np.float32(s * fine), z, dtype) for s, z in zip(scales, zero_points, strict=True))
    options = {} if operator == "MUL" else {"potScaleInt16": False}
    golden = run_reference(operator, [(x, qx), (y, qy)], x.shape, qo, **options)
    np.testing.assert_array_equal(call(BUILDERS[operator], x, y, qx, qy, qo, rounding="TFLITE"), golden)


@pytest.mark.parametrize("exponents", [(-12, -12, -12), (-15, -12, -12), (-11, -14, -11)])
@pytest.mark.parametrize("operator", ["ADD", "SUB"])
def test_tflite_power_of_two(rng, operator, exponents):
    from .litert import run_reference

    x, y = all_pairs("int16", rng)
    qx, qy, qo = (QParams(np.float32(2.0**e), 0, "int16") for e in exponents)
    golden = run_reference(operator, [(x, qx), (y, qy)], x.shape, qo, potScaleInt16=True)
    result = call(BUILDERS[operator], x, y, qx, qy, qo, rounding="TFLITE", pot_scale=True)
    np.testing.assert_array_equal(result, golden)


def test_pot_scale_falls_back():
    """Scales that are not powers of two take the general path even when pot_scale is set."""
    x = np.array([100, -100, 32767], np.int16)
    for pot_scale in (False, True):
        result = evaluate(
            op.add(x, x, 0.3, 0, 0.2, 0, 0.7, 0, rounding="TFLITE", out_dtype="int16", pot_scale=pot_scale)
        )
        np.testing.assert_array_equal(result, np.rint(x * 0.5 / 0.7))


# ---- errors ------------------------------------------------------------------------------------------------------


def test_errors():
    x, y = var("x", (2, 3), "int8"), var("y", (2, 4), "int8")
    with pytest.raises(ShapeError, match="do not broadcast"):
        op.add(x, y, 1.0, 0, 1.0, 0, 1.0, 0)
    with pytest.raises(ShapeError, match="lhs must be int8"):
        op.mul(var("x", (2, 3), "float32"), x, 1.0, 0, 1.0, 0, 1.0, 0)
    with pytest.raises(ShapeError, match="vector of 3"):
        op.add(x, x, np.ones(2, np.float32), 0, 1.0, 0, 1.0, 0)
    with pytest.raises(ShapeError, match="the same width"):
        op.add(x, var("z", (2, 3), "int16"), 1.0, 0, 1.0, 0, 1.0, 0, rounding="TFLITE")
    with pytest.raises(ShapeError, match="takes int16 operands, found int8"):
        op.add(x, x, 1.0, 0, 1.0, 0, 1.0, 0, rounding="TFLITE_SHIFTED")
    wide = var("w", (3,), "int16")
    with pytest.raises(ShapeError, match="must be 0 for int16"):
        op.mul(wide, wide, 1.0, 1, 1.0, 0, 1.0, 0)
    with pytest.raises(ShapeError, match="power-of-two scales"):
        op.add(wide, wide, 0.5, 0, 0.5, 0, 1.0, 0, rounding="TFLITE", pot_scale=True)
    with pytest.raises(ShapeError, match="pot_scale is only"):
        op.add(x, x, 0.5, 0, 0.5, 0, 1.0, 0, pot_scale=True)
    with pytest.raises(QnnError, match="rounding must be one of"):
        op.subtract(x, x, 1.0, 0, 1.0, 0, 1.0, 0, rounding="DOWNWARD")

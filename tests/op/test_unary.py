"""The unary functions and prelu: every value of the dtype against NumPy, against LiteRT, and errors."""

import math

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import QnnError, ShapeError
from qnn_ext.numerics.reference import domain
from qnn_ext.op.unary import BUILDERS, UNARY
from qnn_ext.qparams import QParams, dtype_range

from .helpers import evaluate, random_integers, var

FUNCTIONS = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.vectorize(math.erf),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "abs": np.abs,
    "neg": lambda x: -x,
    "elu": lambda x: np.where(x < 0, np.exp(x) - 1, x),
    "leaky_relu": lambda x: np.where(x < 0, 0.01 * x, x),
}


def test_every_function_is_tested():
    assert set(FUNCTIONS) == set(UNARY) == set(BUILDERS)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_values(name, dtype):
    low, high = dtype_range(dtype)
    x = domain(dtype).reshape(2, -1)
    zero = low if name in ("log", "sqrt", "rsqrt") else (low + high) // 2
    scale, out_scale = np.float32(0.05 * 255 / (high - low)), np.float32(0.031 * 255 / (high - low))
    out_zero = zero + 3
    result = evaluate(getattr(op, name)(x, scale, zero, out_scale, out_zero))
    with np.errstate(divide="ignore"):
        exact = FUNCTIONS[name]((x.astype(np.float64) - zero) * scale) / np.float64(out_scale) + out_zero
    exact = np.clip(exact, low, high)
    # float32 may fall to the other side of a midpoint, nowhere else
    assert np.abs(result - exact).max() < 0.5 + 3e-3
    assert (result == np.rint(exact)).mean() > 0.99


def test_int8_to_uint8():
    x = domain("int8")
    result = evaluate(op.sigmoid(x, 0.05, 0, 1 / 256, 0, out_dtype="uint8"))
    shifted = evaluate(op.sigmoid(x, 0.05, 0, 1 / 256, -128))
    np.testing.assert_array_equal(result.astype(int) - 128, shifted)


def test_nan_becomes_the_lowest_integer():
    result = evaluate(op.sqrt(np.int8([-1, 0, 100]), 1.0, 0, 0.1, 7))
    np.testing.assert_array_equal(result, [-128, 7, 107])
    np.testing.assert_array_equal(evaluate(op.log(np.int8([0, -1]), 1.0, 0, 0.1, 7)), [-128, -128])
    np.testing.assert_array_equal(evaluate(op.rsqrt(np.int8([0]), 1.0, 0, 0.1, 7)), [127])


def test_parameters():
    x = np.int8([-100, -10, 0, 10, 100])
    np.testing.assert_array_equal(evaluate(op.leaky_relu(x, 0.1, 0, 0.1, 0, alpha=0.5)), [-50, -5, 0, 10, 100])
    np.testing.assert_array_equal(evaluate(op.elu(x, 0.1, 0, 0.1, 0, alpha=2.0)), [-20, -13, 0, 10, 100])
    assert (evaluate(op.gelu(x, 0.01, 0, 0.0001, 0, out_dtype="int16", approximate=True)) != 0).sum() == 4
    with pytest.raises(TypeError, match="no attribute beta"):
        op.gelu(x, 0.1, 0, 0.1, 0, beta=1)


def test_rounding_names():
    half = np.int8([1, 3, -1, -3])
    np.testing.assert_array_equal(evaluate(op.neg(half, 0.5, 0, 1.0, 0)), [0, -2, 0, 2])
    np.testing.assert_array_equal(evaluate(op.neg(half, 0.5, 0, 1.0, 0, rounding="TONEAREST")), [-1, -2, 1, 2])


def test_tflite_route():
    x = domain("int8")
    source, target = QParams(np.float32(0.05), -5), QParams(np.float32(0.04), 3)
    result = evaluate(op.hardswish(x, source.scale, -5, target.scale, 3, rounding="TFLITE"))
    np.testing.assert_array_equal(result, op.unary_table("hardswish", source, target, "TFLITE"))
    elu = evaluate(op.elu(x, source.scale, -5, target.scale, 3, rounding="TFLITE"))
    np.testing.assert_array_equal(elu, op.unary_table("elu", source, target, "TFLITE"))


def test_errors():
    x = var("x", (3,), "int8")
    with pytest.raises(ShapeError, match="must be a scalar"):
        op.tanh(x, np.ones(3, np.float32), 0, 1.0, 0)
    with pytest.raises(ShapeError, match="keeps the dtype"):
        op.tanh(x, 1.0, 0, 1.0, 0, rounding="TFLITE", out_dtype="uint8")
    with pytest.raises(QnnError, match="rounding must be one of"):
        op.tanh(x, 1.0, 0, 1.0, 0, rounding="UPWARD")
    with pytest.raises(ShapeError, match="data must be int8"):
        op.tanh(var("x", (3,), "int32"), 1.0, 0, 1.0, 0)
    for name, parameters in (("erf", {}), ("elu", {"alpha": 0.5})):
        with pytest.raises(QnnError, match="no quantized kernel"):
            op.unary_table(name, QParams(1.0, 0), QParams(1.0, 0), "TFLITE", **parameters)


# ---- prelu -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("scales", [(0.05, 0.01, 0.05), (0.3, 0.02, 0.007), (0.0123, 0.4, 1.1)])
def test_prelu_tflite(rng, dtype, scales):
    from .litert import run_reference

    x, alpha = random_integers(rng, (2, 30, 30, 8), dtype), random_integers(rng, (1, 1, 8), dtype)
    low = dtype_range(dtype)[0]
    qx, qa, qo = (QParams(np.float32(s), low + z, dtype) for s, z in zip(scales, (100, 128, 40), strict=True))
    golden = run_reference("PRELU", [(x, qx)], x.shape, qo, [(alpha, qa)])
    args = (qx.scale, qx.zero_point, qa.scale, qa.zero_point, qo.scale, qo.zero_point)
    np.testing.assert_array_equal(evaluate(op.prelu(x, alpha, *args, rounding="TFLITE", out_dtype=dtype)), golden)


@pytest.mark.parametrize("rounding", ["TONEAREST_EVEN", "UPWARD", "TONEAREST"])
def test_prelu_equals_leaky_relu(rng, rounding):
    x, alpha = random_integers(rng, (50, 2), "int8"), np.int8([32, 64])
    result = evaluate(op.prelu(x, alpha, 0.5, 3, 1 / 128, 0, 0.25, -7, rounding=rounding))
    d = (x.astype(float) - 3) * 2
    exact = np.where(d < 0, d * [0.25, 0.5], d)
    rounded = np.rint(exact) if rounding == "TONEAREST_EVEN" else np.floor(exact + 0.5)
    rounded = np.trunc(exact + np.copysign(0.5, exact)) if rounding == "TONEAREST" else rounded
    np.testing.assert_array_equal(result, (rounded - 7).clip(-128, 127))


def test_prelu_errors():
    x = var("x", (2, 3), "int8")
    with pytest.raises(ShapeError, match="must broadcast to data"):
        op.prelu(x, var("a", (4, 2, 3), "int8"), 1.0, 0, 1.0, 0, 1.0, 0)
    with pytest.raises(ShapeError, match="do not broadcast"):
        op.prelu(x, var("a", (2,), "int8"), 1.0, 0, 1.0, 0, 1.0, 0)

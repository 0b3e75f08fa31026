"""qnn.softmax and qnn.log_softmax: against float64, against LiteRT's reference kernels, errors."""

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import QnnError, ShapeError
from qnn_ext.qparams import QParams, dtype_range

from .helpers import evaluate, random_integers, var


def softmax_rows(rng, dtype, shape):
    """Random rows; rows at the ends of the dtype; rows close together."""
    low, high = dtype_range(dtype)
    x = random_integers(rng, shape, dtype)
    flat = x.reshape(-1, shape[-1])
    flat[0], flat[1] = low, high
    flat[2] = low
    flat[2, 0] = high
    flat[3:20] = rng.integers(high - 9, high, flat[3:20].shape)
    return x


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_float32(rng, dtype, axis):
    x = softmax_rows(rng, dtype, (50, 6, 10))
    scale = 0.07 * 255 / (dtype_range(dtype)[1] - dtype_range(dtype)[0])
    for beta in (1.0, 0.3):
        real = x.astype(np.float64) * scale * beta
        exps = np.exp(real - real.max(axis, keepdims=True))
        exact = (exps / exps.sum(axis, keepdims=True) * 256 - 128).clip(-128, 127)
        result = evaluate(op.softmax(x, scale, 3, 1 / 256, -128, axis=axis, beta=beta))
        assert np.abs(result - exact).max() < 0.5 + 1e-3
        assert (result == np.rint(exact)).mean() > 0.999


def test_float32_log(rng):
    x = softmax_rows(rng, "int8", (80, 10))
    real = x.astype(np.float64) * np.float32(0.07)
    exact = real - real.max(-1, keepdims=True)
    exact = (exact - np.log(np.exp(exact).sum(-1, keepdims=True))) * 16 + 127
    result = evaluate(op.log_softmax(x, 0.07, 3, 1 / 16, 127))
    assert np.abs(result - exact.clip(-128, 127)).max() < 0.5 + 1e-3


@pytest.mark.parametrize("beta", [1.0, 0.5, 3.0])
@pytest.mark.parametrize("scale", [0.001, 0.0123, 0.05, 0.25, 1.0, 9.0])
@pytest.mark.parametrize("dtypes", [("int8", "int8"), ("uint8", "uint8"), ("int16", "int16"), ("int8", "int16")])
def test_tflite(rng, dtypes, scale, beta):
    from .litert import run_reference

    dtype, out_dtype = dtypes
    for width in (2, 10, 500):  # flat rows of more than 512 abort in LiteRT
        x = softmax_rows(rng, dtype, (100, width))
        source = QParams(np.float32(scale / 256 if dtype == "int16" else scale), 0 if dtype == "int16" else 5, dtype)
        out_scale, zero = (2.0**-15, 0) if dtype == "int16" else (2.0**-8, dtype_range(out_dtype)[0])
        if dtypes == ("int8", "int16"):
            out_scale = 2.0**-16
        target = QParams(np.float32(out_scale), zero, out_dtype)
        golden = run_reference("SOFTMAX", [(x, source)], x.shape, target, beta=beta)
        result = evaluate(
            op.softmax(
                *(x, source.scale, source.zero_point, target.scale, zero),
                beta=beta,
                rounding="TFLITE",
                out_dtype=out_dtype,
            )
        )
        np.testing.assert_array_equal(result, golden)


@pytest.mark.parametrize("scale", [0.001, 0.0123, 0.05, 0.25, 1.0, 9.0])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_tflite_log(rng, dtype, scale):
    from .litert import run_reference

    for width in (2, 10, 300):
        x = softmax_rows(rng, dtype, (100, width))
        source = QParams(np.float32(scale), 5, dtype)
        target = QParams(np.float32(1 / 16), dtype_range(dtype)[1], dtype)
        golden = run_reference("LOG_SOFTMAX", [(x, source)], x.shape, target)
        args = (x, source.scale, source.zero_point, target.scale, target.zero_point)
        result = evaluate(op.log_softmax(*args, rounding="TFLITE", out_dtype=dtype))
        np.testing.assert_array_equal(result, golden)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_onnx_runtime(rng, dtype):
    """Against the formula in float64: e / Σe in steps of ⌊1 / s_out⌋. Its kernel itself: tests/frontends/onnx."""
    x = softmax_rows(rng, dtype, (50, 6, 10))
    low, high = dtype_range(dtype)
    exps = np.exp((x.astype(np.float64) - x.max(1, keepdims=True)) * 0.07)
    exact = (exps / exps.sum(1, keepdims=True) * 99 + low).clip(low, high)
    args = (x, 0.07, 3, 0.01005, low)
    result = evaluate(op.softmax(*args, axis=1, rounding="ONNXRUNTIME", out_dtype=dtype))
    assert np.abs(result - exact).max() < 0.5 + 1e-4


@pytest.mark.parametrize(
    ("rounding", "dtype"), [("TONEAREST", "int8"), ("UPWARD", "uint8"), ("TONEAREST_EVEN", "int8")]
)
def test_midpoints(rounding, dtype):
    """512 equal values have the probability 1/512, half a step."""
    low, _ = dtype_range(dtype)
    result = evaluate(op.softmax(np.full((1, 512), 7, dtype), 0.1, 0, 1 / 256, low, rounding=rounding, out_dtype=dtype))
    assert np.unique(result).tolist() == [low + (rounding != "TONEAREST_EVEN")]


def test_errors():
    x, wide = var("x", (2, 3), "int8"), var("w", (2, 3), "int16")
    with pytest.raises(ShapeError, match="out of range"):
        op.softmax(x, 1.0, 0, 1 / 256, -128, axis=2)
    with pytest.raises(ShapeError, match=r"writes scale 0\.00390625 and zero point -128"):
        op.softmax(x, 1.0, 0, 1 / 128, -128, rounding="TFLITE")
    with pytest.raises(ShapeError, match="only int16 to int16"):
        op.softmax(wide, 1.0, 0, 1 / 256, -128, rounding="TFLITE")
    with pytest.raises(ShapeError, match="beta must be positive"):
        op.softmax(x, 1.0, 0, 1 / 256, -128, beta=0.0)
    with pytest.raises(ShapeError, match="int8 to int8 and uint8 to uint8"):
        op.log_softmax(wide, 1.0, 0, 1 / 16, 0, rounding="TFLITE")
    with pytest.raises(ShapeError, match="8 bits to 8 bits"):
        op.softmax(wide, 1.0, 0, 1 / 256, -128, rounding="ONNXRUNTIME")
    with pytest.raises(QnnError, match="rounding must be one of"):
        op.softmax(x, 1.0, 0, 1 / 256, -128, rounding="DOWNWARD")
    with pytest.raises(ShapeError, match="rounding TONEAREST supports only 8-bit data"):
        op.softmax(wide, 1.0, 0, 1 / 256, -128, rounding="TONEAREST")
    with pytest.raises(QnnError, match="rounding must be one of"):
        op.log_softmax(x, 1.0, 0, 1 / 256, -128, rounding="ONNXRUNTIME")

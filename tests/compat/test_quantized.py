"""relay.qnn.op: the numeric cases of Relay's own tests, in every layout and with every kind of zero point."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
import pytest

from qnn_ext import Interpreter
from qnn_ext.compat.tvm import IRModule, cpu, relay
from qnn_ext.errors import QnnError, ShapeError

rng = np.random.default_rng(7)


def interpreted(expr: relay.Expr, **inputs: np.ndarray) -> np.ndarray:
    """The value of an expression, by the interpreter."""
    return Interpreter(IRModule.from_expr(expr).model())(*inputs.values())


def compiled(expr: relay.Expr, **inputs: np.ndarray) -> np.ndarray:
    """The value of an expression, by the built model."""
    function = relay.Function(relay.analysis.free_vars(expr), expr)
    return relay.create_executor("graph", device=cpu(0), target="x86-64").evaluate(function)(**inputs).numpy()


def integers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


# ---- convolutions ------------------------------------------------------------------------------------------------


def convolved(x: np.ndarray, w: np.ndarray, strides, padding, dilation, groups: int) -> np.ndarray:
    """The convolution of int64 NCHW data and an OIHW kernel, window by window; padding (top, left, bottom, right)."""
    top, left, bottom, right = padding
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    n, _, h, width = x.shape
    o, i, kh, kw = w.shape
    oh = (h - (kh - 1) * dilation[0] - 1) // strides[0] + 1
    ow = (width - (kw - 1) * dilation[1] - 1) // strides[1] + 1
    result = np.zeros((n, o, oh, ow), np.int64)
    for out in range(o):
        first = out // (o // groups) * i
        for row, column in np.ndindex(oh, ow):
            rows = row * strides[0] + dilation[0] * np.arange(kh)
            columns = column * strides[1] + dilation[1] * np.arange(kw)
            window = x[:, first : first + i][:, :, rows][:, :, :, columns]
            result[:, out, row, column] = (window * w[out]).sum(axis=(1, 2, 3))
    return result


GEOMETRIES = {
    "plain": {},
    "1x1": {"kernel": (1, 1)},
    "1x1 strided": {"kernel": (1, 1), "strides": (2, 2)},
    "anisotropic strides": {"strides": (1, 3)},
    "padded": {"padding": (1, 1)},
    "one padding": {"padding": 1},
    "asymmetric padding": {"padding": (1, 1, 2, 2)},
    "dilated": {"dilation": (2, 2)},
}
ZERO_POINTS = {"none": (0, 0), "data": (5, 0), "kernel": (0, 3), "both": (5, 3), "vector": (5, (1, 0, 3, 2, 7, 4))}


@pytest.mark.sampled("zero_points")
@pytest.mark.parametrize("layouts", ["NCHW OIHW", "NHWC HWIO", "NHWC HWOI", "NCHW HWIO"])
@pytest.mark.parametrize("dtypes", ["uint8 uint8", "int8 int8", "uint8 int8"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("zero_points", ZERO_POINTS)
def test_conv2d(layouts, dtypes, geometry, zero_points):
    data_layout, kernel_layout = layouts.split()
    options = {"kernel": (2, 3), "strides": (1, 1), "padding": (0, 0), "dilation": (1, 1), **GEOMETRIES[geometry]}
    kernel_size = options.pop("kernel")
    data_zero, kernel_zero = ZERO_POINTS[zero_points]
    x, w = integers((2, 4, 6, 8), dtypes.split()[0]), integers((6, 4, *kernel_size), dtypes.split()[1])
    given = x.transpose(["NCHW".index(axis) for axis in data_layout])
    kernel = w.transpose(["OIHW".index(axis) for axis in kernel_layout])
    y = relay.qnn.op.conv2d(
        relay.var("data", shape=given.shape, dtype=str(x.dtype)),
        relay.const(kernel),
        relay.const(data_zero, "int32"),
        relay.const(kernel_zero, "int32"),
        relay.const(0.5, "float32"),
        relay.const(0.25, "float32"),
        kernel_size=kernel_size,
        channels=6,
        data_layout=data_layout,
        kernel_layout=kernel_layout,
        **options,
    )
    four = {int: lambda p: (p,) * 4, tuple: lambda p: p * 2 if len(p) == 2 else p}
    padding = four[type(options["padding"])](options["padding"])
    shifted = w.astype(np.int64) - np.asarray(kernel_zero).reshape(-1, 1, 1, 1)
    expected = convolved(x.astype(np.int64) - data_zero, shifted, options["strides"], padding, options["dilation"], 1)
    found = interpreted(y, data=given)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected.transpose(["NCHW".index(axis) for axis in data_layout]))


@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("layouts", ["NCHW OIHW", "NHWC HWOI"])
@pytest.mark.parametrize("weights", ["constant", "run time"])
def test_depthwise_conv2d(layouts, multiplier, weights):
    """A kernel (C, M, H, W) or (H, W, C, M), a zero point for each channel, weights known or not: built and run."""
    data_layout, kernel_layout = layouts.split()
    x, w = integers((1, 4, 7, 6), "uint8"), integers((4, multiplier, 3, 3), "uint8")
    zero_points = np.array([3, 0, 9, 1], np.int32)
    given = x.transpose(["NCHW".index(axis) for axis in data_layout])
    kernel = w if kernel_layout == "OIHW" else w.transpose(2, 3, 0, 1)
    variable = relay.var("kernel", shape=kernel.shape, dtype="uint8")
    y = relay.qnn.op.conv2d(
        relay.var("data", shape=given.shape, dtype="uint8"),
        variable if weights == "run time" else relay.const(kernel),
        relay.op.multiply(relay.const(2, "int32"), relay.const(2, "int32")),
        relay.const(zero_points),
        relay.const(1.0, "float32"),
        relay.const(1.0, "float32"),
        kernel_size=(3, 3),
        channels=4 * multiplier,
        groups=4,
        data_layout=data_layout,
        kernel_layout=kernel_layout,
    )
    inputs = {"data": given, **({"kernel": kernel} if weights == "run time" else {})}
    shifted = (w.astype(np.int64) - zero_points.reshape(4, 1, 1, 1)).reshape(4 * multiplier, 1, 3, 3)
    expected = convolved(x.astype(np.int64) - 4, shifted, (1, 1), (0, 0, 0, 0), (1, 1), 4)
    expected = expected.transpose(["NCHW".index(axis) for axis in data_layout])
    np.testing.assert_array_equal(interpreted(y, **inputs), expected)
    np.testing.assert_array_equal(compiled(y, **inputs), expected)


def test_grouped_conv2d_is_not_depthwise():
    """As many groups as output channels, but fewer than input channels: an ordinary (O, I / groups, H, W) kernel."""
    x, w = integers((1, 8, 5, 5), "int8"), integers((4, 2, 2, 2), "int8")
    y = relay.qnn.op.conv2d(
        relay.var("data", shape=x.shape, dtype="int8"),
        relay.const(w),
        *(relay.const(value) for value in (1, 2, 1.0, 1.0)),
        kernel_size=(2, 2),
        channels=4,
        groups=4,
    )
    expected = convolved(x.astype(np.int64) - 1, w.astype(np.int64) - 2, (1, 1), (0,) * 4, (1, 1), 4)
    np.testing.assert_array_equal(interpreted(y, data=x), expected)


def test_anisotropic_strides():
    """The values of Relay's TFLite test, by hand: (124, −92, 164, −132)."""
    data = np.array(
        [133, 131, 129, 125, 123, 121, 135, 133, 131, 123, 121, 119, 137, 135, 133, 121, 119, 117], np.uint8
    )
    weight = np.array([129, 131, 133, 135], np.uint8).reshape(1, 1, 2, 2)
    y = relay.qnn.op.conv2d(
        relay.var("data", shape=(1, 1, 3, 6), dtype="uint8"),
        relay.const(weight),
        *(relay.const(value) for value in (127, 127, 1.0, 1.0)),
        kernel_size=(2, 2),
        channels=1,
        strides=(1, 3),
    )
    assert interpreted(y, data=data.reshape(1, 1, 3, 6)).ravel().tolist() == [124, -92, 164, -132]


def test_conv2d_refusals():
    data, kernel = relay.var("x", shape=(1, 4, 5, 5), dtype="int8"), relay.const(integers((6, 4, 2, 2), "int8"))
    qparams = [relay.const(value) for value in (0, 0, 1.0, 1.0)]
    with pytest.raises(ShapeError, match=r"relay\.qnn\.conv2d: kernel_size \(3, 3\) is not that of the kernel"):
        relay.testing.run_infer_type(relay.qnn.op.conv2d(data, kernel, *qparams, kernel_size=(3, 3), channels=6))
    with pytest.raises(ShapeError, match="out_layout"):
        relay.testing.run_infer_type(relay.qnn.op.conv2d(data, kernel, *qparams, kernel_size=(2, 2), out_layout="NHWC"))


@pytest.mark.parametrize("layouts", ["NCHW IOHW", "NHWC HWIO"])
@pytest.mark.parametrize("zero_points", [(0, 0), (5, 3)])
@pytest.mark.parametrize("options", [{}, {"strides": (2, 2)}, {"padding": (1, 1)}, {"padding": (1, 0, 0, 1)}], ids=str)
def test_conv2d_transpose(layouts, zero_points, options):
    """Every input value adds its multiple of the kernel to the output, which is then cropped."""
    data_layout, kernel_layout = layouts.split()
    x, w = integers((1, 3, 4, 5), "uint8"), integers((3, 2, 2, 3), "int8")
    shifted, kernel = x.astype(np.int64) - zero_points[0], w.astype(np.int64) - zero_points[1]
    (sh, sw), padding = options.get("strides", (1, 1)), options.get("padding", (0, 0))
    top, left, bottom, right = padding * 2 if len(padding) == 2 else padding
    full = np.zeros((1, 2, 3 * sh + 2, 4 * sw + 3), np.int64)
    for row, column in np.ndindex(4, 5):
        full[:, :, row * sh : row * sh + 2, column * sw : column * sw + 3] += np.einsum(
            "ni,iohw->nohw", shifted[:, :, row, column], kernel
        )
    expected = full[:, :, top : full.shape[2] - bottom, left : full.shape[3] - right]
    given = x.transpose(["NCHW".index(axis) for axis in data_layout])
    weight = w.transpose(["IOHW".index(axis) for axis in (kernel_layout if kernel_layout == "IOHW" else "HWOI")])
    if kernel_layout == "HWIO":  # axes named from the data's side: I are the input's channels
        weight = w.transpose(2, 3, 0, 1)
    y = relay.qnn.op.conv2d_transpose(
        relay.var("data", shape=given.shape, dtype="uint8"),
        relay.const(weight),
        *(relay.const(value) for value in (*zero_points, 1.0, 1.0)),
        channels=2,
        kernel_size=(2, 3),
        data_layout=data_layout,
        kernel_layout=kernel_layout,
        **options,
    )
    np.testing.assert_array_equal(
        interpreted(y, data=given), expected.transpose(["NCHW".index(axis) for axis in data_layout])
    )


# ---- other products ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero_points", [(0, 0), (-123, 0), (0, -100), (-123, (1, 2, 3))], ids=str)
def test_dense(zero_points):
    x, w = integers((4, 5), "int8"), integers((3, 5), "int8")
    y = relay.qnn.op.dense(
        relay.var("data", shape=x.shape, dtype="int8"),
        relay.const(w),
        relay.const(zero_points[0], "int32"),
        relay.const(zero_points[1], "int32"),
        relay.const(0.5, "float32"),
        relay.const(np.array([0.5, 0.25, 0.125], np.float32)),
        units=3,
    )
    right = w.astype(np.int64) - np.reshape(zero_points[1], (-1, 1))
    np.testing.assert_array_equal(interpreted(y, data=x), (x.astype(np.int64) - zero_points[0]) @ right.T)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("zero_points", [(0, 0), (-123, 0), (0, -123), (-123, -123)], ids=str)
def test_batch_matmul(batch, zero_points):
    x, y = integers((batch, 4, 5), "int8"), integers((batch, 3, 5), "int8")
    z = relay.qnn.op.batch_matmul(
        relay.var("x", shape=x.shape, dtype="int8"),
        relay.var("y", shape=y.shape, dtype="int8"),
        *(relay.const(value) for value in (*zero_points, 0.5, 0.5)),
    )
    expected = np.einsum("bmk,bnk->bmn", x.astype(np.int64) - zero_points[0], y.astype(np.int64) - zero_points[1])
    np.testing.assert_array_equal(interpreted(z, x=x, y=y), expected)


# ---- requantize --------------------------------------------------------------------------------------------------


def rounded(value: Fraction, rounding: str) -> int:
    """To the nearest integer; midpoints upwards, or away from zero."""
    if rounding == "UPWARD" or value >= 0:
        return floor(value + Fraction(1, 2))
    return -floor(-value + Fraction(1, 2))


CASES = {  # input scale, input zero point, output scale, output zero point, data
    "same": (0.5, 0, 0.5, 0, range(-200, 200, 7)),
    "down to a 16th": (1.0, 0, 16.0, 0, range(-64, 64)),
    "down to a 4th": (1.0, 0, 4.0, 0, range(-32, 32)),
    "up": (0.5, 0, 0.25, 0, range(-32, 32)),
    "up by no power of two": (3.0, 0, 1.0, 0, range(-32, 32)),
    "down by no power of two": (1.0, 0, 3.0, 0, range(-32, 32)),
    "saturating": (0.5, 0, 0.5, 0, [*range(120, 136), *range(-136, -120), 32766, 32767, 32768, -32769]),
    "output zero point": (1.0, 0, 16.0, 1, range(-64, 64)),
    "input zero point": (1.0, 16, 16.0, 0, range(-64, 64)),
}


def requantized(case: str, out_dtype: str, **options: str) -> tuple[relay.Expr, np.ndarray]:
    in_scale, in_zero, out_scale, out_zero, values = CASES[case]
    data = np.array(values, np.int32)
    expr = relay.qnn.op.requantize(
        relay.var("data", shape=data.shape, dtype="int32"),
        *(relay.const(value) for value in (in_scale, in_zero, out_scale, out_zero)),
        out_dtype=out_dtype,
        **options,
    )
    return expr, data


def golden(case: str, out_dtype: str, rounding: str, compute_dtype: str = "int64") -> list[int]:
    """In floats, Relay added the zero point before it rounded, in integers after."""
    in_scale, in_zero, out_scale, out_zero, values = CASES[case]
    info = np.iinfo(out_dtype)
    ratio = Fraction(in_scale) / Fraction(out_scale)
    first, last = (0, out_zero) if compute_dtype == "int64" else (out_zero, 0)
    return [
        min(max(rounded((value - in_zero) * ratio + first, rounding) + last, info.min), info.max) for value in values
    ]


@pytest.mark.sampled("compute_dtype", "out_dtype")
@pytest.mark.parametrize("rounding", ["UPWARD", "TONEAREST"])
@pytest.mark.parametrize("compute_dtype", ["int64", "float32", "float64"])
@pytest.mark.parametrize("out_dtype", ["int8", "int16"])
@pytest.mark.parametrize("case", CASES)
def test_requantize(case, rounding, compute_dtype, out_dtype):
    expr, data = requantized(case, out_dtype, rounding=rounding, compute_dtype=compute_dtype)
    assert interpreted(expr, data=data).tolist() == golden(case, out_dtype, rounding, compute_dtype)


@pytest.mark.parametrize("rounding", ["UPWARD", "TONEAREST"])
def test_requantize_per_channel(rounding):
    data = np.arange(-20, 20, 2, dtype=np.int32).reshape(2, 2, 5)
    expr = relay.qnn.op.requantize(
        relay.var("data", shape=data.shape, dtype="int32"),
        relay.const(np.array([0.5, 0.25], np.float32)),
        relay.const(0),
        relay.const(0.5),
        relay.const(0),
        axis=1,
        rounding=rounding,
    )
    expected = [-20, -18, -16, -14, -12, -5, -4, -3, -2, -1, 0, 2, 4, 6, 8, 5, 6, 7, 8, 9]
    assert interpreted(expr, data=data).ravel().tolist() == expected


def test_requantize_config():
    """A call's own rounding, else the innermost configuration's at lowering, else UPWARD; entered again and again."""
    expr, data = requantized("down to a 16th", "int8")
    upward, nearest = (golden("down to a 16th", "int8", rounding) for rounding in ("UPWARD", "TONEAREST"))
    assert upward != nearest
    config = relay.qnn.op.requantize_config(rounding="TONEAREST")
    assert interpreted(expr, data=data).tolist() == upward
    with config, config:
        assert relay.qnn.op.current_requantize_config() is config
        assert interpreted(expr, data=data).tolist() == nearest
        own, _ = requantized("down to a 16th", "int8", rounding="UPWARD")
        assert interpreted(own, data=data).tolist() == upward
        fixed = relay.qnn.transform.CanonicalizeOps()(IRModule.from_expr(expr))
        with relay.qnn.op.requantize_config(rounding="UPWARD"):
            assert interpreted(expr, data=data).tolist() == upward
    assert Interpreter(fixed.model())(data).tolist() == nearest
    with pytest.raises(QnnError, match="rounding must be one of UPWARD, TONEAREST"):
        relay.qnn.op.requantize_config(rounding="TOZERO")


def test_arithmetic_follows_the_target():
    """As in Relay: float32 for x86 with SSE 4.1, 64-bit integers for plain x86."""
    expr, _ = requantized("down to a 16th", "int8")
    for target, dtype in {"llvm -mcpu=skylake-avx512": "float32", "x86-64": "int64"}.items():
        assert f'compute_dtype="{dtype}"' in str(relay.build(expr, target).ir_mod)


# ---- elementwise -------------------------------------------------------------------------------------------------

FUNCTIONS = {
    "tanh": np.tanh,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.vectorize(__import__("math").erf),
    "abs": np.abs,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "hardswish": relay.qnn.op.legalizations.hardswish_func,
    "log": np.log,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_unary(name, dtype):
    """All 256 values, except those whose function has no value."""
    lowest = 1 if dtype == "int8" and name in ("sqrt", "rsqrt", "log") else np.iinfo(dtype).min
    data = np.arange(lowest, np.iinfo(dtype).max + 1).astype(dtype)
    y = getattr(relay.qnn.op, name)(
        relay.var("x", shape=data.shape, dtype=dtype), *(relay.const(value) for value in (0.125, 0, 0.125, 0))
    )
    with np.errstate(divide="ignore"):
        real = FUNCTIONS[name](data.astype(np.float64) * 0.125) / 0.125
    away = np.sign(real) * np.floor(np.abs(real) + 0.5)
    np.testing.assert_array_equal(interpreted(y, x=data), np.clip(away, np.iinfo(dtype).min, np.iinfo(dtype).max))


SUMS = [  # TFLite's own values, of Relay's tests of qnn.add
    ((140, 153, 165, 178), (204, 178, 165, 140), (217, 204, 203, 191)),
    ((25, 153, 178, 216), (204, 178, 191, 25), (102, 204, 242, 114)),
    ((25, 153, 216, 165), (204, 178, 25, 191), (102, 204, 114, 229)),
]


@pytest.mark.parametrize(("left", "right", "expected"), SUMS)
def test_add(left, right, expected):
    variables = [relay.var(name, shape=(1, 4), dtype="uint8") for name in "xy"]
    y = relay.qnn.op.add(*variables, *(relay.const(value) for value in (0.00784314, 127) * 3))
    arrays = {name: np.array([values], np.uint8) for name, values in zip("xy", (left, right), strict=True)}
    assert interpreted(y, **arrays).tolist() == [list(expected)]


def test_subtract_and_mul():
    """Operands in units of ½ and 1, a result in units of 2: mul rounds once, subtract each operand for itself."""
    x, y = np.array([10, 20, 31], np.uint8), np.array([4, 9, 0], np.uint8)
    variables = [relay.var(name, shape=(3,), dtype="uint8") for name in "xy"]
    qparams = [relay.const(value) for value in (0.5, 0, 1.0, 0, 2.0, 10)]
    difference = interpreted(relay.qnn.op.subtract(*variables, *qparams), x=x, y=y)
    product = interpreted(relay.qnn.op.mul(*variables, *qparams), x=x, y=y)
    assert difference.tolist() == [a - b + 10 for a, b in zip((3, 5, 8), (2, 5, 0), strict=True)]
    assert product.tolist() == [20, 55, 10]


def test_concatenate():
    x, y = np.arange(-32, 32, dtype=np.int32).reshape(1, 64), np.arange(-64, 64, 2, dtype=np.int32).reshape(1, 64)
    variables = [relay.var(name, shape=(1, 64), dtype="int32") for name in "xy"]
    scale, zeros = relay.const(0.125), (relay.const(3), relay.const(4))
    z = relay.qnn.op.concatenate(variables, (scale, scale), zeros, scale, relay.const(1), axis=0)
    np.testing.assert_array_equal(interpreted(z, x=x, y=y), np.concatenate((x - 2, y - 3)))
    parts = relay.split(relay.var("x", shape=(64,), dtype="uint8"), 2, axis=0)
    whole = relay.qnn.op.concatenate(parts, (scale, scale), (zeros[0],) * 2, scale, zeros[0], axis=0)
    data = integers((64,), "uint8")
    np.testing.assert_array_equal(interpreted(whole, x=data), data)


def test_pooling_and_activations():
    data = integers((1, 4, 4, 2), "int8")
    x = relay.var("x", shape=data.shape, dtype="int8")
    same = [relay.const(value) for value in (0.5, 3, 0.5, 3)]
    pooled = relay.qnn.op.avg_pool2d(x, *same, pool_size=(2, 2), strides=(2, 2))
    sums = (data.astype(int) - 3).reshape(1, 2, 2, 2, 2, 2).sum(axis=(2, 4))
    np.testing.assert_array_equal(interpreted(pooled, x=data), np.floor(sums / 4 + 0.5) + 3)
    leaky = interpreted(relay.qnn.op.leaky_relu(x, 0.5, *same), x=data)
    shifted = data.astype(int) - 3
    away = np.sign(shifted) * np.floor(np.abs(shifted) / 2 + 0.5)
    np.testing.assert_array_equal(leaky, np.where(shifted < 0, away, shifted) + 3)
    qparams = [relay.const(value) for value in (0.1, 0, 1 / 256, -128)]
    softmax = interpreted(relay.qnn.op.softmax(x, *qparams), x=data)
    exps = np.exp(data * 0.1)
    np.testing.assert_allclose(softmax.astype(int) + 128, 256 * exps / exps.sum(-1, keepdims=True), atol=1.01)


# ---- between floats and integers ---------------------------------------------------------------------------------


def test_quantize_and_dequantize():
    """Midpoints away from zero, as Relay's `round` did; float16 saturates."""
    real = np.array([-64.0, -1.25, -0.75, -0.25, 0.25, 0.75, 1.25, 200.0], np.float32)
    x = relay.var("x", shape=real.shape, dtype="float32")
    q = interpreted(relay.qnn.op.quantize(x, relay.const(0.5), relay.const(-1)), x=real)
    assert q.tolist() == [-128, -4, -3, -2, 0, 1, 2, 127]
    y = relay.var("y", shape=q.shape, dtype="int8")
    back = interpreted(relay.qnn.op.dequantize(y, relay.const(0.5), relay.const(-1), out_dtype="float16"), y=q)
    assert back.dtype == np.float16
    assert back.tolist() == [-63.5, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 64.0]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
def test_simulated(dtype):
    """The integers and the reals of the true operators, as float32, for a dtype chosen by name or at run time."""
    real = rng.uniform(-128, 127, (2, 5)).astype(np.float32)
    x, scale, zero = relay.var("x", shape=(2, 5)), relay.const(0.5), relay.const(3)
    true = interpreted(relay.qnn.op.quantize(x, scale, zero, out_dtype=dtype), x=real)
    named = relay.qnn.op.simulated_quantize(x, scale, zero, out_dtype=dtype)
    code = relay.var("code", shape=(), dtype="int32")
    coded = relay.qnn.op.simulated_quantize(x, scale, zero, out_dtype=code)
    number = np.array({"int8": 1, "uint8": 2, "int32": 3}[dtype], np.int32)
    np.testing.assert_array_equal(interpreted(named, x=real), true)
    np.testing.assert_array_equal(interpreted(coded, x=real, code=number), true)
    off = relay.qnn.op.simulated_dequantize(x, scale, zero, in_dtype="disable")
    np.testing.assert_array_equal(interpreted(off, x=real), real)
    values = true.astype(np.float32)
    back = relay.qnn.op.simulated_dequantize(x, scale, zero, in_dtype=dtype)
    np.testing.assert_array_equal(interpreted(back, x=values), (values - 3) * np.float32(0.5))


def test_lookup():
    """A function of one's own as a table; also of constants, at once."""
    data = np.arange(-128, 128).astype(np.int8).reshape(2, 128)
    qparams = {name: relay.const(value) for name, value in {"in_scale": 1 / 64, "out_scale": 1 / 128}.items()}
    zeros = {"in_zero_point": relay.const(0), "out_zero_point": relay.const(0)}
    canonicalizations = relay.qnn.op.canonicalizations
    lookup = canonicalizations.create_integer_lookup_op(
        relay.const(data), np.tanh, **qparams, **zeros, in_dtype="int8", out_dtype="int8"
    )
    found = canonicalizations.run_const_expr(lookup)
    np.testing.assert_allclose(found / 128, np.tanh(data / 64), atol=1 / 128)

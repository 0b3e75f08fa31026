"""qnn.avg_pool2d: a loop over windows as oracle of the oracle, TFLite's reference kernel, errors."""

import itertools

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import ShapeError
from qnn_ext.qparams import QParams

from .helpers import evaluate, random_integers, var


def loop_average(x, zero, pool, strides, padding, include, size):
    """Exact window averages of x − zero as Python loops, over an output of `size`."""
    n, h, w, c = x.shape
    out = np.zeros((n, *size, c))
    for b, i, j, k in itertools.product(range(n), range(size[0]), range(size[1]), range(c)):
        total = count = 0
        for y, z in itertools.product(range(pool[0]), range(pool[1])):
            r, s = i * strides[0] + y - padding[0], j * strides[1] + z - padding[1]
            inside = 0 <= r < h and 0 <= s < w
            total += int(x[b, r, s, k]) - zero if inside else 0
            count += inside or (include and r < h + padding[2] and s < w + padding[3])
        out[b, i, j, k] = total / count
    return out


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(
    "pool,strides,padding,ceil_mode,size",
    [
        ((2, 2), (2, 2), (0, 0, 0, 0), False, (3, 2)),
        ((3, 3), (1, 1), (1, 1, 1, 1), False, (6, 5)),
        ((3, 2), (2, 1), (1, 0, 2, 1), False, (4, 5)),
        ((2, 3), (2, 2), (0, 1, 0, 1), True, (3, 3)),
        ((3, 3), (2, 2), (0, 0, 0, 0), True, (3, 2)),
    ],
)
def test_windows(rng, pool, strides, padding, ceil_mode, size, include):
    x = random_integers(rng, (2, 6, 5, 3), "int8")
    kwargs = dict(pool_size=pool, strides=strides, padding=padding, ceil_mode=ceil_mode, count_include_pad=include)
    exact = loop_average(x, 5, pool, strides, padding, include, size)
    result = evaluate(op.avg_pool2d(x, 0.5, 5, 0.5, 5, **kwargs))
    np.testing.assert_array_equal(result, (np.rint(exact.astype(np.float32)) + 5).clip(-128, 127))
    rescaled = evaluate(op.avg_pool2d(x, 0.5, 5, 0.125, -9, rounding="UPWARD", **kwargs))
    np.testing.assert_array_equal(rescaled, (np.floor(exact * 4 + 0.5 + 1e-9) - 9).clip(-128, 127))
    channels_first = evaluate(op.avg_pool2d(x.transpose(0, 3, 1, 2), 0.5, 5, 0.5, 5, layout="NCHW", **kwargs))
    np.testing.assert_array_equal(channels_first, result.transpose(0, 3, 1, 2))


def test_reciprocal():
    """±203 / 14 are midpoints; their products with f32(1/14) lie further out."""
    x = np.zeros((1, 2, 7, 3), np.int8)
    x[0, :, :, 0], x[0, :, :, 1], x[0, 0, 0, 2] = 14, -14, 7
    x[0, 0, 0, :2] = 21, -21
    divided = evaluate(op.avg_pool2d(x, 1.0, 0, 1.0, 0, pool_size=(2, 7)))
    multiplied = evaluate(op.avg_pool2d(x, 1.0, 0, 1.0, 0, pool_size=(2, 7), reciprocal=True))
    assert divided.ravel().tolist() == [14, -14, 0]
    assert multiplied.ravel().tolist() == [15, -15, 0]


def test_dilation(rng):
    x = random_integers(rng, (1, 7, 7, 2), "uint8")
    result = evaluate(
        op.avg_pool2d(x, 1.0, 0, 1.0, 0, pool_size=(2, 3), dilation=(3, 2), rounding="TFLITE", out_dtype="uint8")
    )
    assert result.shape == (1, 4, 3, 2)
    taps = x[0, 1:5:3, 2:7:2].astype(int).sum((0, 1))
    np.testing.assert_array_equal(result[0, 1, 2], (taps + 3) // 6)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("pool", [(2, 2), (3, 3), (1, 4), (5, 2)])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_tflite(rng, dtype, pool, padding):
    from .litert import run_reference

    x = random_integers(rng, (2, 6, 5, 4), dtype)
    zero = 0 if dtype == "int16" else 37
    q = QParams(np.float32(0.05), zero, dtype)
    pads = [max((-(-n // 2) - 1) * 2 + k - n, 0) for n, k in zip((6, 5), pool, strict=True)]
    pads = (pads[0] // 2, pads[1] // 2, pads[0] - pads[0] // 2, pads[1] - pads[1] // 2)
    call = op.avg_pool2d(
        *(x, q.scale, zero, q.scale, zero),
        pool_size=pool,
        strides=(2, 2),
        padding=pads if padding == "SAME" else (0, 0, 0, 0),
        rounding="TFLITE",
        out_dtype=dtype,
    )
    result = evaluate(call)
    options = {"filterHeight": pool[0], "filterWidth": pool[1], "strideH": 2, "strideW": 2, "padding": padding}
    np.testing.assert_array_equal(result, run_reference("AVERAGE_POOL_2D", [(x, q)], result.shape, q, **options))


def test_errors():
    x = var("x", (1, 4, 4, 2), "int8")
    with pytest.raises(ShapeError, match="without data"):
        op.avg_pool2d(x, 1.0, 0, 1.0, 0, pool_size=(2, 2), padding=(2, 0, 0, 0))
    with pytest.raises(ShapeError, match="does not fit"):
        op.avg_pool2d(x, 1.0, 0, 1.0, 0, pool_size=(5, 1))
    with pytest.raises(ShapeError, match="equal QParams"):
        op.avg_pool2d(x, 1.0, 0, 2.0, 0, pool_size=(2, 2), rounding="TFLITE")
    with pytest.raises(ShapeError, match="layout"):
        op.avg_pool2d(x, 1.0, 0, 1.0, 0, layout="NCWH")
    with pytest.raises(ShapeError, match="pool_size"):
        op.avg_pool2d(x, 1.0, 0, 1.0, 0, pool_size=(0, 2))

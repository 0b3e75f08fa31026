"""qnn.conv2d_transpose: against a loop that scatters every product, layouts, groups, LiteRT, errors."""

import itertools

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import ShapeError
from qnn_ext.qparams import QParams

from .helpers import evaluate, random_integers, var


def scatter(x, w, strides, padding, output_padding, dilation, groups):
    """Transposed convolution of NHWC x and IOHW w, both already without zero points, as loops."""
    n, h, width, c = x.shape
    _, o, kh, kw = w.shape
    size = [
        (s - 1) * t + (k - 1) * d + 1 - padding[i] - padding[i + 2] + p
        for i, (s, t, k, d, p) in enumerate(zip((h, width), strides, (kh, kw), dilation, output_padding, strict=True))
    ]
    out = np.zeros((n, *size, o * groups), np.int64)
    for y, z, r, s, i in itertools.product(range(h), range(width), range(kh), range(kw), range(c)):
        row, column = y * strides[0] + r * dilation[0] - padding[0], z * strides[1] + s * dilation[1] - padding[1]
        if 0 <= row < size[0] and 0 <= column < size[1]:
            group = i // (c // groups)
            out[:, row, column, group * o : (group + 1) * o] += x[:, y, z, i, None] * w[i, :, r, s]
    return out


CASES = [
    ((1, 1), (0, 0, 0, 0), (0, 0), (1, 1), 1),
    ((2, 2), (1, 1, 1, 1), (0, 0), (1, 1), 1),
    ((2, 3), (0, 1, 2, 0), (1, 2), (1, 1), 1),
    ((1, 2), (1, 0, 1, 2), (0, 1), (2, 3), 1),
    ((2, 2), (0, 0, 1, 1), (1, 0), (1, 1), 2),
    ((3, 1), (2, 1, 0, 0), (0, 0), (1, 2), 4),
]


@pytest.mark.parametrize("dtypes", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"), ("int16", "int8")])
@pytest.mark.parametrize("case", CASES)
def test_scatter(rng, case, dtypes):
    strides, padding, output_padding, dilation, groups = case
    x, w = random_integers(rng, (2, 4, 3, 4), dtypes[0]), random_integers(rng, (4, 3, 3, 2), dtypes[1])
    attributes = dict(strides=strides, padding=padding, output_padding=output_padding, dilation=dilation, groups=groups)
    for zx, zw in [(0, 0), (5, 0), (0, 3), (8, 5)]:
        expected = scatter(x.astype(np.int64) - zx, w.astype(np.int64) - zw, *case)
        result = evaluate(op.conv2d_transpose(x, w, zx, zw, 0.5, 0.5, kernel_layout="IOHW", **attributes))
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kernel_layout", ["OHWI", "OIHW", "HWIO", "HWOI"])
@pytest.mark.parametrize("data_layout", ["NHWC", "NCHW"])
def test_layouts(rng, data_layout, kernel_layout, groups):
    x, w = random_integers(rng, (1, 3, 4, 4), "uint8"), random_integers(rng, (4, 3, 2, 5), "int8")
    zw = rng.integers(-5, 5, 3 * groups).astype(np.int32)
    scale = np.ones(3 * groups, np.float32)
    attributes = dict(strides=(2, 1), padding=(1, 0, 0, 1), groups=groups)
    plain = evaluate(op.conv2d_transpose(x, w, 7, zw, 1.0, scale, kernel_layout="IOHW", **attributes))
    moved_x = x.transpose(["NHWC".index(a) for a in data_layout])
    moved_w = w.transpose(["IOHW".index(a) for a in kernel_layout])
    call = op.conv2d_transpose(
        moved_x, moved_w, 7, zw, 1.0, scale, kernel_layout=kernel_layout, data_layout=data_layout, **attributes
    )
    np.testing.assert_array_equal(evaluate(call), plain.transpose(["NHWC".index(a) for a in data_layout]))


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_tflite(rng, padding):
    """Accumulators requantized as TFLite does equal its reference kernel."""
    from .litert import run_reference

    x, w = random_integers(rng, (1, 5, 4, 3), "int8"), random_integers(rng, (2, 3, 3, 3), "int8")
    source, target = QParams(np.float32(0.05), 4), QParams(np.float32(0.3), -7)
    scales = np.float32([0.01, 0.023])
    weights = QParams(scales, np.zeros(2, np.int32), "int8", axis=0)
    pads = (0, 0, 1, 1) if padding == "SAME" else (0, 0, 0, 0)
    acc = evaluate(op.conv2d_transpose(x, w, 4, 0, source.scale, scales, strides=(2, 2), padding=pads))
    result = evaluate(op.requantize(acc, source.scale * scales, 0, target.scale, -7, axis=3, rounding="TFLITE"))
    constants = [(np.array(acc.shape, np.int32), None), (w, weights)]
    options = {"padding": padding, "strideH": 2, "strideW": 2}
    golden = run_reference(
        "TRANSPOSE_CONV", [(x, source)], acc.shape, target, constants, constants_first=True, **options
    )
    np.testing.assert_array_equal(result, golden)


def test_errors():
    x, w = var("x", (1, 4, 4, 4), "int8"), var("w", (4, 2, 3, 3), "int8")

    def call(x=x, w=w, **kwargs):
        return op.conv2d_transpose(x, w, 0, 0, 1.0, 1.0, **{"kernel_layout": "IOHW", **kwargs})

    with pytest.raises(ShapeError, match="do not match weight"):
        call(x=var("x", (1, 4, 4, 5), "int8"))
    with pytest.raises(ShapeError, match="output_padding"):
        call(output_padding=(1, 0))
    with pytest.raises(ShapeError, match="leaves no output"):
        call(padding=(3, 0, 3, 0))
    with pytest.raises(ShapeError, match="kernel_layout"):
        call(kernel_layout="OHIW")
    with pytest.raises(ShapeError, match="vector of 4"):
        op.conv2d_transpose(x, w, 0, 0, 1.0, np.ones(2, np.float32), groups=2, kernel_layout="IOHW")

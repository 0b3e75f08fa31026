"""QLinear operators of com.microsoft against ONNX Runtime, bit for bit."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import QnnError, UnsupportedOperatorError

from .single_op import MICROSOFT, compare, const, ends, full_range, run_ort, single_op

SHAPES = [
    ((2, 3, 8, 9), (2, 3, 8, 9)),
    ((2, 3, 8, 9), (1, 3, 1, 1)),
    ((1, 3, 1, 1), (2, 3, 8, 9)),
    ((9,), (2, 3, 8, 9)),
    ((2, 3, 8, 9), ()),
    ((), (5,)),
    ((2, 1, 8, 1), (2, 3, 1, 9)),
    ((1,), (1,)),
]
BYTES = [np.uint8, np.int8]


def operands(rng, dtype, shapes, zeros, scales=(0.11, 0.07, 0.15), dynamic=False):
    """Inputs of QLinearAdd and QLinearMul."""

    def parameter(value, kind):
        return np.asarray(value, kind) if dynamic else const(value, kind)

    inputs = []
    for shape, scale, zero in zip(shapes, scales, zeros, strict=False):
        inputs += [full_range(rng, dtype, *shape), parameter(scale, np.float32), parameter(zero, dtype)]
    return [*inputs, parameter(scales[2], np.float32), parameter(zeros[2], dtype)]


def ms(op, inputs, dtype, **attributes):
    return compare(op, inputs, [dtype], domain=MICROSOFT, **attributes)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_binary_broadcast(op, shapes, dtype, rng):
    low, middle, high = ends(dtype)
    ms(op, operands(rng, dtype, shapes, (middle, high, low)), dtype)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_binary_many_qparams(op, dtype, rng):
    """The order of float operations: 200,000 results, with scales of powers of two for midpoints."""
    for case in range(4):
        scales = rng.uniform(0.01, 0.2, 3) if case % 2 else 2.0 ** rng.integers(-6, -2, 3)
        zeros = full_range(rng, dtype, 3)
        ms(op, operands(rng, dtype, [(50, 1000)] * 2, zeros, scales), dtype)


@pytest.mark.parametrize("shape", [(5, 1), ()])
def test_a_sum_whose_zero_points_cancel_it(shape):
    """Terms of 10⁶, of which 1.4 remains: where A is broadcast, B's part of the zero points is added last."""
    a, b = np.full(shape, 29, np.int8), np.full((5, 9), 127, np.int8)
    scales = [const(scale) for scale in (1.8237326e8, 2.8182424e13, 3.2732877e9)]
    zeros = [const(zero, np.int8) for zero in (3, 127, 0)]
    ms("QLinearAdd", [a, scales[0], zeros[0], b, scales[1], zeros[1], scales[2], zeros[2]], np.int8)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_binary_with_qparams_of_run_time(op, rng):
    ms(op, operands(rng, np.uint8, [(2, 3, 40), (3, 1)], (3, 130, 7), dynamic=True), np.uint8)


def test_a_stray_vector_of_scales_is_refused(rng):
    inputs = operands(rng, np.uint8, [(2, 3), (3,)], (0, 0, 0))
    inputs[1] = const([0.1, 0.2, 0.3])
    with pytest.raises(UnsupportedOperatorError, match=r"the scale of A with shape \(3,\)"):
        qnn_ext.from_onnx(single_op("QLinearAdd", inputs, [np.uint8], domain=MICROSOFT)[0])


# ---- functions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("op,attributes", [("QLinearLeakyRelu", {"alpha": 0.13}), ("QLinearSigmoid", {})])
def test_functions_by_table(op, attributes, dtype, rng):
    data = np.arange(256).astype(dtype)
    for scale in (0.011, 0.11, 1.7):
        for zero in ends(dtype):
            model, feed = single_op(
                op,
                [data, const(scale), const(zero, dtype), const(scale if attributes else 1 / 256), const(3, dtype)],
                [dtype],
                domain=MICROSOFT,
                **attributes,
            )
            np.testing.assert_array_equal(qnn_ext.Interpreter(qnn_ext.from_onnx(model))(data), run_ort(model, feed)[0])
    ms(op, [data, const(0.1), None, const(0.02), None], dtype, **attributes)


@pytest.mark.parametrize("op", ["QLinearLeakyRelu", "QLinearSigmoid"])
def test_functions_with_qparams_of_run_time(op, rng):
    qparams = np.float32(0.05), np.uint8(100), np.float32(0.01), np.uint8(30)
    ms(op, [full_range(rng, np.uint8, 4, 60), *qparams], np.uint8)


@pytest.mark.parametrize("dtype", BYTES)
def test_concat(dtype, rng):
    low, middle, high = ends(dtype)
    parts = []
    for width, scale, zero in ((3, 0.11, low), (5, 0.1, middle), (1, 0.03, high)):
        parts += [full_range(rng, dtype, 2, width, 7), const(scale), const(zero, dtype)]
    ms("QLinearConcat", [const(0.1), const(middle, dtype), *parts], dtype, axis=-2)
    with pytest.raises(QnnError, match="QLinearConcat"):
        qnn_ext.from_onnx(single_op("QLinearConcat", [const(0.1), const(0, dtype), *parts[:-1]], [dtype], MICROSOFT)[0])


@pytest.mark.parametrize("dtype", BYTES)
def test_where(dtype, rng):
    low, middle, _ = ends(dtype)
    x = [full_range(rng, dtype, 4, 1, 6), const(0.11), const(low, dtype)]
    y = [full_range(rng, dtype, 5, 6), const(0.1), const(middle, dtype)]
    ms("QLinearWhere", [rng.random((4, 5, 6)) > 0.5, *x, *y, const(0.1), const(middle, dtype)], dtype)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize(
    "shape,attributes",
    [
        ((20, 50), {"axis": -1, "node_opset": 13}),
        ((7, 300, 3), {"axis": 1, "node_opset": 13}),
        ((4, 5, 6), {"axis": 1, "node_opset": 11}),
        ((4, 5, 6), {"node_opset": 12}),
    ],
)
def test_softmax(shape, attributes, dtype, rng):
    zero = np.iinfo(dtype).min
    inputs = [full_range(rng, dtype, *shape), const(0.06), const(0, dtype), const(1 / 256), const(zero, dtype)]
    ms("QLinearSoftmax", inputs, dtype, **attributes)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("length", [1, 2, 3, 6])
@pytest.mark.parametrize("steps", [150, 192, 255, 600, 99999])
def test_softmax_of_short_rows(length, steps, dtype, rng):
    """Exponentials near the largest float32, and many midpoints."""
    low, _, high = ends(dtype)
    data = np.concatenate([np.full((1, length), 5), rng.integers(high - 5, high + 1, (20, length))]).astype(dtype)
    inputs = [data, const(0.1), const(0, dtype), const(1 / (steps + 0.3)), const(low, dtype)]
    ms("QLinearSoftmax", inputs, dtype, axis=-1, node_opset=13)


@pytest.mark.parametrize("dtype", BYTES)
def test_softmax_next_to_a_midpoint(dtype):
    """The fifth probability is 16.5 steps in float32, and more in float64."""
    row = np.array([97, 147, 142, 124, 144, 111, 191, 110, 119, 133, 136, 88, 118, 130, 166, 157])
    low = np.iinfo(dtype).min
    inputs = [(row + low).astype(dtype)[None], const(0.0035845493), const(0, dtype), const(0.003921569)]
    ms("QLinearSoftmax", [*inputs, const(low, dtype)], dtype, axis=-1, node_opset=13)


# ---- pooling -----------------------------------------------------------------------------------------------------

WINDOWS = [
    {"kernel_shape": [3, 2], "strides": [2, 1]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1, "count_include_pad": 1},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 1, 1, 0], "ceil_mode": 1},
    {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [2, 3], "strides": [1, 2], "auto_pad": "SAME_LOWER", "count_include_pad": 1},
    {"kernel_shape": [10, 11]},
]


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("window", WINDOWS)
def test_average_pool(window, channels_last, dtype, rng):
    """Equal scales: averages of four cells are often midpoints."""
    low, middle, _ = ends(dtype)
    shape = (2, 10, 11, 6) if channels_last else (2, 6, 10, 11)
    inputs = [full_range(rng, dtype, *shape), const(0.11), const(low, dtype), const(0.11), const(middle, dtype)]
    ms("QLinearAveragePool", inputs, dtype, channels_last=channels_last, **window)


@pytest.mark.parametrize("spatial,attributes", [((10,), {}), ((6, 5, 7), {"pads": [1, 0, 0, 0, 1, 1]})])
def test_average_pool_of_other_ranks(spatial, attributes, rng):
    inputs = [
        full_range(rng, np.uint8, 2, 3, *spatial),
        const(0.11),
        const(9, np.uint8),
        const(0.07),
        const(0, np.uint8),
    ]
    ms("QLinearAveragePool", inputs, np.uint8, kernel_shape=[3, 2, 2][: len(spatial)], **attributes)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("channels_last", [0, 1])
def test_global_average_pool(channels_last, dtype, rng):
    low, middle, high = ends(dtype)
    shape = (2, 9, 7, 21) if channels_last else (2, 21, 9, 7)
    for zeros in ((low, high), (middle, low), (high, middle)):
        first, second = (const(zero, dtype) for zero in zeros)
        inputs = [full_range(rng, dtype, *shape), const(0.11), first, const(0.031), second]
        ms("QLinearGlobalAveragePool", inputs, dtype, channels_last=channels_last)


@pytest.mark.parametrize("op,attributes", [("QLinearGlobalAveragePool", {}), ("QLinearAveragePool", WINDOWS[1])])
def test_pools_with_qparams_of_run_time(op, attributes, rng):
    qparams = [np.asarray(v, d) for v, d in ((0.11, "f4"), (3, "u1"), (0.05, "f4"), (140, "u1"))]
    ms(op, [full_range(rng, np.uint8, 2, 5, 8, 9), *qparams], np.uint8, **attributes)


@pytest.mark.parametrize("axes,keepdims", [([2, 3], 1), ([-1], 0), (None, 1)])
def test_reduce_mean(axes, keepdims, rng):
    """ONNX Runtime has no kernel for it: compared with the formula."""
    data = full_range(rng, np.int8, 2, 5, 7, 6)
    attributes = {"axes": axes} if axes else {}
    inputs = [data, const(0.1), const(3, np.int8), const(0.02), const(-9, np.int8)]
    model, feed = single_op("QLinearReduceMean", inputs, [np.int8], domain=MICROSOFT, keepdims=keepdims, **attributes)
    where = tuple(axes) if axes else None
    total = (data.astype(np.int32) - 3).sum(axis=where, keepdims=bool(keepdims))
    count = data.size // total.size
    multiplier = np.float32(0.1) / (np.float32(0.02) * np.float32(count))
    expected = np.clip(np.rint(total.astype(np.float32) * multiplier) - 9, -128, 127)
    module = qnn_ext.from_onnx(model)
    np.testing.assert_array_equal(qnn_ext.Interpreter(module)(data), expected)
    np.testing.assert_array_equal(qnn_ext.build(module).run(feed)["out0"], expected)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [2, 2], "dilations": [2, 3]},
        {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"},
    ],
)
def test_nhwc_max_pool(window, dtype, rng):
    ms("NhwcMaxPool", [full_range(rng, dtype, 2, 10, 11, 6)], dtype, **window)


def test_nhwc_max_pool_of_volumes(rng):
    window = {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2], "pads": [0, 1, 1, 1, 1, 0], "ceil_mode": 1}
    ms("NhwcMaxPool", [full_range(rng, np.uint8, 2, 4, 7, 5, 3)], np.uint8, **window)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_quantize_and_dequantize(dtype, rng):
    zero = ends(dtype)[1]
    real = (rng.standard_normal((4, 6)) * 30).astype(np.float32)
    ms("QuantizeLinear", [real, const(0.1), const(zero, dtype)], dtype)
    data = full_range(rng, dtype, 4, 6)
    zeros = const(np.full(6, zero), dtype)
    ms("DequantizeLinear", [data, const(np.linspace(0.1, 0.2, 6)), zeros], np.float32, axis=1)


# ---- operators that became ONNX's own -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_grid_sample(mode, padding_mode, rng):
    x, grid = rng.standard_normal((2, 3, 6, 5)), rng.uniform(-1.3, 1.3, (2, 4, 7, 2))
    operands = [x.astype(np.float32), grid.astype(np.float32)]
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": 1}
    compare("GridSample", operands, [np.float32], 1e-5, domain=MICROSOFT, **attributes)


@pytest.mark.parametrize("upper, diagonal", [(1, None), (0, None), (1, -1), (0, 2)])
def test_triangle(upper, diagonal, rng):
    k = [] if diagonal is None else [const(diagonal, np.int64)]
    data = rng.standard_normal((2, 4, 5)).astype(np.float32)
    compare("Trilu", [data, *k], [np.float32], domain=MICROSOFT, upper=upper)


# ---- what ONNX has had under the same name since ------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("widths", [[1, 0, 0, 2], [[0, 3, -1, 1]]])
def test_pad(widths, mode, rng):
    data = rng.standard_normal((4, 5)).astype(np.float32)
    value = [const(2)] if mode == "constant" else []
    compare("Pad", [data, const(widths, np.int64), *value], [np.float32], domain=MICROSOFT, mode=mode)


@pytest.mark.parametrize("axis", [-3, -1, 0, 1, 2])
def test_expand_dims(axis, rng):
    data = rng.standard_normal((4, 5)).astype(np.float32)
    compare("ExpandDims", [data, const(axis, np.int32)], [np.float32], domain=MICROSOFT)


def test_gather_nd(rng):
    data = rng.standard_normal((4, 5, 3)).astype(np.float32)
    compare("GatherND", [data, np.int64([[0, 1], [3, -1]])], [np.float32], domain=MICROSOFT)


@pytest.mark.parametrize(
    "numbers", [np.float32([0, 5, 2]), np.float32([3, -1, -0.3]), np.int64([2, 7]), np.float32([1, 0, 1])]
)
def test_range(numbers):
    compare("Range", [const(number, numbers.dtype) for number in numbers], [numbers.dtype], domain=MICROSOFT)


@pytest.mark.parametrize("numbers", [np.float32([0, 5, 0]), np.float32([0, np.inf, 1])])
def test_endless_ranges(numbers):
    proto, _ = single_op("Range", [const(number) for number in numbers], [np.float32], domain=MICROSOFT)
    with pytest.raises(QnnError, match=r"Range.*a range from 0\.0 to"):
        qnn_ext.from_onnx(proto)


def test_unique(rng):
    """Values in the order in which they are first."""
    data = rng.integers(0, 6, 20).astype(np.float32)
    compare("Unique", [data], [np.float32, np.int64, np.int64], domain=MICROSOFT)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
def test_distances(metric, dtype, rng):
    rows = [rng.standard_normal((count, 3)).astype(dtype) for count in (5, 4)]
    compare("CDist", rows, [dtype], 1e-5, domain=MICROSOFT, metric=metric)


@pytest.mark.parametrize(("shapes", "metric"), [([(5, 3), (4, 2)], "euclidean"), ([(5, 3), (4, 3)], "cosine")])
def test_distances_that_there_are_not(shapes, metric):
    proto, _ = single_op(
        "CDist", [np.ones(shape, np.float32) for shape in shapes], [np.float32], domain=MICROSOFT, metric=metric
    )
    with pytest.raises(QnnError, match=r"CDist.*(have no distances|metric must be)"):
        qnn_ext.from_onnx(proto)


def test_layouts_of_one_cpu_are_refused():
    domain = "com.microsoft.nchwc"
    proto, _ = single_op("ReorderInput", [np.zeros((1, 8, 4, 4), np.float32)], [np.float32], domain=domain)
    with pytest.raises(UnsupportedOperatorError, match="ORT_ENABLE_EXTENDED instead of ORT_ENABLE_ALL"):
        qnn_ext.from_onnx(proto)

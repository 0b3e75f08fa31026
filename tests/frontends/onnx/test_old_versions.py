"""Operators of old operator sets, where inputs were still attributes: against ONNX Runtime, which knows versions from 7
on, and against NumPy before that."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import ModelFormatError

from .single_op import compare, const, single_op

F32 = np.float32


@pytest.fixture
def x(rng):
    return rng.standard_normal((2, 3, 4, 5)).astype(F32)


@pytest.mark.parametrize(
    "ranges",
    [
        {"starts": [0, 1], "ends": [1, 1000], "axes": [1, 3]},
        {"starts": [0, 1, -3], "ends": [2, 3, -1]},
        {"starts": [-3], "ends": [-1], "axes": [-1]},
        {"starts": [-(2**62)], "ends": [2**63 - 1], "axes": [2]},
    ],
)
def test_slice(ranges, x):
    for opset in (7, 9):
        compare("Slice", [x], [F32], opset=opset, **ranges)
    inputs = [x, *(const(values, np.int64) for values in ranges.values())]
    compare("Slice", inputs, [F32], opset=11)


@pytest.mark.parametrize("start, end", [(-1, -1000), (4, 0), (3, -4), (1000, -(2**63)), (0, 2)])
def test_slice_backwards(start, end, x):
    parameters = [const([value], np.int64) for value in (start, end, -1, -2)]
    compare("Slice", [x, *parameters], [F32], opset=11)


@pytest.mark.parametrize("k, axis", [(2, -1), (3, 1)])
def test_topk(k, axis, x):
    compare("TopK", [x], [F32, np.int64], opset=7, k=k, axis=axis)
    compare("TopK", [x, const([k], np.int64)], [F32, np.int64], opset=10, axis=axis)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [[1, 1, 2, 2], [1, 1, 2, 1.5], [1, 1, 1, 3]])
def test_upsample(mode, scales, x):
    compare("Upsample", [x], [F32], 1e-6, opset=7, mode=mode, scales=[float(scale) for scale in scales])
    compare("Upsample", [x, const(scales)], [F32], 1e-6, opset=9, mode=mode)
    compare("Resize", [x, const(scales)], [F32], 1e-6, opset=10, mode=mode)


@pytest.mark.parametrize("opset", [7, 10, 12])
def test_the_mask_of_a_dropout(opset, x):
    compare("Dropout", [x], [F32, F32 if opset < 10 else np.bool_], opset=opset)


def test_batch_normalization_of_elements(x, rng):
    parameters = [const(rng.uniform(0.5, 2, (3, 4, 5))) for _ in range(4)]
    compare("BatchNormalization", [x, *parameters], [F32], 1e-6, opset=7, spatial=0)


@pytest.mark.parametrize("op, opset", [("MaxPool", 8), ("MaxPool", 12), ("AveragePool", 7), ("AveragePool", 11)])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("kernel, stride", [(3, 2), (2, 2), (3, 1)])
def test_padding_of_pools(op, opset, mode, kernel, stride, x):
    compare(op, [x], [F32], 1e-6, opset=opset, kernel_shape=[kernel] * 2, strides=[stride] * 2, auto_pad=mode)


@pytest.mark.parametrize("slope", [(3, 1, 1), (1,), (5,), (4, 1), (3, 4, 5), (3, 1, 5)])
def test_prelu(slope, x, rng):
    compare("PRelu", [x, const(rng.standard_normal(slope))], [F32], opset=7)


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare", "ReduceLogSumExp"])
def test_reductions_over_no_axes(op, rng):
    data = rng.uniform(0.5, 2, (2, 3)).astype(F32)
    data = data if "Log" in op else -data
    compare(op, [data], [F32], 1e-6, opset=18, noop_with_empty_axes=1)
    compare(op, [data, const([], np.int64)], [F32], 1e-6, opset=18, noop_with_empty_axes=1)


@pytest.mark.parametrize("axes, attributes", [
    ([1], {}), ([0, -1], {"keepdims": 0}), (None, {}), (None, {"noop_with_empty_axes": 1}),
])  # fmt: skip
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_extremes_of_truth_values(op, axes, attributes, rng):
    inputs = [rng.random((2, 3, 4)) < 0.5, *([const(axes, np.int64)] if axes else [])]
    compare(op, inputs, [np.bool_], opset=20, **attributes)


# ---- before version 7 --------------------------------------------------------------------------------------------


def interpreted(op, inputs, dtype, opset, **attributes):
    proto, feed = single_op(op, inputs, [dtype], opset=opset, **attributes)
    return next(iter(qnn_ext.Interpreter(qnn_ext.from_onnx(proto)).run(feed).values()))


OPERATORS = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Greater": np.greater,
    "Less": np.less,
}


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("shape, axis", [((3,), 1), ((3, 4), 1), ((2,), 0), ((4, 5), None), ((1,), None)])
def test_operands_aligned_by_an_axis(op, shape, axis, x, rng):
    operand = rng.uniform(0.5, 2, shape).astype(F32)
    aligned = operand if axis is None else operand.reshape(*shape, *(1,) * (4 - axis - len(shape)))
    attributes = {} if axis is None else {"axis": axis}
    dtype = np.bool_ if op in ("Greater", "Less") else F32
    found = interpreted(op, [x, operand], dtype, 6, broadcast=1, **attributes)
    np.testing.assert_array_equal(found, OPERATORS[op](x, aligned))


def test_powers_aligned_by_an_axis(rng):
    base, exponent = rng.uniform(0.5, 2, (2, 3, 4)).astype(F32), rng.uniform(0.5, 2, 3).astype(F32)
    found = interpreted("Pow", [base, exponent], F32, 6, broadcast=1, axis=1)
    np.testing.assert_allclose(found, base ** exponent.reshape(3, 1), rtol=1e-5)


@pytest.mark.parametrize("axis", [-1, 4, 3])
def test_an_axis_that_does_not_fit(axis, x):
    with pytest.raises(ModelFormatError, match=r"from axis .* on does not fit"):
        interpreted("Add", [x, np.ones((3, 4), F32)], F32, 6, broadcast=1, axis=axis)


def test_a_slope_for_each_channel(x, rng):
    slope = rng.standard_normal(3).astype(F32)
    found = interpreted("PRelu", [x, const(slope)], F32, 6)
    np.testing.assert_array_equal(found, np.where(x < 0, x * slope.reshape(3, 1, 1), x))


def test_a_slope_that_does_not_broadcast(x):
    with pytest.raises(ModelFormatError, match=r"a slope of shape \(3,\) does not broadcast"):
        interpreted("PRelu", [x, const(np.ones(3))], F32, 7)


def test_reshape_and_concat(x):
    np.testing.assert_array_equal(interpreted("Reshape", [x], F32, 1, shape=[0, -1]), x.reshape(2, -1))
    np.testing.assert_array_equal(interpreted("Concat", [x, x], F32, 1), np.concatenate([x, x], 1))


def test_a_cast_to_a_dtype_by_name(x):
    assert interpreted("Cast", [x], np.float16, 1, to="FLOAT16").dtype == np.float16
    with pytest.raises(ModelFormatError, match="there is no element type 'REAL'"):
        interpreted("Cast", [x], np.float16, 1, to="REAL")


@pytest.mark.parametrize(
    "op, attributes, message",
    [
        ("Slice", {"starts": [0], "ends": [1, 2]}, "do not match"),
        ("Slice", {"starts": [0, 0], "ends": [1, 1], "axes": [1, 1]}, "do not match"),
        ("Slice", {"starts": [0] * 5, "ends": [1] * 5}, "do not suit shape"),
        ("Upsample", {"scales": [1.0, 1.0, 2.0]}, "3 scales do not match 4 axes"),
        ("Upsample", {}, "0 scales do not match"),
        ("Concat", {}, "attribute axis is missing"),
        ("MaxPool", {}, "kernel_shape is missing"),
        ("MaxPool", {"kernel_shape": [9, 9]}, "larger than the padded input"),
        ("BatchNormalization", {"spatial": 0}, "per element of a sample"),
    ],
)
def test_contradictions(op, attributes, message, x):
    more = [const(np.ones(3))] * 4 if op == "BatchNormalization" else []
    with pytest.raises(ModelFormatError, match=message):
        interpreted(op, [x, *more], F32, 7, **attributes)


def test_steps_of_zero(x):
    parameters = [const([value], np.int64) for value in (0, 2, 1, 0)]
    proto, _ = single_op("Slice", [x, *parameters], [F32], opset=11)
    with pytest.raises(ModelFormatError, match="steps"):
        qnn_ext.from_onnx(proto)

"""Elementwise operators of several tensors, and shapes in attributes: the bits of ONNX Runtime."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import ModelFormatError
from qnn_ext.errors import QnnError

from .graphs import model, node, onnx, operators, run_ort, value
from .single_op import compare, const, full_range, single_op

F32 = np.float32


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
def test_several_tensors(op, rng):
    shapes = [(2, 3, 4), (4,), (3, 1), (1,)]
    tensors = [rng.standard_normal(shape).astype(F32) for shape in shapes]
    if op in ("Max", "Min"):
        tensors[0][0, 0, :2] = np.nan
        tensors[1][2] = np.nan
    for count in (1, 2, 3, 4):
        compare(op, tensors[:count], [F32], opset=13)


@pytest.mark.parametrize("op", ["Max", "Min"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.int8])
def test_extremes_of_integers(op, dtype, rng):
    tensors = [full_range(rng, dtype, *shape) for shape in ((2, 3, 4), (4,), (3, 1))]
    compare(op, tensors, [dtype], opset=13)


def test_maxima_of_quantized_tensors_are_of_integers(rng):
    constants = {"s": F32(0.05), "z": np.uint8(120)}
    nodes = [
        *(node("QuantizeLinear", [name, "s", "z"], [f"q{name}"]) for name in "xy"),
        *(node("DequantizeLinear", [f"q{name}", "s", "z"], [f"d{name}"]) for name in "xy"),
        node("Max", ["dx", "dy"], ["m"]),
        node("QuantizeLinear", ["m", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["r"]),
    ]
    proto = model(nodes, [value(name, (1, 3, 4, 4)) for name in "xy"], [value("r", None)], constants)
    module = qnn_ext.from_onnx(proto)
    assert operators(module).count("qnn.dequantize") == 1 and not module.notes
    feed = {name: rng.standard_normal((1, 3, 4, 4)).astype(F32) * 4 for name in "xy"}
    (found,) = qnn_ext.Interpreter(module).run(feed).values()
    np.testing.assert_array_equal(found, run_ort(proto, feed)[0])


@pytest.mark.parametrize(
    "op, attributes, message",
    [
        ("Transpose", {"perm": [0, 0, 1]}, "is no order of 3 axes"),
        ("Transpose", {"perm": [0, 1]}, "is no order of 3 axes"),
        ("Squeeze", {"axes": [1]}, "do not all have the length 1"),
        ("Unsqueeze", {"axes": [0, 0]}, "are not distinct"),
    ],
)
def test_contradictions(op, attributes, message):
    proto, _ = single_op(op, [np.ones((1, 3, 2), F32)], [F32], opset=11, **attributes)
    with pytest.raises(ModelFormatError, match=message):
        qnn_ext.from_onnx(proto)


def test_one_tensor_that_is_constant(rng):
    compare("Sub", [rng.standard_normal((2, 3)).astype(F32), const(2.5)], [F32], opset=13)


PAIRS = [(F32, np.uint32), (np.int32, F32), (np.int8, np.uint8), (np.float64, np.int64), (np.float16, np.int16)]


@pytest.mark.parametrize(("dtype", "to"), PAIRS)
def test_bitcast(dtype, to, rng):
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(to))
    compare("BitCast", [rng.integers(0, 100, (3, 5)).astype(dtype)], [to], opset=26, to=code)


@pytest.mark.parametrize(("to", "message"), [(np.int16, "differ in size"), (np.bool_, "the bits of float32 as bool")])
def test_bitcast_to_what_has_other_bits(to, message):
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(to))
    proto, _ = single_op("BitCast", [np.ones((2, 3), F32)], [to], opset=26, to=code)
    with pytest.raises(QnnError, match=message):
        qnn_ext.from_onnx(proto)

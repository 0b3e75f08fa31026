"""Attributes, dtypes and shapes that make no sense: refused at import, or computed as ONNX defines them."""

from __future__ import annotations

import numpy as np
import pytest

import qnn_ext
from qnn_ext import Interpreter, QnnError

from .graphs import integer_model, model, node, value
from .networks import cnn, transformer
from .single_op import MICROSOFT, const, single_op


def imported(nodes, shape, dtype=np.float32, constants=None, opset=21):
    """The module of nodes that compute y from x."""
    return qnn_ext.from_onnx(
        model(nodes, [value("x", shape, dtype)], [value("y", None, dtype)], constants, opset).SerializeToString()
    )


def test_repeated_tensors():
    """Repeats whose remainders LLVM's vectorizer once took for the loop variable."""
    module = imported([node("Tile", ["x", "r"], ["y"])], (2, 3, 4, 5), constants={"r": np.asarray([7, 6, 4, 2])})
    data = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    np.testing.assert_array_equal(qnn_ext.build(module, num_threads=1)(data), np.tile(data, (7, 6, 4, 2)))


@pytest.mark.parametrize("number", [-(1 << 40), -3229614080, -4, 0, 5, 1 << 40])
@pytest.mark.parametrize("upper", [0, 1])
def test_diagonals_far_outside(number, upper):
    nodes = [node("Trilu", ["x", "k"], ["y"], upper=upper)]
    module = imported(nodes, (4, 5), np.int64, {"k": np.asarray(number)})
    data = np.arange(1, 21).reshape(4, 5)
    keep = np.arange(5) - np.arange(4)[:, None]
    wanted = np.where(keep >= number if upper else keep <= number, data, 0)
    np.testing.assert_array_equal(qnn_ext.build(module, num_threads=1)(data), wanted)


def test_normalization_over_all_axes():
    nodes = [node("RMSNormalization", ["x", "w"], ["y"], axis=0)]
    module = imported(nodes, (3, 4), constants={"w": np.ones((3, 4), np.float32)}, opset=21)
    data = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    wanted = data / np.sqrt(np.mean(data.astype(np.float64) ** 2) + 1e-5)
    np.testing.assert_allclose(qnn_ext.build(module, num_threads=1)(data), wanted, rtol=1e-6)


def test_empty_parts_of_a_concatenation():
    nodes = [node("Concat", ["e", "x"], ["c"], axis=2), node("Relu", ["c"], ["y"])]
    module = imported(nodes, (2, 4, 8), constants={"e": np.zeros((2, 4, 0), np.float32)})
    data = np.random.default_rng(0).standard_normal((2, 4, 8)).astype(np.float32)
    for run in (Interpreter(module), qnn_ext.build(module, num_threads=1)):
        np.testing.assert_array_equal(run(data), np.maximum(data, 0))


@pytest.mark.parametrize("kind", ["Mul", "Div"])
@pytest.mark.parametrize("operands", [["x", "zero"], ["zero", "x"]])
def test_products_and_quotients_of_zero(kind, operands):
    """TVM's own rules make 0 of 0·NaN, 0·∞ and 0 / 0."""
    module = imported([node(kind, operands, ["y"])], (8,), constants={"zero": np.float32(0)})
    data = np.asarray([0, -0.0, 1, -2, 1e-45, np.inf, -np.inf, np.nan], np.float32)
    with np.errstate(all="ignore"):
        wanted = {"Mul": np.multiply, "Div": np.divide}[kind](*(data if name == "x" else 0 for name in operands))
        for run in (Interpreter(module), qnn_ext.build(module, num_threads=1)):
            np.testing.assert_array_equal(run(data), wanted.astype(np.float32))


def test_products_of_zero_that_are_quantized():
    """The same within an integer kernel: a NaN is the zero point."""
    nodes = [node("Mul", ["x", "zero"], ["m"]), node("QuantizeLinear", ["m", "scale", "point"], ["y"])]
    constants = {"zero": np.float32(0), "scale": np.float32(0.1), "point": np.uint8(7)}
    proto = model(nodes, [value("x", (4,))], [value("y", None, np.uint8)], constants)
    module = qnn_ext.from_onnx(proto.SerializeToString())
    data = np.asarray([1, np.inf, np.nan, -3], np.float32)
    with np.errstate(all="ignore"):
        wanted = Interpreter(module)(data)
    np.testing.assert_array_equal(qnn_ext.build(module, num_threads=1)(data), wanted)


@pytest.mark.parametrize(
    ("nodes", "shape", "dtype", "message"),
    [
        (
            [node("GridSample", ["x", "g"], ["y"], mode="../../etc/passwd")],
            (1, 1, 3, 2),
            np.float32,
            "mode must be one",
        ),
        (
            [node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)],
            (1, 1, 4, 1),
            np.float32,
            "larger than",
        ),
        ([node("Xor", ["x", "x"], ["y"])], (3,), np.uint8, "takes bool"),
        ([node("Neg", ["x"], ["y"])], (3,), bool, "takes floats or integers"),
        ([node("SimplifiedLayerNormalization", ["x", "x"], ["y"])], (3, 4), bool, "floats are supported"),
        ([node("Mean", ["x"], ["y"])], (3,), np.int32, "takes floats"),
        ([node("ConcatFromSequence", ["x"], ["y"], axis=0)], (3,), np.float32, "sequence"),
    ],
)
def test_refused(nodes, shape, dtype, message):
    with pytest.raises(QnnError, match=message):
        imported(nodes, shape, dtype, {"g": np.zeros((1, 2, 4, 2), np.float32)})


def test_tables_of_wide_integers():
    inputs = [np.zeros((2, 8), np.int32), const(0.05), const(0, np.int32), const(0.1), const(0, np.int32)]
    proto, _ = single_op("QLinearSigmoid", inputs, [np.int32], domain=MICROSOFT)
    with pytest.raises(QnnError, match="supported: int8 and uint8"):
        qnn_ext.from_onnx(proto.SerializeToString())


@pytest.mark.parametrize("whole", [cnn, transformer, integer_model])
def test_truncations(whole):
    content = whole().SerializeToString()
    qnn_ext.from_onnx(content)
    for length in range(0, len(content), max(1, len(content) // 100)):
        with pytest.raises(QnnError):
            qnn_ext.from_onnx(content[:length])

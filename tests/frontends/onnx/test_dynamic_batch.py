"""Batches of any size: a model that treats samples one by one is compiled once and takes any number of them."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import InputError, UnsupportedOperatorError
from qnn_ext.frontends.onnx import from_onnx

from .graphs import model, node, run_ort, value


def cnn(batch="N", rng=None):
    """Convolution, relu, pooling, batch normalization, flatten by shape arithmetic, gemm, softmax; all quantized."""
    rng = rng or np.random.default_rng(3)
    weights = rng.integers(-127, 127, (4, 3, 3, 3)).astype(np.int8)
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        node("DequantizeLinear", ["w", "sw"], ["wd"]),
        node("Conv", ["xd", "wd", "b"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("QuantizeLinear", ["r", "s", "z"], ["rq"]),
        node("DequantizeLinear", ["rq", "s", "z"], ["rd"]),
        node("MaxPool", ["rd"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("BatchNormalization", ["p", "one", "b", "b", "one"], ["n"]),
        node("Shape", ["n"], ["shape"], start=0, end=1),
        node("Concat", ["shape", "rest"], ["target"], axis=0),
        node("Reshape", ["n", "target"], ["f"]),
        node("Gemm", ["f", "g"], ["m"]),
        node("Softmax", ["m"], ["y"], axis=-1),
    ]
    constants = {
        "s": np.float32(0.02),
        "z": np.uint8(100),
        "w": weights,
        "sw": np.float32(0.01),
        "b": rng.standard_normal(4).astype(np.float32),
        "one": np.ones(4, np.float32),
        "rest": np.asarray([-1]),
        "g": rng.standard_normal((64, 5)).astype(np.float32),
    }
    return model(nodes, [value("x", (batch, 3, 8, 8))], [value("y", (batch, 5))], constants)


def test_any_number_of_samples(rng, tmp_path):
    module = from_onnx(cnn())
    assert module.inputs[0].dynamic_batch and module.outputs[0].dynamic_batch
    assert str(module.inputs[0]).startswith("x: N×3×8×8")
    engine = qnn_ext.build(module, num_threads=1)
    engine.save(tmp_path / "m.qnn")
    loaded = qnn_ext.load(tmp_path / "m.qnn")
    assert loaded.inputs == engine.inputs and loaded.inputs[0].dynamic_batch
    for size in (1, 2, 5):
        x = rng.standard_normal((size, 3, 8, 8)).astype(np.float32)
        (expected,) = run_ort(cnn(), {"x": x})
        for run in (engine, loaded, qnn_ext.Interpreter(module)):
            result = run(x)
            assert result.shape == (size, 5)
            np.testing.assert_allclose(result, expected, atol=1e-2)
        np.testing.assert_array_equal(engine(x), np.concatenate([engine(x[i : i + 1]) for i in range(size)]))


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (3, 8, 8), (2, 3, 8, 9)])
def test_inputs_that_do_not_fit(shape):
    with pytest.raises(InputError, match=r"\(N, 3, 8, 8\)"):
        qnn_ext.Interpreter(from_onnx(cnn()))(np.zeros(shape, np.float32))


@pytest.mark.parametrize("shapes", [{"x": ("N", 3, 8, 8)}, {"x": (None, 3, 8, 8)}])
def test_asked_for_by_shapes(shapes):
    assert from_onnx(cnn(1), shapes=shapes).inputs[0].dynamic_batch


@pytest.mark.parametrize("shapes, size", [({"N": 3}, 3), ({"x": (2, 3, 8, 8)}, 2)])
def test_fixed_by_shapes(shapes, size):
    module = from_onnx(cnn(), shapes=shapes)
    assert module.inputs[0].shape == (size, 3, 8, 8) and not module.inputs[0].dynamic_batch


def two_inputs(nodes, constants=None):
    return model(nodes, [value("a", ("N", 4)), value("b", ("N", 4))], [value("y", None)], constants)


def test_two_inputs_of_one_batch_size(rng):
    proto = two_inputs([node("Add", ["a", "b"], ["y"])])
    engine = qnn_ext.Interpreter(from_onnx(proto))
    a, b = rng.standard_normal((2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(engine(a, b), a + b)
    with pytest.raises(InputError, match="same batch size"):
        engine(a, b[:2])


def transformer():
    """Tokens in, a class token in front of them by Expand, attention, the class token out."""
    rng = np.random.default_rng(5)
    nodes = [
        node("Gather", ["table", "x"], ["e"]),
        node("Shape", ["x"], ["n"], start=0, end=1),
        node("Concat", ["n", "ones"], ["target"], axis=0),
        node("Expand", ["token", "target"], ["t"]),
        node("Concat", ["t", "e"], ["h"], axis=1),
        node("LayerNormalization", ["h", "scale", "scale"], ["l"]),
        node("MatMul", ["l", "q"], ["query"]),
        node("Transpose", ["query"], ["key"], perm=[0, 2, 1]),
        node("MatMul", ["query", "key"], ["scores"]),
        node("Softmax", ["scores"], ["p"], axis=-1),
        node("MatMul", ["p", "l"], ["o"]),
        node("ReduceMean", ["o", "axis"], ["mean"], keepdims=0),
        node("Slice", ["o", "zero", "one", "one"], ["first"]),
        node("Squeeze", ["first", "one"], ["s"]),
        node("Add", ["s", "mean"], ["y"]),
    ]
    constants = {
        "table": rng.standard_normal((10, 8)).astype(np.float32),
        "ones": np.asarray([1, 1]),
        "token": rng.standard_normal((1, 1, 8)).astype(np.float32),
        "scale": np.ones(8, np.float32),
        "q": rng.standard_normal((8, 8)).astype(np.float32),
        "axis": np.asarray([1]),
        "zero": np.asarray([0]),
        "one": np.asarray([1]),
    }
    return model(nodes, [value("x", ("N", 6), np.int64)], [value("y", ("N", 8))], constants)


def test_transformer(rng):
    module = from_onnx(transformer())
    x = rng.integers(0, 10, (3, 6))
    expected = run_ort(transformer(), {"x": x})[0]
    np.testing.assert_allclose(qnn_ext.Interpreter(module)(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "nodes, constants",
    [
        ([node("Transpose", ["a"], ["t"], perm=[1, 0]), node("MatMul", ["t", "b"], ["y"])], None),
        ([node("Softmax", ["a"], ["s"], axis=0), node("Add", ["s", "b"], ["y"])], None),
        ([node("ReduceMax", ["a"], ["m"], axes=[0]), node("Add", ["m", "b"], ["y"])], None),
        ([node("ReduceMean", ["a"], ["m"]), node("Add", ["m", "b"], ["y"])], None),
        ([node("Concat", ["a", "b"], ["y"], axis=0)], None),
        ([node("CumSum", ["a", "zero"], ["s"]), node("Add", ["s", "b"], ["y"])], {"zero": np.int64(0)}),
        ([node("Shape", ["a"], ["s"], end=1), node("Cast", ["s"], ["f"], to=1),
          node("Mul", ["a", "f"], ["m"]), node("Add", ["m", "b"], ["y"])], None),
        ([node("Gather", ["a", "i"], ["g"]), node("Add", ["g", "b"], ["y"])], {"i": np.asarray([0])}),
        ([node("Flatten", ["a"], ["f"], axis=0), node("Flatten", ["b"], ["g"], axis=0),
          node("Add", ["f", "g"], ["y"])], None),
    ],
)  # fmt: skip
def test_models_that_mix_samples_are_refused(nodes, constants):
    proto = two_inputs(nodes, constants)
    for entry in proto.graph.node:  # axes are inputs since version 18
        if entry.op_type == "ReduceMax":
            proto.opset_import[0].version = 13
    with pytest.raises(UnsupportedOperatorError, match=r"batch size open.*shapes=\{'N': 1\}"):
        from_onnx(proto)
    assert from_onnx(proto, shapes={"N": 2}).outputs


def test_samples_that_only_fit_one():
    """A reshape to a fixed shape: the model declares an open batch, but holds for one sample only."""
    proto = model(
        [node("Reshape", ["x", "s"], ["y"])],
        [value("x", ("N", 4))],
        [value("y", None)],
        {"s": np.asarray([1, 2, 2])},
    )
    with pytest.raises(UnsupportedOperatorError, match="batch size open"):
        from_onnx(proto)

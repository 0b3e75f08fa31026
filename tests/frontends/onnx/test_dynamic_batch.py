"""Batches of any size: a model that treats samples one by one is compiled once and takes any number of them."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import InputError, UnsupportedOperatorError
from qnn_ext.frontends.onnx import from_onnx
from tests.frontends.onnx.networks import cnn, transformer

from .graphs import model, node, run_ort, value


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

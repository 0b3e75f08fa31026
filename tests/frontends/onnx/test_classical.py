"""What scikit-learn's converter writes around a network, against ONNX Runtime."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import InputError, ModelFormatError, UnsupportedOperatorError

from .graphs import node, onnx, ort, value

DOMAIN = "ai.onnx.ml"
F32, I64 = np.float32, np.int64


def proto_of(nodes, inputs, outputs, constants=None):
    tensors = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = onnx.helper.make_graph(nodes, "test", inputs, outputs, tensors)
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid(DOMAIN, 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def check(proto, feed):
    wanted = ort.InferenceSession(proto.SerializeToString()).run(None, feed)
    module = qnn_ext.from_onnx(proto)
    for runner in (qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)):
        for found, array in zip(runner.run(feed).values(), wanted, strict=True):
            assert (found.shape, found.dtype) == (array.shape, array.dtype)
            np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize("dtype", [F32, I64])
def test_scaler(dtype, size, rng):
    offset, scale = (rng.standard_normal(size).tolist() for _ in range(2))
    scaling = node("Scaler", ["x"], ["y"], domain=DOMAIN, offset=offset, scale=scale)
    data = (rng.standard_normal((5, 6)) * 10).astype(dtype)
    check(proto_of([scaling], [value("x", (5, 6), dtype)], [value("y", None)]), {"x": data})


@pytest.mark.parametrize("shape", [(4,), (1, 4), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [F32, I64])
def test_columns(dtype, shape, rng):
    extract = node("ArrayFeatureExtractor", ["x", "columns"], ["y"], domain=DOMAIN)
    proto = proto_of([extract], [value("x", shape, dtype)], [value("y", None, dtype)], {"columns": I64([[3, 0, 3]])})
    check(proto, {"x": (rng.standard_normal(shape) * 10).astype(dtype)})


def test_labels_of_classes(rng):
    """The end of a classifier: labels by the place of the largest probability."""
    nodes = [
        node("ArgMax", ["x"], ["place"], axis=1),
        node("ArrayFeatureExtractor", ["classes", "place"], ["label"], domain=DOMAIN),
        node("Reshape", ["label", "flat"], ["y"]),
    ]
    constants = {"classes": I64([7, 3, 5]), "flat": I64([-1])}
    check(
        proto_of(nodes, [value("x", (6, 3))], [value("y", None, I64)], constants),
        {"x": rng.standard_normal((6, 3)).astype(F32)},
    )


def test_what_does_not_fit(rng):
    extract = node("ArrayFeatureExtractor", ["x", "columns"], ["y"], domain=DOMAIN)
    module = qnn_ext.from_onnx(
        proto_of([extract], [value("x", (3, 4)), value("columns", (2,), I64)], [value("y", None)])
    )
    with pytest.raises(InputError, match="ArrayFeatureExtractor"):
        qnn_ext.Interpreter(module).run({"x": np.zeros((3, 4), F32), "columns": I64([0, 4])})
    scaling = node("Scaler", ["x"], ["y"], domain=DOMAIN, offset=[1.0, 2.0], scale=[1.0])
    with pytest.raises(ModelFormatError, match="offset and scale"):
        qnn_ext.from_onnx(proto_of([scaling], [value("x", (5, 6))], [value("y", None)]))


def test_what_is_no_network_is_refused_with_a_remedy():
    normalizing = node("Normalizer", ["x"], ["y"], domain=DOMAIN)
    with pytest.raises(UnsupportedOperatorError, match=r"Normalizer of domain ai\.onnx\.ml .*run those in ONNX"):
        qnn_ext.from_onnx(proto_of([normalizing], [value("x", (3, 4))], [value("y", None)]))

"""qnn.observe: an identity that is checked, interpreted, and dropped by build."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import op
from qnn_ext.errors import ShapeError
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.op.base import constant
from qnn_ext.op.observe import observed_sites

from ..passes.modules import module
from .helpers import evaluate, var


def test_reference_is_the_identity(rng):
    x = rng.normal(size=(3, 4)).astype(np.float32)
    np.testing.assert_array_equal(evaluate(op.observe(x, "x", "fc", "nn.dense", "input")), x)


@pytest.mark.parametrize(
    "attributes,message",
    [
        ({"role": "bias"}, "role must be one of input, activation, weight"),
        ({"dtype": "float16"}, "out_dtype must be"),
        ({"bits": 9}, "bits must be"),
        ({"bits": 1}, "bits must be"),
        ({"axis": 2}, "axis 2 is out of range"),
    ],
)
def test_errors(attributes, message):
    arguments = {"site": "x", "layer": "fc", "operator": "nn.dense", "role": "input", **attributes}
    with pytest.raises(ShapeError, match=message):
        op.observe(var("x", (3, 4), "float32"), **arguments)
    with pytest.raises(ShapeError, match="data must be float32"):
        op.observe(var("x", (3, 4), "int8"), "x", "fc", "nn.dense", "input")


def test_build_drops_it(rng):
    weight = rng.normal(size=(8, 5)).astype(np.float32)

    def body(emit, x):
        data = emit(op.observe(x, "x", "fc", "nn.dense", "input", "uint8", symmetric=False))
        observed = emit(op.observe(constant(weight), "fc.weight", "fc", "nn.dense", "weight", axis=1))
        return relax.op.matmul(data, observed)

    mod = module([((2, 8), "float32")], body)
    assert list(observed_sites(mod)) == ["x", "fc.weight"]
    assert observed_sites(mod)["fc.weight"][1]["axis"] == 1
    annotated = QnnModule(mod, (TensorSpec("x", (2, 8), "float32"),), (TensorSpec("y", (2, 5), "float32"),))
    x = rng.normal(size=(2, 8)).astype(np.float32)
    result = qnn_ext.build(annotated, num_threads=1)(x)
    np.testing.assert_allclose(result, x @ weight, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(qnn_ext.Interpreter(annotated)(x), x @ weight, rtol=1e-5, atol=1e-5)

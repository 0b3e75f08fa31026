"""Results next to midpoints: for an element there are two neighbouring float32 scales of the result between which ONNX
Runtime's integer jumps, found by bisection; on both sides ours is the same."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import qnn_ext
from tests.cases.near_ties import near_ties

from .graphs import require_exact_products

ort = pytest.importorskip("onnxruntime")

DTYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
X, Y = ("x", "xs", "xz"), ("ys", "yz")
MICROSOFT = "com.microsoft"

# operator -> (domain, inputs, shape of the second operand, attributes); q is uint8 or int8, w the second operand
OPERATORS: dict[str, tuple[str, tuple[str, ...], tuple[int, ...], dict]] = {
    "QuantizeLinear": ("", ("f", *Y), (), {}),
    "QLinearConv": ("", (*X, "w", "ws", "wz", *Y, "b"), (6, 5, 2, 2), {}),
    "QLinearMatMul": ("", (*X, "w", "ws", "wz", *Y), (7, 6), {}),
    "QLinearAdd": (MICROSOFT, (*X, "w", "ws", "wz", *Y), (2, 5, 4, 7), {}),
    "QLinearMul": (MICROSOFT, (*X, "w", "ws", "wz", *Y), (2, 5, 4, 7), {}),
    "QLinearLeakyRelu": (MICROSOFT, (*X, *Y), (), {"alpha": 0.13}),
    "QLinearSigmoid": (MICROSOFT, (*X, *Y), (), {}),
    "QLinearGlobalAveragePool": (MICROSOFT, (*X, *Y), (), {"channels_last": 0}),
    "QLinearAveragePool": (MICROSOFT, (*X, *Y), (), {"kernel_shape": [2, 2]}),
}


def node_model(operator: str, dtype: str, values: dict[str, np.ndarray], scale: np.float32) -> bytes:
    """The operator with this scale of the result; everything else but the data is constant."""
    domain, inputs, _, attributes = OPERATORS[operator]
    constants = [
        numpy_helper.from_array(np.asarray(scale) if name == "ys" else values[name], name)
        for name in inputs
        if name not in ("x", "f")
    ]
    kind = TensorProto.FLOAT if inputs[0] == "f" else DTYPES[dtype]
    data = helper.make_tensor_value_info(inputs[0], kind, values[inputs[0]].shape)
    result = helper.make_tensor_value_info("y", DTYPES[dtype], None)
    node = helper.make_node(operator, inputs, ["y"], domain=domain, **attributes)
    graph = helper.make_graph([node], operator, [data], [result], constants)
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def random_values(rng: np.random.Generator, operator: str, dtype: str) -> dict[str, np.ndarray]:
    info, second = np.iinfo(dtype), OPERATORS[operator][2]
    values = {
        "x": rng.integers(info.min, info.max + 1, (2, 5, 4, 7)).astype(dtype),
        "w": rng.integers(info.min, info.max + 1, second).astype(dtype),
        "f": rng.normal(0, 3, (40,)).astype(np.float32),
        "b": rng.integers(-900, 900, 6).astype(np.int32),
    }
    for name in ("xs", "ws"):
        values[name] = np.asarray(rng.uniform(0.01, 0.04), np.float32)
    for name in ("xz", "wz", "yz"):
        values[name] = np.asarray(rng.integers(info.min // 2 + 40, info.max // 2 + 40), dtype)
    return values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_near_ties(operator, dtype, rng, thorough):
    if operator in ("QLinearConv", "QLinearMatMul"):
        require_exact_products()
    values, data = random_values(rng, operator, dtype), OPERATORS[operator][1][0]

    def expected(scale: np.float32) -> np.ndarray:
        return ort.InferenceSession(node_model(operator, dtype, values, scale)).run(None, {data: values[data]})[0]

    middle = {"QLinearSigmoid": 0.004, "QLinearMatMul": 0.1, "QLinearConv": 0.1}.get(operator, 0.03)
    found = near_ties(rng, expected, np.float32(middle), np.float32(middle * 1.2), 12 if thorough else 3)
    assert found
    for scale in (scale for pair in found for scale in pair):
        module = qnn_ext.from_onnx(node_model(operator, dtype, values, scale))
        np.testing.assert_array_equal(qnn_ext.Interpreter(module)(values[data]), expected(scale))

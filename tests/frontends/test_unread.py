"""Operators that no result depends on are no part of a module, in any format: supported or not, and neither are
their run-time checks."""

import io

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import pytest
import torch

import qnn_ext
from qnn_ext.frontends.unread import in_order, needed
from qnn_ext.module import QnnModule
from qnn_ext.passes.rewrite import bindings_of, op_name
from tests.frontends.mxnet.test_import_errors import model as mxnet_model
from tests.frontends.mxnet.test_import_errors import variable
from tests.frontends.onnx.graphs import model as onnx_model
from tests.frontends.onnx.graphs import value
from tests.frontends.tflite.schema_models import TYPES, Sketch, pack

onnx = pytest.importorskip("onnx")
OPS = schema.BuiltinOperator
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def check(module: QnnModule, *inputs: np.ndarray) -> None:
    """The module is a relu and nothing else."""
    calls = [name for binding in bindings_of(module.ir["main"]) if (name := op_name(binding.value))]
    assert calls in (["nn.relu"], ["clip"])
    np.testing.assert_array_equal(qnn_ext.Interpreter(module)(*(inputs or (X,))), np.maximum(X, 0))


def test_onnx():
    """A gather out of bounds, an unknown operator on its result, and what only these read."""
    nodes = [
        onnx.helper.make_node("Relu", ["x"], ["y"]),
        onnx.helper.make_node("Exp", ["x"], ["e"]),
        onnx.helper.make_node("Gather", ["e", "indices"], ["g"]),
        onnx.helper.make_node("Unheard", ["g"], ["u"], domain="of"),
    ]
    inputs = [value("x", (2, 3)), value("indices", (4,), np.int64)]
    proto = onnx_model(nodes, inputs, [value("y", (2, 3))])
    module = qnn_ext.from_onnx(proto)
    check(module, X, np.full(4, 99, np.int64))
    engine = qnn_ext.build(module)  # nothing checks the indices
    np.testing.assert_array_equal(engine(X, np.full(4, 99, np.int64)), np.maximum(X, 0))


def test_onnx_branches():
    """What only a graph inside of an operator reads is needed; what nothing in that graph needs is not part of it."""
    inner = onnx.helper.make_graph(
        [onnx.helper.make_node("Unheard", ["t"], ["u"], domain="of"), onnx.helper.make_node("Identity", ["t"], ["r"])],
        "branch",
        [],
        [value("r", (2, 3))],
    )
    nodes = [
        onnx.helper.make_node("Relu", ["x"], ["t"]),
        onnx.helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner),
    ]
    check(qnn_ext.from_onnx(onnx_model(nodes, [value("x", (2, 3))], [value("y", (2, 3))], {"c": np.bool_(True)})))


def test_tflite():
    sketch = Sketch()
    x, y, e, u = (sketch.tensor((2, 3), TYPES.FLOAT32) for _ in range(4))
    sketch.operator(OPS.RELU, [x], [y])
    sketch.operator(OPS.EXP, [x], [e])
    sketch.operator(OPS.DENSIFY, [e], [u])
    sketch.graph.inputs, sketch.graph.outputs = [x], [y]
    check(qnn_ext.from_tflite(pack(sketch.model)))


def test_mxnet():
    """The parameter of an operator that is not needed is no input."""
    nodes = [
        variable("data", __shape__="(2, 3)"),
        variable("gamma"),
        {"op": "exp", "name": "e", "inputs": ["data"]},
        {"op": "Unheard", "name": "u", "inputs": ["e", "gamma"]},
        {"op": "relu", "name": "y", "inputs": ["data"]},
    ]
    check(qnn_ext.from_mxnet(mxnet_model(*nodes), {}))


class Unread(torch.nn.Module):
    """A relu, and what nothing reads."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.linalg.det(torch.exp(x) @ x.T)
        return torch.relu(x)


@pytest.mark.filterwarnings("ignore")
def test_torchscript():
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(Unread().eval()), buffer)
    check(qnn_ext.from_pytorch(torch.jit.load(io.BytesIO(buffer.getvalue())), example_inputs=(torch.from_numpy(X),)))


@pytest.mark.filterwarnings("ignore")
def test_exported_program():
    check(qnn_ext.from_pytorch(torch.export.export(Unread().eval(), (torch.from_numpy(X),))))


def test_operators_that_act():
    """One without results, what it reads, and all that write a value."""
    operators = [("a", ""), ("b", "a"), ("c", "a"), ("d", "c"), ("", "b"), ("e", "d"), ("c", "")]
    found = needed(operators, ["c"], lambda one: one[1], lambda one: one[0], lambda one: not one[0])
    assert found == [("a", ""), ("b", "a"), ("c", "a"), ("", "b"), ("c", "")]


def test_in_order():
    """Each operator behind what it reads, otherwise as it was; circles and names written twice change nothing."""

    def sorted_names(*operators: tuple[str, str]) -> str:
        return "".join(one[1] for one in in_order(operators, lambda one: one[0], lambda one: one[1]))

    assert sorted_names(("x", "a"), ("a", "b"), ("x", "c"), ("bc", "d")) == "abcd"
    assert sorted_names(("c", "a"), ("x", "b"), ("x", "c"), ("ab", "d")) == "cabd"
    assert sorted_names(("b", "a"), ("c", "b"), ("d", "c"), ("x", "d"), ("x", "e")) == "dcbae"
    assert sorted_names(("b", "a"), ("a", "b"), ("b", "c")) in ("bac", "abc")
    assert sorted_names(("x", "a"), ("a", "a"), ("a", "b")) == "aab"
    chain = [(chr(1000 + i), chr(999 + i)) for i in range(5000)]
    assert in_order(chain, lambda one: one[0], lambda one: one[1]) == chain[::-1]


@pytest.mark.parametrize("branch", [False, True])
def test_onnx_nodes_out_of_order(branch):
    """As ONNX Runtime's quantizer writes models in which a branch reads what is computed outside."""
    read = onnx.helper.make_node("Relu", ["t"], ["y"])
    if branch:
        inner = onnx.helper.make_graph(
            [onnx.helper.make_node("Relu", ["u"], ["r"]), onnx.helper.make_node("Identity", ["t"], ["u"])],
            "branch",
            [],
            [value("r", (2, 3))],
        )
        read = onnx.helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    inputs = [value("x", (2, 3)), *([value("c", (), np.bool_)] if branch else [])]
    proto = onnx_model([read, onnx.helper.make_node("Identity", ["x"], ["t"])], inputs, [value("y", (2, 3))])
    module = qnn_ext.from_onnx(proto)
    result = qnn_ext.Interpreter(module)(X, *([np.array(True)] if branch else []))
    np.testing.assert_array_equal(result, np.maximum(X, 0))

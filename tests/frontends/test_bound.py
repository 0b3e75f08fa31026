"""Inputs bound to values at import: against the frameworks, which get them as inputs."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import ShapeError, UnsupportedOperatorError
from qnn_ext.interpreter import Interpreter

SHAPE = (2, 4)


@pytest.fixture
def x(rng):
    return rng.integers(-9, 10, SHAPE).astype(np.float32)


def result(module, x):
    assert [spec.name for spec in module.inputs] == ["x"]
    (found,) = Interpreter(module).run([x]).values()
    return found


# ---- ONNX --------------------------------------------------------------------------------------------------------


def rate_model():
    """Relu(x) where the rate is 16000, else −x."""
    pytest.importorskip("onnx")
    from onnx import GraphProto, helper

    from tests.frontends.onnx.graphs import model, node, value

    def branch(name, op_type) -> GraphProto:
        return helper.make_graph([node(op_type, ["x"], [name])], name, [], [value(name, SHAPE)])

    choice = node("If", ["same"], ["y"], then_branch=branch("a", "Relu"), else_branch=branch("b", "Neg"))
    nodes = [node("Equal", ["rate", "wide"], ["same"]), choice]
    inputs = [value("x", SHAPE), value("rate", (), np.int64)]
    return model(nodes, inputs, [value("y", SHAPE)], {"wide": np.int64(16000)})


@pytest.mark.parametrize("rate", [8000, 16000, np.int32(16000), np.array(8000.0)])
def test_onnx_branch_is_chosen_at_import(x, rate):
    from tests.frontends.onnx.graphs import run_ort

    proto = rate_model()
    (expected,) = run_ort(proto, {"x": x, "rate": np.array(rate, np.int64)})
    np.testing.assert_array_equal(result(qnn_ext.from_onnx(proto, constants={"rate": rate}), x), expected)


@pytest.mark.parametrize("rate", [8000, 16000])
def test_onnx_branch_at_run_time(x, rate):
    from tests.frontends.onnx.graphs import run_ort

    proto, feeds = rate_model(), {"x": x, "rate": np.array(rate, np.int64)}
    (found,) = Interpreter(qnn_ext.from_onnx(proto)).run(feeds).values()
    np.testing.assert_array_equal(found, run_ort(proto, feeds)[0])


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"speed": 1}, "'speed', but the inputs of the model are 'x', 'rate'"),
        ({"rate": 0.5}, "values that the input's dtype int64 cannot hold"),
        ({"rate": 2**64 - 1}, "int64 cannot hold"),
        ({"rate": float("nan")}, "int64 cannot hold"),
        ({"rate": [1, 2]}, r"has shape \(2,\), but the input has shape \(\)"),
        ({"rate": "16000"}, "must be a number or an array"),
        ({"rate": [[1], [1, 2]]}, "must be a number or an array"),
        ({"rate": 1, "x": 0}, "at least one must stay"),
    ],
)
def test_values_that_do_not_fit(constants, message):
    with pytest.raises(ShapeError, match=message):
        qnn_ext.from_onnx(rate_model(), constants=constants)


# ---- TFLite ------------------------------------------------------------------------------------------------------


def test_tflite_operand_that_must_be_known(x):
    """The number of repetitions is an input; bound, it decides a shape."""
    from tests.conformance.tflite_models.builder import Graph
    from tests.conformance.tflite_models.runner import invoke

    graph = Graph()
    names = {"x": graph.tensor(SHAPE, "float32", name="x"), "times": graph.tensor((2,), "int32", name="times")}
    y = graph.tensor((), "float32")
    graph.op("TILE", list(names.values()), [y])
    graph.packed.inputs, graph.packed.outputs = list(names.values()), [y]
    ((expected,),) = invoke(graph.build(), [[x, np.array([2, 3], np.int32)]], "reference", stateful=False)
    with pytest.raises(UnsupportedOperatorError, match=r"'times'.*computed at run time"):
        qnn_ext.from_tflite(graph.build())
    module = qnn_ext.from_tflite(graph.build(), constants={"times": [2, 3]})
    np.testing.assert_array_equal(result(module, x), expected)
    with pytest.raises(ShapeError, match="dtype int32 cannot hold"):
        qnn_ext.from_tflite(graph.build(), constants={"times": [2, 2**40]})


# ---- PyTorch -----------------------------------------------------------------------------------------------------


def script():
    torch = pytest.importorskip("torch")

    class Rates(torch.nn.Module):
        def forward(self, x, gain, rate: int):
            if rate == 16000 and bool(gain > 1):
                return torch.relu(x) * gain
            return gain - x

    return torch.jit.script(Rates().eval())


@pytest.mark.parametrize(("gain", "rate"), [(2.5, 16000), (0.5, 16000), (np.float32(3), 8000)])
def test_torchscript_branch_is_chosen_at_import(x, gain, rate, tmp_path):
    torch = pytest.importorskip("torch")
    module, constants = script(), {"gain": gain, "rate": rate}
    expected = module(torch.from_numpy(x), torch.tensor(float(gain)), rate).numpy()
    found = qnn_ext.from_pytorch(module, (x,), constants=constants)
    np.testing.assert_array_equal(result(found, x), expected)
    module.save(tmp_path / "rates.pt")
    from_file = qnn_ext.from_pytorch(tmp_path / "rates.pt", shapes={"x": SHAPE}, constants=constants)
    np.testing.assert_array_equal(result(from_file, x), expected)


def test_exported_program(x):
    torch = pytest.importorskip("torch")

    class Gain(torch.nn.Module):
        def forward(self, x, gain):
            return torch.relu(x) * gain

    example = (torch.from_numpy(x), torch.ones(1))
    program = torch.export.export(Gain().eval(), example)
    module = qnn_ext.from_pytorch(program, constants={"gain": 3})
    np.testing.assert_array_equal(result(module, x), np.maximum(x, 0) * 3)
    with pytest.raises(ShapeError, match="'speed', but the inputs of model are"):
        qnn_ext.from_pytorch(program, constants={"speed": 1})
    with pytest.raises(ShapeError, match=r"shape \(2,\), but the input has shape \(1\)"):
        qnn_ext.from_pytorch(program, constants={"gain": [1, 2]})

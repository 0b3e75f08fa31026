"""One file for several shapes of a model: results as of an engine for each, and errors for what does not fit."""

from __future__ import annotations

import json

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import qnn_ext
from qnn_ext.errors import ArtifactError, QnnError, ShapeError, TargetError
from tests.qnn_files import describe, description_of

WIDTH = 48


def summing(room: int = 4) -> bytes:
    """y = x·w + the running sum of the rows of all calls, whose state is replaced rather than written into; another
    state takes the rows that are written at a place."""
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.normal(size=(WIDTH, WIDTH)).astype(np.float32), "w")
    axis = numpy_helper.from_array(np.array([0]), "axis")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("ReduceSum", ["x", "axis"], ["row"], keepdims=1),
        helper.make_node("Add", ["past.sum", "row"], ["present.sum"]),
        helper.make_node("Add", ["product", "past.sum"], ["y"]),
        helper.make_node("Unsqueeze", ["row", "axis"], ["rows"]),
        helper.make_node("TensorScatter", ["past.rows", "rows", "at"], ["present.rows"], axis=1),
    ]
    value, floats = helper.make_tensor_value_info, TensorProto.FLOAT
    sums, rows = [1, WIDTH], [1, room, WIDTH]
    inputs = [value("x", floats, ["N", WIDTH]), value("at", TensorProto.INT64, [1])]
    inputs += [value("past.sum", floats, sums), value("past.rows", floats, rows)]
    outputs = [value("y", floats, ["N", WIDTH])]
    outputs += [value("present.sum", floats, sums), value("present.rows", floats, rows)]
    graph = helper.make_graph(nodes, "summing", inputs, outputs, [weight, axis])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10).SerializeToString()


def module(count: int, room: int = 4, states: dict[str, str] | None = None) -> qnn_ext.QnnModule:
    states = states or {"past.*": "present.*"}
    return qnn_ext.from_onnx(summing(room), shapes={"N": count}, states=states)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("shapes") / "summing.qnn"
    qnn_ext.build([module(1), module(3), module(8)], num_threads=2).save(path)
    return path


def test_results(saved):
    """Calls of three engines go on from each other's states, which are written into or replaced."""
    engine = qnn_ext.load(saved)
    engines = {found.inputs[0].shape[0]: found for found in (engine, *engine.others)}
    alone = {count: qnn_ext.Interpreter(module(count)) for count in engines}
    rng, states = np.random.default_rng(1), [np.zeros((1, WIDTH), np.float32), np.zeros((1, 4, WIDTH), np.float32)]
    for place, count in enumerate((3, 8, 1, 3)):
        x = rng.normal(size=(count, WIDTH)).astype(np.float32)
        found = engines[count](x, np.array([place]))
        np.testing.assert_allclose(found, alone[count].run([x, np.array([place])])["y"] + states[0], rtol=0, atol=1e-4)
        states[0] = states[0] + x.sum(axis=0)
        states[1][:, place] = x.sum(axis=0)
        alone[count].reset_state()
    for value, expected in zip(engine.state_values(), states, strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-5)


def test_weights_are_stored_once(saved, tmp_path):
    alone = qnn_ext.build(module(8), num_threads=2)
    alone.save(tmp_path / "alone.qnn")
    assert qnn_ext.load(saved).memory.weights < alone.memory.weights + 1024
    weights = WIDTH * WIDTH * 4
    assert saved.stat().st_size < (tmp_path / "alone.qnn").stat().st_size + weights


def test_modules_that_do_not_belong_together():
    with pytest.raises(QnnError, match="keep different states"):
        qnn_ext.build([module(1), module(3, room=5)])
    with pytest.raises(QnnError, match=r"different inputs, .*'past.sum'.* and "):
        qnn_ext.build([module(1), module(3, states={"past.rows": "present.rows"})])
    with pytest.raises(TargetError, match="only be for CPUs"):
        qnn_ext.build([module(1), module(3)], "sm_80")
    with pytest.raises(QnnError, match="for a single module"):
        qnn_ext.build([module(1), module(3)], code=False)
    with pytest.raises(QnnError, match="no module"):
        qnn_ext.build([])


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda other: other["variants"][0]["program"]["inputs"].__setitem__(2, 0), r"inputs"),
        (lambda other: other["variants"][0]["program"].update(weights=64), "weights"),
        (lambda other: other["variants"][0].update(program=None), "a program, as in the first shape"),
        (lambda other: other["variants"][0].update(features=["x"]), "that of the first shape"),
        (lambda other: other["variants"].append(other["variants"][0]), "a list of 1 items"),
        (lambda other: other.update(states=[]), "only the fields"),
        (lambda other: other["outputs"].pop(), "a list of 3 items"),
    ],
)
def test_damaged_descriptions(change, message, saved, tmp_path):
    whole = json.loads(json.dumps(description_of(saved)))
    change(whole["others"][0])
    describe(saved, tmp_path / "damaged.qnn", whole)
    with pytest.raises(ArtifactError, match=message):
        qnn_ext.load(tmp_path / "damaged.qnn")


def test_states_by_pattern():
    assert [state.name for state in module(1).states] == ["past.sum", "past.rows"]
    for states in ({"passed.*": "present.*"}, {"past.*": "future.*"}):
        with pytest.raises(ShapeError, match="states names"):
            module(1, states=states)


def test_command(cli, tmp_path):
    (tmp_path / "summing.onnx").write_bytes(summing())
    arguments = ["compile", tmp_path / "summing.onnx", "--shape", "N=1", "--also", "N=3", "--also", "x=8,48;at=1"]
    arguments += ["--state", "past.*=present.*", "--threads", "1", "-o", tmp_path / "summing.qnn"]
    code, out, _ = cli(*arguments)
    assert code == 0 and "kernels" in out
    engine = qnn_ext.load(tmp_path / "summing.qnn")
    assert [one.inputs[0].shape[0] for one in (engine, *engine.others)] == [1, 3, 8]
    code, out, _ = cli("inspect", tmp_path / "summing.qnn")
    assert code == 0 and [line for line in out.splitlines() if line.startswith("also takes")] == [
        f"also takes x {count}×48, with the same weights and states" for count in (3, 8)
    ]
    code, _, err = cli(*arguments[:2], "--also", "N")
    assert code == 2 and "'N' is not NAME=1,224,224,3" in err
    code, _, err = cli(*arguments[:2], "--also", "N=3", "--emit", "c")
    assert code == 1 and "leave out --emit c" in err

"""Signatures of one file: each a module, several of them one engine, against LiteRT's signature runners."""

from __future__ import annotations

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as LiteRT

import qnn_ext
from qnn_ext.compat import litert
from qnn_ext.errors import ModelFormatError, QnnError
from qnn_ext.evaluation import frameworks
from qnn_ext.frontends.tflite.importer import from_tflite

from .schema_models import TYPES, Sketch, signature

OPS = schema.BuiltinOperator
WIDTH, ROOM = 8, 16
LENGTHS = {"prefill": 4, "decode": 1}


class Signatures(Sketch):
    """A model with several subgraphs that write x·wᵀ into a cache at a position."""

    def __init__(self) -> None:
        super().__init__()
        self.model.subgraphs, self.model.signatureDefs = [], []
        weights = np.random.default_rng(0).normal(size=(WIDTH, WIDTH)).astype(np.float32)
        self.model.buffers.append(schema.BufferT())
        self.model.buffers[-1].data = weights.view(np.uint8).reshape(-1)

    def begin(self, name: str) -> None:
        """Start another subgraph."""
        self.graph = schema.SubGraphT()
        self.graph.name, self.graph.tensors, self.graph.operators = name, [], []
        self.graph.inputs, self.graph.outputs = [], []
        self.model.subgraphs.append(self.graph)

    def handle(self) -> int:
        """A VAR_HANDLE of the cache."""
        options, handle = schema.VarHandleOptionsT(), self.tensor((), TYPES.RESOURCE)
        options.container, options.sharedName = "", "cache"
        self.operator(OPS.VAR_HANDLE, [], [handle], options)
        return handle

    def updated(self, cache: int, length: int) -> tuple[int, int, int]:
        """The tokens, their position, and the cache with them."""
        x, position = self.tensor((length, WIDTH), TYPES.FLOAT32), self.tensor((2,), TYPES.INT32)
        w, y, after = (self.tensor(shape, TYPES.FLOAT32) for shape in ((WIDTH, WIDTH), (length, WIDTH), (ROOM, WIDTH)))
        self.graph.tensors[w].buffer = 1
        self.operator(OPS.FULLY_CONNECTED, [x, w, -1], [y], schema.FullyConnectedOptionsT())
        self.operator(OPS.DYNAMIC_UPDATE_SLICE, [cache, y, position], [after], schema.DynamicUpdateSliceOptionsT())
        return x, position, after

    def total(self, cache: int) -> int:
        axis, total = self.tensor((1,), TYPES.INT32, np.zeros(1, np.int32)), self.tensor((WIDTH,), TYPES.FLOAT32)
        self.operator(OPS.SUM, [cache, axis], [total], schema.ReducerOptionsT())
        return total

    def end(self, inputs: dict[str, int], outputs: dict[str, int]) -> None:
        """Make the subgraph a signature."""
        self.graph.inputs, self.graph.outputs = list(inputs.values()), list(outputs.values())
        name, index = self.graph.name, len(self.model.subgraphs) - 1
        self.model.signatureDefs.append(signature(name, inputs, outputs, index))


def with_variable(initialized: bool = True) -> bytes:
    """The cache is a variable, which the prompt's signature initializes; the other one does not."""
    sketch = Signatures()
    for name, length in LENGTHS.items():
        sketch.begin(name)
        if initialized and name == "prefill":
            options = schema.CallOnceOptionsT()
            options.initSubgraphIndex = len(LENGTHS)
            sketch.operator(OPS.CALL_ONCE, [], [], options)
        handle, cache = sketch.handle(), sketch.tensor((ROOM, WIDTH), TYPES.FLOAT32)
        sketch.operator(OPS.READ_VARIABLE, [handle], [cache], schema.ReadVariableOptionsT())
        x, position, after = sketch.updated(cache, length)
        sketch.operator(OPS.ASSIGN_VARIABLE, [handle, after], [], schema.AssignVariableOptionsT())
        sketch.end({"x": x, "position": position}, {"total": sketch.total(after)})
    if initialized:
        sketch.begin("initial")
        half = sketch.tensor((ROOM, WIDTH), TYPES.FLOAT32, np.full((ROOM, WIDTH), 0.5, np.float32))
        sketch.operator(OPS.ASSIGN_VARIABLE, [sketch.handle(), half], [], schema.AssignVariableOptionsT())
    return sketch.bytes()


def with_ports() -> bytes:
    """The cache is an input and an output; the prompt's signature has no other output."""
    sketch = Signatures()
    for name, length in LENGTHS.items():
        sketch.begin(name)
        cache = sketch.tensor((ROOM, WIDTH), TYPES.FLOAT32)
        x, position, after = sketch.updated(cache, length)
        results = {"cache": after} | ({"total": sketch.total(after)} if name == "decode" else {})
        sketch.end({"x": x, "position": position, "cache": cache}, results)
    return sketch.bytes()


def steps() -> list[tuple[str, dict[str, np.ndarray]]]:
    """A prompt and two tokens."""
    rng = np.random.default_rng(1)
    return [
        (name, {"x": rng.normal(size=(LENGTHS[name], WIDTH)).astype(np.float32), "position": np.int32([place, 0])})
        for name, place in (("prefill", 0), ("decode", 4), ("decode", 5))
    ]


def together(model: bytes, tmp_path, states: dict[str, str] | None = None) -> dict[str, qnn_ext.Engine]:
    """Engines of both signatures, from one file."""
    modules = [from_tflite(model, signature=name, states=states) for name in ("decode", "prefill")]
    qnn_ext.build(modules, num_threads=1).save(tmp_path / "both.qnn")
    engine = qnn_ext.load(tmp_path / "both.qnn")
    return {"decode": engine, "prefill": engine.others[0]}


def test_signatures_share_a_variable(tmp_path) -> None:
    model = with_variable()
    for name in LENGTHS:
        (state,) = from_tflite(model, signature=name).states
        assert (state.initial == 0.5).all()
    engines, interpreter = together(model, tmp_path), LiteRT(model_content=model)
    for name, inputs in steps():
        expected = interpreter.get_signature_runner(name)(**inputs)["total"]
        np.testing.assert_allclose(engines[name].run(inputs)["total"], expected, rtol=0, atol=1e-5)


def test_a_variable_without_initial_value_starts_as_zeros(tmp_path) -> None:
    """LiteRT reads none before it is assigned; here a signature may come first."""
    engines, total = together(with_variable(initialized=False), tmp_path), np.zeros(WIDTH)
    weights = np.random.default_rng(0).normal(size=(WIDTH, WIDTH)).astype(np.float32)
    for name, inputs in steps():
        total += (inputs["x"] @ weights.T).sum(axis=0)
        np.testing.assert_allclose(engines[name].run(inputs)["total"], total, rtol=0, atol=1e-4)


def test_ports_become_states(tmp_path) -> None:
    model = with_ports()
    engines = together(model, tmp_path, {"cache": "cache"})
    interpreter, cache = LiteRT(model_content=model), np.zeros((ROOM, WIDTH), np.float32)
    for name, inputs in steps():
        expected = interpreter.get_signature_runner(name)(**inputs, cache=cache)
        cache, found = expected.pop("cache"), engines[name].run(inputs)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-5)
    np.testing.assert_allclose(engines["decode"].state_values()[0], cache, rtol=0, atol=1e-5)


@pytest.mark.parametrize("model", [with_variable(), with_ports()], ids=["variable", "ports"])
def test_names_are_the_signature_s(model: bytes) -> None:
    module = from_tflite(model, signature="prefill")
    assert [spec.name for spec in module.inputs][:2] == ["x", "position"]
    assert {spec.name for spec in module.outputs} <= {"total", "cache"}


def test_updates_of_a_cache_copy_nothing() -> None:
    """They are rows written into the state."""
    assert "R.qnn.write_rows(state1" in from_tflite(with_variable(), signature="decode").script()


def test_no_such_signature() -> None:
    with pytest.raises(QnnError, match="no signature 'serve'; it has 'prefill', 'decode'"):
        from_tflite(with_variable(), signature="serve")


def test_commands(cli, tmp_path) -> None:
    """A file of two signatures, described, compiled to one file, and run."""
    path = tmp_path / "cache.tflite"
    path.write_bytes(with_variable())
    code, out, _ = cli("inspect", path)
    assert code == 0 and "signatures: prefill, decode: --signature takes one" in out
    code, out, _ = cli("inspect", path, "--signature", "decode")
    assert code == 0 and f"1×{WIDTH}" in out and f"4×{WIDTH}" not in out
    arguments = ["compile", path, "--signature", "decode", "--also", "prefill", "--threads", "1"]
    code, out, _ = cli(*arguments, "-o", tmp_path / "cache.qnn")
    assert code == 0 and "kernels" in out
    engine = qnn_ext.load(tmp_path / "cache.qnn")
    assert [one.inputs[0].shape for one in (engine, *engine.others)] == [(1, WIDTH), (4, WIDTH)]
    code, _, err = cli("inspect", path, "--signature", "serve")
    assert code == 1 and "no signature 'serve'; it has 'prefill', 'decode'" in err
    code, _, err = cli("compile", path, "--also", "prefill")
    assert code == 2 and "'prefill' is not NAME=1,224,224,3" in err


def test_accuracy_of_a_signature(tmp_path) -> None:
    """LiteRT runs it as well, with outputs in the order of the module's."""
    path = tmp_path / "cache.tflite"
    path.write_bytes(with_variable())
    module = from_tflite(path, signature="prefill")
    call = frameworks.litert(path, signature="prefill").open(module.inputs, 1)
    values = [next(inputs for name, inputs in steps() if name == "prefill")[spec.name] for spec in module.inputs]
    found = qnn_ext.build(module, num_threads=1).run(values)
    for ours, theirs in zip(found.values(), call(values), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("make", [with_variable, with_ports])
def test_runners_of_the_changed_import(make) -> None:
    """LiteRT's calls, over one set of variables; a reset clears them for all."""
    model = make()
    ours, theirs = litert.Interpreter(model_content=model), LiteRT(model_content=model)
    assert ours.get_signature_list() == theirs.get_signature_list()
    cache = {"cache": np.ones((ROOM, WIDTH), np.float32)} if make is with_ports else {}
    for name, inputs in [*steps(), *steps()]:
        runners = [one.get_signature_runner(name) for one in (ours, theirs)]
        found, expected = (runner(**inputs, **cache) for runner in runners)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-5)
        assert runners[0].get_input_details().keys() == runners[1].get_input_details().keys()
    if make is with_variable:
        name, inputs = steps()[1]
        ours.get_signature_runner("prefill")._interpreter.reset_all_variables()
        alone = from_tflite(model, signature=name)
        expected = qnn_ext.build(alone, num_threads=1).run(inputs)["total"]
        np.testing.assert_array_equal(ours.get_signature_runner(name)(**inputs)["total"], expected)


def test_a_signature_of_other_tensors() -> None:
    """ai-edge-quantizer leaves them behind where it puts a cast before an output: only the signature is refused."""
    sketch = Sketch()
    x, y, z = (sketch.tensor((2, 3), TYPES.FLOAT32, name=name) for name in "xyz")
    sketch.operator(OPS.RELU, [x], [y])
    sketch.operator(OPS.NEG, [y], [z], schema.NegOptionsT())
    sketch.graph.inputs, sketch.graph.outputs = [x], [z]
    sketch.model.signatureDefs = [signature("s", {"x": x}, {"y": y})]
    content = sketch.bytes()
    assert [spec.name for spec in from_tflite(content).outputs] == ["z"]
    interpreter = litert.Interpreter(model_content=content)
    for act in (lambda: from_tflite(content, signature="s"), lambda: interpreter.get_signature_runner("s")):
        with pytest.raises(ModelFormatError, match="'y' is tensor 1, which is not one of the subgraph's outputs"):
            act()

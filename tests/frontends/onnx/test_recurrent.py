"""LSTM, GRU and RNN: qnn_ext and ONNX Runtime against float64, both within what float32 explains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import InputError, ModelFormatError
from qnn_ext.frontends.onnx import from_onnx
from qnn_ext.limits import Limits

from .graphs import model, node, ort, value
from .recurrent_reference import FUNCTIONS, GATES, USUAL, Activation, Layer

KINDS = list(GATES)
F32 = np.float32


def draw(kind: str, rng: np.random.Generator, *, plain: bool = False, **fixed) -> Layer:
    """A layer of random sizes and options. plain: without activations of its own"""

    def chance(probability: float = 0.5) -> bool:
        return bool(rng.random() < probability)

    def floats(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.7).astype(F32)

    steps, batch, depth, hidden = (int(rng.integers(1, high)) for high in (7, 5, 6, 6))
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    count, size = 1 + (direction == "bidirectional"), GATES[kind] * hidden
    options = {
        "b": floats(count, 2 * size) if chance(0.7) else None,
        "lengths": rng.integers(0, steps + 1, batch).astype(np.int32) if chance(0.4) else None,
        "h": floats(count, batch, hidden) if chance() else None,
        "c": floats(count, batch, hidden) if chance() and kind == "LSTM" else None,
        "p": floats(count, 3 * hidden) if chance(0.4) and kind == "LSTM" else None,
        "direction": direction,
        "clip": float(F32(rng.uniform(0.2, 1))) if chance(0.3) else 0.0,
        "coupled": chance(0.3) and kind == "LSTM",
        "linear_before_reset": chance() and kind == "GRU",
    }
    if not plain and chance():
        names = rng.choice(list(FUNCTIONS), count * len(USUAL[kind]))
        numbers = rng.uniform(0.1, 0.9, (len(names), 2)).astype(F32)
        options["activations"] = [
            Activation(str(n), float(a), float(b)) for n, (a, b) in zip(names, numbers, strict=True)
        ]
    layer = Layer(kind, floats(steps, batch, depth), floats(count, size, depth), floats(count, size, hidden), **options)
    return replace(layer, **fixed)


def attributes_of(layer: Layer) -> dict:
    """The node's attributes."""
    found = {"hidden_size": layer.r.shape[2], "direction": layer.direction}
    if layer.clip:
        found["clip"] = layer.clip
    if layer.coupled:
        found["input_forget"] = 1
    if layer.kind == "GRU":
        found["linear_before_reset"] = int(layer.linear_before_reset)
    if layer.activations:
        used = [(FUNCTIONS[item.name][2], item) for item in layer.activations]
        found["activations"] = [item.name for item in layer.activations]
        found["activation_alpha"] = [item.alpha for count, item in used if count > 0]
        found["activation_beta"] = [item.beta for count, item in used if count > 1]
    return {name: item for name, item in found.items() if item != []}


def graph_of(layer: Layer, inputs=("X",), outputs=(0, 1, 2), opset=21, **changed):
    """A model of one node and its feeds. inputs: those given at run time; outputs: those wanted"""
    present = {name: array for name, array in layer.inputs.items() if array is not None}
    names = [name if name in present else "" for name in layer.inputs]
    results = [f"y{index}" if index in outputs else "" for index in range(2 + (layer.kind == "LSTM"))]
    feeds = {name: array for name, array in present.items() if name in inputs}
    proto = model(
        [node(layer.kind, names, results, "layer", **{**attributes_of(layer), **changed})],
        [value(name, array.shape, array.dtype) for name, array in feeds.items()],
        [value(name, None) for name in results if name],
        {name: array for name, array in present.items() if name not in feeds},
        opset,
    )
    return proto, feeds


def run_ort(proto, feeds):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)


def check_within(found, expected, name):
    """Every element within its bound of the value in float64."""
    for result, real in zip(found, expected, strict=True):
        assert result.shape == real.value.shape, name
        excess = np.abs(result - real.value) - real.bound
        assert (excess <= 0).all(), f"{name}: {excess.max():.3g} beyond {real.bound.flat[excess.argmax()]:.3g}"


def seeds(count):
    return pytest.mark.parametrize("seed", range(count))


@pytest.mark.one_in(8)
@seeds(48)
@pytest.mark.parametrize("kind", KINDS)
def test_options(kind, seed):
    """All options drawn at random, weights, lengths and states constant or given at run time."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    layer = draw(kind, rng)
    names = [name for name in layer.inputs if name == "X" or rng.random() < 0.3]
    wanted = [index for index in range(2 + (kind == "LSTM")) if rng.random() < 0.7] or [1]
    proto, feeds = graph_of(layer, names, wanted, opset=int(rng.choice([7, 14, 22])))
    real = layer.run()
    expected = [real[index] for index in wanted]
    check_within(run_ort(proto, feeds), expected, "ONNX Runtime")
    module = from_onnx(proto)
    check_within(qnn_ext.Interpreter(module).run(feeds).values(), expected, "the interpreter")
    if seed == 0 or seed % 4 == 2:
        check_within(qnn_ext.build(module, num_threads=1).run(feeds).values(), expected, "the engine")


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_are_narrow(kind, rng):
    """The bound above says something: it is some roundings for the usual activations."""
    layer = draw(kind, rng, plain=True)
    assert max(float(real.bound.max()) for real in layer.run()) < 1e-4


@pytest.mark.one_in(2)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", KINDS)
def test_batch_first(kind, direction, rng):
    """layout=1, which ONNX Runtime has not: the same numbers in another order."""
    layer = draw(kind, rng)
    while layer.direction != direction:
        layer = draw(kind, rng)
    swapped = {name: getattr(layer, name) for name in ("x", "h", "c") if getattr(layer, name) is not None}
    swapped = {name: np.ascontiguousarray(array.swapaxes(0, 1)) for name, array in swapped.items()}
    proto, feeds = graph_of(replace(layer, **swapped), layout=1)
    found = list(qnn_ext.Interpreter(from_onnx(proto)).run(feeds).values())
    found = [found[0].transpose(1, 2, 0, 3), *(state.swapaxes(0, 1) for state in found[1:])]
    check_within(found, layer.run(), "batch first")


@pytest.mark.parametrize("kind", KINDS)
def test_float64_and_constant(kind, rng):
    """In float64, of which ONNX Runtime has no kernel; a layer of constants is computed with all its options too."""
    layer = draw(kind, rng, lengths=None)
    wide = {name: getattr(layer, name) for name in ("x", "w", "r", "b", "h", "c", "p")}
    wide = {name: array.astype(np.float64) for name, array in wide.items() if array is not None}
    proto, feeds = graph_of(replace(layer, **wide))
    for result in proto.graph.output:
        result.type.tensor_type.elem_type = 11
    found = qnn_ext.Interpreter(from_onnx(proto)).run(feeds)
    for result, real in zip(found.values(), layer.run(), strict=True):
        np.testing.assert_allclose(result, real.value, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_constant_layer(kind, rng):
    """A layer whose operands are all constant, with lengths: onnx's own evaluator overlooks them."""
    layer = draw(kind, rng, lengths=np.zeros(1, np.int32))
    steps, batch, _ = layer.x.shape
    layer = replace(layer, lengths=rng.integers(0, steps + 1, batch).astype(np.int32))
    proto, _ = graph_of(layer, inputs=())
    proto.graph.node.append(node("Identity", ["z"], ["same"]))
    proto.graph.input.append(value("z", (1,)))
    proto.graph.output.append(value("same", (1,)))
    found = list(qnn_ext.Interpreter(from_onnx(proto)).run({"z": np.zeros(1, F32)}).values())
    check_within(found[:-1], layer.run(), "constants")


@pytest.mark.parametrize("kind", KINDS)
def test_quantized_weights(kind, rng):
    """In a QDQ graph the product with the inputs is one of integers; the recurrence stays float."""
    layer = draw(kind, rng, plain=True)
    scale, parts, constants, nodes = F32(0.01), {}, {}, []
    for name in ("x", "w", "r"):
        dtype = np.uint8 if name == "x" else np.int8
        zero = dtype(128 if name == "x" else 0)
        steps = np.clip(
            np.rint(getattr(layer, name) / scale) + zero,
            *np.iinfo(dtype).min * np.array([1, 0]) + [0, np.iinfo(dtype).max],
        )
        parts[name] = (steps.astype(dtype).astype(F32) - F32(zero)) * scale
        constants |= {f"{name}_q": steps.astype(dtype), f"{name}_s": scale, f"{name}_z": zero}
        nodes.append(node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], [name.upper()]))
    layer = replace(layer, **parts)
    plain, _ = graph_of(layer, inputs=("X", "W", "R"))
    names = [item.name for item in plain.graph.initializer]
    own = dict(zip(names, map(_array, plain.graph.initializer), strict=True))
    data = constants.pop("x_q")
    proto = model(
        [*nodes, *plain.graph.node], [value("x_q", data.shape, np.uint8)], plain.graph.output, own | constants
    )
    module = from_onnx(proto)
    expected = layer.run()
    check_within(run_ort(proto, {"x_q": data}), expected, "ONNX Runtime")
    check_within(qnn_ext.Interpreter(module).run({"x_q": data}).values(), expected, "the interpreter")
    assert "R.qnn.dense" in module.script() or "R.qnn.batch_matmul" in module.script()


def _array(tensor):
    from onnx import numpy_helper

    return numpy_helper.to_array(tensor)


# ---- hostile values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_out_of_range(kind, rng):
    """Constant ones are refused at import, others in the call; ONNX Runtime refuses both."""
    layer = draw(kind, rng)
    steps, batch, _ = layer.x.shape
    for wrong in (-1, steps + 1, np.iinfo(np.int32).min, np.iinfo(np.int32).max):
        lengths = np.full(batch, wrong, np.int32)
        with pytest.raises(ModelFormatError, match=r"sequence_lens.*out of range"):
            from_onnx(graph_of(replace(layer, lengths=lengths))[0])
    if kind == "GRU":
        proto, feeds = graph_of(replace(layer, lengths=lengths), inputs=("X", "sequence_lens"))
        engine = qnn_ext.build(from_onnx(proto), num_threads=1)
        for wrong in (-1, steps + 1):
            with pytest.raises(InputError, match="sequence_lens"):
                engine.run({**feeds, "sequence_lens": np.full(batch, wrong, np.int32)})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
def test_not_a_number(kind, rng):
    """NaN and infinity stay in their own sequence."""
    layer = draw(kind, rng, plain=True)
    data = np.concatenate([layer.x[:, :1]] * 3, axis=1)
    data[-1, 1], data[0, 2] = np.nan, np.inf
    layer = replace(layer, x=data, lengths=None, h=None, c=None)
    proto, feeds = graph_of(layer)
    module = from_onnx(proto)
    for results in (qnn_ext.Interpreter(module).run(feeds), qnn_ext.build(module, num_threads=1).run(feeds)):
        alone = replace(layer, x=data[:, :1]).run()
        check_within([result[..., :1, :] for result in results.values()], alone, "the sequence without them")


@pytest.mark.parametrize(
    "kind,changed,message",
    [
        ("LSTM", {"w": (1, 16, 4)}, "W has shape"),
        ("GRU", {"r": (1, 9, 2)}, "R has shape|W has shape"),
        ("LSTM", {"b": (1, 12)}, "B has shape"),
        ("LSTM", {"p": (1, 8)}, "P has shape"),
        ("RNN", {"h": (1, 2, 4)}, "initial_h has shape"),
        ("LSTM", {"c": (2, 3, 3)}, "initial_c has shape"),
        ("RNN", {"x": (5, 3)}, "X must have 3 dimensions"),
        ("RNN", {"w": (2, 3, 4)}, "W has shape"),
    ],
)
def test_wrong_shapes(kind, changed, message):
    size = GATES[kind] * 3
    layer = Layer(kind, np.zeros((5, 2, 4), F32), np.zeros((1, size, 4), F32), np.zeros((1, size, 3), F32))
    layer = replace(layer, **{name: np.zeros(shape, F32) for name, shape in changed.items()})
    with pytest.raises(ModelFormatError, match=message):
        from_onnx(graph_of(layer)[0])


@pytest.mark.parametrize(
    "changed,message",
    [
        ({"hidden_size": 4}, "hidden_size 4"),
        ({"hidden_size": -1}, "hidden_size must be at least 1"),
        ({"hidden_size": 2**40}, "hidden_size"),
        ({"direction": "sideways"}, "direction must be one of"),
        ({"direction": "bidirectional"}, "direction bidirectional"),
        ({"layout": 2}, "layout must be 0 or 1"),
        ({"activations": ["Tanh", "Tanh"]}, "activations must be 3 names"),
        ({"activations": ["Tanh", "Tanh", "Gelu"]}, "unknown activation 'Gelu'"),
        ({"activations": ["Tanh", "Affine", "Tanh"]}, "needs activation_alpha"),
        ({"clip": -1.0}, "clip must not be negative"),
    ],
)
def test_wrong_attributes(changed, message):
    layer = Layer("LSTM", np.zeros((5, 2, 4), F32), np.zeros((1, 12, 4), F32), np.zeros((1, 12, 3), F32))
    with pytest.raises(ModelFormatError, match=message):
        from_onnx(graph_of(layer, **changed)[0])


def test_large_states_are_refused_before_they_are_made():
    """A state follows from sizes that a file may give freely."""
    layer = Layer("RNN", np.zeros((1, 1 << 14, 1), F32), np.zeros((1, 64, 1), F32), np.zeros((1, 64, 64), F32))
    with pytest.raises(qnn_ext.errors.LimitError, match="folded"):
        from_onnx(graph_of(layer)[0], limits=Limits(folded=1 << 19))

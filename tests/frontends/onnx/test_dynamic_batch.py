"""Batches of any size: a model that treats samples one by one is compiled once and takes any number of them."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import InputError, ShapeError, UnsupportedOperatorError
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


@pytest.mark.parametrize("shapes", [(("N", 2, 5, 4), ("N", 2, 4, 3)), ((2, 5, 4), ("N", 2, 4, 3))])
def test_integer_products_of_two_tensors(shapes, rng):
    """As of attention in integers: matrices in stacks of samples and heads."""
    names = [("a", "s", "z"), ("b", "s", "z"), ("s", "z")]
    nodes = [node("QLinearMatMul", [name for part in names for name in part], ["y"])]
    inputs = [value(name, shape, np.uint8) for name, shape in zip("ab", shapes, strict=True)]
    proto = model(nodes, inputs, [value("y", None, np.uint8)], {"s": np.float32(0.1), "z": np.uint8(120)})
    module = from_onnx(proto)
    assert module.outputs[0].dynamic_batch
    feed = {
        name: rng.integers(0, 256, [3 if size == "N" else size for size in shape]).astype(np.uint8)
        for name, shape in zip("ab", shapes, strict=True)
    }
    (expected,) = run_ort(proto, feed)
    for run in (qnn_ext.build(module, num_threads=1), qnn_ext.Interpreter(module)):
        np.testing.assert_array_equal(next(iter(run.run(feed).values())), expected)


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("rows", [(), (5,)])
def test_weights_in_blocks(level, rows, rng):
    """As of encoders with 4-bit weights."""
    attributes = {"K": 64, "N": 12, "bits": 4, "block_size": 32, "accuracy_level": level}
    nodes = [node("MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft", **attributes)]
    constants = {"b": rng.integers(0, 256, (12, 2, 16)).astype(np.uint8), "s": rng.random(24).astype(np.float32)}
    module = from_onnx(model(nodes, [value("x", ("N", *rows, 64))], [value("y", None)], constants))
    assert module.inputs[0].dynamic_batch and module.outputs[0].dynamic_batch
    x = rng.standard_normal((3, *rows, 64)).astype(np.float32)
    (expected,) = run_ort(model(nodes, [value("x", x.shape)], [value("y", None)], constants), {"x": x})
    for run in (qnn_ext.build(module, num_threads=1), qnn_ext.Interpreter(module)):
        np.testing.assert_allclose(run(x), expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def quantized(operator, inputs, **attributes):
    return node(operator, inputs, ["y"], domain="com.microsoft", **attributes)


IMAGES = [("x", ("N", 4, 5, 6), np.uint8)]
CONSTANTS = {"s": np.float32(0.05), "t": np.float32(0.04), "z": np.uint8(120), "two": np.array([1, 1, 2, 1])}
ROWS = [("x", ("N", 9, 4), np.float32), ("i", ("N", 2, 4), np.int64)]


@pytest.mark.parametrize("step, inputs", [
    (quantized("QLinearSigmoid", ["x", "s", "z", "t", "z"]), IMAGES),
    (quantized("QLinearLeakyRelu", ["x", "s", "z", "t", "z"], alpha=0.1), IMAGES),
    (quantized("QLinearGlobalAveragePool", ["x", "s", "z", "t", "z"]), IMAGES),
    (quantized("QLinearConcat", ["s", "z", "x", "t", "z", "w", "s", "z"], axis=1),
     [*IMAGES, ("w", ("N", 4, 5, 6), np.uint8)]),
    (node("GatherElements", ["x", "i"], ["y"], axis=1), ROWS),
    (node("ScatterElements", ["x", "i", "u"], ["y"], axis=1, reduction="add"),
     [*ROWS, ("u", ("N", 2, 4), np.float32)]),
    (node("Tile", ["x", "two"], ["y"]), [("x", ("N", 4, 5, 6), np.float32)]),
    (node("GridSample", ["x", "g"], ["y"], mode="nearest"),
     [("x", ("N", 2, 6, 6), np.float32), ("g", ("N", 5, 5, 2), np.float32)]),
], ids=lambda part: part.op_type if hasattr(part, "op_type") else "")  # fmt: skip
def test_operators_that_keep_samples_apart(step, inputs, rng):
    result = np.float32 if inputs[0][2] == np.float32 else np.uint8
    proto = model([step], [value(*one) for one in inputs], [value("y", None, result)], CONSTANTS, 18)
    module = from_onnx(proto)
    assert module.inputs[0].dynamic_batch and module.outputs[0].dynamic_batch
    feed = {}
    for name, shape, dtype in inputs:
        sizes = [3 if size == "N" else size for size in shape]
        integers = rng.integers(0, 9 if dtype == np.int64 else 256, sizes).astype(dtype)
        feed[name] = rng.standard_normal(sizes).astype(dtype) if dtype == np.float32 else integers
    (expected,) = run_ort(proto, feed)
    np.testing.assert_array_equal(qnn_ext.build(module, num_threads=1).run(feed)["y"], expected)


def test_copies_of_samples_are_no_samples():
    proto = model(
        [node("Tile", ["x", "t"], ["y"])], [value("x", ("N", 4))], [value("y", None)], {"t": np.array([2, 1])}
    )
    with pytest.raises(UnsupportedOperatorError, match="may mix the samples"):
        from_onnx(proto)


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


# ---- sequences: the samples are along another axis inside the model ------------------------------------------------


def layer(kind, lengths=False):
    """A bidirectional layer that takes (batch, steps, features), with initial states of the batch that it finds."""
    rng, gates, states = np.random.default_rng(2), {"LSTM": 4, "GRU": 3}[kind], {"LSTM": 2, "GRU": 1}[kind]
    constants = {
        name: rng.normal(0, 0.5, shape).astype(np.float32)
        for name, shape in (("w", (2, 3 * gates, 5)), ("r", (2, 3 * gates, 3)), ("m", (6, 4)))
    }
    constants |= {
        "two": np.asarray([2]),
        "three": np.asarray([3]),
        "rows": np.asarray([-1, 6]),
        "axes": np.asarray([1]),
    }
    nodes = [
        node("Shape", ["x"], ["batch"], end=1),
        node("Concat", ["two", "batch", "three"], ["size"], axis=0),
        node("ConstantOfShape", ["size"], ["zeros"]),
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node(kind, ["t", "w", "r", "", "n" if lengths else "", *["zeros"] * states], ["y", "h"], hidden_size=3,
             direction="bidirectional"),
        node("Transpose", ["y"], ["yt"], perm=[2, 0, 1, 3]),
        node("Reshape", ["yt", "rows"], ["flat"]),
        node("MatMul", ["flat", "m"], ["product"]),
        node("Concat", ["batch", "seven_four"], ["shape"], axis=0),
        node("Reshape", ["product", "shape"], ["out"]),
        node("Transpose", ["h"], ["ht"], perm=[1, 2, 0]),
    ]  # fmt: skip
    constants["seven_four"] = np.asarray([7, 4])
    inputs = [value("x", ("N", 7, 5)), *([value("n", ("N",), "i4")] if lengths else [])]
    return model(nodes, inputs, [value("out", None), value("ht", None)], constants)


def scan(axis):
    """Running sums along an axis of (batch, 4)."""
    body = model(
        [node("Add", ["s", "x"], ["t"]), node("Identity", ["t"], ["o"])],
        [value("s", None), value("x", None)],
        [value("t", None), value("o", None)],
    ).graph
    nodes = [
        node("ReduceSum", ["x", "axes"], ["sum"], keepdims=0),
        node("Scan", ["zeros" if axis == 0 else "sum", "x"], ["last", "sums"], body=body, num_scan_inputs=1,
             scan_input_axes=[axis], scan_output_axes=[axis]),
    ]  # fmt: skip
    constants = {"axes": np.asarray([axis]), "zeros": np.zeros(4, np.float32)}
    return model(nodes, [value("x", ("N", 4))], [value("sums", None)], constants)


@pytest.mark.parametrize(
    "proto", [layer("LSTM"), layer("GRU"), layer("LSTM", True), scan(1)], ids=["lstm", "gru", "lengths", "scan"]
)
def test_sequences(proto, rng):
    module = from_onnx(proto)
    assert module.inputs[0].dynamic_batch
    feed = {spec.name: rng.standard_normal((3, *spec.shape[1:])).astype(spec.dtype) for spec in module.inputs}
    if "n" in feed:
        feed["n"] = np.int32([7, 0, 4])
    results = qnn_ext.Interpreter(module).run(feed).values()
    for found, expected in zip(results, run_ort(proto, feed), strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def until_one_is_large():
    """x doubled as long as the largest element of all samples is below 9."""
    body = model(
        [
            node("Add", ["s", "s"], ["t"]),
            node("ReduceMax", ["t"], ["largest"], keepdims=0),
            node("Less", ["largest", "limit"], ["again"]),
        ],
        [value("i", (), "i8"), value("c", (), "?"), value("s", None)],
        [value("again", (), "?"), value("t", None)],
    ).graph
    loop = node("Loop", ["", "true", "x"], ["y"], body=body)
    return model([loop], [value("x", ("N", 4))], [value("y", None)], {"true": np.bool_(True), "limit": np.float32(9)})


def swapped():
    """(steps, batch, features) read as (batch, steps, features)."""
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node("Shape", ["x"], ["s"]),
        node("Reshape", ["t", "s"], ["y"]),
    ]
    return model(nodes, [value("x", ("N", 7, 5))], [value("y", None)])


@pytest.mark.parametrize(
    "proto, message",
    [
        (scan(0), "different loop for two samples"),
        (until_one_is_large(), r"\(max\) may mix the samples"),
        (swapped(), r"\(reshape\) may mix the samples"),
        (model([node("Reshape", ["x", "flat"], ["y"])], [value("x", ("N", 4))], [value("y", None)],
               {"flat": np.asarray([-1])}),
         "the samples of 'y' are not a dimension by themselves"),
    ],
)  # fmt: skip
def test_sequences_that_mix_samples(proto, message):
    with pytest.raises(UnsupportedOperatorError, match=rf"batch size open.*{message}.*shapes=\{{'N': 1\}}"):
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


# ---- a batch elsewhere than first ----------------------------------------------------------------------------------


def steps_first(*inputs):
    """A sum over the first axis of each input, (steps, batch, features) as PyTorch exports recurrent networks."""
    names = [f"x{index}" for index in range(len(inputs))]
    nodes = [node("ReduceSum", [name, "axes"], [f"y{name}"], keepdims=0) for name in names]
    declared = [value(name, shape) for name, shape in zip(names, inputs, strict=True)]
    return model(nodes, declared, [value(f"y{name}", None) for name in names], {"axes": np.asarray([0])})


@pytest.mark.parametrize(
    "inputs, given, example",
    [
        ([("steps", "batch", 5)], {}, {"batch": 1, "steps": 1}),
        ([(None, "batch", 5)], {}, {"x0": (1, 1, 5)}),
        ([(7, None, 5), (2, None)], {}, {"x0": (7, 1, 5), "x1": (2, 1)}),
        ([("N", 4), (3, "M")], {}, {"M": 1, "N": 1}),
        ([("N", 4), (3, 5)], {"x1": (3, None)}, {"x0": (1, 4), "x1": (3, 1)}),
        ([(3, "N", "N")], {}, {"N": 1}),
    ],
)
def test_several_open_dimensions_are_refused_with_what_fixes_them(inputs, given, example):
    refused(steps_first(*inputs), given, example, "only one may stay open")


@pytest.mark.parametrize(
    "nodes, constants, message",
    [
        ([node("ReduceMax", ["x", "axes"], ["y"])], {"axes": np.asarray([2])}, r"they are no batch.*\(max\) may mix"),
        ([node("Reshape", ["x", "flat"], ["y"])], {"flat": np.asarray([-1])}, "samples of 'y' are not a dimension"),
        ([node("Conv", ["x", "w"], ["y"])], {"w": np.ones((2, 7, 3), np.float32)}, r"with 1 in their place, Conv"),
        ([node("Conv", ["x", "w"], ["y"])], {"w": np.ones((2, 7, 1), np.float32)}, "only works for one|may mix"),
    ],
)
def test_an_open_dimension_that_is_no_batch(nodes, constants, message):
    """A sum over it, windows along it: fixed by shapes."""
    proto = model(nodes, [value("x", (1, 7, "T"))], [value("y", None)], constants)
    refused(proto, {}, {"T": 1}, message, works={"T": 9})


def refused(proto, given, example, message, works=None):
    with pytest.raises(ShapeError, match=message) as caught:
        from_onnx(proto, shapes=given)
    assert f"shapes={example!r})" in str(caught.value)
    module = from_onnx(proto, shapes=given | (works or example))
    if works is None:
        options = [f"--shape {spec.name}={','.join(map(str, spec.shape))}" for spec in module.inputs]
        assert " ".join(options) in str(caught.value)


@pytest.mark.parametrize(
    "inputs, given",
    [
        ([(7, "batch", 5)], {}),
        ([(7, None, 5)], {}),
        ([(7, 3, 5)], {"x0": (7, "N", 5)}),
        ([("N", 4, 3), (3, "N"), (2, 2)], {}),
    ],
)
def test_a_batch_along_another_axis(inputs, given, rng, tmp_path):
    """Of one input or of several, beside inputs without samples; in the engine, its file, and the interpreter."""
    names = [f"x{index}" for index in range(len(inputs))]
    nodes = [node("Mul", [name, name], [f"y{name}"]) for name in names]
    declared = [value(name, shape) for name, shape in zip(names, inputs, strict=True)]
    proto = model(nodes, declared, [value(f"y{name}", None) for name in names])
    module = from_onnx(proto, shapes=given)
    engine = qnn_ext.build(module, num_threads=1)
    engine.save(tmp_path / "m.qnn")
    loaded = qnn_ext.load(tmp_path / "m.qnn")
    assert loaded.inputs == engine.inputs == module.inputs and loaded.outputs == module.outputs
    for size in (1, 2, 5):
        feed = {spec.name: rng.standard_normal(spec.of_batch(size)).astype(np.float32) for spec in module.inputs}
        expected = [array * array for array in feed.values()]
        for runner in (engine, loaded, qnn_ext.Interpreter(module)):
            for found, wanted in zip(runner.run(feed).values(), expected, strict=True):
                np.testing.assert_array_equal(found, wanted)
    with pytest.raises(InputError, match=r"N.* with N ≥ 1, found"):
        engine.run({**feed, "x0": feed["x0"][..., :1]})


def time_major(kind, states):
    """A layer as PyTorch exports it, (steps, batch, features), with the states it is given and those it ends with."""
    gates = {"LSTM": 4, "GRU": 3}[kind]
    names = ["h", "c"][: gates - 2]
    constants = {
        name: np.random.default_rng(4).normal(0, 0.5, shape).astype(np.float32)
        for name, shape in (("w", (1, gates * 6, 5)), ("r", (1, gates * 6, 6)), ("b", (1, gates * 12)))
    }
    given = [f"{name}0" for name in names] if states else []
    layer = node(kind, ["x", "w", "r", "b", "", *given], ["y", *(f"{name}n" for name in names)], hidden_size=6)
    inputs = [value("x", (4, "N", 5)), *(value(name, (1, "N", 6)) for name in given)]
    return model([layer], inputs, [value("y", None), *(value(f"{name}n", None) for name in names)], constants)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("states", [False, True])
def test_a_recurrent_network_with_steps_first(kind, states, rng):
    proto = time_major(kind, states)
    module = from_onnx(proto)
    assert [spec.batch_axis for spec in module.outputs] == [2, *[1] * (len(module.outputs) - 1)]
    assert str(module.inputs[0]) == "x: 4×N×5 float32"
    for runner in (qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)):
        for size in (1, 3):
            feed = {spec.name: rng.standard_normal(spec.of_batch(size)).astype(np.float32) for spec in module.inputs}
            for found, expected in zip(runner.run(feed).values(), run_ort(proto, feed), strict=True):
                assert found.shape == expected.shape
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_result_without_samples(rng):
    """What does not depend on the batch comes as it is."""
    nodes = [node("Add", ["x", "z"], ["y"]), node("Neg", ["z"], ["w"])]
    proto = model(nodes, [value("x", (2, "N")), value("z", (2, 1))], [value("y", None), value("w", None)])
    module = from_onnx(proto)
    x, z = rng.standard_normal((2, 4)).astype(np.float32), rng.standard_normal((2, 1)).astype(np.float32)
    for runner in (qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)):
        for found, expected in zip(runner(x, z), (x + z, -z), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_calibration_of_a_batch_along_another_axis(rng):
    """Samples come one by one, with a batch of 1 where the model has it."""
    proto = model(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", (4, "N", 5))],
        [value("y", None)],
        {"w": rng.standard_normal((5, 6)).astype(np.float32)},
    )
    module = from_onnx(proto)
    data = [rng.standard_normal((4, 1, 5)).astype(np.float32) for _ in range(8)]
    integers = qnn_ext.quantize.quantize(module, dataset=data)
    assert integers.inputs[0].batch_axis == 1
    x = np.concatenate(data[:3], 1)
    np.testing.assert_allclose(qnn_ext.build(integers, num_threads=1)(x), run_ort(proto, {"x": x})[0], atol=0.1)

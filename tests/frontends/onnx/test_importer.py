"""The walk: folding, branches, TVM's converters behind ours, operators of older versions, and what errors say."""

import ml_dtypes
import numpy as np
import pytest

import qnn_ext
from qnn_ext import InputError, ModelFormatError, QnnError, UnsupportedOperatorError
from qnn_ext.frontends.onnx import from_onnx
from qnn_ext.frontends.onnx.registry import CONVERTERS, converter, find_converter

from .graphs import interpret, model, node, one_node, onnx, operators, run_ort, value


def check(proto, feed, **tolerance):
    """Interpreter against ONNX Runtime: same dtypes, shapes and values."""
    for found, expected in zip(interpret(proto, feed), run_ort(proto, feed), strict=True):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        np.testing.assert_allclose(found, expected, **{"rtol": 1e-5, "atol": 1e-5, **tolerance})


# ---- where a model comes from -------------------------------------------------------------------------------------


def test_path_bytes_and_proto_are_the_same(tmp_path, rng):
    proto = one_node("Relu", {"x": ((2, 3),)})
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    x = rng.standard_normal((2, 3)).astype(np.float32)
    for source in (proto, proto.SerializeToString(), path, str(path)):
        np.testing.assert_array_equal(interpret(source, {"x": x})[0], np.maximum(x, 0))
    assert from_onnx(path).source == str(path)


def test_names_are_the_models(rng):
    proto = model([node("Relu", ["my/input:0"], ["out.1"])], [value("my/input:0", (2,))], [value("out.1", (2,))])
    module = from_onnx(proto)
    assert module.inputs[0].name == "my/input:0" and module.outputs[0].name == "out.1"
    assert list(qnn_ext.Interpreter(module).run({"my/input:0": np.asarray([-1, 2], np.float32)})) == ["out.1"]


def test_nothing_is_printed(capfd):
    from_onnx(one_node("Softplus", {"x": ((2, 3),)}))
    with pytest.raises(QnnError):
        from_onnx(one_node("MeanVarianceNormalization", {"x": ((2, 3),)}))  # refused by TVM
    assert capfd.readouterr().out == ""


def test_outputs_may_be_inputs_or_constants(rng):
    c = np.asarray([2**40, 3])
    proto = model([], [value("x", (2,))], [value("x", (2,)), value("c", (2,), np.int64)], {"c": c})
    x = rng.standard_normal(2).astype(np.float32)
    found = interpret(proto, {"x": x})
    np.testing.assert_array_equal(found[0], x)
    assert found[1].dtype == np.int64 and found[1].tolist() == c.tolist()


def test_one_tensor_as_two_outputs(rng):
    nodes = [node("Relu", ["x"], ["y"]), node("Identity", ["y"], ["z"])]
    proto = model(nodes, [value("x", (2,))], [value("y", (2,)), value("z", (2,))])
    check(proto, {"x": rng.standard_normal(2).astype(np.float32)})


def test_initializers_that_are_also_inputs(rng):
    """Models of IR version 3 list their weights among the inputs."""
    proto = model([node("Add", ["x", "w"], ["y"])], [value("x", (2,)), value("w", (2,))], [value("y", (2,))],
                  {"w": np.ones(2, np.float32)})  # fmt: skip
    assert [spec.name for spec in from_onnx(proto).inputs] == ["x"]


# ---- folding ------------------------------------------------------------------------------------------------------


def test_constant_subgraphs_are_computed(rng):
    nodes = [
        node("Constant", [], ["two"], value_float=2.0),
        node("ConstantOfShape", ["shape"], ["zeros"]),
        node("Range", ["start", "stop", "step"], ["r"]),
        node("Cast", ["r"], ["f"], to=1),
        node("Mul", ["f", "two"], ["m"]),
        node("Add", ["m", "zeros"], ["a"]),
        node("Where", ["mask", "a", "zeros"], ["w"]),
        node("Add", ["x", "w"], ["y"]),
    ]
    constants = {
        "shape": np.asarray([4]),
        "start": np.int64(0),
        "stop": np.int64(4),
        "step": np.int64(1),
        "mask": np.asarray([True, False, True, True]),
    }
    proto = model(nodes, [value("x", (4,))], [value("y", (4,))], constants)
    assert operators(from_onnx(proto)) == ["add"]
    check(proto, {"x": rng.standard_normal(4).astype(np.float32)})


def test_folding_keeps_64_bits():
    nodes = [node("Add", ["a", "a"], ["s"]), node("Add", ["x", "s"], ["y"])]
    proto = model(nodes, [value("x", (1,), np.int64)], [value("y", (1,), np.int64)], {"a": np.asarray([2**40 + 1])})
    assert interpret(proto, {"x": np.asarray([5])})[0].tolist() == [2**41 + 7]


def test_huge_constants_are_refused():
    nodes = [node("ConstantOfShape", ["shape"], ["z"]), node("Add", ["x", "z"], ["y"])]
    proto = model(nodes, [value("x", (1,))], [value("y", None)], {"shape": np.asarray([2**20, 2**20])})
    with pytest.raises(QnnError, match="ConstantOfShape"):
        from_onnx(proto)


# ---- branches -----------------------------------------------------------------------------------------------------


def branches(condition):
    then = model([node("Relu", ["x"], ["t"])], [], [value("t", None)]).graph
    other = model([node("Neg", ["x"], ["t"])], [], [value("t", None)]).graph
    nodes = [node("If", ["c"], ["y"], "choice", then_branch=then, else_branch=other)]
    if condition is None:
        return model(nodes, [value("x", (3,)), value("c", (), np.bool_)], [value("y", (3,))])
    return model(nodes, [value("x", (3,))], [value("y", (3,))], {"c": np.asarray(condition)})


@pytest.mark.parametrize("condition", [True, False])
def test_the_branch_that_is_taken(condition, rng):
    check(branches(condition), {"x": rng.standard_normal(3).astype(np.float32)})


# ---- errors -------------------------------------------------------------------------------------------------------


def test_an_unknown_operator_is_named():
    proto = model([node("Mystery", ["x"], ["y"], "n7", domain="com.microsoft")], [value("x", (3,))], [value("y", None)])
    with pytest.raises(UnsupportedOperatorError, match=r"com\.microsoft\.Mystery 'n7' \(output 'y'\).*Mystery"):
        from_onnx(proto)


REFUSED = [
    ("LRN", {"x": ((1, 3, 4, 4),)}, {"size": 0}, "size must be at least 1, found 0"),
    ("CumSum", {"x": ((),), "axis": np.asarray(0)}, {}, "is a scalar and has no axis"),
]


@pytest.mark.parametrize("operator", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_random_numbers_are_refused_with_a_remedy(operator):
    with pytest.raises(UnsupportedOperatorError, match=rf"{operator}.*random numbers: make 'y0' an input of the model"):
        from_onnx(one_node(operator, {"x": ((2, 3),)}))


@pytest.mark.parametrize("operator, inputs, attributes, message", REFUSED)
def test_what_no_data_has_is_refused(operator, inputs, attributes, message):
    with pytest.raises(QnnError, match=f"{operator}.*{message}"):
        from_onnx(one_node(operator, inputs, 14, **attributes))


def test_bad_operands_name_the_node():
    proto = model([node("Add", ["x", "z"], ["y"], "sum")], [value("x", (3,)), value("z", (4,))], [value("y", None)])
    with pytest.raises(QnnError, match="Add 'sum'"):
        from_onnx(proto)


@pytest.mark.parametrize(
    "nodes, message",
    [
        ([node("Relu", ["nothing"], ["y"])], "'nothing' is used before it is computed"),
        ([node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])], "'y' is computed twice"),
        ([node("Relu", ["x"], ["x"]), node("Relu", ["x"], ["y"])], "'x' is computed twice"),
        ([node("Relu", ["x"], ["z"])], "'y' is used before it is computed"),
    ],
)
def test_graphs_that_do_not_hang_together(nodes, message):
    with pytest.raises(ModelFormatError, match=message):
        from_onnx(model(nodes, [value("x", (3,))], [value("y", None)]))


@pytest.mark.parametrize(
    ("operator", "inputs"), [("OneHot", ["i", "n", "v"]), ("Range", ["z", "n", "o"]), ("Tile", ["v", "l"])]
)
def test_what_must_be_known_at_import_says_what_to_do(operator, inputs):
    """The remedy helps: with the input bound to a value the model is imported."""
    given = [value("n", (), np.int64), value("l", (1,), np.int64), value("i", (3,), np.int64)]
    proto = model(
        [node(operator, inputs, ["y"], "late"), node("Identity", ["i"], ["j"])],
        [one for one in given if one.name in (*inputs, "i")],
        [value("y", None, np.int64), value("j", (3,), np.int64)],
        {"v": np.int64([0, 1]), "z": np.int64(0), "o": np.int64(1)},
    )
    with pytest.raises(UnsupportedOperatorError, match=rf"{operator} 'late'.*\(constants=\), or end the model before"):
        from_onnx(proto)
    bound = {"l": np.int64([3])} if operator == "Tile" else {"n": np.int64(3)}
    assert len(from_onnx(proto, constants=bound).outputs) == 2


@pytest.mark.parametrize("quantized", [False, True])
def test_a_split_into_one_part(quantized, rng):
    """As torch.onnx.export writes `where` of a vector."""
    nodes = [node("Split", ["d" if quantized else "x", "n"], ["p"], axis=1), node("Squeeze", ["p", "one"], ["v"])]
    if quantized:
        pairs = [("x", "q", "d"), ("v", "r", "y")]
        around = [
            [node("QuantizeLinear", [a, "s", "z"], [b]), node("DequantizeLinear", [b, "s", "z"], [c])]
            for a, b, c in pairs
        ]
        nodes = [*around[0], *nodes, *around[1]]
    else:
        nodes.append(node("Neg", ["v"], ["y"]))
    constants = {"n": np.int64([1]), "one": np.int64([1]), "s": np.float32(0.25), "z": np.uint8(128)}
    proto = model(nodes, [value("x", (4, 1))], [value("y", None)], constants)
    feed = {"x": rng.standard_normal((4, 1)).astype(np.float32)}
    module = from_onnx(proto)
    for run in (qnn_ext.Interpreter(module).run, qnn_ext.build(module, num_threads=1).run):
        np.testing.assert_array_equal(run(feed)["y"], run_ort(proto, feed)[0])


def test_outputs_without_a_type():
    """Names of values added to the outputs to look at them, which ONNX Runtime takes."""
    nodes = [node("Relu", ["x"], ["r"]), node("Cast", ["r"], ["y"], to=6)]
    proto = model(nodes, [value("x", (2, 3))], [value("y", (2, 3), np.int32)])
    proto.graph.output.append(onnx.ValueInfoProto(name="r"))
    module = from_onnx(proto)
    assert [(one.name, one.shape, one.dtype) for one in module.outputs] == [
        ("y", (2, 3), "int32"),
        ("r", (2, 3), "float32"),
    ]
    feed = {"x": np.float32([[-1.5, 2, 3.25], [0, -1, 1]])}
    for found, wanted in zip(interpret(proto, feed), run_ort(proto, feed), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_output_of_another_dtype_than_declared():
    proto = model([node("Relu", ["x"], ["y"])], [value("x", (3,))], [value("y", (3,), np.int8)])
    with pytest.raises(ModelFormatError, match="declared as int8, but is computed as float32"):
        from_onnx(proto)


def test_no_outputs():
    with pytest.raises(ModelFormatError, match="no outputs"):
        from_onnx(model([node("Relu", ["x"], ["y"])], [value("x", (3,))], []))


# ---- versions -----------------------------------------------------------------------------------------------------


def test_the_newest_version_up_to_the_models():
    assert find_converter("", "Clip", 10).since == 1
    assert find_converter("", "Clip", 25).since == 11
    assert find_converter("com.example", "Clip", 25) is None


def test_two_converters_of_one_version():
    entries = {key: list(value) for key, value in CONVERTERS.items()}
    with pytest.raises(ValueError, match="two converters"):
        converter("Clip", since=11)(lambda node: node.input(0))
    assert entries == CONVERTERS


OLDER = [
    ("Clip", 10, {"min": -0.5, "max": 0.7}, {}),
    ("Softmax", 11, {"axis": 1}, {}),
    ("Softmax", 12, {}, {}),
    ("LogSoftmax", 11, {"axis": 1}, {}),
    ("Unsqueeze", 11, {"axes": [0, 2]}, {}),
    ("Squeeze", 11, {"axes": [0]}, {}),
    ("Squeeze", 11, {}, {}),
    ("ReduceSum", 11, {"axes": [1], "keepdims": 0}, {}),
    ("ReduceMean", 11, {"axes": [-1]}, {}),
    ("ReduceMean", 17, {}, {}),
    ("ReduceMax", 13, {"axes": [1, 2]}, {}),
    ("Pad", 10, {"pads": [0, 1, 0, 0, 0, 2], "value": 1.5}, {}),
    ("Dropout", 10, {}, {}),
    ("Upsample", 9, {}, {"scales": np.asarray([1, 2, 2], np.float32)}),
    ("Resize", 10, {"mode": "nearest"}, {"scales": np.asarray([1, 2, 1.5], np.float32)}),
    ("TopK", 10, {"axis": 1}, {"k": np.asarray([2])}),
    ("Slice", 10, {}, {"starts": np.asarray([-3, 0]), "ends": np.asarray([99, 2]), "axes": np.asarray([2, 1])}),
    ("Flatten", 10, {"axis": 2}, {}),
    ("ArgMax", 11, {"axis": 2, "keepdims": 0}, {}),
    ("BatchNormalization", 9, {}, {name: np.asarray([1.5, 0.5, 2], np.float32) for name in "abcd"}),
]


@pytest.mark.parametrize("operator, opset, attributes, constants", OLDER)
def test_operators_of_older_versions(operator, opset, attributes, constants, rng):
    outputs = 2 if operator == "TopK" else 1
    proto = one_node(operator, {"x": ((1, 3, 5),), **constants}, opset, outputs, **attributes)
    check(proto, {"x": rng.standard_normal((1, 3, 5)).astype(np.float32)})


@pytest.mark.parametrize("opset", [11, 13])
def test_split(opset, rng):
    sizes = [1, 3, 1]
    proto = one_node(
        "Split",
        {"x": ((2, 5),)} | ({"s": np.asarray(sizes)} if opset == 13 else {}),
        opset,
        outputs=3,
        axis=1,
        **({"split": sizes} if opset == 11 else {}),
    )
    check(proto, {"x": rng.standard_normal((2, 5)).astype(np.float32)})


def test_indices_out_of_range_are_refused(rng):
    """ONNX Runtime raises an error, too."""
    table = rng.standard_normal((4, 3)).astype(np.float32)
    module = from_onnx(one_node("Gather", {"table": table, "i": ((5,), np.int64)}))
    for run in (qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)):
        np.testing.assert_array_equal(run(np.array([0, -1, 3, -4, 1])), table[[0, 3, 3, 0, 1]])
        with pytest.raises(InputError, match=r"Gather 'Gather' .*: index -1000000 is out of range -4 … 3"):
            run(np.array([0, -1, 3, 2, -(10**6)]))


@pytest.mark.parametrize("index", [0, -1, [-2], [[1, -3]]])
def test_constant_indices_keep_their_shape(rng, index):
    proto = one_node("Gather", {"x": ((2, 3, 4), np.float32), "i": np.asarray(index, np.int64)}, axis=1)
    check(proto, {"x": rng.standard_normal((2, 3, 4)).astype(np.float32)})


def test_bfloat16_stays_within_the_model():
    proto = model([node("Cast", ["x"], ["y"], to=onnx.TensorProto.BFLOAT16)], [value("x", (2,))], [value("y", None)])
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
    with pytest.raises(UnsupportedOperatorError, match="'y' is bfloat16"):
        from_onnx(proto)


@pytest.mark.parametrize("source", ["float32", "float16", "int32"])
def test_casts_to_bfloat16_round(rng, source):
    """Although nothing is stored between the two casts."""
    nodes = [node("Cast", ["x"], ["b"], to=onnx.TensorProto.BFLOAT16), node("Cast", ["b"], ["y"], to=1)]
    x = (rng.standard_normal((3, 41)) * 700).astype(source)
    proto = model(nodes, [value("x", x.shape, source)], [value("y", x.shape)])
    (found,) = qnn_ext.build(from_onnx(proto), num_threads=1).run({"x": x}).values()
    np.testing.assert_array_equal(found, x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32))


def test_maxima_of_bool_are_refused():
    """Before version 20, which allows them."""
    with pytest.raises(UnsupportedOperatorError, match=r"ReduceMax.*bool"):
        from_onnx(one_node("ReduceMax", {"x": ((2, 2), bool)}, opset=18))


@pytest.mark.parametrize("inputs", [["x", ""], [], ["", "x"]])
@pytest.mark.parametrize("operator", ["Concat", "Add", "MatMul"])
def test_missing_inputs(operator, inputs):
    attributes = {"axis": 0} if operator == "Concat" else {}
    proto = model([node(operator, inputs, ["y"], "n1", **attributes)], [value("x", (3, 3))], [value("y", None)])
    with pytest.raises(ModelFormatError, match=f"{operator} 'n1'.*is missing"):
        from_onnx(proto)


def test_too_many_inputs():
    proto = model([node("Relu", ["x", "x"], ["y"], "n1")], [value("x", (3,))], [value("y", None)])
    with pytest.raises(ModelFormatError, match=r"Relu 'n1'.*has 2 inputs"):
        from_onnx(proto)

"""The reader: dtypes of constants, operator sets, and what it says about files that are not models."""

import sys

import ml_dtypes
import numpy as np
import pytest

from qnn_ext import ModelFormatError, QnnError, UnsupportedOperatorError
from qnn_ext.frontends.onnx import from_onnx
from qnn_ext.frontends.onnx.reader import read_model

from .graphs import interpret, model, node, onnx, run_ort, value

Proto = onnx.TensorProto


def with_constant(tensor):
    proto = model([node("Identity", ["x"], ["y"])], [value("x", [2])], [value("y", [2])])
    proto.graph.initializer.append(tensor)
    return proto


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float16", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"],
)
@pytest.mark.parametrize("raw", [True, False])
def test_constants_keep_their_dtype(dtype, raw, rng):
    array = (rng.standard_normal((3, 5)) * 100).astype(dtype)
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    data = array.tobytes() if raw else array.reshape(-1).tolist()
    found = read_model(with_constant(onnx.helper.make_tensor("c", code, array.shape, data, raw))).constants["c"]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_int64_beyond_32_bits():
    tensor = onnx.numpy_helper.from_array(np.asarray([2**40, -(2**50)]), "c")
    assert read_model(with_constant(tensor)).constants["c"].tolist() == [2**40, -(2**50)]


def test_bfloat16(rng):
    array = rng.standard_normal(7).astype(ml_dtypes.bfloat16)
    tensor = onnx.helper.make_tensor("c", Proto.BFLOAT16, [7], array.view(np.uint16).tobytes(), True)
    found = read_model(with_constant(tensor)).constants["c"]
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("code, low, high", [(Proto.INT4, -8, 7), (Proto.UINT4, 0, 15)])
@pytest.mark.parametrize("count", [15, 16])
@pytest.mark.parametrize("raw", [True, False])
def test_four_bit_integers_are_unpacked(code, low, high, count, raw):
    values = [low + index % (high - low + 1) for index in range(count)]
    tensor = onnx.helper.make_tensor("c", code, [count], values)
    if raw:
        packed = bytes(np.asarray(tensor.int32_data, np.uint8))
        tensor = onnx.helper.make_tensor("c", code, [count], packed, True)
    read = read_model(with_constant(tensor))
    assert read.constants["c"].tolist() == values
    assert read.constants["c"].dtype == (np.int8 if low else np.uint8)
    assert read.narrow_dtypes == {"c": "int4" if low else "uint4"}


def test_operator_sets_and_names():
    read = read_model(model([node("Relu", ["x"], ["y"], "r")], [value("x", ["N", 3])], [value("y", None)], opset=13))
    assert read.opset("") == 13 and read.opset("com.microsoft") == 1
    assert read.inputs[0].shape == ("N", 3) and read.outputs[0].shape is None
    assert read.operators[0].label() == "Relu 'r' (output 'y')"


def test_attributes_are_plain_python():
    proto = model(
        [node("Custom", ["x"], ["y"], i=3, f=0.5, s="text", ints=[1, 2], floats=[1.5], strings=["a", "b"])],
        [value("x", [2])],
        [value("y", [2])],
    )
    attributes = read_model(proto).operators[0].attributes
    assert attributes == {"i": 3, "f": 0.5, "s": "text", "ints": [1, 2], "floats": [1.5], "strings": ["a", "b"]}


def test_local_functions_are_inlined():
    proto = model([node("Twice", ["x"], ["y"], domain="mine")], [value("x", [2])], [value("y", [2])])
    body = [node("Add", ["a", "a"], ["b"])]
    opsets = [onnx.helper.make_opsetid("", 21)]
    proto.functions.append(onnx.helper.make_function("mine", "Twice", ["a"], ["b"], body, opsets))
    proto.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    assert [operator.op_type for operator in read_model(proto).operators] == ["Add"]


def calls(own, *nodes):
    """The graph made of these nodes, with functions of the domain "mine" put in their place."""
    proto = model(nodes, [value("x", [2])], [value("y", [2])])
    proto.functions.extend(own)
    proto.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    return read_model(proto).operators


def leaky(name, slope, caller=None):
    """A function of an attribute with a default: LeakyRelu, or another function that has an attribute "slope"."""
    body = node(caller or "LeakyRelu", ["a"], ["b"], domain="mine" if caller else "")
    body.attribute.append(onnx.AttributeProto(name="slope" if caller else "alpha", type=1, ref_attr_name="slope"))
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("mine", 1)]
    defaults = [onnx.helper.make_attribute("slope", slope)]
    return onnx.helper.make_function("mine", name, ["a"], ["b"], [body], opsets, attribute_protos=defaults)


def test_local_functions_have_defaults():
    own = [leaky("Leaky", 0.25), leaky("Outer", 0.75, "Leaky")]
    found = calls(
        own,
        node("Leaky", ["x"], ["m"], domain="mine"),
        node("Leaky", ["m"], ["n"], domain="mine", slope=0.5),
        node("Outer", ["n"], ["y"], domain="mine"),
    )
    assert [operator.op_type for operator in found] == ["LeakyRelu"] * 3
    assert [operator.attributes["alpha"] for operator in found] == [0.25, 0.5, 0.75]


# ---- sparse tensors -----------------------------------------------------------------------------------------------


def sparse(values, indices, shape):
    """A SparseTensorProto named "c"."""
    return onnx.helper.make_sparse_tensor(
        onnx.numpy_helper.from_array(np.asarray(values), "c"), onnx.numpy_helper.from_array(np.asarray(indices)), shape
    )


def with_sparse(tensor, attribute):
    """A model of x + c, with the tensor in an attribute of a node or as an initializer."""
    nodes = [node("Constant", [], ["c"], sparse_value=tensor)] if attribute else []
    proto = model([*nodes, node("Add", ["x", "c"], ["y"])], [value("x", [3, 4])], [value("y", [3, 4])])
    if not attribute:
        proto.graph.sparse_initializer.append(tensor)
    return proto


@pytest.mark.parametrize("attribute", [True, False])
@pytest.mark.parametrize("indices", [[1, 11], [[0, 1], [2, 3]]])
def test_sparse_tensors_become_dense(indices, attribute, rng):
    x = rng.standard_normal((3, 4)).astype(np.float32)
    proto = with_sparse(sparse(np.asarray([2, -1], np.float32), indices, [3, 4]), attribute)
    expected = x.copy()
    expected[[0, 2], [1, 3]] += np.asarray([2, -1], np.float32)
    np.testing.assert_array_equal(interpret(proto, {"x": x})[0], expected)
    np.testing.assert_array_equal(run_ort(proto, {"x": x})[0], expected)


@pytest.mark.parametrize(
    "values, indices, shape",
    [
        ([1.0], [12], [3, 4]),
        ([1.0], [-1], [3, 4]),
        ([1.0], [[0, 4]], [3, 4]),
        ([1.0], [[0, 0]], [0, 4]),
        ([1.0], [0, 1], [3, 4]),
        ([1.0], [[0, 1, 2]], [3, 4]),
        ([[1.0]], [[0]], [3, 4]),
        ([1.0], [0.5], [3, 4]),
        ([1.0], [0], [3, -4]),
    ],
)
def test_sparse_tensors_that_are_damaged(values, indices, shape):
    tensor = sparse(np.asarray(values, np.float32), indices, [3, 4])
    tensor.dims[:] = shape
    with pytest.raises(ModelFormatError, match="damaged"):
        read_model(with_sparse(tensor, False))


# ---- what is no model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"", b"\x00", b"hello world, this is no model", b"TFL3" * 100, b"PK\x03\x04" + bytes(99)]
)
def test_other_files_are_refused(content, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    for source in (content, path):
        with pytest.raises(ModelFormatError):
            read_model(source)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ModelFormatError, match=r"nowhere\.onnx"):
        read_model(tmp_path / "nowhere.onnx")


def test_directory_is_refused(tmp_path):
    with pytest.raises(ModelFormatError, match="not a regular file"):
        read_model(tmp_path)


def test_truncated_file(tmp_path):
    proto = with_constant(onnx.numpy_helper.from_array(np.zeros(1000, np.float32), "c"))
    content = proto.SerializeToString()
    with pytest.raises(ModelFormatError):
        read_model(content[: len(content) // 2])


@pytest.mark.parametrize("code, data", [(Proto.FLOAT, bytes(12)), (Proto.INT4, bytes(3)), (Proto.INT64, bytes(17))])
def test_data_that_do_not_fill_the_shape(code, data):
    with pytest.raises(ModelFormatError, match="'c'"):
        read_model(with_constant(Proto(name="c", data_type=code, dims=[4], raw_data=data)))


@pytest.mark.parametrize("shape", [[-1], [2**40, 2**40], [1] * 40])
def test_absurd_shapes(shape):
    tensor = Proto(name="c", data_type=Proto.FLOAT, dims=shape)
    with pytest.raises(ModelFormatError, match="'c'"):
        read_model(with_constant(tensor))


@pytest.mark.parametrize("name", ["FLOAT4E2M1", "STRING", "COMPLEX64"])
def test_unsupported_dtypes_are_named(name):
    tensor = Proto(name="c", data_type=Proto.DataType.Value(name), dims=[0])
    with pytest.raises(UnsupportedOperatorError, match=f"'c': element type {name}"):
        read_model(with_constant(tensor))


def test_sequences_are_refused():
    sequence = onnx.helper.make_tensor_sequence_value_info("x", 1, None)
    with pytest.raises(UnsupportedOperatorError, match="'x' is not a tensor"):
        read_model(model([node("Identity", ["x"], ["y"])], [sequence], [value("y", None)]))


def test_a_tensor_is_no_sequence():
    """TVM's importer would take it for a sequence without an end."""
    proto = model([node("ConcatFromSequence", ["x"], ["y"], axis=0)], [value("x", [2])], [value("y", None)])
    with pytest.raises(ModelFormatError, match="must be a sequence"):
        from_onnx(proto)


@pytest.mark.parametrize("version", [0, -1])
def test_versions_of_operator_sets_begin_at_1(version):
    proto = model([node("Concat", ["x", ""], ["y"], axis=0)], [value("x", [2])], [value("y", [2])], opset=version)
    with pytest.raises(ModelFormatError, match=f"ai.onnx has the invalid version {version}"):
        from_onnx(proto)


def test_missing_package_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(QnnError, match=r"pip install 'qnn-ext\[onnx\]'"):
        read_model(b"anything")

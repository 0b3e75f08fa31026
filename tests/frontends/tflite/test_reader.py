"""The reader against LiteRT on real files, and against small files that hold one feature or one defect each."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import flatbuffers
import numpy as np
import pytest

from qnn_ext.errors import ModelFormatError, QnnError, UnsupportedOperatorError
from qnn_ext.frontends.tflite.options import _DTYPE_FIELDS, _ENUM_OF_FIELD, _fields
from qnn_ext.frontends.tflite.reader import read_model

from .schema_models import TYPES, Sketch, conv_sketch, quantization, schema, signature

ROOT = Path(__file__).parents[3]
REAL = sorted((ROOT.parent / "shared" / "models" / "tflite").glob("*.tflite"))
BUNDLED = sorted((ROOT / "qnn_ext" / "data").glob("*.tflite"))
OPS = schema.BuiltinOperator


# --- real files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", REAL + BUNDLED, ids=lambda path: path.stem)
def test_agrees_with_litert(path: Path) -> None:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(str(path), experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    details = interpreter.get_tensor_details()  # before allocation: as stored in the file
    graph = read_model(path).subgraphs[0]
    assert [d["index"] for d in interpreter.get_input_details()] == list(graph.inputs)
    assert [d["index"] for d in interpreter.get_output_details()] == list(graph.outputs)
    ops = interpreter._get_ops_details()
    assert [o["op_name"] for o in ops[: len(graph.operators)]] == [o.name for o in graph.operators]
    interpreter.allocate_tensors()
    assert len(details) > 0
    for detail in details:
        tensor = graph.tensors[detail["index"]]
        assert tensor.name == detail["name"]
        assert tensor.shape == tuple(detail["shape"])
        assert tensor.shape_signature == (tuple(detail["shape_signature"]) or tensor.shape)
        assert tensor.dtype == np.dtype(detail["dtype"]).name
        expected = detail["quantization_parameters"]
        if tensor.qparams is None:
            assert expected["scales"].size == 0
        else:
            np.testing.assert_array_equal(tensor.qparams.scale.reshape(-1), expected["scales"])
            np.testing.assert_array_equal(tensor.qparams.zero_point.reshape(-1), expected["zero_points"])
            assert tensor.qparams.axis == (expected["quantized_dimension"] if expected["scales"].size > 1 else None)
        if tensor.data is not None:
            np.testing.assert_array_equal(tensor.data, interpreter.get_tensor(tensor.index))


def test_real_files_are_there(models: Path) -> None:
    assert len(REAL) >= 12


# --- what a file can hold -----------------------------------------------------------------------------------------


def test_per_channel_convolution() -> None:
    model = read_model(conv_sketch().bytes())
    graph = model.subgraphs[0]
    conv, reshape = graph.operators
    assert (model.version, model.description, graph.name) == (3, "sketch", "main")
    assert (conv.name, conv.custom, conv.version, conv.inputs, conv.outputs) == ("CONV_2D", False, 3, (0, 1, 2), (3,))
    assert conv.options == {
        "padding": "VALID",
        "stride_w": 1,
        "stride_h": 1,
        "fused_activation_function": "RELU6",
        "dilation_w_factor": 1,
        "dilation_h_factor": 1,
        "quantized_bias_type": "float32",
    }
    assert conv.label() == "CONV_2D #0 (output 'net/conv')"
    assert reshape.options == {"new_shape": (1, 12)}
    weights = graph.tensors[1]
    assert weights.qparams is not None and weights.data is not None
    assert weights.qparams.axis == 0
    np.testing.assert_array_equal(weights.qparams.scale, np.float32([0.1, 0.2, 0.3]))
    np.testing.assert_array_equal(weights.data, np.arange(-27, 27, dtype=np.int8).reshape(3, 3, 3, 2))
    assert int(graph.tensors[0].qparams.zero_point) == -3
    assert graph.tensors[2].data.tolist() == [1, -2, 3] and graph.tensors[2].qparams.dtype == "int32"
    (entry,) = model.signatures
    assert (entry.signature_key, entry.inputs, entry.outputs) == ("serving_default", {"x": 0}, {"logits": 4})


def test_constants_are_read_only_views_of_the_file() -> None:
    data = conv_sketch().bytes()
    weights = read_model(data).subgraphs[0].tensors[1].data
    assert not weights.flags.writeable
    assert np.shares_memory(weights, np.frombuffer(data, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        weights[0] = 1


def unary(code: int, options: object | None = None, **keywords: object) -> Sketch:
    """input -> one operator -> output, int8."""
    sketch = Sketch()
    sketch.graph.inputs, sketch.graph.outputs = [sketch.tensor((2, 3))], [sketch.tensor((2, 3))]
    sketch.operator(code, [0], [1], options, **keywords)
    return sketch


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (OPS.MAX_POOL_2D, {"padding": "SAME", "filter_width": 0, "fused_activation_function": "NONE"}),
        (OPS.REDUCE_PROD, {"keep_dims": False}),
        (OPS.CAST, {"in_data_type": "float32", "out_data_type": "float32"}),
        (OPS.BATCH_MATMUL, {"adj_x": False, "adj_y": False, "asymmetric_quantize_inputs": False}),
        (OPS.LSTM, {"kernel_type": "FULL", "cell_clip": 0.0}),
        (OPS.MIRROR_PAD, {"mode": "REFLECT"}),
        (OPS.FULLY_CONNECTED, {"weights_format": "DEFAULT", "keep_num_dims": False}),
        (OPS.SQUEEZE, {"squeeze_dims": ()}),
        (OPS.VAR_HANDLE, {"container": "", "shared_name": ""}),
        (OPS.GELU, {"approximate": False}),
        (OPS.ADD, {"pot_scale_int16": True}),
    ],
)
def test_absent_options_have_the_schema_defaults(code: int, expected: dict) -> None:
    (operator,) = read_model(unary(code).bytes()).subgraphs[0].operators
    assert {field: operator.options[field] for field in expected} == expected


def test_operators_without_options() -> None:
    for code in (OPS.RELU, OPS.LOGISTIC, OPS.FLOOR, OPS.RSQRT):
        assert read_model(unary(code).bytes()).subgraphs[0].operators[0].options == {}


def test_every_options_class_decodes() -> None:
    """Each class of the schema, written with LiteRT's object API, comes back under the schema's field names."""
    kinds = [kind for kind in vars(schema.BuiltinOptions) if kind.endswith("Options")]
    assert len(kinds) > 110
    for kind in kinds:
        file = unary(OPS.RELU, getattr(schema, kind + "T")()).bytes()
        options = read_model(file).subgraphs[0].operators[0].options
        scalars, vectors = _fields(kind)
        assert options.keys() == scalars.keys() | vectors.keys()
        assert len(options) == sum(not name.startswith("_") for name in vars(getattr(schema, kind + "T")())) - (
            kind == "FullyConnectedOptions"  # quantSpec is newer than the schema package
        )


def test_every_enum_field_is_named() -> None:
    """An Int8 or enum-like field without an entry in the tables would come out as a bare number."""
    import tflite

    for kind in vars(tflite.BuiltinOptions):
        if not kind.endswith("Options"):
            continue
        options = read_model(unary(OPS.RELU, getattr(schema, kind + "T")()).bytes()).subgraphs[0].operators[0].options
        for field, value in options.items():
            if field in _ENUM_OF_FIELD or field in _DTYPE_FIELDS:
                assert isinstance(value, str | tuple), (kind, field)
            else:
                assert not field.endswith(("type", "padding", "function", "dtype")), (kind, field)


def test_options_with_values() -> None:
    cast = schema.CastOptionsT()
    cast.inDataType, cast.outDataType = TYPES.INT16, TYPES.BOOL
    options = read_model(unary(OPS.CAST, cast).bytes()).subgraphs[0].operators[0].options
    assert options == {"in_data_type": "int16", "out_data_type": "bool"}
    handle = schema.VarHandleOptionsT()
    handle.sharedName = "state"
    options = read_model(unary(OPS.VAR_HANDLE, handle).bytes()).subgraphs[0].operators[0].options
    assert options["shared_name"] == "state"
    slice_options = schema.StridedSliceOptionsT()
    slice_options.beginMask, slice_options.offset = 5, True
    options = read_model(unary(OPS.STRIDED_SLICE, slice_options).bytes()).subgraphs[0].operators[0].options
    assert (options["begin_mask"], options["offset"], options["shrink_axis_mask"]) == (5, True, 0)


def test_custom_operator() -> None:
    sketch = unary(OPS.CUSTOM, custom="TFLite_Detection_PostProcess", custom_options=b"\x01\x02\xff", version=2)
    (operator,) = read_model(sketch.bytes()).subgraphs[0].operators
    assert (operator.name, operator.custom, operator.version) == ("TFLite_Detection_PostProcess", True, 2)
    assert (operator.options, operator.custom_options) == ({}, b"\x01\x02\xff")


def test_operator_code_in_either_field() -> None:
    sketch = unary(OPS.RELU)
    (code,) = sketch.model.operatorCodes
    code.builtinCode, code.deprecatedBuiltinCode = 0, OPS.TANH  # as files older than the wide field have it
    assert read_model(sketch.bytes()).subgraphs[0].operators[0].name == "TANH"
    assert read_model(unary(OPS.GELU).bytes()).subgraphs[0].operators[0].name == "GELU"  # 150, placeholder 127


def test_int2_unpacks_to_int8() -> None:
    sketch = Sketch()
    sketch.tensor((5,), TYPES.INT2, bytes([0b11_10_01_00, 0b10]), quantization([0.5], [0]))
    (tensor,) = read_model(sketch.bytes()).subgraphs[0].tensors
    assert (tensor.dtype, tensor.narrow) == ("int8", "int2")
    np.testing.assert_array_equal(tensor.data, np.array([0, 1, -2, -1, -2], np.int8))


@pytest.mark.parametrize("count", [6, 7])
def test_int4_unpacks_to_int8(count: int) -> None:
    values = np.array([-8, 7, 0, -1, 3, -4, 5][:count], np.int8)
    nibbles = np.append(values, np.int8(0))[: 2 * ((count + 1) // 2)].view(np.uint8) & 15
    sketch = Sketch()
    sketch.tensor((count,), TYPES.INT4, (nibbles[0::2] | nibbles[1::2] << 4).tobytes(), quantization([0.5], [0]))
    sketch.tensor((4,), TYPES.INT4, quant=quantization([0.5], [0]))
    constant, activation = read_model(sketch.bytes()).subgraphs[0].tensors
    assert (constant.dtype, activation.dtype, constant.qparams.dtype) == ("int8", "int4", "int8")
    np.testing.assert_array_equal(constant.data, values)
    assert not constant.data.flags.writeable


def test_every_dtype() -> None:
    names = {name.lower() for name in vars(TYPES) if name.isupper()} - {"int4", "int2"}
    opaque = {"string", "resource", "variant", "bfloat16", "uint4", "float8_e4m3fn", "float8_e5m2"}
    for name in names - opaque:
        sketch = Sketch()
        values = np.array([[0, 1, 1], [1, 0, 1]], name)
        sketch.tensor((2, 3), getattr(TYPES, name.upper()), values)
        (tensor,) = read_model(sketch.bytes()).subgraphs[0].tensors
        assert (tensor.dtype, tensor.data.dtype) == (name, values.dtype)
        np.testing.assert_array_equal(tensor.data, values)
    for name in opaque:
        sketch = Sketch()
        sketch.tensor((2,), getattr(TYPES, name.upper()))
        assert read_model(sketch.bytes()).subgraphs[0].tensors[0].dtype == name
        sketch.tensor((2,), getattr(TYPES, name.upper()), b"\0\0")
        tensor = read_model(sketch.bytes()).subgraphs[0].tensors[1]
        assert (tensor.dtype, tensor.is_constant) == (name, True)
        with pytest.raises(UnsupportedOperatorError, match=f"constants of dtype {name} are not supported"):
            _ = tensor.data


def test_shape_signature() -> None:
    sketch = Sketch()
    sketch.tensor((1, 8))
    sketch.graph.tensors[0].shapeSignature = [-1, 8]
    (tensor,) = read_model(sketch.bytes()).subgraphs[0].tensors
    assert (tensor.shape, tensor.shape_signature) == ((1, 8), (-1, 8))


def test_empty_constant_and_scalar() -> None:
    """RESHAPE to a scalar has a constant shape of no elements, stored as no bytes at all."""
    sketch = Sketch()
    x, shape, y = sketch.tensor((1,)), sketch.tensor((0,), TYPES.INT32), sketch.tensor(())
    sketch.graph.inputs, sketch.graph.outputs = [x], [y]
    sketch.operator(OPS.RESHAPE, [x, shape], [y])
    tensors = read_model(sketch.bytes()).subgraphs[0].tensors
    assert tensors[shape].data.shape == (0,) and tensors[shape].data.dtype == np.int32
    assert tensors[y].shape == () and tensors[y].data is None


def test_optional_inputs_and_variables() -> None:
    sketch = unary(OPS.SVDF)
    state = sketch.tensor((4,))
    sketch.graph.tensors[state].isVariable = True
    sketch.graph.operators[0].inputs = [0, -1, state]
    sketch.graph.operators[0].intermediates = [-1]
    graph = read_model(sketch.bytes()).subgraphs[0]
    assert graph.operators[0].inputs == (0, -1, state) and graph.operators[0].intermediates == (-1,)
    assert graph.tensors[state].is_variable


def test_float_range_is_no_quantization() -> None:
    sketch = Sketch()
    params = quantization([])
    params.min, params.max = [-1.0], [1.0]
    sketch.tensor((2,), TYPES.FLOAT32, quant=params)
    sketch.tensor((2,), TYPES.FLOAT32, quant=quantization([0.0], [0]))
    sketch.tensor((2,), TYPES.INT8, quant=params)
    assert [t.qparams for t in read_model(sketch.bytes()).subgraphs[0].tensors] == [None, None, None]


def test_zero_scale_of_a_dead_channel() -> None:
    sketch = Sketch()
    sketch.tensor((2, 1), data=np.int8([[1], [0]]), quant=quantization([0.5, 0.0], [0, 0]))
    scale = read_model(sketch.bytes()).subgraphs[0].tensors[0].qparams.scale
    assert scale[0] == np.float32(0.5) and 0 < scale[1] < 1e-20


def test_zero_scale_of_a_tensor_that_was_zero_in_calibration() -> None:
    sketch = unary(OPS.RELU)
    sketch.graph.tensors[1].quantization = quantization([0.0], [0])
    assert 0 < read_model(sketch.bytes()).subgraphs[0].tensors[1].qparams.scale < 1e-20


@pytest.mark.parametrize("scale", [-1.0, float("nan"), float("inf")])
def test_meaningless_scale(scale: float) -> None:
    """Of a tensor nobody uses it does not matter; of a tensor in use it is refused."""
    sketch = unary(OPS.RELU)
    sketch.tensor((2,), quant=quantization([scale], [0]))
    assert read_model(sketch.bytes()).subgraphs[0].tensors[2].qparams is None
    sketch.graph.tensors[1].quantization = quantization([scale], [0])
    with pytest.raises(ModelFormatError, match=r"tensor 1 't1': .*finite and positive"):
        read_model(sketch.bytes())


def test_buffers_outside_the_flatbuffer() -> None:
    """How files over 2 GB store constants: at an offset past the end of the flatbuffer."""
    sketch = Sketch()
    sketch.tensor((4,), TYPES.INT32, b"")
    buffer = sketch.model.buffers[1]
    buffer.data, buffer.size, buffer.offset = None, 16, 1 << 20
    buffer.offset = len(sketch.bytes())
    data = sketch.bytes()
    values = np.array([1, -2, 3, 4], np.int32)
    (tensor,) = read_model(data + values.tobytes()).subgraphs[0].tensors
    np.testing.assert_array_equal(tensor.data, values)
    with pytest.raises(ModelFormatError, match="refers to bytes"):
        read_model(data + values.tobytes()[:-1])


def test_unaligned_constants() -> None:
    sketch = Sketch()
    sketch.tensor((2,), TYPES.INT32, b"")
    buffer = sketch.model.buffers[1]
    buffer.data, buffer.size, buffer.offset = None, 8, 1 << 20
    buffer.offset = len(sketch.bytes()) + 1
    (tensor,) = read_model(sketch.bytes() + b"\0" + np.array([5, -6], np.int32).tobytes()).subgraphs[0].tensors
    assert tensor.data.tolist() == [5, -6] and tensor.data.flags.aligned and not tensor.data.flags.writeable


# --- files and sources --------------------------------------------------------------------------------------------


def test_path_and_bytes_give_the_same(tmp_path: Path) -> None:
    path = tmp_path / "conv.tflite"
    path.write_bytes(conv_sketch().bytes())
    for source in (path, str(path), path.read_bytes()):
        assert read_model(source).subgraphs[0].operators[0].name == "CONV_2D"


def test_sources_that_are_no_model(tmp_path: Path) -> None:
    good = conv_sketch().bytes()
    cases = {
        "empty.tflite": (b"", "it is empty"),
        "text.tflite": (b"#!/bin/sh\necho hello\n", "identifier TFL3 is missing"),
        "short.tflite": (good[:8], "truncated"),
        "half.tflite": (good[: len(good) // 2], "truncated"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelFormatError, match=message) as caught:
            read_model(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
    with pytest.raises(ModelFormatError, match=r"missing\.tflite: no such file"):
        read_model(tmp_path / "missing.tflite")
    with pytest.raises(ModelFormatError, match="not a regular file"):
        read_model(tmp_path)
    with pytest.raises(ModelFormatError):
        read_model("a\0b.tflite")
    with pytest.raises(ModelFormatError, match="given as bytes"):
        read_model(b"")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFormatError, match="not a regular file"):
        read_model(tmp_path / "pipe")


def test_missing_schema_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tflite", None)
    with pytest.raises(QnnError, match=r"pip install 'qnn-ext\[tflite\]'"):
        read_model(b"")


# --- defects ------------------------------------------------------------------------------------------------------


def refuse(sketch: Sketch, message: str, error: type[QnnError] = ModelFormatError) -> None:
    with pytest.raises(error, match=message):
        read_model(sketch.bytes())


def test_bad_shapes() -> None:
    for shape, message in [
        ((2, -3), "negative dimension"),
        ((2**16, 2**16), "elements"),
        ((2**31 - 1,) * 20, "elements"),
        ((1,) * 33, "33 dimensions"),
    ]:
        sketch = Sketch()
        sketch.tensor(shape)
        refuse(sketch, message)
    for bad in ([-1], [-1, 4], [-2, 3], [2, 3, 1]):
        sketch = Sketch()
        sketch.tensor((2, 3))
        sketch.graph.tensors[0].shapeSignature = bad
        refuse(sketch, "shape signature")


def test_bad_data() -> None:
    for dtype, size in ((TYPES.INT8, 5), (TYPES.INT8, 7), (TYPES.FLOAT32, 6), (TYPES.INT4, 6), (TYPES.INT4, 2)):
        sketch = Sketch()
        sketch.tensor((2, 3), dtype, bytes(size))
        refuse(sketch, f"the file has {size}")
    sketch = Sketch()
    sketch.tensor((2,), TYPES.BOOL, b"\x01\x02")
    refuse(sketch, "bool constant")
    sketch = Sketch()
    sketch.tensor((2,))
    sketch.graph.tensors[0].buffer = 9
    refuse(sketch, "buffer index 9 is out of range")
    sketch = Sketch()
    sketch.tensor((1,), data=b"\x01")
    sketch.graph.tensors[0].isVariable = True
    refuse(sketch, "variable")
    sketch = Sketch()
    sketch.tensor((1,), data=b"\x01")
    sketch.graph.tensors[0].sparsity = schema.SparsityParametersT()
    refuse(sketch, "tensor 0 't0': traversal order")


def test_bad_quantization() -> None:
    for params, message in [
        (quantization([0.1, 0.2], [0, 0], axis=0), "2 scales along dimension 0"),
        (quantization([0.1, 0.2, 0.3], [0, 0, 0], axis=2), "along dimension 2"),
        (quantization([0.1, 0.2, 0.3], [0, 0, 0], axis=-1), "along dimension -1"),
        (quantization([0.1, 0.2, 0.3], [0, 0]), "2 zero points"),
        (quantization([0.1, 0.2, 0.3], [0, 0, 128]), "zero point lies outside int8"),
        (quantization([0.1], [2**40]), "zero point lies outside int8"),
    ]:
        sketch = unary(OPS.RELU)
        sketch.graph.tensors[0].shape, sketch.graph.tensors[0].quantization = [3, 2], params
        refuse(sketch, message)
    for details in (schema.CustomQuantizationT(), schema.BlockwiseQuantizationT()):
        sketch = unary(OPS.RELU)
        params = quantization([0.1], [0])
        params.details = details
        params.detailsType = getattr(schema.QuantizationDetails, type(details).__name__[:-1])
        sketch.graph.tensors[0].quantization = params
        refuse(sketch, "Quantization", UnsupportedOperatorError)


def test_bad_indices() -> None:
    for field, value, message in [
        ("inputs", [2], r"RELU #0 inputs: tensor index 2"),
        ("inputs", [-2], r"RELU #0 inputs: tensor index -2"),
        ("outputs", [-1], r"RELU #0 outputs: tensor index -1"),
        ("intermediates", [77], r"RELU #0 intermediates"),
        ("opcodeIndex", 5, "code index 5"),
    ]:
        sketch = unary(OPS.RELU)
        setattr(sketch.graph.operators[0], field, value)
        refuse(sketch, message)
    for field in ("inputs", "outputs"):
        sketch = unary(OPS.RELU)
        setattr(sketch.graph, field, [-1])
        refuse(sketch, f"graph {field}: tensor index -1")


def test_order_of_values() -> None:
    sketch = conv_sketch()
    sketch.graph.operators.reverse()
    refuse(sketch, r"RESHAPE #0 .* reads tensor 3 'net/conv' before it has a value")
    sketch = unary(OPS.RELU)
    sketch.operator(OPS.RELU, [0], [1])
    refuse(sketch, "writes tensor 1 't1', which already has a value")
    sketch = unary(OPS.RELU)
    sketch.graph.inputs = [0, 0]
    refuse(sketch, "the graph input writes")
    sketch = unary(OPS.RELU)
    sketch.graph.outputs = [sketch.tensor((2,))]
    refuse(sketch, "the graph output reads")
    sketch = unary(OPS.RELU)
    sketch.graph.operators[0].outputs = [sketch.tensor((2,), data=b"ab")]
    refuse(sketch, "already has a value")


def test_bad_codes_and_options() -> None:
    refuse(unary(300), "BuiltinOperator 300 is unknown", UnsupportedOperatorError)
    refuse(unary(OPS.CUSTOM), "custom name ''")
    refuse(unary(OPS.CONV_2D, schema.Pool2DOptionsT()), "has Pool2DOptions where the schema requires Conv2DOptions")
    options = schema.Conv2DOptionsT()
    options.padding = 9
    refuse(unary(OPS.CONV_2D, options), "CONV_2D #0: Padding 9 is unknown", UnsupportedOperatorError)
    options = schema.FullyConnectedOptionsT()
    options.quantSpec = [1]  # newer than the schema package
    refuse(unary(OPS.FULLY_CONNECTED, options), "does not know", UnsupportedOperatorError)


def test_bad_model_and_signatures() -> None:
    sketch = unary(OPS.RELU)
    sketch.model.version = 2
    refuse(sketch, "schema version must be 3, found 2")
    sketch = unary(OPS.RELU)
    sketch.model.subgraphs = []
    refuse(sketch, "no subgraph")
    for bad, message in [
        (signature("s", {"x": 0}, {"y": 1}, subgraph=1), "subgraph 1"),
        (signature("s", {"x": 7}, {"y": 1}), "'x' is tensor 7"),
        (signature("s", {"x": 0}, {"y": 5}), "'y' is tensor 5"),
    ]:
        sketch = unary(OPS.RELU)
        sketch.model.signatureDefs = [bad]
        refuse(sketch, message)


def test_references_that_multiply_the_file() -> None:
    """100 kB whose 5,000 subgraph entries all name one subgraph of 1,000 tensors are not expanded."""
    sketch = Sketch()
    for _ in range(1000):
        sketch.tensor((1,))
    builder = flatbuffers.Builder(1024)
    graph = sketch.graph.Pack(builder)
    builder.StartVector(4, 5000, 4)
    for _ in range(5000):
        builder.PrependUOffsetTRelative(graph)
    graphs = builder.EndVector()
    buffer = sketch.model.buffers[0].Pack(builder)
    builder.StartVector(4, 1, 4)
    builder.PrependUOffsetTRelative(buffer)
    buffers = builder.EndVector()
    schema.ModelStart(builder)
    schema.ModelAddVersion(builder, 3)
    schema.ModelAddSubgraphs(builder, graphs)
    schema.ModelAddBuffers(builder, buffers)
    builder.Finish(schema.ModelEnd(builder), b"TFL3")
    data = bytes(builder.Output())
    assert len(data) < 150_000
    start = time.perf_counter()
    with pytest.raises(ModelFormatError, match="too many times"):
        read_model(data)
    assert time.perf_counter() - start < 5


def test_large_custom_options() -> None:
    """Custom options past the end of the flatbuffer, as in files over 2 GB."""
    sketch = unary(OPS.CUSTOM, custom="Mine")
    operator = sketch.graph.operators[0]
    operator.largeCustomOptionsOffset, operator.largeCustomOptionsSize = 1 << 20, 3
    operator.largeCustomOptionsOffset = len(sketch.bytes())
    assert read_model(sketch.bytes() + b"abc").subgraphs[0].operators[0].custom_options == b"abc"
    refuse(sketch, "refers to bytes")

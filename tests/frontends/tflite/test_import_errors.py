"""What from_tflite says about files and arguments it cannot take: class, node, cause and remedy of the error."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import pytest

from qnn_ext import Interpreter, QnnError, from_tflite
from qnn_ext.errors import LimitError, ModelFormatError, ShapeError, UnsupportedOperatorError

from .schema_models import TYPES, Sketch, conv_sketch, quantization

OPS = schema.BuiltinOperator
QUANT = quantization([0.5], [0])


def message(kind: type[QnnError], source: Any, **arguments: Any) -> str:
    """The text of the error, which must be of exactly this class and one line long."""
    with pytest.raises(QnnError) as caught:
        from_tflite(source, **arguments)
    assert caught.type is kind, f"{caught.type.__name__}: {caught.value}"
    text = str(caught.value)
    assert text and "\n" not in text
    return text


def says(text: str, *parts: str) -> None:
    """Every part is in the message."""
    missing = [part for part in parts if part not in text]
    assert not missing, f"{missing} not in: {text}"


def one_operator(
    code: int,
    shapes: list[tuple[int, ...]],
    output: tuple[int, ...],
    options: object | None = None,
    dtype: int = TYPES.FLOAT32,
    constants: dict[int, np.ndarray] | None = None,
    output_dtype: int | None = None,
    **operator: Any,
) -> Sketch:
    """A model of one operator; inputs of these shapes, constant where `constants` has the number of the input."""
    sketch, constants = Sketch(), constants or {}
    kinds = {np.dtype(np.int32): TYPES.INT32, np.dtype(np.float32): TYPES.FLOAT32}
    inputs = []
    for number, shape in enumerate(shapes):
        data = constants.get(number)
        kind = dtype if data is None else kinds[data.dtype]
        inputs.append(sketch.tensor(shape, kind, data, name=f"in{number}"))
    result = sketch.tensor(output, dtype if output_dtype is None else output_dtype, name="out")
    sketch.operator(code, inputs, [result], options, **operator)
    sketch.graph.inputs = [index for number, index in enumerate(inputs) if number not in constants]
    sketch.graph.outputs = [result]
    return sketch


# ---- the source --------------------------------------------------------------------------------------------------


def test_directory(tmp_path: Path) -> None:
    says(message(ModelFormatError, tmp_path), str(tmp_path), "not a regular file")


def test_missing_file(tmp_path: Path) -> None:
    says(message(ModelFormatError, tmp_path / "none.tflite"), "none.tflite", "no such file")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "it is empty"),
        (b"The quick brown fox jumps over the lazy dog\n", "TFL3 is missing"),
        (b"\x08\x07\x12\x07pytorch\x1a\x051.0.0:\x80\x01", "TFL3 is missing"),  # how an .onnx file begins
        (b"PK\x03\x04" + bytes(60), "TFL3 is missing"),
        (b"\x1c\x00\x00\x00TFL3", "corrupt or truncated"),
        (bytes(4) + b"TFL3" + bytes(100), "corrupt"),
    ],
)
def test_other_content(content: bytes, cause: str, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    says(message(ModelFormatError, path), "model.tflite", cause)
    says(message(ModelFormatError, content), cause)


def test_missing_schema_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tflite", None)
    says(message(QnnError, conv_sketch().bytes()), "pip install", "tflite")


@pytest.mark.parametrize("what", ["operators", "outputs"])
def test_empty_graph(what: str) -> None:
    sketch = conv_sketch()
    sketch.model.signatureDefs = []
    setattr(sketch.graph, what, [])
    if what == "operators":
        sketch.graph.outputs = list(sketch.graph.inputs)
    says(message(ModelFormatError, sketch.bytes()), f"has no {what}", "export it again")


# ---- operators ---------------------------------------------------------------------------------------------------


def test_unknown_version() -> None:
    sketch = one_operator(OPS.ABS, [(2,)], (2,), version=99)
    says(message(UnsupportedOperatorError, sketch.bytes()), "ABS #0 (output 'out')", "version 99", "older", "update")


def test_custom_operator() -> None:
    sketch = one_operator(OPS.CUSTOM, [(2,)], (2,), custom="MyOwnOp", custom_options=b"\1\2\3")
    says(message(UnsupportedOperatorError, sketch.bytes()), "MyOwnOp #0", "custom operator", "plugin", "inspect")


def test_operator_of_tensorflow() -> None:
    sketch = one_operator(OPS.CUSTOM, [(2,)], (2,), custom="FlexErf")
    says(message(UnsupportedOperatorError, sketch.bytes()), "FlexErf #0", "operator Erf", "TFLITE_BUILTINS", "inspect")


@pytest.mark.parametrize("name", ["HASHTABLE", "STABLEHLO_SORT"])
def test_builtin_operator_without_converter(name: str) -> None:
    sketch = one_operator(getattr(OPS, name), [(2,)], (2,))
    says(message(UnsupportedOperatorError, sketch.bytes()), f"{name} #0 (output 'out')", "not supported", "inspect")


def test_operator_beyond_the_schema() -> None:
    sketch = one_operator(30_000, [(2,)], (2,))
    says(message(UnsupportedOperatorError, sketch.bytes()), "operator 0", "30000", "newer")


def test_dtypes_without_kernel() -> None:
    sketch = one_operator(OPS.SIN, [(2,)], (2,), dtype=TYPES.INT32)
    says(message(UnsupportedOperatorError, sketch.bytes()), "SIN #0 (output 'out')", "int32", "float32")
    sketch = conv_sketch()
    sketch.graph.tensors[0].type = TYPES.UINT8
    sketch.graph.tensors[0].quantization.zeroPoint = [3]
    says(message(UnsupportedOperatorError, sketch.bytes()), "CONV_2D #0", "uint8 activations with int8 weights")


@pytest.mark.parametrize(
    "name, remedy",
    [
        ("FLOAT16", "with activations of float32"),
        ("UINT8", "so that its tensors have scales"),
        ("INT64", "one of these"),
    ],
)
def test_dtypes_without_kernel_have_a_remedy(name: str, remedy: str) -> None:
    sketch = one_operator(OPS.EXP, [(2,)], (2,), dtype=getattr(TYPES, name))
    says(message(UnsupportedOperatorError, sketch.bytes()), "EXP #0", name.lower(), "supported:", remedy)


@pytest.mark.parametrize("name", ["STRING", "COMPLEX64", "RESOURCE", "BFLOAT16"])
def test_input_dtype(name: str) -> None:
    sketch = one_operator(OPS.ABS, [(2,)], (2,), dtype=getattr(TYPES, name))
    says(message(UnsupportedOperatorError, sketch.bytes()), "'in0'", name.lower(), "supported:")


def test_strings() -> None:
    """Those that nothing reads are no obstacle: labels of another signature, or an output that is left out."""
    sketch = one_operator(OPS.ABS, [(2,)], (2,))
    labels = sketch.tensor((2,), TYPES.STRING, b"\x02\0\0\0", name="labels")
    assert from_tflite(sketch.bytes()).outputs[0].name == "out"
    sketch.graph.outputs.append(labels)
    says(message(UnsupportedOperatorError, sketch.bytes()), "'labels'", "dtype string", "export it without them")


@pytest.mark.parametrize("read", [False, True])
def test_tables(read: bool) -> None:
    """A table that an initialization subgraph fills is refused where a result needs it."""
    sketch = one_operator(OPS.ABS, [(2,)], (2,), dtype=TYPES.INT64 if read else TYPES.FLOAT32)
    once, options = schema.SubGraphT(), schema.CallOnceOptionsT()
    options.initSubgraphIndex = 1
    if read:
        table, found = sketch.tensor((1,), TYPES.RESOURCE), sketch.tensor((2,), TYPES.INT64)
        default = sketch.tensor((1,), TYPES.INT64, np.zeros(1, np.int64))
        sketch.operator(OPS.HASHTABLE, [], [table], schema.HashtableOptionsT())
        sketch.operator(OPS.HASHTABLE_FIND, [table, sketch.graph.inputs[0], default], [found])
        sketch.graph.outputs = [found]
    sketch.operator(OPS.CALL_ONCE, [], [], options)
    main, sketch.graph = sketch.graph, once
    once.name, once.tensors, once.operators, once.inputs, once.outputs = "once", [], [], [], []
    sketch.model.subgraphs.append(once)
    table = sketch.tensor((1,), TYPES.RESOURCE)
    keys = sketch.tensor((1,), TYPES.STRING, b"\x01\0\0\0\x0c\0\0\0\x0c\0\0\0")
    values = sketch.tensor((1,), TYPES.INT64, np.ones(1, np.int64))
    sketch.operator(OPS.HASHTABLE, [], [table], schema.HashtableOptionsT())
    sketch.operator(OPS.HASHTABLE_IMPORT, [table, keys, values], [])
    sketch.graph = main
    if read:
        says(message(UnsupportedOperatorError, sketch.bytes()), "HASHTABLE", "is not supported")
    else:
        assert len(from_tflite(sketch.bytes()).outputs) == 1


def test_missing_quantization() -> None:
    sketch = conv_sketch()
    sketch.graph.tensors[3].quantization = None
    says(
        message(UnsupportedOperatorError, sketch.bytes()), "CONV_2D #0", "'net/conv'", "without quantization parameters"
    )


def test_impossible_scales() -> None:
    sketch = conv_sketch()
    sketch.graph.tensors[0].quantization = quantization([3e38], [0])
    sketch.graph.tensors[3].quantization = quantization([1e-38], [0])
    says(message(ModelFormatError, sketch.bytes()), "CONV_2D #0", "far out of range", "overflow")


def test_missing_input() -> None:
    sketch = conv_sketch()
    sketch.graph.operators[0].inputs = [0, -1, 2]
    says(message(ModelFormatError, sketch.bytes()), "CONV_2D #0 (output 'net/conv')", "input 1 is missing")
    sketch.graph.operators[0].inputs = [0]
    says(message(ModelFormatError, sketch.bytes()), "CONV_2D #0 (output 'net/conv')", "input 1 is missing")


def test_constant_needed() -> None:
    sketch = one_operator(OPS.PAD, [(2, 2), (2, 2)], (4, 4))
    sketch.graph.tensors[1].type = TYPES.INT32
    text = message(UnsupportedOperatorError, sketch.bytes())
    says(text, "PAD #0 (output 'out')", "input 1 ('in1')", "must be constant")


def test_integers_needed() -> None:
    sketch = one_operator(OPS.ARG_MAX, [(2, 2), (1,)], (2,), constants={1: np.array([0.5], np.float32)})
    sketch.graph.tensors[2].type = TYPES.INT32
    says(message(ModelFormatError, sketch.bytes()), "ARG_MAX #0", "input 1 ('in1')", "integers", "float32")


# ---- contradictions ----------------------------------------------------------------------------------------------


def test_shapes_that_do_not_fit() -> None:
    sketch = one_operator(OPS.ADD, [(2, 3), (4, 3)], (2, 3))
    text = message(ModelFormatError, sketch.bytes())
    says(
        text,
        "ADD #0 (output 'out')",
        "do not match",
        "relax.add",
        "not broadcastable",
        "export the model again",
    )
    assert "ir.Op" not in text


def test_declared_shape_and_dtype() -> None:
    sketch = one_operator(OPS.ABS, [(2, 3)], (3, 2))
    says(message(ModelFormatError, sketch.bytes()), "ABS #0 (output 'out')", "(2, 3)", "declares (3, 2)")
    sketch = one_operator(OPS.ABS, [(2, 3)], (2, 3), output_dtype=TYPES.INT32)
    says(message(ModelFormatError, sketch.bytes()), "ABS #0 (output 'out')", "float32", "declares int32")


def test_wrong_number_of_outputs() -> None:
    sketch = one_operator(OPS.ABS, [(2,)], (2,))
    second = sketch.tensor((2,), TYPES.FLOAT32)
    sketch.graph.operators[0].outputs = [1, second]
    says(message(ModelFormatError, sketch.bytes()), "ABS #0", "has 2 outputs", "ABS has 1 results")


@pytest.mark.parametrize("count", [0, -1, 3, 1 << 20, 2**31 - 1])
def test_wrong_number_of_parts(count: int) -> None:
    options = schema.SplitOptionsT()
    options.numSplits = count
    axis = np.array(0, np.int32)
    sketch = one_operator(OPS.SPLIT, [(), (1 << 20,)], (1 << 20,), options, constants={0: axis})
    says(message(ModelFormatError, sketch.bytes()), "SPLIT #0", "cannot be divided", "1 outputs")


# ---- sizes no machine has ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "shapes", "constants"),
    [
        (OPS.TILE, [(8, 8), (2,)], {1: [1 << 20, 1 << 20]}),
        (OPS.BROADCAST_TO, [(1,), (4,)], {1: [1 << 20] * 4}),
        (OPS.FILL, [(3,), ()], {0: [1 << 20] * 3}),
        (OPS.PAD, [(2,), (1, 2)], {1: [[0, 2**31 - 1]]}),
        (OPS.MIRROR_PAD, [(1 << 30,), (1, 2)], {1: [[0, 1 << 29]]}),
        (OPS.RESIZE_NEAREST_NEIGHBOR, [(1, 2, 2, 1), (2,)], {1: [1 << 15, 1 << 15]}),
        (OPS.RESIZE_BILINEAR, [(1, 2, 2, 4), (2,)], {1: [1 << 16, 1 << 16]}),
        (OPS.LOCAL_RESPONSE_NORMALIZATION, [(1, 1, 1, 1 << 20)], {}),
    ],
)
def test_huge_results(code: int, shapes: list[tuple[int, ...]], constants: dict[int, list]) -> None:
    arrays = {number: np.array(value, np.int32) for number, value in constants.items()}
    sketch = one_operator(code, shapes, (), constants=arrays)
    sketch.graph.tensors[-1].shape = None
    text = message(LimitError, sketch.bytes())
    says(text, "#0 (output 'out')", "elements", "and the limit is")


def test_huge_dilation() -> None:
    sketch = conv_sketch()
    options = sketch.graph.operators[0].builtinOptions
    options.dilationHFactor, options.padding = 1 << 28, schema.Padding.SAME
    says(message(LimitError, sketch.bytes()), "CONV_2D #0", "dilation (268435456, 1)", "on an image of (4, 4)")


def test_unprintable_names() -> None:
    sketch = conv_sketch()
    sketch.graph.tensors[3].name = "two\nlines\x1b[2J"
    sketch.graph.operators[0].inputs = [0]
    says(message(ModelFormatError, sketch.bytes()), "'two\ufffdlines\ufffd[2J'")


def test_range_of_a_billion() -> None:
    arrays = {i: np.array(value, np.int32) for i, value in enumerate((0, 1_000_000_000, 1))}
    sketch = one_operator(OPS.RANGE, [(), (), ()], (), constants=arrays, output_dtype=TYPES.INT32)
    sketch.graph.tensors[-1].shape = None
    says(message(LimitError, sketch.bytes()), "RANGE #0", "1,000,000,000 elements", "--limit folded=1000000000")


def test_long_chains() -> None:
    sketch = Sketch()
    last = sketch.tensor((4,), TYPES.FLOAT32)
    sketch.graph.inputs = [last]
    for _ in range(3000):
        last, before = sketch.tensor((4,), TYPES.FLOAT32), last
        sketch.operator(OPS.ABS, [before], [last])
    sketch.graph.outputs = [last]
    assert from_tflite(sketch.bytes()).outputs[0].shape == (4,)


def test_names_that_repeat() -> None:
    sketch = one_operator(OPS.ADD, [(2,), (2,)], (2,))
    sketch.graph.outputs = [2, 2]
    for tensor in sketch.graph.tensors:
        tensor.name = "x"
    module = from_tflite(sketch.bytes())
    assert [spec.name for spec in module.inputs] == ["x", "x:1"]
    assert len(Interpreter(module).run([np.ones(2, np.float32)] * 2)) == 2


def test_constants_without_end() -> None:
    """Each tensor is small enough, all of them are not."""
    sketch = Sketch()
    size = sketch.tensor((1,), TYPES.INT32, np.array([1 << 22], np.int32))
    value = sketch.tensor((), TYPES.FLOAT32, np.array(1, np.float32))
    for _ in range(60):
        sketch.graph.outputs.append(sketch.tensor((1 << 22,), TYPES.FLOAT32))
        sketch.operator(OPS.FILL, [size, value], sketch.graph.outputs[-1:])
    says(message(LimitError, sketch.bytes()), "FILL #32", "constants and states", "elements")


# ---- arguments ---------------------------------------------------------------------------------------------------


def test_numerics() -> None:
    says(message(QnnError, conv_sketch().bytes(), numerics="nonsense"), "'nonsense'", "float32", "tflite")


@pytest.mark.parametrize(
    ("shapes", "parts"),
    [
        ({"picture": (1, 4, 4, 2)}, ("'picture'", "'image'")),
        ({"image": (4, 4, 2)}, ("'image'", "4 dimensions", "(4, 4, 2)")),
        ({"image": (0, 4, 4, 2)}, ("'image'", "at least 1")),
        ({"image": (-1, 4, 4, 2)}, ("'image'", "at least 1")),
        ({"image": 3}, ("'image'", "sequence of integers", "3")),
        ({"image": (1.5, 4, 4, 2)}, ("'image'", "sequence of integers", "1.5")),
        ({"image": "1444"}, ("'image'", "sequence of integers", "1444")),
    ],
)
def test_shapes(shapes: dict, parts: tuple[str, ...]) -> None:
    says(message(ShapeError, conv_sketch().bytes(), shapes=shapes), *parts)


def test_shapes_the_operators_refuse() -> None:
    says(message(LimitError, conv_sketch().bytes(), shapes={"image": (1 << 30, 4, 4, 2)}), "'image'", "elements")
    says(message(ModelFormatError, conv_sketch().bytes(), shapes={"image": (1, 6, 6, 2)}), "RESHAPE #1", "(1, 4, 4, 3)")
    with pytest.raises(QnnError, match=r"CONV_2D #0"):
        from_tflite(conv_sketch().bytes(), shapes={"image": (1, 2, 2, 2)})


def test_good_files_are_good() -> None:
    """The sketches above fail for what is wrong with them only."""
    assert from_tflite(conv_sketch().bytes()).outputs[0].shape == (1, 12)
    sketch = one_operator(OPS.ADD, [(2, 3), (2, 3)], (2, 3))
    assert from_tflite(sketch.bytes()).outputs[0].shape == (2, 3)
    sketch = one_operator(OPS.TILE, [(8, 8), (2,)], (16, 24), constants={1: np.array([2, 3], np.int32)})
    assert from_tflite(sketch.bytes()).outputs[0].shape == (16, 24)

"""The digit classifiers that scripts/train_digits.py wrote: present, small, of the formats their names promise, and
accurate under LiteRT. What qnn_ext makes of them is tested elsewhere.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tflite

import qnn_ext

DATA = Path(qnn_ext.__file__).parent / "data"
MODELS = [
    "digits_cnn_float32",
    "digits_cnn_float16",
    "digits_cnn_dynamic",
    "digits_cnn_int8",
    "digits_cnn_int16x8",
    "digits_cnn_uint8",
    "digits_lstm_int8",
]
MAX_BYTES = 60_000
MIN_ACCURACY = 0.97

CNN_OPERATORS = [
    "CONV_2D",
    "DEPTHWISE_CONV_2D",
    "CONV_2D",
    "CONV_2D",
    "DEPTHWISE_CONV_2D",
    "CONV_2D",
    "ADD",
    "AVERAGE_POOL_2D",
    "CONV_2D",
    "MEAN",
    "FULLY_CONNECTED",
    "FULLY_CONNECTED",
    "SOFTMAX",
]


def load(name: str) -> tflite.Model:
    """The flatbuffer of a bundled model, parsed by the schema package alone."""
    return tflite.Model.GetRootAs((DATA / f"{name}.tflite").read_bytes(), 0)


def operators(model: tflite.Model) -> list[str]:
    """Operator names of the main graph in execution order."""
    names = {value: key for key, value in vars(tflite.BuiltinOperator).items() if isinstance(value, int)}
    graph = model.Subgraphs(0)
    opcodes = (
        model.OperatorCodes(graph.Operators(i).OpcodeIndex()).BuiltinCode() for i in range(graph.OperatorsLength())
    )
    return [names[opcode] for opcode in opcodes]


def tensor_types(model: tflite.Model) -> set[int]:
    """Element types of the tensors that the operators of the main graph read and write."""
    graph = model.Subgraphs(0)
    nodes = [graph.Operators(i) for i in range(graph.OperatorsLength())]
    used = {int(i) for node in nodes for i in (*node.InputsAsNumpy(), *node.OutputsAsNumpy()) if i >= 0}
    return {graph.Tensors(i).Type() for i in used}


def scales_of_weights(model: tflite.Model) -> list[int]:
    """How many scales the weights of each convolution and dense layer carry."""
    graph = model.Subgraphs(0)
    nodes = [graph.Operators(i) for i in range(graph.OperatorsLength())]
    weights = [graph.Tensors(int(node.Inputs(1))) for node in nodes if node.InputsLength() == 3]
    return [tensor.Quantization().ScaleLength() for tensor in weights]


@pytest.fixture(scope="module")
def held_out() -> tuple[np.ndarray, np.ndarray]:
    """Raw images (N, 8, 8) and labels (N,)."""
    with np.load(DATA / "digits_test.npz") as archive:
        return archive["x"], archive["y"]


def test_held_out_set(held_out: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = held_out
    assert images.shape == (450, 8, 8) and images.dtype == np.uint8 and images.max() == 16
    assert labels.shape == (450,) and labels.dtype == np.uint8
    counts = np.bincount(labels, minlength=10)
    assert len(counts) == 10 and counts.min() >= 43 and counts.max() <= 46, "the split is stratified"


def test_labels() -> None:
    assert (DATA / "digits_labels.txt").read_text().split() == [str(digit) for digit in range(10)]


@pytest.mark.parametrize("name", MODELS)
def test_file_is_small_and_self_contained(name: str) -> None:
    content = (DATA / f"{name}.tflite").read_bytes()
    assert tflite.Model.ModelBufferHasIdentifier(content, 0)
    assert len(content) < MAX_BYTES
    assert load(name).SubgraphsLength() == 1


@pytest.mark.parametrize("name", ["digits_cnn_int8", "digits_cnn_int16x8", "digits_cnn_float32", "digits_cnn_dynamic"])
def test_cnn_structure(name: str) -> None:
    assert operators(load(name)) == CNN_OPERATORS


def test_int8_cnn_is_integer_throughout_and_per_channel() -> None:
    model = load("digits_cnn_int8")
    assert tensor_types(model) == {tflite.TensorType.INT8, tflite.TensorType.INT32}
    assert scales_of_weights(model) == [16, 16, 32, 64, 64, 32, 48, 32, 10]


def test_int16x8_cnn_has_no_float_tensor() -> None:
    types = {tflite.TensorType.INT16, tflite.TensorType.INT8, tflite.TensorType.INT64, tflite.TensorType.INT32}
    assert tensor_types(load("digits_cnn_int16x8")) == types


def test_uint8_cnn_is_per_tensor() -> None:
    model = load("digits_cnn_uint8")
    assert tensor_types(model) == {tflite.TensorType.UINT8, tflite.TensorType.INT32}
    assert set(scales_of_weights(model)) == {1}
    assert [name for name in operators(model) if name != "QUANTIZE"] == CNN_OPERATORS


def test_float16_cnn_stores_half_precision_weights() -> None:
    model = load("digits_cnn_float16")
    assert tflite.TensorType.FLOAT16 in tensor_types(model)
    assert [name for name in operators(model) if name != "DEQUANTIZE"] == CNN_OPERATORS


def test_dynamic_cnn_mixes_float_activations_with_int8_weights() -> None:
    assert {tflite.TensorType.FLOAT32, tflite.TensorType.INT8} <= tensor_types(load("digits_cnn_dynamic"))


def test_lstm_is_one_operator() -> None:
    model = load("digits_lstm_int8")
    assert operators(model) == ["UNIDIRECTIONAL_SEQUENCE_LSTM", "STRIDED_SLICE", "FULLY_CONNECTED", "SOFTMAX"]
    assert tflite.TensorType.FLOAT32 not in tensor_types(model)


@pytest.mark.parametrize("kernels", ["default", "reference"])
@pytest.mark.parametrize("name", MODELS)
def test_accuracy_under_litert(name: str, kernels: str, held_out: tuple[np.ndarray, np.ndarray]) -> None:
    litert = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT is not installed")
    resolver = {"default": litert.OpResolverType.AUTO, "reference": litert.OpResolverType.BUILTIN_REF}[kernels]
    interpreter = litert.Interpreter(str(DATA / f"{name}.tflite"), experimental_op_resolver_type=resolver)
    interpreter.allocate_tensors()
    (source,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()
    images, labels = held_out
    predictions = []
    for image in quantized(images.astype(np.float32) / 16, source):
        interpreter.reset_all_variables()  # the LSTM's state belongs to one image
        interpreter.set_tensor(source["index"], image.reshape(source["shape"]))
        interpreter.invoke()
        predictions.append(interpreter.get_tensor(result["index"]).argmax())
    assert np.mean(np.array(predictions) == labels) >= MIN_ACCURACY


def quantized(real: np.ndarray, source: dict) -> np.ndarray:
    """`real` in the dtype of LiteRT input `source`: clip(rint(real / scale) + zero_point) for an integer input."""
    if not np.issubdtype(source["dtype"], np.integer):
        return real.astype(source["dtype"])
    scale, zero_point = source["quantization"]
    limits = np.iinfo(source["dtype"])
    return np.clip(np.rint(real / scale) + zero_point, limits.min, limits.max).astype(source["dtype"])

"""Whole ONNX models: compiled and interpreted results agree, and both equal ONNX Runtime's, layer by layer.

Every tensor that a model quantizes is made an output of it, so that the comparison sees every layer.
"""

from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext.frontends.onnx import from_onnx
from tests.frontends.onnx.graphs import require_exact_ort

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

DATA = Path(qnn_ext.__file__).parent / "data"


def session(content: bytes, optimized: bool):
    """ONNX Runtime: optimized, its kernels are integers; without optimizations it runs QDQ in float."""
    if optimized:
        require_exact_ort(onnx.load_from_string(content), optimized)
    levels = ort.GraphOptimizationLevel
    options = ort.SessionOptions()
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def with_layers(path: Path):
    """The model with every quantized tensor as an output."""
    proto = onnx.load(path)
    taken = {value.name for value in proto.graph.output}
    for node in proto.graph.node:
        if node.op_type == "QuantizeLinear" and node.output[0] not in taken:
            proto.graph.output.append(onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.UINT8, None))
    return proto


def layer_differences(path: Path, x: np.ndarray, optimized: bool) -> tuple[int, int, int]:
    """(steps that differ, steps in all, largest difference) over all quantized tensors of the model."""
    proto = with_layers(path)
    found = qnn_ext.Interpreter(from_onnx(proto)).run([x])
    expected = session(proto.SerializeToString(), optimized).run(list(found), {proto.graph.input[0].name: x})
    differences = [
        np.abs(found[name].astype(int) - want.astype(int))
        for name, want in zip(found, expected, strict=True)
        if want.dtype == np.uint8
    ]
    return (
        sum(int((d > 0).sum()) for d in differences),
        sum(d.size for d in differences),
        max(int(d.max()) for d in differences),
    )


def outputs(path: Path, x: np.ndarray) -> np.ndarray:
    """The model's output, compiled; the interpreter's is the same."""
    module = from_onnx(path)
    compiled = qnn_ext.build(module)(x)
    interpreted = qnn_ext.Interpreter(module)(x)
    np.testing.assert_array_equal(compiled, interpreted)
    return compiled


def golden(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Input, ONNX Runtime's output in float, and by its integer kernels."""
    with np.load(path.with_suffix(".npz")) as arrays:
        return arrays["input_0"], arrays["float_0"], arrays["ort_0"]


def test_mobilenet_v2_equals_integer_kernels_on_every_layer(models):
    """Unsigned activations, weights per channel: 52 convolutions, 10 additions, pooling and a gemm."""
    path = models / "onnx" / "mobilenetv2_u8s8.onnx"
    x, _, integers = golden(path)
    np.testing.assert_array_equal(outputs(path, x), integers)
    differing, total, _ = layer_differences(path, x, optimized=True)
    print(f"{path.stem}: {differing} of {total} quantized values differ from ONNX Runtime's integer kernels")
    assert differing == 0


@pytest.mark.parametrize("name", ["cnn_pt2e_x86", "enc_pt2e_x86"])
def test_pt2e_exports_equal_integer_kernels_on_every_layer(models, name):
    """Their outputs are float, sums of products with a float bias: those differ in the last bits."""
    path = models / "onnx" / f"{name}.onnx"
    x, in_float, integers = golden(path)
    y = outputs(path, x)
    for session_name, optimized, expected in (("integer kernels", True, integers), ("float", False, in_float)):
        differing, total, largest = layer_differences(path, x, optimized)
        print(
            f"{name}: {differing} of {total} quantized values differ from ONNX Runtime ({session_name}), "
            f"by up to {largest}; outputs by {np.abs(y - expected).max():.2g}"
        )
        assert differing == 0 or not optimized
    np.testing.assert_allclose(y, integers, rtol=0, atol=1e-5)
    assert (y.argmax(-1) == in_float.argmax(-1)).all()


def bundled(name: str, session: str) -> np.ndarray:
    """Differences from ONNX Runtime's logits on 16 images."""
    engine = qnn_ext.build(from_onnx(DATA / f"{name}.onnx"), num_threads=1)
    with np.load(DATA / "digits_frameworks.npz") as arrays:
        expected = arrays[f"{name}/{session}"]
        difference = np.abs(np.stack([engine(x) for x in arrays["x"]]) - expected)
    print(f"{name}: {(difference > 0).sum()} of {difference.size} logits differ from ONNX Runtime ({session})")
    return difference


@pytest.mark.parametrize("name", ["digits_cnn_qdq", "digits_cnn_qoperator", "digits_transformer_qdq"])
def test_bundled_networks_are_bit_exact(name):
    assert not bundled(name, "ort").any()


def test_bundled_dynamically_quantized_model():
    """Scales are computed from the data; what differs is the order of float sums."""
    assert bundled("digits_cnn_dynamic", "ort").max() < 1e-4


def test_batches_of_any_size(models):
    path = models / "onnx" / "mobilenetv2_u8s8.onnx"
    x, _, integers = golden(path)
    module = from_onnx(path, shapes={onnx.load(path).graph.input[0].name: ("N", 3, 224, 224)})
    assert module.inputs[0].dynamic_batch and module.outputs[0].dynamic_batch
    result = qnn_ext.Interpreter(module)(np.concatenate([x * np.float32(0.5), x]))
    np.testing.assert_array_equal(result[1:], integers)

"""Whole networks from ONNX Runtime's own quantizer in operator form, static and dynamic, against ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qnn_ext

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper  # noqa: E402
from onnxruntime.quantization import (  # noqa: E402
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from .single_op import MICROSOFT, run_ort  # noqa: E402

CNN_SHAPE = (1, 3, 20, 22)


class Calibration(CalibrationDataReader):
    """A few random images."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        rng = np.random.default_rng(5)
        self._samples = iter([{name: rng.standard_normal(shape).astype(np.float32)} for _ in range(4)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._samples, None)


class Graph:
    """Collects nodes and weights of a float model."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(11)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def weight(self, *shape: int, gain: float = 1.0) -> str:
        name = f"w{len(self.constants)}"
        array = self.rng.standard_normal(shape) * gain / max(np.prod(shape[1:]), 1) ** 0.5
        self.constants.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name, **attributes))
        return name

    def model(self, name: str, shape: tuple[int, ...], output: str, rank: int) -> Any:
        values = [helper.make_tensor_value_info(name, 1, shape)]
        results = [helper.make_tensor_value_info(output, 1, [None] * rank)]
        graph = helper.make_graph(self.nodes, "network", values, results, self.constants)
        opsets = [helper.make_opsetid("", 13), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def cnn() -> Any:
    """Convolutions of every kind, a residual sum, a gate, concatenation, pooling and a classifier."""
    g = Graph()
    stem = g("Relu", g("Conv", "x", g.weight(16, 3, 3, 3), g.weight(16), strides=[2, 2], pads=[1] * 4))
    deep = g("LeakyRelu", g("Conv", stem, g.weight(16, 1, 3, 3), g.weight(16), group=16, pads=[1] * 4), alpha=0.2)
    point = g("Conv", deep, g.weight(16, 16, 1, 1), g.weight(16))
    total = g("Add", point, stem)
    gate = g("Mul", total, g("Sigmoid", g("Conv", g("GlobalAveragePool", total), g.weight(16, 16, 1, 1))))
    joined = g("Concat", gate, point, axis=1)
    pooled = g("AveragePool", joined, kernel_shape=[2, 2], strides=[2, 2])
    largest = g("MaxPool", pooled, kernel_shape=[2, 2], strides=[1, 1])
    flat = g("Flatten", g("GlobalAveragePool", largest))
    logits = g("Gemm", flat, g.weight(10, 32, gain=3.0), g.weight(10), transB=1)
    return g.model("x", CNN_SHAPE, g("Softmax", logits, axis=1), 2)


def mlp() -> Any:
    """Matrix products over a sequence."""
    g = Graph()
    hidden = g("Relu", g("Add", g("MatMul", "x", g.weight(16, 32)), g.weight(32)))
    return g.model("x", (2, 5, 16), g("MatMul", hidden, g.weight(32, 8)), 3)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    "activations,weights",
    [(QuantType.QUInt8, QuantType.QInt8), (QuantType.QUInt8, QuantType.QUInt8), (QuantType.QInt8, QuantType.QInt8)],
)
def test_static_cnn(activations, weights, per_channel, tmp_path, rng):
    """Integers all the way, so equal down to the last bit of the output."""
    quantized = _static(cnn(), "x", CNN_SHAPE, tmp_path, activations, weights, per_channel)
    kinds = Counter(node.op_type for node in quantized.graph.node)
    for op in ("QLinearConv", "QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearConcat", "QLinearAveragePool"):
        assert kinds[op], kinds
    module = qnn_ext.from_onnx(quantized)
    engine = qnn_ext.build(module, num_threads=1)
    interpreter = qnn_ext.Interpreter(module)
    for _ in range(3):
        x = rng.standard_normal(CNN_SHAPE).astype(np.float32)
        expected = run_ort(quantized, {"x": x})[0]
        np.testing.assert_array_equal(interpreter(x), expected)
        np.testing.assert_array_equal(engine(x), expected)


def _static(
    model: Any, name: str, shape: tuple, folder: Path, activations: Any, weights: Any, per_channel: bool
) -> Any:
    source, target = folder / "float.onnx", folder / "quantized.onnx"
    onnx.save(model, source)
    quantize_static(
        source,
        target,
        Calibration(name, shape),
        quant_format=QuantFormat.QOperator,
        activation_type=activations,
        weight_type=weights,
        per_channel=per_channel,
    )
    return onnx.load(target)


@pytest.mark.parametrize("activations", [QuantType.QUInt8, QuantType.QInt8])
def test_static_matmul(activations, tmp_path, rng):
    quantized = _static(mlp(), "x", (2, 5, 16), tmp_path, activations, QuantType.QInt8, False)
    assert any(node.op_type == "QLinearMatMul" for node in quantized.graph.node)
    module = qnn_ext.from_onnx(quantized)
    x = rng.standard_normal((2, 5, 16)).astype(np.float32)
    expected = run_ort(quantized, {"x": x})[0]
    np.testing.assert_array_equal(qnn_ext.Interpreter(module)(x), expected)
    np.testing.assert_array_equal(qnn_ext.build(module, num_threads=1)(x), expected)


@pytest.mark.parametrize("weights", [QuantType.QInt8, QuantType.QUInt8])
@pytest.mark.parametrize("make,shape", [(mlp, (2, 5, 16)), (cnn, CNN_SHAPE)])
def test_dynamic(make, shape, weights, tmp_path, rng):
    """DynamicQuantizeLinear, then ConvInteger and MatMulInteger."""
    onnx.save(make(), tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "quantized.onnx", weight_type=weights)
    quantized = onnx.load(tmp_path / "quantized.onnx")
    assert any(node.op_type in ("ConvInteger", "MatMulInteger") for node in quantized.graph.node)
    module = qnn_ext.from_onnx(quantized)
    x = rng.standard_normal(shape).astype(np.float32)
    expected = run_ort(quantized, {"x": x})[0]
    for found in (qnn_ext.Interpreter(module)(x), qnn_ext.build(module, num_threads=1)(x)):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


WORDS, LENGTH, WIDTH = 40, 7, 16


def transformer() -> Any:
    """One encoder layer with the fused operators of ONNX Runtime's transformer optimizer."""
    g, domain = Graph(), {"domain": MICROSOFT}
    zeros = onnx.numpy_helper.from_array(np.zeros((1, LENGTH), np.int32), "segments")
    g.constants.append(zeros)
    norm = g.weight(WIDTH), g.weight(WIDTH)
    tables = (g.weight(WORDS, WIDTH, gain=4.0), g.weight(LENGTH, WIDTH, gain=4.0), g.weight(2, WIDTH, gain=4.0))
    embedded = g("EmbedLayerNormalization", "ids", "segments", *tables, *norm, "mask", **domain)
    lengths = f"{embedded}_lengths"
    g.nodes[-1].output.append(lengths)
    attended = g("Attention", embedded, g.weight(WIDTH, 3 * WIDTH), g.weight(3 * WIDTH), lengths, num_heads=4, **domain)
    projected = g("MatMul", attended, g.weight(WIDTH, WIDTH))
    first = g("SkipLayerNormalization", projected, embedded, *norm, g.weight(WIDTH), **domain)
    hidden = g("BiasGelu", g("MatMul", first, g.weight(WIDTH, 4 * WIDTH)), g.weight(4 * WIDTH), **domain)
    output = g("SkipLayerNormalization", g("MatMul", hidden, g.weight(4 * WIDTH, WIDTH)), first, *norm, **domain)
    model = g.model("ids", (1, LENGTH), output, 3)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    model.graph.input.append(helper.make_tensor_value_info("mask", onnx.TensorProto.INT32, (1, LENGTH)))
    return model


@pytest.mark.parametrize("weights", [QuantType.QInt8, QuantType.QUInt8])
def test_dynamic_transformer(weights, tmp_path, rng):
    """QEmbedLayerNormalization, QAttention and MatMulInteger, in float32 accuracy: no hidden value is at a midpoint."""
    onnx.save(transformer(), tmp_path / "float.onnx")
    operators = ["EmbedLayerNormalization", "Attention", "MatMul"]
    target = tmp_path / "quantized.onnx"
    quantize_dynamic(
        tmp_path / "float.onnx",
        target,
        op_types_to_quantize=operators,
        weight_type=weights,
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
    )
    quantized = onnx.load(target)
    kinds = {node.op_type for node in quantized.graph.node}
    assert {"QEmbedLayerNormalization", "QAttention", "MatMulInteger"} <= kinds
    module = qnn_ext.from_onnx(quantized)
    ids = rng.integers(0, WORDS, (1, LENGTH)).astype(np.int32)
    feed = {"ids": ids, "mask": (np.arange(LENGTH) < 5).astype(np.int32)[None]}
    expected = run_ort(quantized, feed)[0]
    for runner in (qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)):
        found = next(iter(runner.run(feed).values()))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())

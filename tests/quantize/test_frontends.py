"""Float models of every frontend: all their products become integers, and answers stay."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.compiling.coverage import coverage
from qnn_ext.interpreter import Interpreter
from qnn_ext.quantize import QConfig, quantize

from ..conformance.tflite_models.builder import Graph
from ..frontends.mxnet import goldens
from .digits import DATA, accuracy, calibration_images, held_out, network

CONFIG = QConfig(target="x86-64", calibrate_mode="minmax")


def check_integers(module, x) -> np.ndarray:
    """Everything in integers, compiled equal to interpreted; returns the results on x."""
    assert coverage(module).share == 1.0
    engine = qnn_ext.build(module, num_threads=1)
    np.testing.assert_array_equal(engine(x[:1]), Interpreter(module)(x[:1]))
    return np.concatenate([engine(image[None]) for image in x])


def near(exact: np.ndarray, found: np.ndarray, decibels: float) -> bool:
    return bool(10 * np.log10(np.sum(exact**2) / np.sum((exact - found) ** 2)) > decibels)


@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_onnx(name):
    module = network(name)
    images, labels = held_out()
    integers = quantize(module, dataset=calibration_images(), config=CONFIG)
    found = check_integers(integers, images)
    engine = qnn_ext.build(module, num_threads=1)
    exact = np.concatenate([engine(image[None]) for image in images])
    assert accuracy(found, labels) >= accuracy(exact, labels) - 0.005
    assert near(exact, found, 20)


def test_tflite():
    """Channels last, weights as OHWI."""
    module = qnn_ext.from_tflite(DATA / "digits_cnn_float32.tflite")
    images, labels = held_out()
    integers = quantize(module, dataset=calibration_images().transpose(0, 2, 3, 1), config=CONFIG)
    found = check_integers(integers, images.transpose(0, 2, 3, 1))
    assert accuracy(found, labels) >= 0.9978 - 0.005


def test_tflite_with_float_operators_of_the_dialect(rng):
    """RESIZE_BILINEAR of floats is R.qnn.resize_bilinear, which makes no quantized model."""
    graph = Graph()
    x, y, resized, result = (graph.tensor((1, size, size, 8), "float32") for size in (8, 8, 16, 16))
    weight = graph.const((rng.standard_normal((8, 3, 3, 8)) / 8).astype(np.float32))
    bias = graph.const(np.zeros(8, np.float32))
    graph.op("CONV_2D", [x, weight, bias], [y], padding="SAME", strideW=1, strideH=1)
    graph.op("RESIZE_BILINEAR", [y, graph.const([16, 16], "int32")], [resized])
    graph.op("CONV_2D", [resized, weight, bias], [result], padding="SAME", strideW=1, strideH=1)
    graph.packed.inputs, graph.packed.outputs = [x], [result]
    module = qnn_ext.from_tflite(graph.build())
    images = rng.standard_normal((16, 8, 8, 8)).astype(np.float32)
    found = check_integers(quantize(module, dataset=images, config=CONFIG), images)
    assert near(np.concatenate([Interpreter(module)(image[None]) for image in images]), found, 30)


def test_pytorch():
    """batch norm not folded, hard-swish, a transposed convolution, a concat, attention by torch itself."""
    torch = pytest.importorskip("torch", reason="PyTorch models need the extra 'pytorch'")

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = torch.nn.Conv2d(3, 8, 3, bias=False)
            self.norm = torch.nn.BatchNorm2d(8)
            self.up = torch.nn.ConvTranspose2d(8, 4, 2, 2)
            self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = torch.nn.Linear(8, 10)

        def forward(self, x):
            x = torch.nn.functional.hardswish(self.norm(self.stem(x)))
            x = self.up(torch.nn.functional.avg_pool2d(x, 2))
            x = torch.cat([x, torch.nn.functional.leaky_relu(x, 0.1)], 1)
            x = torch.nn.functional.adaptive_avg_pool2d(x, 4).flatten(2).transpose(1, 2)
            return self.head(self.attention(x, x, x, need_weights=False)[0]).mean(1)

    torch.manual_seed(0)
    model = Network().eval()
    model.norm.running_mean.normal_()
    model.norm.running_var.uniform_(0.5, 2)
    x = torch.randn(4, 3, 14, 14)
    with torch.no_grad():
        exact = np.concatenate([model(x[i : i + 1]).numpy() for i in range(len(x))])
    module = qnn_ext.from_pytorch(torch.export.export(model, (x[:1],)))
    found = check_integers(quantize(module, dataset=x.numpy(), config=CONFIG), x.numpy())
    assert near(exact, found, 25)


def test_mxnet():
    golden = goldens.load("float")["convolution_bn"]
    module = qnn_ext.from_mxnet(golden.symbol, golden.params, golden.shapes)
    found = check_integers(quantize(module, dataset=golden.x, config=CONFIG), golden.x)
    assert near(golden.y, found, 35)


def test_recurrent(rng):
    """The products around an LSTM and that with its inputs are integers; the loop over time stays float."""
    pytest.importorskip("onnx")
    from ..frontends.onnx.graphs import model, node, value

    def weight(*shape):
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    constants = {"a": weight(16, 32), "w": weight(1, 128, 32), "r": weight(1, 128, 32), "c": weight(32, 10)}
    constants["one"] = np.array([1], np.int64)
    nodes = [
        node("MatMul", ["x", "a"], ["p"]),
        node("Relu", ["p"], ["q"]),
        node("LSTM", ["q", "w", "r"], ["y"], hidden_size=32),
        node("Squeeze", ["y", "one"], ["s"]),
        node("MatMul", ["s", "c"], ["z"]),
    ]
    shape = (20, 1, 16)
    module = qnn_ext.from_onnx(model(nodes, [value("x", shape)], [value("z", None)], constants))
    data = [rng.standard_normal(shape).astype(np.float32) for _ in range(8)]
    integers = quantize(module, dataset=[{"x": item} for item in data], config=CONFIG)
    script = integers.script()
    assert script.count("R.qnn.dense(") + script.count("R.qnn.batch_matmul(") == 3 and "R.qnn.loop(" in script
    exact, found = (np.stack([Interpreter(each)(item) for item in data]) for each in (module, integers))
    assert near(exact, found, 30)
    np.testing.assert_array_equal(qnn_ext.build(integers, num_threads=1)(data[0]), found[0])

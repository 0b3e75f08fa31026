"""Float networks that are hard to quantize, made by script: stand-ins for real ones, with weights like trained ones.

Each is an ONNX file with data from which a network of its kind would get its inputs. Weights have channels of unequal
norm and heavy tails, batch normalizations are calibrated on the data (so that activations keep their scale through the
layers), and inputs have the distribution of the task: photographs, pages, spectrograms.

ocr:      text recognition: hard swish, depthwise convolutions, squeeze and excite, a sequence of class probabilities
audio:    pitch detection: log-power spectrograms with heavy tails, few channels, sigmoid outputs near 0
residual: image classification: MobileNetV2's inverted residual blocks with relu6
detector: object detection: SiLU, concatenated branches, two scales
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

NAMES = ("ocr", "audio", "residual", "detector")
OPSET = 17


@dataclass(frozen=True)
class StandIn:
    """A network and its data: float32 arrays (N, …), one sample per run."""

    name: str
    path: Path
    calibration: np.ndarray
    held_out: np.ndarray


def make(name: str, folder: Path, samples: int = 16, seed: int = 0) -> StandIn:
    """Write the network to `folder`, and draw its data. The same arguments give the same file."""
    data, body = _NETWORKS[name]
    images = data(np.random.default_rng([seed, 1]), 2 * samples)
    network = _Network(images[:4], np.random.default_rng([seed, 2]))
    path = folder / f"{name}.onnx"
    network.save(body(network), path)
    return StandIn(name, path, images[:samples], images[samples:])


class _Network:
    """An ONNX graph under construction, and the values of its tensors on a few samples."""

    def __init__(self, samples: np.ndarray, rng: np.random.Generator) -> None:
        self._nodes: list = []
        self._constants: dict[str, np.ndarray] = {}
        self._samples = samples
        self.rng = rng
        self.channels = {"x": samples.shape[1]}

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        name = f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], name, **attributes))
        self.channels[name] = self.channels.get(inputs[0], 0)
        return name

    def constant(self, value: Any) -> str:
        name = f"constant_{len(self._constants)}"
        self._constants[name] = np.asarray(value)
        return name

    def value(self, name: str) -> np.ndarray:
        """A tensor on the samples."""
        import onnxruntime

        session = onnxruntime.InferenceSession(self._model([name]), providers=["CPUExecutionProvider"])
        return np.concatenate([session.run(None, {"x": sample[None]})[0] for sample in self._samples])

    def conv(
        self, x: str, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1, spread: float = 0.5
    ) -> str:
        """A convolution and its batch normalization, folded: results of about unit variance, with unequal channels.

        spread: of the logarithm of the channels' norms, before they are normalized and after
        """
        inputs = self.channels[x] // groups
        weight = self.rng.standard_t(4, size=(channels, inputs, kernel, kernel)) * np.exp(
            self.rng.normal(size=(channels, 1, 1, 1)) * spread
        )
        shape: dict[str, Any] = {
            "kernel_shape": [kernel] * 2,
            "strides": [stride] * 2,
            "pads": [kernel // 2] * 4,
            "group": groups,
        }
        weight = weight.astype(np.float32)
        values = self.value(self.node("Conv", x, self.constant(weight), **shape))
        self._nodes.pop()
        mean, deviation = values.mean((0, 2, 3)), values.std((0, 2, 3)) + 1e-3
        scale = np.abs(self.rng.normal(1, 0.3, size=channels)) * np.exp(self.rng.normal(size=channels) * spread / 2)
        factor = scale / deviation
        bias = self.rng.normal(size=channels) * 0.3 - mean * factor
        arrays = (weight * factor.reshape(-1, 1, 1, 1)).astype(np.float32), bias.astype(np.float32)
        y = self.node("Conv", x, *map(self.constant, arrays), **shape)
        self.channels[y] = channels
        return y

    def plain(self, x: str, channels: int) -> str:
        """A convolution with a kernel of 1 without normalization."""
        weight = self.rng.standard_t(4, size=(channels, self.channels[x], 1, 1)) / np.sqrt(2 * self.channels[x])
        arrays = weight.astype(np.float32), self.rng.normal(size=channels).astype(np.float32) * np.float32(0.3)
        y = self.node("Conv", x, *map(self.constant, arrays), kernel_shape=[1, 1])
        self.channels[y] = channels
        return y

    def concat(self, *xs: str) -> str:
        y = self.node("Concat", *xs, axis=1)
        self.channels[y] = sum(self.channels[x] for x in xs)
        return y

    def _model(self, outputs: list[str]) -> bytes:
        from onnx import TensorProto, helper, numpy_helper

        shape = [1, *self._samples.shape[1:]]
        used = {name for node in self._nodes for name in node.input}
        graph = helper.make_graph(
            self._nodes,
            "stand-in",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(value, name) for name, value in self._constants.items() if name in used],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        return model.SerializeToString()

    def save(self, outputs: list[str], path: Path) -> None:
        import onnx

        onnx.save(onnx.shape_inference.infer_shapes(onnx.load_from_string(self._model(outputs))), path)


# ---- the networks ------------------------------------------------------------------------------------------------


def _hard_swish(net: _Network, x: str) -> str:
    return net.node("HardSwish", x)


def _silu(net: _Network, x: str) -> str:
    return net.node("Mul", x, net.node("Sigmoid", x))


def _relu6(net: _Network, x: str) -> str:
    return net.node("Clip", x, net.constant(np.float32(0)), net.constant(np.float32(6)))


def _ocr(net: _Network) -> list[str]:
    x = _hard_swish(net, net.conv("x", 16, 3, 2))
    for channels, stride, excites in ((24, 1, False), (32, 2, True), (32, 1, True), (48, 2, True), (48, 1, True)):
        x = _hard_swish(net, net.conv(x, net.channels[x], 3, stride, net.channels[x]))
        if excites:
            gate = net.node("Relu", net.plain(net.node("GlobalAveragePool", x), net.channels[x] // 4))
            x = net.node("Mul", x, net.node("HardSigmoid", net.plain(gate, net.channels[x]), alpha=0.2, beta=0.5))
        x = _hard_swish(net, net.conv(x, channels))
    x = net.node("ReduceMean", x, axes=[2], keepdims=0)  # (1, channels, width)
    x = net.node("Transpose", x, perm=[0, 2, 1])
    weight = net.rng.standard_t(4, size=(48, 60)).astype(np.float32) / 6
    return [net.node("Softmax", net.node("MatMul", x, net.constant(weight)), axis=2)]


def _audio(net: _Network) -> list[str]:
    x = net.node("Relu", net.conv("x", 8, 5, spread=1.0))
    for channels in (16, 16, 8):
        x = net.node("Relu", net.conv(x, channels, 3, spread=1.0))
    contour = net.node("Sigmoid", _rare(net, net.conv(x, 1, 5)))
    note = net.node("Relu", net.conv(contour, 16, 7, spread=1.0))
    note = net.node("Sigmoid", _rare(net, net.conv(note, 1, 5)))
    onset = net.node("Relu", net.conv(net.concat("x", note), 16, 5, spread=1.0))
    onset = net.node("Sigmoid", _rare(net, net.conv(net.concat(onset, note), 1, 3)))
    return [contour, note, onset]


def _rare(net: _Network, x: str) -> str:
    """Logits of events that are rare: mostly far below 0."""
    return net.node("Sub", net.node("Mul", x, net.constant(np.float32(2))), net.constant(np.float32(5)))


def _residual(net: _Network) -> list[str]:
    x = _relu6(net, net.conv("x", 16, 3, 2))
    for channels, stride in ((16, 1), (24, 2), (24, 1), (32, 2), (32, 1), (32, 1)):
        y = _relu6(net, net.conv(x, 4 * net.channels[x], spread=0.8))
        y = _relu6(net, net.conv(y, net.channels[y], 3, stride, net.channels[y], 1.0))
        y = net.conv(y, channels, spread=0.8)
        x = net.node("Add", x, y) if stride == 1 and net.channels[x] == channels else y
    x = net.node("Flatten", net.node("GlobalAveragePool", _relu6(net, net.conv(x, 96))))
    weight = net.rng.standard_t(4, size=(96, 40)).astype(np.float32) / 8
    return [net.node("MatMul", x, net.constant(weight))]


def _detector(net: _Network) -> list[str]:
    x = _silu(net, net.conv("x", 16, 3, 2))
    scales = []
    for channels in (32, 48):
        x = _silu(net, net.conv(x, channels, 3, 2))
        half = channels // 2
        one, two = (_silu(net, net.conv(x, half)) for _ in range(2))
        inner = _silu(net, net.conv(_silu(net, net.conv(two, half, 3)), half, 3))
        x = _silu(net, net.conv(net.concat(one, two, net.node("Add", two, inner)), channels))
        scales.append(x)
    pools = [x]
    for _ in range(2):
        pools.append(net.node("MaxPool", pools[-1], kernel_shape=[5, 5], pads=[2] * 4, strides=[1, 1]))
        net.channels[pools[-1]] = net.channels[x]
    x = _silu(net, net.conv(net.concat(*pools), 48))
    up = net.node("Resize", x, "", net.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    net.channels[up] = 48
    fine = _silu(net, net.conv(net.concat(up, scales[0]), 32, 3))
    heads = []
    for y in (fine, x):
        boxes = net.conv(_silu(net, net.conv(y, 24, 3)), 16)
        classes = net.node("Sigmoid", _rare(net, net.conv(_silu(net, net.conv(y, 24, 3)), 12)))
        heads += [boxes, classes]
    return heads


# ---- data --------------------------------------------------------------------------------------------------------


def _photographs(rng: np.random.Generator, count: int) -> np.ndarray:
    """Smooth random fields with edges, 0 to 1, normalized as photographs are."""
    images = np.stack([_field(rng, 3, 64, 64) for _ in range(count)])
    return ((images - 0.45) / 0.23).astype(np.float32)


def _field(rng: np.random.Generator, channels: int, height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[:height, :width] / max(height, width)
    image = np.zeros((channels, height, width))
    for _ in range(12):
        fx, fy, phase = rng.normal(size=3) * (6, 6, 3)
        edge = (np.sin(fx * x + fy * y + phase) > rng.uniform(-0.8, 0.8)).astype(float)
        image += rng.uniform(-1, 1, size=(channels, 1, 1)) * edge
    image += rng.normal(size=image.shape) * 0.1
    low, high = np.quantile(image, (0.01, 0.99))
    return np.clip((image - low) / (high - low + 1e-9), 0, 1)


def _pages(rng: np.random.Generator, count: int) -> np.ndarray:
    """Dark strokes on light paper, −1 to 1."""
    pages = []
    for _ in range(count):
        page = 0.85 + 0.1 * _field(rng, 3, 32, 128)
        for start in range(4, 120, int(rng.integers(6, 12))):
            top, left = rng.integers(4, 12), start + rng.integers(0, 3)
            page[:, top : top + rng.integers(6, 18), left : left + rng.integers(1, 3)] *= rng.uniform(0.1, 0.5)
            page[:, rng.integers(6, 26), left : left + rng.integers(2, 6)] *= rng.uniform(0.1, 0.5)
        pages.append(2 * page - 1)
    return np.stack(pages).astype(np.float32)


def _spectrograms(rng: np.random.Generator, count: int) -> np.ndarray:
    """Log power of a few harmonic partials over a noise floor, of mean 0 and deviation 1, with heavy tails."""
    found = []
    for _ in range(count):
        power = rng.gamma(0.6, size=(1, 64, 48)) * 1e-7 * np.exp(-np.arange(48) / 12)
        for _ in range(int(rng.integers(1, 5))):
            start, length, pitch = rng.integers(0, 48), rng.integers(6, 30), rng.integers(2, 12)
            decay = np.exp(-np.arange(64)[start : start + length] / 20 + start / 20)
            for partial in range(pitch, 48, pitch):
                power[0, start : start + length, partial] += decay[: 64 - start] * rng.gamma(1.0) / partial
        decibel = 10 * np.log10(power + 1e-10)
        found.append((decibel - decibel.min()) / (decibel.max() - decibel.min()))
    stacked = np.stack(found)
    return ((stacked - stacked.mean()) / stacked.std()).astype(np.float32)


_Data = Callable[[np.random.Generator, int], np.ndarray]
_NETWORKS: dict[str, tuple[_Data, Callable[[_Network], list[str]]]] = {
    "ocr": (_pages, _ocr),
    "audio": (_spectrograms, _audio),
    "residual": (_photographs, _residual),
    "detector": (_photographs, _detector),
}

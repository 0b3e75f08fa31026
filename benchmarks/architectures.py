"""Convolutional networks by name, with random weights, quantized statically by ONNX Runtime.

    python -m benchmarks.architectures FOLDER [--only NAME ...]

`python -m benchmarks --architectures` measures them. The architectures are those of the papers, batch normalization
folded; nothing is downloaded. Weights are drawn so that activations keep their magnitude with depth (He et al. 2015).
Beside NAME.onnx lies NAME.npz with an input and ONNX Runtime's outputs.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

OPSET = 20
SEED = 7
CALIBRATION_INPUTS = 2


class Graph:
    """A float ONNX graph under construction: every method adds nodes and returns the name of their result.

    `channels` holds the channels of every tensor, which is all that has to be known of its shape.
    """

    def __init__(self, size: int) -> None:
        from onnx import helper

        self._helper = helper
        self.size = size
        self.channels: dict[str, int] = {"input": 3}
        self._nodes: list = []
        self._constants: dict[str, np.ndarray] = {}
        self._rng = np.random.default_rng(SEED)

    def add(self, kind: str, inputs: Sequence[str], channels: int, **attributes) -> str:
        """A node with one result of `channels` channels."""
        name = f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(self._helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        self.channels[name] = channels
        return name

    def constant(self, value: np.ndarray) -> str:
        """A constant operand."""
        name = f"constant_{len(self._constants)}"
        self._constants[name] = value
        return name

    def _drawn(self, shape: tuple[int, ...], fan_in: int) -> str:
        return self.constant((self._rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32))

    def _bias(self, channels: int) -> str:
        return self.constant(self._rng.normal(0, 0.1, channels).astype(np.float32))

    def conv(self, x: str, out: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: str = "") -> str:
        """A convolution with "same" padding, then an activation."""
        inside = self.channels[x] // groups
        weight = self._drawn((out, inside, kernel, kernel), inside * kernel**2)
        sizes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4, "group": groups}
        return self.act(self.add("Conv", (x, weight, self._bias(out)), out, **sizes), act)

    def up(self, x: str, out: int) -> str:
        """A transposed 2×2 convolution of stride 2."""
        inside = self.channels[x]
        weight = self._drawn((inside, out, 2, 2), inside)
        return self.add("ConvTranspose", (x, weight, self._bias(out)), out, kernel_shape=[2, 2], strides=[2, 2])

    def act(self, x: str, kind: str) -> str:
        """relu, relu6, silu, hardswish, sigmoid or hardsigmoid; "" for none."""
        channels = self.channels[x]
        if kind == "relu6":
            bounds = [self.constant(np.array(value, np.float32)) for value in (0, 6)]
            return self.add("Clip", (x, *bounds), channels)
        if kind in ("silu", "hardswish"):
            gate = self.act(x, "sigmoid" if kind == "silu" else "hardsigmoid")
            return self.add("Mul", (x, gate), channels)
        if kind == "hardsigmoid":
            return self.add("HardSigmoid", (x,), channels, alpha=1 / 6, beta=0.5)
        return self.add({"relu": "Relu", "sigmoid": "Sigmoid"}[kind], (x,), channels) if kind else x

    def sum(self, x: str, y: str) -> str:
        """A residual sum."""
        return self.add("Add", (x, y), self.channels[x])

    def join(self, *parts: str) -> str:
        """Channels side by side."""
        return self.add("Concat", parts, sum(self.channels[part] for part in parts), axis=1)

    def split(self, x: str) -> tuple[str, str]:
        """The two halves of the channels."""
        half = self.channels[x] // 2
        axis = self.constant(np.array([1], np.int64))
        bounds = [self.constant(np.array([value], np.int64)) for value in (0, half, 2 * half)]
        first, second = (self.add("Slice", (x, bounds[i], bounds[i + 1], axis), half) for i in (0, 1))
        return first, second

    def pool(self, x: str, kernel: int, stride: int) -> str:
        """Maxima of windows."""
        sizes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2 if kernel % 2 else 0] * 4}
        return self.add("MaxPool", (x,), self.channels[x], **sizes)

    def mean(self, x: str) -> str:
        """The mean of all pixels."""
        return self.add("GlobalAveragePool", (x,), self.channels[x])

    def resize(self, x: str) -> str:
        """Twice as many rows and columns, each pixel repeated."""
        scales = self.constant(np.array([1, 1, 2, 2], np.float32))
        return self.add("Resize", (x, "", scales), self.channels[x], mode="nearest",
                        coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip

    def shuffle(self, x: str, height: int) -> str:
        """ShuffleNet's exchange of channels between two groups, of square images `height` pixels high."""
        channels = self.channels[x]
        apart = self.constant(np.array([1, 2, channels // 2, height, height], np.int64))
        whole = self.constant(np.array([1, channels, height, height], np.int64))
        turned = self.add("Transpose", (self.add("Reshape", (x, apart), channels),), channels, perm=[0, 2, 1, 3, 4])
        return self.add("Reshape", (turned, whole), channels)

    def excite(self, x: str, squeezed: int, act: str = "relu", gate: str = "sigmoid") -> str:
        """Squeeze and excitation (Hu et al. 2018)."""
        scale = self.conv(self.conv(self.mean(x), squeezed, act=act), self.channels[x], act=gate)
        return self.add("Mul", (x, scale), self.channels[x])

    def classify(self, x: str, classes: int = 1000) -> str:
        """The mean of all pixels and a dense layer."""
        flat = self.add("Flatten", (self.mean(x),), self.channels[x])
        weight = self._drawn((classes, self.channels[x]), self.channels[x])
        return self.add("Gemm", (flat, weight, self._bias(classes)), classes, transB=1)

    def model(self, outputs: Sequence[str]):
        """The finished model."""
        from onnx import TensorProto, numpy_helper

        h = self._helper
        shape = [1, 3, self.size, self.size]
        inputs = [h.make_tensor_value_info("input", TensorProto.FLOAT, shape)]
        results = [h.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        constants = [numpy_helper.from_array(value, name) for name, value in self._constants.items()]
        graph = h.make_graph(self._nodes, "network", inputs, results, constants)
        return h.make_model(graph, opset_imports=[h.make_opsetid("", OPSET)], ir_version=9)


# ---- classifiers -------------------------------------------------------------------------------------------------


def resnext50(g: Graph) -> list[str]:
    """ResNeXt-50 32×4d (Xie et al. 2017)."""
    x = g.pool(g.conv("input", 64, 7, 2, act="relu"), 3, 2)
    for stage, depth in enumerate((3, 4, 6, 3)):
        width, out = 128 << stage, 256 << stage
        for block in range(depth):
            stride = 2 if stage and not block else 1
            y = g.conv(g.conv(x, width, act="relu"), width, 3, stride, groups=32, act="relu")
            short = x if block else g.conv(x, out, 1, stride)
            x = g.act(g.sum(g.conv(y, out), short), "relu")
    return [g.classify(x)]


def regnet_y_400mf(g: Graph) -> list[str]:
    """RegNetY-400MF (Radosavovic et al. 2020): groups of 8 channels, squeeze and excitation."""
    x = g.conv("input", 32, 3, 2, act="relu")
    for width, depth in ((48, 1), (104, 3), (208, 6), (440, 6)):
        for block in range(depth):
            stride, before = 1 if block else 2, g.channels[x]
            y = g.conv(g.conv(x, width, act="relu"), width, 3, stride, groups=width // 8, act="relu")
            y = g.conv(g.excite(y, before // 4), width)
            x = g.act(g.sum(y, x if block else g.conv(x, width, 1, stride)), "relu")
    return [g.classify(x)]


def shufflenet_v2(g: Graph) -> list[str]:
    """ShuffleNetV2 1.0× (Ma et al. 2018)."""
    x, height = g.pool(g.conv("input", 24, 3, 2, act="relu"), 3, 2), g.size // 4
    for out, depth in ((116, 4), (232, 8), (464, 4)):
        half, height = out // 2, height // 2
        for block in range(depth):
            left, right = g.split(x) if block else (x, x)
            stride = 1 if block else 2
            if not block:
                left = g.conv(g.conv(left, g.channels[left], 3, 2, groups=g.channels[left]), half, act="relu")
            right = g.conv(g.conv(right, half, act="relu"), half, 3, stride, groups=half)
            x = g.shuffle(g.join(left, g.conv(right, half, act="relu")), height)
    return [g.classify(g.conv(x, 1024, act="relu"))]


def _inverted(g: Graph, x: str, wide: int, out: int, kernel: int, stride: int, act: str, squeeze=None) -> str:
    """An inverted residual block (Sandler et al. 2018)."""
    y = g.conv(x, wide, act=act) if wide != g.channels[x] else x
    y = g.conv(y, wide, kernel, stride, groups=wide, act=act)
    y = g.conv(squeeze(y) if squeeze else y, out)
    return g.sum(y, x) if stride == 1 and g.channels[x] == out else y


def _efficientnet(g: Graph, act: str, excited: bool) -> list[str]:
    x = g.conv("input", 32, 3, 2, act=act)
    blocks = ((1, 16, 3, 1, 1), (6, 24, 3, 2, 2), (6, 40, 5, 2, 2), (6, 80, 3, 2, 3), (6, 112, 5, 1, 3),
              (6, 192, 5, 2, 4), (6, 320, 3, 1, 1))  # fmt: skip
    for expand, out, kernel, stride, repeats in blocks:
        for block in range(repeats):
            squeezed = g.channels[x] // 4
            squeeze = (lambda y, n=squeezed: g.excite(y, n, "silu")) if excited else None
            wide = expand * g.channels[x]
            x = _inverted(g, x, wide, out, kernel, 1 if block else stride, act, squeeze)
    return [g.classify(g.conv(x, 1280, act=act))]


def efficientnet_b0(g: Graph) -> list[str]:
    """EfficientNet-B0 (Tan and Le 2019): SiLU, squeeze and excitation."""
    return _efficientnet(g, "silu", True)


def efficientnet_lite0(g: Graph) -> list[str]:
    """EfficientNet-Lite0: ReLU6, without squeeze and excitation."""
    return _efficientnet(g, "relu6", False)


def mobilenet_v3_large(g: Graph) -> list[str]:
    """MobileNetV3-Large (Howard et al. 2019)."""
    x = g.conv("input", 16, 3, 2, act="hardswish")
    r, h = "relu", "hardswish"
    for kernel, wide, out, excited, act, stride in (
        (3, 16, 16, 0, r, 1), (3, 64, 24, 0, r, 2), (3, 72, 24, 0, r, 1), (5, 72, 40, 1, r, 2), (5, 120, 40, 1, r, 1),
        (5, 120, 40, 1, r, 1), (3, 240, 80, 0, h, 2), (3, 200, 80, 0, h, 1), (3, 184, 80, 0, h, 1),
        (3, 184, 80, 0, h, 1), (3, 480, 112, 1, h, 1), (3, 672, 112, 1, h, 1), (5, 672, 160, 1, h, 2),
        (5, 960, 160, 1, h, 1), (5, 960, 160, 1, h, 1),
    ):  # fmt: skip
        squeezed = max(8, (wide // 4 + 4) // 8 * 8)
        squeeze = (lambda y, n=squeezed: g.excite(y, n, "relu", "hardsigmoid")) if excited else None
        x = _inverted(g, x, wide, out, kernel, stride, act, squeeze)
    x = g.mean(g.conv(x, 960, act=h))
    return [g.classify(g.conv(x, 1280, act=h))]


# ---- detection and segmentation ----------------------------------------------------------------------------------


def yolov8n(g: Graph) -> list[str]:
    """YOLOv8n's backbone, neck and heads, without the decoding of boxes."""

    def c2f(x: str, out: int, depth: int, residual: bool) -> str:
        first, last = g.split(g.conv(x, out, act="silu"))
        parts = [first, last]
        for _ in range(depth):
            y = g.conv(g.conv(parts[-1], out // 2, 3, act="silu"), out // 2, 3, act="silu")
            parts.append(g.sum(parts[-1], y) if residual else y)
        return g.conv(g.join(*parts), out, act="silu")

    def pyramid(x: str) -> str:
        half = g.channels[x] // 2
        parts = [g.conv(x, half, act="silu")]
        for _ in range(3):
            parts.append(g.pool(parts[-1], 5, 1))
        return g.conv(g.join(*parts), 2 * half, act="silu")

    x = g.conv(g.conv("input", 16, 3, 2, act="silu"), 32, 3, 2, act="silu")
    eighth = c2f(g.conv(c2f(x, 32, 1, True), 64, 3, 2, act="silu"), 64, 2, True)
    sixteenth = c2f(g.conv(eighth, 128, 3, 2, act="silu"), 128, 2, True)
    last = pyramid(c2f(g.conv(sixteenth, 256, 3, 2, act="silu"), 256, 1, True))
    middle = c2f(g.join(g.resize(last), sixteenth), 128, 1, False)
    fine = c2f(g.join(g.resize(middle), eighth), 64, 1, False)
    middle = c2f(g.join(g.conv(fine, 64, 3, 2, act="silu"), middle), 128, 1, False)
    coarse = c2f(g.join(g.conv(middle, 128, 3, 2, act="silu"), last), 256, 1, False)

    def head(x: str, width: int, out: int) -> str:
        return g.conv(g.conv(g.conv(x, width, 3, act="silu"), width, 3, act="silu"), out)

    return [g.join(head(x, 64, 64), head(x, 80, 80)) for x in (fine, middle, coarse)]


def unet(g: Graph) -> list[str]:
    """U-Net (Ronneberger et al. 2015) of 32 to 512 channels, padded."""

    def twice(x: str, out: int) -> str:
        return g.conv(g.conv(x, out, 3, act="relu"), out, 3, act="relu")

    skipped, x = [], "input"
    for out in (32, 64, 128, 256):
        skipped.append(twice(x, out))
        x = g.pool(skipped[-1], 2, 2)
    x = twice(x, 512)
    for skip in reversed(skipped):
        out = g.channels[skip]
        x = twice(g.join(skip, g.up(x, out)), out)
    return [g.conv(x, 4)]


ARCHITECTURES: dict[str, tuple[Callable[[Graph], list[str]], int]] = {
    "resnext50_32x4d": (resnext50, 224),
    "regnet_y_400mf": (regnet_y_400mf, 224),
    "shufflenet_v2": (shufflenet_v2, 224),
    "efficientnet_b0": (efficientnet_b0, 224),
    "efficientnet_lite0": (efficientnet_lite0, 224),
    "mobilenet_v3_large": (mobilenet_v3_large, 224),
    "yolov8n": (yolov8n, 320),
    "unet": (unet, 128),
}
"""Each network's function and the size of its images."""


def write_architectures(names: Sequence[str], folder: Path) -> None:
    """Write the networks without ONNX Runtime's advice about preparing models."""
    with quietly():
        for name in names:
            write_architecture(name, folder)


@contextmanager
def quietly() -> Iterator[None]:
    """A context in which nothing but errors is logged."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)


def write_architecture(name: str, folder: Path) -> Path:
    """Write NAME.onnx, int8 weights per channel and uint8 activations, and NAME.npz; returns the model's path."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    make, size = ARCHITECTURES[name]
    graph = Graph(size)
    images = [_image(size, seed) for seed in range(1 + CALIBRATION_INPUTS)]

    class Feeds(CalibrationDataReader):
        feeds = iter([{"input": image} for image in images[1:]])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.feeds, None)

    target = folder / f"{name}.onnx"
    with tempfile.TemporaryDirectory() as scratch:
        exported, prepared = Path(scratch, "float.onnx"), Path(scratch, "prepared.onnx")
        onnx.save(graph.model(make(graph)), exported)
        quant_pre_process(exported, prepared)
        quantize_static(prepared, target, Feeds(), quant_format=QuantFormat.QDQ, per_channel=True,
                        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)  # fmt: skip
    write_answers(target, images[0])
    return target


def write_answers(path: Path, image: np.ndarray) -> None:
    """Write NAME.npz beside a model: its input, and ONNX Runtime's outputs."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")  # else its sums overflow 16 bits without VNNI
    outputs = InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"input": image})
    np.savez(path.with_suffix(".npz"), input_0=image, **{f"ort_{i}": value for i, value in enumerate(outputs)})


def _image(size: int, seed: int) -> np.ndarray:
    """Smooth noise of the mean and deviation of a normalized photo, (1, 3, size, size)."""
    rng = np.random.default_rng(seed)
    coarse = rng.standard_normal((1, 3, size // 8, size // 8))
    smooth = coarse.repeat(8, axis=2).repeat(8, axis=3)
    return (1.2 * smooth + 0.3 * rng.standard_normal(smooth.shape)).astype(np.float32)


def main() -> None:
    """Write the chosen networks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", choices=ARCHITECTURES, default=list(ARCHITECTURES))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    write_architectures(options.only, options.folder)


if __name__ == "__main__":
    main()

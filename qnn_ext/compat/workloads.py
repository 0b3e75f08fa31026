"""relay.testing's networks, float and with random weights: what Relay's tutorials tune and benchmark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ShapeError
from .arrays import NDArray
from .basic import ELEMENTWISE, concatenate, reshape
from .expressions import Expr, Function, TensorType, Var, free_vars, var
from .geometry import pair, window_padding
from .lowering import infer_parameters
from .modules import IRModule
from .neural import (
    avg_pool2d,
    batch_flatten,
    batch_norm,
    bias_add,
    conv2d,
    conv2d_transpose,
    dense,
    dropout,
    global_avg_pool2d,
    max_pool2d,
    relu,
    softmax,
)

Workload = tuple[IRModule, dict[str, NDArray]]
SEED = 0


class Weight(Var):
    """The weights of a layer.

    fan_in: how many products make one of its results
    """

    def __init__(self, name: str, shape: Sequence[int], dtype: str, fan_in: int) -> None:
        super().__init__(name, TensorType(shape, dtype))
        self.fan_in = fan_in


class Branch:
    """A network under construction: what has been computed so far, and its shape as (channels, height, width).

    Every layer adds its weights as variables named after it, and returns the branch behind it.
    """

    def __init__(self, value: Expr, shape: tuple[int, int, int], layout: str, dtype: str) -> None:
        self.value, self.shape, self.layout, self.dtype = value, shape, layout, dtype

    @staticmethod
    def start(batch: int, image: Sequence[int], layout: str, dtype: str) -> Branch:
        """The input, `data`; `image` is in the layout. Raises ShapeError for layouts other than NCHW and NHWC."""
        if layout not in ("NCHW", "NHWC") or len(image) != 3:
            raise ShapeError(f"a workload takes NCHW or NHWC and three dimensions, found {layout} and {tuple(image)}")
        by_axis = dict(zip(layout[1:], image, strict=True))
        data = var("data", shape=(batch, *image), dtype=dtype)
        return Branch(data, (by_axis["C"], by_axis["H"], by_axis["W"]), layout, dtype)

    def _then(self, value: Expr, shape: tuple[int, int, int] | None = None) -> Branch:
        return Branch(value, shape or self.shape, self.layout, self.dtype)

    def _var(self, name: str, shape: Sequence[int]) -> Var:
        return var(name, shape=shape, dtype=self.dtype)

    def _window(
        self, kernel: Any, strides: Any, padding: Any, channels: int, ceil: bool = False
    ) -> tuple[int, int, int]:
        top, left, bottom, right = window_padding(padding)
        spans = self.shape[1] + top + bottom, self.shape[2] + left + right
        rounded = math.ceil if ceil else math.floor
        steps = zip(spans, pair(kernel), pair(strides), strict=True)
        height, width = (rounded((span - size) / stride) + 1 for span, size, stride in steps)
        return channels, height, width

    def conv(
        self,
        name: str,
        channels: int,
        kernel: int | tuple[int, int] = 3,
        strides: int = 1,
        padding: int | tuple[int, int] = 1,
        depthwise: bool = False,
        bias: bool = False,
    ) -> Branch:
        """A convolution with its own weights, `<name>_weight` and, if it has one, `<name>_bias`."""
        inputs, groups = (1, self.shape[0]) if depthwise else (self.shape[0], 1)
        layout = "OIHW" if self.layout == "NCHW" else "HWOI" if depthwise else "HWIO"
        height, width = pair(kernel)
        sizes = {"O": channels, "I": inputs, "H": height, "W": width}
        value = conv2d(
            self.value,
            Weight(f"{name}_weight", [sizes[axis] for axis in layout], self.dtype, inputs * height * width),
            strides=pair(strides),
            padding=pair(padding),
            groups=groups,
            channels=channels,
            kernel_size=(height, width),
            data_layout=self.layout,
            kernel_layout=layout,
        )
        if bias:
            value = bias_add(value, self._var(f"{name}_bias", (channels,)), axis=self.layout.index("C"))
        return self._then(value, self._window(kernel, strides, padding, channels))

    def norm(self, name: str, epsilon: float = 2e-5) -> Branch:
        """Batch normalization."""
        kinds = ("gamma", "beta", "moving_mean", "moving_var")
        gamma, beta, mean, variance = (self._var(f"{name}_{kind}", (self.shape[0],)) for kind in kinds)
        axis = self.layout.index("C")
        return self._then(batch_norm(self.value, gamma, beta, mean, variance, axis=axis, epsilon=epsilon)[0])

    def relu(self) -> Branch:
        return self._then(relu(self.value))

    def max_pool(self, size: int, strides: int, padding: int = 0, ceil: bool = False) -> Branch:
        window = {"pool_size": pair(size), "strides": pair(strides), "padding": pair(padding), "ceil_mode": ceil}
        value = max_pool2d(self.value, layout=self.layout, **window)
        return self._then(value, self._window(size, strides, padding, self.shape[0], ceil))

    def average_pool(self, size: int, strides: int, padding: int = 0) -> Branch:
        """Means over windows; what is padded does not count."""
        window = {"pool_size": pair(size), "strides": pair(strides), "padding": pair(padding)}
        value = avg_pool2d(self.value, layout=self.layout, **window)
        return self._then(value, self._window(size, strides, padding, self.shape[0]))

    def unit(self, name: str, channels: int, kernel: Any = 1, strides: int = 1, padding: Any = 0) -> Branch:
        """A convolution, a normalization and a ReLU."""
        return self.conv(f"{name}_conv", channels, kernel, strides, padding).norm(f"{name}_bn").relu()

    def deconv(self, name: str, channels: int) -> Branch:
        """A transposed convolution to twice the size, with a window of 4."""
        value = conv2d_transpose(
            self.value,
            Weight(f"{name}_weight", (self.shape[0], channels, 4, 4), self.dtype, 4 * self.shape[0]),
            strides=(2, 2),
            padding=(1, 1),
            channels=channels,
            kernel_size=(4, 4),
            data_layout=self.layout,
        )
        return self._then(value, (channels, 2 * self.shape[1], 2 * self.shape[2]))

    def reshaped(self, shape: tuple[int, int, int]) -> Branch:
        """Another (channels, height, width) of what `flat` or `dense` returned."""
        by_axis = dict(zip("CHW", shape, strict=True))
        return self._then(reshape(self.value, (-1, *(by_axis[axis] for axis in self.layout[1:]))), shape)

    def average(self) -> Branch:
        """The mean over the image."""
        return self._then(global_avg_pool2d(self.value, layout=self.layout), (self.shape[0], 1, 1))

    def dropout(self) -> Branch:
        return self._then(dropout(self.value))

    def plus(self, other: Branch) -> Branch:
        return self._then(ELEMENTWISE["add"](self.value, other.value))

    def beside(self, *others: Branch) -> Branch:
        """The channels of all."""
        every = (self, *others)
        shape = (sum(one.shape[0] for one in every), *self.shape[1:])
        return self._then(concatenate([one.value for one in every], axis=self.layout.index("C")), shape)

    def flat(self) -> Branch:
        return self._then(batch_flatten(self.value), (math.prod(self.shape), 1, 1))

    def dense(self, name: str, units: int) -> Branch:
        """A dense layer on what `flat` returned."""
        weight = Weight(f"{name}_weight", (units, self.shape[0]), self.dtype, self.shape[0])
        value = dense(self.value, weight, units=units)
        return self._then(bias_add(value, self._var(f"{name}_bias", (units,)), axis=-1), (units, 1, 1))

    def function(self) -> Function:
        """The network with a softmax behind it."""
        return self.open_function(softmax)

    def open_function(self, last: Any = None) -> Function:
        """The network with another last operator, or none."""
        result = self.value if last is None else last(self.value)
        return Function(free_vars(result), result)


def create_workload(net: Any, initializer: Any = None, seed: int = SEED) -> Workload:
    """A module and random parameters for every variable but `data`.

    net:         a function, or an expression of the variables it reads
    initializer: a function of a name and an array, which it fills; default: uniform weights that keep the variance of
                 activations, neutral normalizations, no bias
    """
    random = np.random.default_rng(seed)
    params = {}
    net = IRModule.from_expr(net)["main"]
    infer_parameters(net)
    for item in net.params:
        if item.name_hint == "data":
            continue
        kind = item.type_annotation
        if kind is None:
            raise ShapeError(
                f"variable {item.name_hint!r} has no type, and none follows from what reads it: give it one"
            )
        array = np.zeros(kind.concrete_shape, kind.dtype)
        if initializer is not None:
            initializer(item.name_hint, array)
        elif isinstance(item, Weight) or item.name_hint.endswith("weight"):
            bound = math.sqrt(6.0 / (item.fan_in if isinstance(item, Weight) else max(array.size // len(array), 1)))
            array[...] = random.uniform(-bound, bound, array.shape)  # He et al. 2015: keeps the variance behind a ReLU
        elif item.name_hint.endswith(("gamma", "var")):
            array[...] = 1
        params[item.name_hint] = NDArray(array)
    return IRModule.from_expr(net), params


# ---- networks ----------------------------------------------------------------------------------------------------


def mlp(
    batch_size: int, num_classes: int = 10, image_shape: Sequence[int] = (1, 28, 28), dtype: str = "float32"
) -> Function:
    """Three dense layers, of 128, 64 and `num_classes` units."""
    net = Branch.start(batch_size, image_shape, "NCHW", dtype).flat()
    return net.dense("fc1", 128).relu().dense("fc2", 64).relu().dense("fc3", num_classes).function()


_STAGES = {18: [2, 2, 2, 2], 34: [3, 4, 6, 3], 50: [3, 4, 6, 3], 101: [3, 4, 23, 3], 152: [3, 8, 36, 3]}


def resnet(
    batch_size: int = 1,
    num_classes: int = 1000,
    num_layers: int = 18,
    image_shape: Sequence[int] = (3, 224, 224),
    layout: str = "NCHW",
    dtype: str = "float32",
) -> Function:
    """A residual network with normalization before the convolutions (He et al. 2016, arXiv 1603.05027): of 18 to 152
    layers, or of 6n + 2 layers for images of up to 28 pixels."""
    net = Branch.start(batch_size, image_shape, layout, dtype)
    small = net.shape[1] <= 28
    if (small and (num_layers - 2) % 6) or (not small and num_layers not in _STAGES):
        known = "6n + 2" if small else ", ".join(map(str, _STAGES))
        raise ShapeError(f"resnet: num_layers must be {known} for images of {net.shape[1]} pixels, found {num_layers}")
    units = [(num_layers - 2) // 6] * 3 if small else _STAGES[num_layers]
    widths = [16, 32, 64] if small else [64, 128, 256, 512]
    bottleneck = not small and num_layers >= 50
    net = net.norm("bn_data")
    net = net.conv("conv0", 16) if small else net.conv("conv0", 64, 7, 2, 3).norm("bn0").relu().max_pool(3, 2, 1)
    for stage, (count, width) in enumerate(zip(units, widths, strict=True)):
        for unit in range(count):
            strides = 2 if stage and not unit else 1
            net = _residual(net, f"stage{stage + 1}_unit{unit + 1}", width, strides, unit == 0, bottleneck)
    return net.norm("bn1").relu().average().flat().dense("fc1", num_classes).function()


def _residual(net: Branch, name: str, width: int, strides: int, first: bool, bottleneck: bool) -> Branch:
    channels = 4 * width if bottleneck else width
    active = net.norm(f"{name}_bn1").relu()
    if bottleneck:
        body = active.conv(f"{name}_conv1", width, 1, 1, 0).norm(f"{name}_bn2").relu()
        body = body.conv(f"{name}_conv2", width, 3, strides).norm(f"{name}_bn3").relu()
        body = body.conv(f"{name}_conv3", channels, 1, 1, 0)
    else:
        body = active.conv(f"{name}_conv1", width, 3, strides).norm(f"{name}_bn2").relu()
        body = body.conv(f"{name}_conv2", channels)
    return body.plus(active.conv(f"{name}_sc", channels, 1, strides, 0) if first else net)


_BLOCKS = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]


def mobilenet(
    batch_size: int = 1,
    num_classes: int = 1000,
    image_shape: Sequence[int] = (3, 224, 224),
    dtype: str = "float32",
    layout: str = "NCHW",
) -> Function:
    """MobileNet (Howard et al. 2017, arXiv 1704.04861)."""
    net = Branch.start(batch_size, image_shape, layout, dtype)
    net = net.conv("conv_block_1_conv", 32, 3, 2).norm("conv_block_1_bn", 1e-5).relu()
    for index, (channels, strides) in enumerate(_BLOCKS, 1):
        name = f"separable_conv_block_{index}"
        net = net.conv(f"{name}_depthwise_conv1", net.shape[0], 3, strides, depthwise=True)
        net = net.norm(f"{name}_bn1", 1e-5).relu()
        net = net.conv(f"{name}_conv2", channels, 1, 1, 0).norm(f"{name}_bn2", 1e-5).relu()
    return net.average().flat().dense("fc", num_classes).function()


_VGG = {11: [1, 1, 2, 2, 2], 13: [2, 2, 2, 2, 2], 16: [2, 2, 3, 3, 3], 19: [2, 2, 4, 4, 4]}


def vgg(
    batch_size: int,
    num_classes: int = 1000,
    image_shape: Sequence[int] = (3, 224, 224),
    dtype: str = "float32",
    num_layers: int = 11,
    batch_norm: bool = False,
) -> Function:
    """VGG of 11, 13, 16 or 19 layers (Simonyan and Zisserman 2014, arXiv 1409.1556)."""
    if num_layers not in _VGG:
        raise ShapeError(f"vgg: num_layers must be {', '.join(map(str, _VGG))}, found {num_layers}")
    net = Branch.start(batch_size, image_shape, "NCHW", dtype)
    for stage, (count, channels) in enumerate(zip(_VGG[num_layers], (64, 128, 256, 512, 512), strict=True), 1):
        for index in range(1, count + 1):
            net = net.conv(f"conv{stage}_{index}", channels, bias=True)
            net = (net.norm(f"bn{stage}_{index}") if batch_norm else net).relu()
        net = net.max_pool(2, 2)
    net = net.flat().dense("fc6", 4096).relu().dropout().dense("fc7", 4096).relu().dropout()
    return net.dense("fc8", num_classes).function()


_FIRES = {  # channels squeezed to, or None: a pooling
    "1.0": ((96, 7, 2, 3), [None, 16, 16, 32, None, 32, 48, 48, 64, None, 64]),
    "1.1": ((64, 3, 2, 1), [None, 16, 16, None, 32, 32, None, 48, 48, 64, 64]),
}


def squeezenet(
    batch_size: int = 1,
    num_classes: int = 1000,
    version: str = "1.0",
    image_shape: Sequence[int] = (3, 224, 224),
    dtype: str = "float32",
) -> Function:
    """SqueezeNet 1.0 or 1.1 (Iandola et al. 2016, arXiv 1602.07360)."""
    if version not in _FIRES:
        raise ShapeError(f"squeezenet: version must be {' or '.join(_FIRES)}, found {version}")
    (channels, kernel, strides, padding), fires = _FIRES[version]
    net = Branch.start(batch_size, image_shape, "NCHW", dtype)
    net = net.conv("conv1", channels, kernel, strides, padding, bias=True).relu()
    for index, squeezed in enumerate(fires):
        if squeezed is None:
            net = net.max_pool(3, 2)
            continue
        net = net.conv(f"fire{index}_squeeze", squeezed, 1, 1, 0, bias=True).relu()
        one = net.conv(f"fire{index}_expand1x1", 4 * squeezed, 1, 1, 0, bias=True).relu()
        three = net.conv(f"fire{index}_expand3x3", 4 * squeezed, bias=True).relu()
        net = one.beside(three)
    net = net.dropout().conv("conv_final", num_classes, 1, 1, 0, bias=True).relu()
    return net.average().flat().function()


def synthetic(
    input_shape: Sequence[int] = (1, 3, 24, 12), dtype: str = "float32", wtype: str | None = None
) -> Function:
    """A small network with a convolution of each kind, for tests."""
    if wtype not in (None, dtype):
        raise ShapeError(f"synthetic: weights have the data's dtype, {dtype}, found {wtype}")
    net = Branch.start(input_shape[0], input_shape[1:], "NCHW", dtype)
    net = net.conv("conv1", 16, bias=True).relu().max_pool(2, 2)
    net = net.conv("depthwise", 16, depthwise=True).relu().conv("pointwise", 32, 1, 1, 0, bias=True).relu()
    return net.flat().dense("dense", 10).function()

"""Products as single layers: int8 with bias and requantize, and their float32 twins with bias and relu."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any
from unittest import mock

import numpy as np
from tvm import relax

import qnn_ext
from qnn_ext import op
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.running.kernels import Kernel


@dataclass(frozen=True)
class Layer:
    """A convolution of NHWC data; a dense layer is one of 1 × 1 pixels.

    batch: images, or rows of a dense layer
    """

    batch: int
    height: int
    width: int
    in_channels: int
    out_channels: int
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def is_dense(self) -> bool:
        return self.height == self.width == 1 and self.kernel == (1, 1) and self.groups == 1

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        top, left, bottom, right = self.padding
        sizes = (self.height + top + bottom, self.width + left + right)
        pixels = self.batch
        for size, kernel, stride, step in zip(sizes, self.kernel, self.strides, self.dilation, strict=True):
            pixels *= (size - (kernel - 1) * step - 1) // stride + 1
        return pixels * prod(self.weight_shape)

    @property
    def data_shape(self) -> tuple[int, ...]:
        if self.is_dense:
            return self.batch, self.in_channels
        return self.batch, self.height, self.width, self.in_channels

    @property
    def weight_shape(self) -> tuple[int, ...]:
        if self.is_dense:
            return self.out_channels, self.in_channels
        return self.out_channels, *self.kernel, self.in_channels // self.groups

    def workload(self) -> dict[str, Any]:
        """In the form `benchmarks.layers` expects."""
        fields = dict(self.__dict__)
        if self.is_dense:
            return {"type": "DenseWorkload", "m": self.batch, "k": self.in_channels, "n": self.out_channels}
        return {"type": "Conv2dWorkload", **fields}


def layers_of(kernels: list[Kernel]) -> Counter[Layer]:
    """The convolutions and dense layers of a compiled model, each with its number of occurrences."""
    return Counter(layer for kernel in kernels if (layer := _layer(kernel.workload)) is not None)


def _layer(w: dict[str, Any]) -> Layer | None:
    if w.get("type") == "DenseWorkload":
        return Layer(w["m"], 1, 1, w["k"], w["n"])
    if w.get("type") != "Conv2dWorkload":
        return None
    fields = {name: w[name] for name in Layer.__dataclass_fields__}
    fixed: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return Layer(**fixed)


def resnet50() -> Counter[Layer]:
    """The layers of ResNet-50 (v1.5: the stride is in the 3×3 convolution) on 224 × 224 pixels."""
    layers = Counter([Layer(1, 224, 224, 3, 64, (7, 7), (2, 2), (3, 3, 3, 3)), Layer(1, 1, 1, 2048, 1000)])
    size, channels = 56, 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            layers[Layer(1, size, size, channels, width)] += 1
            layers[Layer(1, size, size, width, width, (3, 3), (stride, stride), (1, 1, 1, 1))] += 1
            if not block:
                layers[Layer(1, size, size, channels, 4 * width, strides=(stride, stride))] += 1
            size, channels = size // stride, 4 * width
            layers[Layer(1, size, size, width, channels)] += 1
    return layers


def int8_module(layer: Layer) -> QnnModule:
    """The layer on int8 activations with int8 weights and per-channel scales; int8 output."""
    rng = np.random.default_rng(0)
    weight = rng.integers(-127, 128, layer.weight_shape, np.int8)
    bias = rng.integers(-1000, 1000, layer.out_channels, np.int32)
    scales = rng.uniform(1e-4, 1e-3, layer.out_channels).astype(np.float32)

    def compute(builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        qparams = op.base.constant(np.int32(-3)), op.base.constant(np.int32(0))
        units = op.base.constant(np.float32(1)), op.base.constant(scales)
        operands = x, op.base.constant(weight), *qparams, *units
        if layer.is_dense:
            accumulator = op.dense(*operands)
        else:
            accumulator = op.conv2d(*operands, layer.strides, layer.padding, layer.dilation, layer.groups)
        biased = builder.emit(relax.op.add(builder.emit(accumulator), op.base.constant(bias)))
        return op.requantize(biased, scales, 0, 1.0, 5, -1, out_dtype="int8")

    return _module(layer, "int8", compute)


def float32_module(layer: Layer) -> QnnModule:
    """The layer in float32, with bias and relu."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(layer.weight_shape).astype(np.float32)
    bias = rng.standard_normal(layer.out_channels).astype(np.float32)

    def compute(builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        if layer.is_dense:
            product = relax.op.matmul(x, op.base.constant(np.ascontiguousarray(weight.T)))
        else:
            product = relax.op.nn.conv2d(
                x,
                op.base.constant(weight),
                list(layer.strides),
                list(layer.padding),
                list(layer.dilation),
                layer.groups,
                data_layout="NHWC",
                kernel_layout="OHWI",
            )
        biased = builder.emit(relax.op.add(builder.emit(product), op.base.constant(bias)))
        return relax.op.nn.relu(biased)

    return _module(layer, "float32", compute)


def _module(layer: Layer, dtype: str, compute: Callable[[relax.BlockBuilder, relax.Expr], relax.Expr]) -> QnnModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(layer.data_shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.Tuple([builder.emit(compute(builder, x))]))
        builder.emit_func_output(result)
    (ty,) = builder.get()["main"].ret_ty.fields
    out = TensorSpec("y", tuple(int(extent) for extent in ty.shape), dtype)
    return QnnModule(builder.get(), (TensorSpec("x", layer.data_shape, dtype),), (out,), ())


def build(layer: Layer, kind: str, target: Any) -> qnn_ext.Engine:
    """The layer compiled for one thread. kind: "int8", "float32", or "plain", which is float32 as loops that LLVM
    vectorizes, without the kernels of float products."""
    if kind == "int8":
        return qnn_ext.build(int8_module(layer), target, num_threads=1, cache=False)
    module = float32_module(layer)
    if kind == "float32":
        return qnn_ext.build(module, target, num_threads=1, cache=False)
    with mock.patch("qnn_ext.compiling.build.float_products", lambda mod, target: mod):
        return qnn_ext.build(module, target, num_threads=1, cache=False)

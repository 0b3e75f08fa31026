"""Quantized operators as eager mode calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.ao.nn.intrinsic.quantized as nniq
import torch.ao.nn.quantized as nnq
import torch.nn.functional as F

from ..builder import Builder, Registry, Value, beyond_int32
from ..rules import DEPTHWISE_PAIRS, HOSTILE, NARROWED, OVERFLOW, PYTORCH_TAIL, QUANTIZED_FLOATS, UNWRITTEN, Rule
from ..values import LARGEST_INPUT

GENERATORS = Registry()
generates = GENERATORS.generates
ops = torch.ops.quantized
Q = ("uint8",)


class TorchBuilder(Builder):
    """Steps in the order of the recipe; inputs are numbered once all are known."""

    def __init__(self, recipe: Any) -> None:
        super().__init__(recipe)
        self.steps: list[tuple[Callable[..., Any], list[str], str]] = []
        self.count = 0

    def declare(self, shape: tuple[int, ...], dtype: str, scale: float | None, zero: int) -> str:
        self.count += 1
        return f"x{self.count}"

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        operands: Sequence[Value],
        shape: Sequence[int],
        scale: float | None,
        zero: int = 0,
        accident: Rule | None = None,
        steady: bool = True,
    ) -> Value:
        """A call, whose result is quantized if it has a scale."""
        self.count += 1
        key = f"t{self.count}"
        self.steps.append((function, [value.key for value in operands], key))
        dtype = "float32" if scale is None else "uint8"
        return self.keep(name, key, shape, dtype, operands, scale, zero, accident, steady)

    def program(self) -> tuple[list[tuple[Callable[..., Any], tuple[int, ...]]], dict[str, int]]:
        """Steps with numbers for their operands, and the number of every tensor."""
        order = {value.key: index for index, value in enumerate(self.inputs)}
        steps = []
        for function, operands, key in self.steps:
            steps.append((function, tuple(order[operand] for operand in operands)))
            order[key] = len(order)
        return steps, order

    def take_q(self, rank: int | Sequence[int] = (1, 2, 3, 4), **rest: Any) -> Value:
        """A quantized tensor; a third of new ones fill PyTorch's vectors, with no tail that a rule would exempt."""
        ranks = [rank] if isinstance(rank, int) else list(rank)
        if not rest and self.draw.chance(0.3):
            shape = self.draw.shape(self.draw.pick(ranks))
            return self.fresh("uint8", (*shape[:-1], 64) if len(shape) > 1 else (64,), quantized=True)
        return self.take(Q, rank, quantized=True, **rest)

    def target(self, about: float = 0.05) -> tuple[float, int]:
        return self.scale(about), self.draw.zero_point("uint8")


def weight(b: TorchBuilder, shape: tuple[int, ...], per_channel: bool) -> tuple[Any, float, float]:
    """A quantized weight, and the median and the largest of its scales; sometimes 7-bit, as PyTorch's observers produce
    on x86."""
    integers = b.draw.weights("int8", shape)
    values = torch.from_numpy(integers // 2 if b.draw.chance(0.3) else integers)
    if not per_channel:
        scale = b.draw.scale(0.01)
        return torch._make_per_tensor_quantized_tensor(values, scale, 0), scale, scale
    scales = np.array([b.draw.scale(0.01) for _ in range(shape[0])])
    zeros = torch.zeros(shape[0], dtype=torch.long)
    made = torch._make_per_channel_quantized_tensor(values, torch.from_numpy(scales), zeros, 0)
    return made, float(np.median(scales)), float(scales.max())


def product_scale(b: TorchBuilder, x: Value, w_scale: float, depth: int) -> float:
    """A scale with which results neither vanish nor all saturate."""
    assert x.scale is not None
    scale = x.scale * w_scale * 74 * np.sqrt(depth) * float(np.exp(b.draw.rng.normal()))
    if b.exact:
        scale = 2.0 ** np.round(np.log2(scale))
    return float(np.clip(scale, 1e-37, 1e37))


def largest_product(x: Value, w_scale: float, depth: int) -> float:
    """A bound on a product's sums with weights of at most this scale, and on their bias."""
    return (x.scale or 1.0) * w_scale * 255 * (127 * depth + 2)


LANES = 64  # size of PyTorch's vectors of 8-bit integers, with AVX-512


def tail(shape: Sequence[int], beyond: Rule | None = None) -> Rule | None:
    """`PYTORCH_TAIL` where elements remain that do not fill a vector, combined with the rule `beyond`."""
    if int(np.prod(shape)) % LANES == 0:
        return beyond
    return PYTORCH_TAIL if beyond is None else replace(PYTORCH_TAIL, ends=True)


def saturates(weights: np.ndarray) -> bool:
    """Whether sums of two products of consecutive taps with activations of up to 255 may overflow 16 bits."""
    taps = weights.reshape(len(weights), -1).astype(np.int64)
    pairs = np.stack([taps[:, :-1:2], taps[:, 1::2]])
    highest, lowest = 255 * np.maximum(pairs, 0).sum(0), 255 * np.minimum(pairs, 0).sum(0)
    return bool((highest > 2**15 - 1).any() or (lowest < -(2**15)).any())


@generates("quantized::conv2d", "quantized::conv2d_relu")
def conv2d(b: TorchBuilder, name: str) -> None:
    x = b.take_q(rank=4)
    n, c, h, w = x.shape
    kernel, stride, padding = b.draw.pick([1, 2, 3]), b.draw.pick([1, 1, 2]), b.draw.pick([0, 1, 2])
    padding = max(padding, -(-max(0, kernel - min(h, w)) // 2))
    groups = b.draw.pick([g for g in (1, 1, 2, 3, c) if c % g == 0])
    channels = groups * max(1, b.draw.extent(9) // groups)
    kind = nnq.Conv2d if name.endswith("2d") else nniq.ConvReLU2d
    module = kind(c, channels, kernel, stride=stride, padding=padding, groups=groups)
    depth = c // groups * kernel * kernel
    made, w_scale, w_most = weight(b, (channels, c // groups, kernel, kernel), b.draw.chance(0.5))
    bias = torch.from_numpy(b.draw.rng.normal(0, 1, channels).astype(np.float32) * (x.scale or 1.0) * w_scale * 99)
    module.set_weight_bias(made, bias)
    module.scale, module.zero_point = product_scale(b, x, w_scale, depth), b.draw.zero_point("uint8")
    size = [(e + 2 * padding - kernel) // stride + 1 for e in (h, w)]
    accident = beyond_int32(largest_product(x, w_most, depth), module.scale)
    if groups == c == channels and c % 8 == 0 and (kernel, padding) == (3, 1) and saturates(made.int_repr().numpy()):
        accident = DEPTHWISE_PAIRS
    b.step(name, module, [x], (n, channels, *size), module.scale, module.zero_point, accident)


@generates("quantized::conv1d")
def conv1d(b: TorchBuilder) -> None:
    x = b.take_q(rank=3)
    n, c, w = x.shape
    module, channels = nnq.Conv1d(c, b.draw.extent(9), 1), 0
    channels = module.out_channels
    made, w_scale, w_most = weight(b, (channels, c, 1), b.draw.chance(0.5))
    module.set_weight_bias(made, torch.zeros(channels))
    module.scale, module.zero_point = product_scale(b, x, w_scale, c), b.draw.zero_point("uint8")
    accident = beyond_int32(largest_product(x, w_most, c), module.scale)
    b.step("quantized::conv1d", module, [x], (n, channels, w), module.scale, module.zero_point, accident)


@generates("quantized::linear", "quantized::linear_relu")
def linear(b: TorchBuilder, name: str) -> None:
    x = b.take_q(rank=(2, 3))
    units = b.draw.extent()
    module = (nnq.Linear if name.endswith("linear") else nniq.LinearReLU)(x.shape[-1], units)
    made, w_scale, w_most = weight(b, (units, x.shape[-1]), b.draw.chance(0.5))
    bias = b.draw.rng.normal(0, 1, units).astype(np.float32) * (x.scale or 1.0) * w_scale * 99
    module.set_weight_bias(made, torch.from_numpy(bias))
    module.scale, module.zero_point = product_scale(b, x, w_scale, x.shape[-1]), b.draw.zero_point("uint8")
    accident = beyond_int32(largest_product(x, w_most, x.shape[-1]), module.scale)
    b.step(name, module, [x], (*x.shape[:-1], units), module.scale, module.zero_point, accident)


@generates("quantized::matmul")
def matmul(b: TorchBuilder) -> None:
    x = b.take_q(rank=(2, 3))
    y = b.fresh("uint8", (*x.shape[:-2], x.shape[-1], b.draw.extent()), quantized=True)
    scale, zero = product_scale(b, x, y.scale or 1.0, x.shape[-1]), b.draw.zero_point("uint8")
    function = lambda a, c, s=scale, z=zero: ops.matmul(a, c, s, z)  # noqa: E731
    shape = (*x.shape[:-1], y.shape[-1])
    largest = 255 * (x.scale or 1.0) * 255 * (y.scale or 1.0) * x.shape[-1]
    accident = OVERFLOW if largest >= np.finfo(np.float32).max else None if b.exact else QUANTIZED_FLOATS
    b.step("quantized::matmul", function, [x, y], shape, scale, zero, accident)


BINARY = ("quantized::add", "quantized::add_relu", "quantized::mul", "quantized::mul_relu")


@generates(*BINARY)
def binary(b: TorchBuilder, name: str) -> None:
    x = b.take_q()
    y = b.take_q(shape=x.shape)
    scale, zero = b.target(0.08)
    if "mul" in name:
        assert x.scale is not None and y.scale is not None
        scale = float(np.clip(x.scale * y.scale * 99 * b.draw.scale(1), 1e-37, 1e37))
    function = getattr(ops, name.split("::")[1])
    call = lambda a, c, s=scale, z=zero: function(a, c, s, z)  # noqa: E731
    largest = 255 * (x.scale or 1.0) * (255 * (y.scale or 1.0) if "mul" in name else 1)
    largest += 0.0 if "mul" in name else 255 * (y.scale or 1.0)
    b.step(name, call, [x, y], x.shape, scale, zero, tail(x.shape, beyond_int32(largest, scale)))


@generates("quantized::cat", "quantized::cat_relu")
def cat(b: TorchBuilder, name: str) -> None:
    x = b.take_q()
    axis = b.draw.between(0, len(x.shape) - 1)
    y = b.fresh("uint8", tuple(b.draw.between(1, 5) if a == axis else n for a, n in enumerate(x.shape)), True)
    scale, zero = b.target()
    function = getattr(ops, name.split("::")[1])
    call = lambda a, c, s=scale, z=zero: function([a, c], axis, s, z)  # noqa: E731
    shape = [n + y.shape[a] if a == axis else n for a, n in enumerate(x.shape)]
    largest = 255 * max(x.scale or 1.0, y.scale or 1.0)
    beyond = beyond_int32(largest, scale)
    b.step(name, call, [x, y], shape, scale, zero, tail((1,), beyond) if axis else beyond)


TABLES: dict[str, Callable[[float, int], Callable[[Any], Any]]] = {
    "quantized::sigmoid": lambda s, z: lambda x: ops.sigmoid(x, s, z),
    "quantized::hardswish": lambda s, z: lambda x: ops.hardswish(x, s, z),
    "quantized::elu": lambda s, z: lambda x: ops.elu(x, s, z, 1.2),
    "quantized::celu": lambda s, z: lambda x: ops.celu(x, s, z, 0.7),
    "quantized::leaky_relu": lambda s, z: lambda x: ops.leaky_relu(x, 0.1, False, s, z),
    "quantized::softmax": lambda s, z: lambda x: ops.softmax(x, -1, s, z),
}
SAME: dict[str, Callable[[Any], Any]] = {
    "aten::relu": torch.relu,
    "quantized::relu6": lambda x: ops.relu6(x, False),
    "quantized::clamp": lambda x: torch.clamp(x, -0.4, 1.1),
    "quantized::threshold": lambda x: ops.threshold(x, 0.2, 0.5),
    "aten::flatten": lambda x: torch.flatten(x),
}


@generates(*TABLES)
def table(b: TorchBuilder, name: str) -> None:
    x = b.take_q()
    scale, zero = b.target()
    beyond = tail(x.shape, beyond_int32(max(1.2, 255 * (x.scale or 1.0)), scale))
    accident, steady = (QUANTIZED_FLOATS, False) if name.endswith("softmax") else (beyond, True)
    b.step(name, TABLES[name](scale, zero), [x], x.shape, scale, zero, accident, steady)


@generates(*SAME)
def same(b: TorchBuilder, name: str) -> None:
    """For operators whose result has the operand's scale."""
    x = b.take_q()
    shape = (int(np.prod(x.shape)),) if name == "aten::flatten" else x.shape
    beyond = beyond_int32(1.0, x.scale or 1.0) is not None  # for the number that a threshold inserts
    accident = replace(QUANTIZED_FLOATS, ends=beyond) if "threshold" in name else None
    b.step(name, SAME[name], [x], shape, x.scale, x.zero, accident)


SCALARS = ("quantized::add_scalar", "quantized::add_scalar_relu", "quantized::mul_scalar", "quantized::mul_scalar_relu")


@generates(*SCALARS)
def scalar(b: TorchBuilder, name: str) -> None:
    """Scale and zero point of the result follow from the number: the value is float from there on, as nothing else may
    depend on them."""
    x, number = b.take_q(), float(b.draw.pick([0.5, -0.25, 3.0, 0.0]))
    function = getattr(ops, name.split("::")[1])
    b.step(name, lambda a: torch.dequantize(function(a, number)), [x], x.shape, None)


@generates("quantized::instance_norm", "quantized::layer_norm", "quantized::group_norm")
def norm(b: TorchBuilder, name: str) -> None:
    x = b.take_q(rank=4)
    scale, zero = b.target()
    c = x.shape[1]
    calls: dict[str, Callable[[Any], Any]] = {
        "quantized::instance_norm": lambda a: ops.instance_norm(a, torch.ones(c), torch.zeros(c), 1e-5, scale, zero),
        "quantized::group_norm": lambda a: ops.group_norm(a, 1, torch.ones(c), torch.zeros(c), 1e-5, scale, zero),
        "quantized::layer_norm": lambda a: ops.layer_norm(
            a, list(x.shape[1:]), torch.ones(x.shape[1:]), torch.zeros(x.shape[1:]), 1e-5, scale, zero
        ),
    }
    groups = {"quantized::instance_norm": c, "quantized::group_norm": 1}.get(name)
    written = x.shape[0] if groups is None else int(np.prod(x.shape[1:])) // groups
    accident = QUANTIZED_FLOATS if x.shape[0] <= written else UNWRITTEN
    b.step(name, calls[name], [x], x.shape, scale, zero, accident)


@generates("aten::max_pool2d", "aten::avg_pool2d")
def pool(b: TorchBuilder, name: str) -> None:
    x = b.take_q(rank=4, where=lambda v: min(v.shape[2:]) >= 2)
    if min(x.shape[2:]) < 2:
        x = b.fresh("uint8", (*x.shape[:2], 4, 5), True)
    call = F.max_pool2d if "max" in name else F.avg_pool2d
    shape = (*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2)
    b.step(name, lambda a: call(a, 2), [x], shape, x.scale, x.zero)


@generates("aten::quantize_per_tensor")
def quantize(b: TorchBuilder) -> None:
    x = b.take(("float32",))
    scale, zero = b.draw.scale(), b.draw.zero_point("uint8")
    call = lambda a: torch.quantize_per_tensor(a, scale, zero, torch.quint8)  # noqa: E731
    beyond = NARROWED if x not in b.inputs or LARGEST_INPUT / scale >= 2.0**31 else None
    accident = HOSTILE if b.recipe.hostile else tail(x.shape, beyond)
    b.step("aten::quantize_per_tensor", call, [x], x.shape, scale, zero, accident)


@generates("aten::dequantize")
def dequantize(b: TorchBuilder) -> None:
    x = b.take_q()
    b.step("aten::dequantize", torch.dequantize, [x], x.shape, None)

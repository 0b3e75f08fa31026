"""A torch.export program under construction: calls of PyTorch operators, executed on a sample as they are added.

So shapes and dtypes are PyTorch's own, and scales fit the values like those of `convert_pt2e`, which observers find.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed.*
from torch.utils import _pytree as pytree

from ..builder import Builder, Registry, Value
from ..recipe import Case, Recipe

GENERATORS = Registry()
QUANTIZED = ("int8", "uint8", "int16", "uint16")
NARROWER = {"int8": [(-127, 127), (-8, 7)], "uint8": [(0, 127), (0, 15)], "int16": [(-32767, 32767)]}
RANKS = (1, 2, 3, 4)


@dataclass(frozen=True)
class Ref:
    """A tensor of the program by its key."""

    key: str


@dataclass(frozen=True)
class Call:
    """key = target(*args, **kwargs), where tensor arguments are Refs."""

    key: str
    name: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, values: dict[str, Any]) -> Any:
        """The result, given the values of all tensors."""
        args, kwargs = pytree.tree_map_only(Ref, lambda ref: values[ref.key], (self.args, self.kwargs))
        return self.target(*args, **kwargs)


class Program(torch.nn.Module):
    """Calls in order, with weights, scales and zero points as buffers."""

    def __init__(
        self, calls: list[Call], constants: dict[str, torch.Tensor], inputs: list[str], outputs: list[str]
    ) -> None:
        super().__init__()
        self.calls, self.inputs, self.outputs = calls, inputs, outputs
        for name, tensor in constants.items():
            self.register_buffer(name, tensor)

    def forward(self, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = {**dict(self.named_buffers()), **dict(zip(self.inputs, args, strict=True))}
        for call in self.calls:
            values[call.key] = call(values)
        return tuple(values[key] for key in self.outputs)


def overload(name: str) -> Callable[..., Any]:
    """The operator with a name such as "aten.conv2d.default"."""
    namespace, function, kind = name.split(".")
    found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), function), kind)
    return found


class Pt2eBuilder(Builder):
    """Calls and constants. `integral`: float tensors that represent integers with a scale."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.calls: list[Call] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.samples: dict[str, Any] = {}
        self.integral: set[str] = set()
        self.count = 0

    def name(self, stem: str = "t") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def declare(self, shape: tuple[int, ...], dtype: str, scale: float | None, zero: int) -> str:
        """The sample of a new input is random bytes: its limits are set later, and nothing here depends on them."""
        key = self.name("x")
        self.samples[key] = torch.from_numpy(np.ascontiguousarray(self.draw.array(dtype, shape)))
        return key

    def const(self, array: Any, dtype: str | None = None) -> Ref:
        """A buffer of the program."""
        key = self.name("c")
        self.constants[key] = torch.from_numpy(np.array(array, dtype))
        self.samples[key] = self.constants[key]
        return Ref(key)

    def calling(self, name: str, target: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> str:
        """Adds a call and executes it on the sample; returns its key."""
        args, kwargs = pytree.tree_map_only(Value, lambda value: Ref(value.key), (tuple(args), kwargs))
        call = Call(self.name(), name, target, args, kwargs)
        with torch.no_grad():
            self.samples[call.key] = call(self.samples)
        self.calls.append(call)
        return call.key

    def call(
        self, name: str, *args: Any, scale: float | None = None, zero: int = 0, steady: bool = True, **kwargs: Any
    ) -> Value:
        """The result of an operator; the first if it has several."""
        return self.results_of(name, *args, scale=scale, zero=zero, steady=steady, **kwargs)[0]

    def results_of(
        self, name: str, *args: Any, scale: float | None = None, zero: int = 0, steady: bool = True, **kwargs: Any
    ) -> list[Value]:
        """All results of an operator. Quantized ones get the scale and zero point."""
        key = self.calling(name, overload(name), args, kwargs)
        sources = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Value)]
        keys = [key]
        if isinstance(self.samples[key], (tuple, list)):
            values_only = "max_pool" in name or "native" in name  # not positions, means or deviations
            count = 1 if values_only else len(self.samples[key])
            keys = [self.calling("getitem", operator.getitem, (Ref(key), index), {}) for index in range(count)]
        results = []
        for result in keys:
            sample = self.samples[result]
            dtype = str(sample.dtype).removeprefix("torch.")
            facts = {"scale": scale, "zero": zero} if dtype in QUANTIZED else {}
            results.append(self.keep(name, result, sample.shape, dtype, sources, steady=steady, **facts))
        return results

    # ---- tensors -------------------------------------------------------------------------------------------------

    def quantized(self, rank: int | Sequence[int] = RANKS, **rest: Any) -> Value:
        """A tensor of integers with a scale."""
        return self.take(QUANTIZED, rank, quantized=True, **rest)

    def real(self, rank: int | Sequence[int] = RANKS, **rest: Any) -> Value:
        """A float tensor, most often just dequantized."""
        if self.draw.chance(0.75):
            return self.dequantize(self.quantized(rank, **rest))
        return self.take(("float32",), rank, **rest)

    def dequantize(self, q: Value) -> Value:
        assert q.scale is not None
        args = (q, q.scale, q.zero, *self.limits_of(q.dtype), getattr(torch, q.dtype))
        return self.mark(self.call("quantized_decomposed.dequantize_per_tensor.default", *args))

    def mark(self, value: Value) -> Value:
        """Note that the tensor represents integers."""
        self.integral.add(value.key)
        return value

    def moved(self, name: str, x: Value, *args: Any, **kwargs: Any) -> Value:
        """An operator whose result holds x's values."""
        result = self.call(name, x, *args, scale=x.scale, zero=x.zero, **kwargs)
        return self.mark(result) if x.key in self.integral else result

    # ---- quantization --------------------------------------------------------------------------------------------

    def limits_of(self, dtype: str) -> tuple[int, int]:
        info = np.iinfo(dtype)
        return int(info.min), int(info.max)

    def observed(self, value: Value, dtype: str, limits: tuple[int, int]) -> tuple[float, int]:
        """Scale and zero point as an observer finds them, and others near them."""
        sample = self.samples[value.key].double()
        sample = sample[torch.isfinite(sample)]
        low, high = (min(0.0, float(sample.min())), max(0.0, float(sample.max()))) if sample.numel() else (0.0, 0.0)
        scale = (high - low) / (limits[1] - limits[0]) * float(np.exp(self.draw.rng.normal(0, 0.4)))
        if scale == 0.0:
            scale = self.scale()
        if self.recipe.scales == "extreme" and self.draw.chance(0.2):
            scale *= 10.0 ** self.draw.rng.uniform(-9, 9)
        scale = 2.0 ** np.round(np.log2(scale)) if self.exact else scale
        scale = float(np.clip(scale, 1e-37, 1e37))
        if self.draw.chance(0.7):
            scale = float(np.float32(scale))  # observers have float32 scales; some exporters write doubles
        zero = int(np.clip(np.round(limits[0] - low / scale), *limits))
        return scale, zero if self.draw.chance(0.6) else int(np.clip(self.draw.zero_point(dtype), *limits))

    def quantize(self, value: Value, like: Value | None = None) -> Value:
        """The tensor after a quantize_per_tensor: calibrated, or with another tensor's parameters."""
        if like is not None and like.scale is not None:
            dtype, limits, (scale, zero) = like.dtype, self.limits_of(like.dtype), (like.scale, like.zero)
        else:
            dtype = self.dtype(QUANTIZED)
            limits = self.limits_of(dtype)
            if self.draw.chance(0.2) and dtype in NARROWER:
                limits = self.draw.pick(NARROWER[dtype])
            scale, zero = self.observed(value, dtype, limits)
        args = (value, scale, zero, *limits, getattr(torch, dtype))
        return self.call("quantized_decomposed.quantize_per_tensor.default", *args, scale=scale, zero=zero)

    def finish(self, value: Value, like: Value | None = None) -> None:
        """Most results are quantized, some after an activation; others stay float."""
        if self.draw.chance(0.15):
            value = self.call(self.draw.pick(["aten.relu.default", "aten.relu6.default"]), value)
        if value.dtype == "float32" and self.draw.chance(0.85):
            self.quantize(value, like if self.draw.chance(0.7) else None)


def make(recipe: Recipe) -> Case:
    """The case of a recipe."""
    builder = Pt2eBuilder(recipe)
    for step in recipe.steps:
        builder.draw.begin(step.seed)
        GENERATORS[step.operator](builder)
    inputs = [value.key for value in builder.inputs]
    outputs = [value.key for value in builder.results()]
    return builder.case(Program(builder.calls, builder.constants, inputs, outputs))

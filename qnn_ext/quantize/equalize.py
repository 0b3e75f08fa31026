"""Cross-layer equalization: channels of neighbouring layers share their range, before weights are quantized.

With f(s·x) = s·f(x) for s > 0 between two layers, W₂·f(W₁·x + b) = (W₂·S)·f((S⁻¹·W₁)·x + S⁻¹·b) for any diagonal S > 0.
Nagel et al. 2019 (Data-Free Quantization Through Weight Equalization and Bias Correction, eq. 11) choose
s_i = √(r₁ᵢ·r₂ᵢ) / r₂ᵢ, r being the largest |w| of a channel, so that both layers end up with the range √(r₁ᵢ·r₂ᵢ).
Depthwise layers, whose channels differ most, belong to two pairs: a chain is swept until nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from ..module import QnnModule
from ..op.arguments import data_of, factors_of, with_data
from ..op.base import constant, constant_value, shape_of
from ..passes.rewrite import bindings_of, consumers, op_name, rewrite
from .channels import Weight, channel_axis_behind, is_positive_homogeneous, weight_of

_MOST_SWEEPS = 100
_SETTLED = 1e-4  # of log s


@dataclass(frozen=True)
class Pair:
    """Two layers between which channels can be rescaled. All numbers are positions of bindings in `main`.

    producer, consumer: products with constant weights
    biases: additions of constants between them, each with the axis of the channels counted from the end
    """

    producer: int
    consumer: int
    biases: tuple[tuple[int, int], ...]


def equalize(module: QnnModule) -> QnnModule:
    """The same function with the ranges of neighbouring layers' channels equalized.

    module: float, folded, with batch normalizations in the weights. Between two layers there may be bias additions,
            relu, leaky relu, pooling, padding with zeros and moves that keep channels apart; pairs with anything else
            between them (relu6 and other clips, gelu, a second reader) stay as they are.

    In exact arithmetic the function is the same; in float32, up to rounding.
    """
    function = module.ir["main"]
    bindings = bindings_of(function)
    pairs = find_pairs(function)
    weights: dict[int, Weight] = {}
    for index in {index for pair in pairs for index in (pair.producer, pair.consumer)}:
        found = weight_of(bindings[index].value)
        assert found is not None, "pairs are made of layers with weights"
        weights[index] = found
    scales = _sweep(pairs, weights)
    return replace(module, ir=rewrite(module.ir, _Rescaled(pairs, weights, scales)))


def find_pairs(function: relax.Function) -> list[Pair]:
    """The pairs of layers of `main` that can be equalized, in order of computation."""
    bindings = bindings_of(function)
    readers = consumers(function, bindings)
    shared = _shared_constants(bindings)
    found = []
    for index, binding in enumerate(bindings):
        weight = weight_of(binding.value)
        if weight is not None and _constant_of(binding.value) not in shared:
            pair = _follow(index, weight.output_axis, bindings, readers)
            if pair is not None and _constant_of(bindings[pair.consumer].value) not in shared:
                found.append(pair)
    return found


def _constant_of(product: relax.Call) -> Any:
    """The weight of a layer as an expression."""
    _, weight = factors_of(product)
    return weight


def _shared_constants(bindings: list[relax.VarBinding]) -> set[Any]:
    """Weights that more than one layer reads."""
    seen: set[Any] = set()
    shared: set[Any] = set()
    for binding in bindings:
        if weight_of(binding.value) is not None:
            weight = _constant_of(binding.value)
            (shared if weight in seen else seen).add(weight)
    return shared


def _follow(start: int, axis: int, bindings: list[relax.VarBinding], readers: dict[Any, list[int]]) -> Pair | None:
    """The pair whose producer is at `start`: follows single readers to a layer with weights."""
    biases: list[tuple[int, int]] = []
    index = start
    while True:
        var = bindings[index].var
        if len(readers[var]) != 1 or readers[var][0] >= len(bindings):
            return None
        index = readers[var][0]
        value = bindings[index].value
        weight = weight_of(value)
        if weight is not None:
            fits = data_of(value).same_as(var) and weight.input_axis(len(shape_of(var))) == axis
            return Pair(start, index, tuple(biases)) if fits else None
        if op_name(value) == "add" and _constant_operand(value) is not None:
            biases.append((index, axis - len(shape_of(value))))
        elif not is_positive_homogeneous(value):
            return None
        new_axis = channel_axis_behind(value, var, axis)
        if new_axis is None:
            return None
        axis = new_axis


def _constant_operand(call: relax.Call) -> int | None:
    """Which operand of an addition is constant."""
    return next((i for i, arg in enumerate(call.args) if constant_value(arg) is not None), None)


def _sweep(pairs: list[Pair], weights: dict[int, Weight]) -> dict[int, np.ndarray]:
    """Producer -> s, the product over all sweeps; updates `weights`."""
    scales = {pair.producer: np.ones(weights[pair.producer].outputs) for pair in pairs}
    for _ in range(_MOST_SWEEPS):
        moved = 0.0
        for pair in pairs:
            step = equalizing_scales(weights[pair.producer].output_ranges(), weights[pair.consumer].input_ranges())
            weights[pair.producer] = weights[pair.producer].scaled_outputs(1 / step)
            weights[pair.consumer] = weights[pair.consumer].scaled_inputs(step)
            scales[pair.producer] *= step
            moved = max(moved, float(np.abs(np.log(step)).max()))
        if moved < _SETTLED:
            break
    return scales


def equalizing_scales(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """s = √(r₁·r₂) / r₂ for the ranges r₁ of one layer's outputs and r₂ of the next one's inputs, both (C,) and ≥ 0.

    A channel with only zero weights on either side has nothing to equalize: s = 1.
    """
    alive = (first > 0) & (second > 0)
    safe_first, safe_second = np.where(alive, first, 1.0), np.where(alive, second, 1.0)
    return np.asarray(np.sqrt(safe_first * safe_second) / safe_second)


class _Rescaled:
    """The rule for `rewrite`, which calls it once for each binding, in order."""

    def __init__(self, pairs: list[Pair], weights: dict[int, Weight], scales: dict[int, np.ndarray]) -> None:
        self._weights = weights
        self._biases: dict[int, list[tuple[int, np.ndarray]]] = {}
        for pair in pairs:
            for index, axis in pair.biases:
                self._biases.setdefault(index, []).append((axis, scales[pair.producer]))
        self._positions: Iterator[int] = iter(range(1 << 31))

    def __call__(self, value: Any, emit: Any) -> Any:
        index = next(self._positions)
        if index in self._weights:
            weight = constant(self._weights[index].array.astype(np.float32))
            return with_data(value, data_of(value), weight)
        if index in self._biases:
            position = _constant_operand(value)
            assert position is not None, "biases are constants"
            args = list(value.args)
            args[position] = constant(self._rescaled_bias(index, args[position]))
            return relax.Call(value.op, args, value.attrs, value.ty_args)
        return None

    def _rescaled_bias(self, index: int, expr: Any) -> np.ndarray:
        bias = np.asarray(constant_value(expr), np.float64)
        for axis, scale in self._biases[index]:
            bias = bias / scale.reshape(-1, *(1,) * (-axis - 1))
        return bias.astype(np.float32)

"""Cross-layer equalization: channels of neighbouring layers share their range, before weights are quantized.

Nagel et al. 2019 (Data-Free Quantization Through Weight Equalization and Bias Correction, eq. 11) choose
s_i = √(r₁ᵢ·r₂ᵢ) / r₂ᵢ, r being the largest |w| of a channel, so that both layers end up with the range √(r₁ᵢ·r₂ᵢ).
Depthwise layers, whose channels differ most, belong to two pairs: a chain is swept until nothing changes. Across
residual sums several layers write and several read a channel: r₁ᵢ and r₂ᵢ are then the largest of theirs.
"""

from __future__ import annotations

import numpy as np

from ..module import QnnModule
from .channel_groups import Group, plain_groups_of
from .channels import Weight
from .scales import scaled, weights_by_position

_MOST_SWEEPS = 100
_SETTLED = 1e-4  # of log s


def equalize(module: QnnModule) -> QnnModule:
    """The same function with the ranges of neighbouring layers' channels equalized.

    module: float, folded, with batch normalizations in the weights. Between layers there may be bias additions,
            residual sums, relu, leaky relu, pooling, padding with zeros and moves that keep channels apart, with any
            number of readers; tensors that anything else reads (relu6 and other clips, gelu, a concatenation) stay as
            they are.

    In exact arithmetic the function is the same; in float32, up to rounding.
    """
    return scaled(module, equalizing_factors(module))


def equalizing_factors(module: QnnModule) -> list[tuple[Group, np.ndarray]]:
    """The groups that `equalize` scales, each with its s."""
    function = module.ir["main"]
    groups = [group for group in plain_groups_of(function) if is_between_products(group)]
    return list(zip(groups, _sweep(groups, weights_by_position(function)), strict=True))


def is_between_products(group: Group) -> bool:
    """Whether only products write and read the group, so that its ranges are those of weights."""
    return bool(group.producers and group.consumers) and not group.from_normalization and not group.factors


def _sweep(groups: list[Group], weights: dict[int, Weight]) -> list[np.ndarray]:
    """The s of each group, the product over all sweeps; updates `weights`."""
    scales = [np.ones(group.channels) for group in groups]
    for _ in range(_MOST_SWEEPS):
        moved = 0.0
        for group, scale in zip(groups, scales, strict=True):
            first = np.max([weights[index].output_ranges() for index in group.producers], axis=0)
            second = np.max([weights[index].input_ranges() for index in group.consumers], axis=0)
            step = equalizing_scales(first, second)
            for index in group.producers:
                weights[index] = weights[index].scaled_outputs(1 / step)
            for index in group.consumers:
                weights[index] = weights[index].scaled_inputs(step)
            scale *= step
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

"""SmoothQuant: outliers of activations behind layer normalizations move into the weights that read them.

A few channels of a transformer's normalized activations are far larger than the others, so that one scale for all of
them leaves the others few steps. Dividing channel i of the activations by s_i, which the normalization's factors
absorb, and multiplying the weights that read it keeps the function. Xiao et al. 2023 (SmoothQuant: Accurate and
Efficient Post-Training Quantization for Large Language Models, eq. 4) choose s_i = max|xᵢ|^α / max|wᵢ|^(1−α).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..module import QnnModule
from .channel_groups import Group, plain_groups_of
from .dataset import batches
from .engines import engine_of
from .scales import scaled, weights_by_position
from .shards import batch_named
from .switchable import switchable


def smooth(module: QnnModule, dataset: Any, alpha: float = 0.5) -> QnnModule:
    """The same function, with activations behind normalizations (or any multiplication by a constant vector) smoothed.

    module:  float, folded; dataset: as `quantize` takes it
    alpha:   how much of the difficulty moves into the weights: 0 none, 1 all

    In exact arithmetic the function is the same; in float32, up to rounding. Raises QuantizationError for a data set
    that is empty or does not fit.
    """
    return scaled(module, smoothing_factors(module, dataset, alpha))


def smoothing_factors(module: QnnModule, dataset: Any, alpha: float) -> list[tuple[Group, np.ndarray]]:
    """The groups that `smooth` scales, each with its s."""
    groups = smoothed_groups(module)
    if not groups:
        return []
    weights = weights_by_position(module.ir["main"])
    factors = []
    for group, largest in zip(groups, _largest(module, groups, dataset), strict=True):
        read = np.max([weights[index].input_ranges() for index in group.consumers], axis=0)
        factors.append((group, smoothing_scales(largest, read, alpha)))
    return factors


def smoothed_groups(module: QnnModule) -> list[Group]:
    """The groups of tensors that begin at a normalization and that only products read."""
    groups = plain_groups_of(module.ir["main"])
    return [group for group in groups if group.from_normalization and group.consumers and not group.factors]


def smoothing_scales(activations: np.ndarray, weights: np.ndarray, alpha: float) -> np.ndarray:
    """s = a^α / w^(1−α), of mean 1 on a logarithmic scale; 1 for a channel that is zero on either side.

    activations, weights: the largest |x| of each channel and the largest |w| that multiplies it, both (C,) and ≥ 0
    """
    alive = (activations > 0) & (weights > 0)
    if not alive.any():
        return np.ones(len(alive))
    log = alpha * np.log(activations, where=alive, out=np.zeros(len(alive)))
    log -= (1 - alpha) * np.log(weights, where=alive, out=np.zeros(len(alive)))
    return np.asarray(np.where(alive, np.exp(log - log[alive].mean()), 1.0))


def _largest(module: QnnModule, groups: list[Group], dataset: Any) -> list[np.ndarray]:
    """max |x| of each channel of what the consumers of each group read."""
    shown = [name for group in groups for name in group.read]
    engine = engine_of(switchable(module, [], shown).module)
    found = [np.zeros(group.channels) for group in groups]
    for index, batch in enumerate(batches(dataset, module.inputs)):
        with batch_named(index):
            arrays = iter(list(engine.run(list(batch)).values())[len(module.outputs) :])
        for group, largest in zip(groups, found, strict=True):
            for along in group.read.values():
                rows = np.moveaxis(next(arrays), along.axis, 0).reshape(group.channels, -1)
                np.maximum(largest, np.abs(rows).max(axis=1), out=largest)
    return found

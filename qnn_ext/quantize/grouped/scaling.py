"""AWQ: channels whose activations are large get finer weights, as much as helps the layers that read them.

Weights are multiplied by s, channel by channel of their data, which are divided by it where they come from: a
normalization's factors or another product. Lin et al. 2024 (AWQ: Activation-aware Weight Quantization for On-Device LLM
Compression and Acceleration) take s = a^α, with a the mean magnitude of a channel, here its root mean square; α is
chosen by the error of the layers' results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...module import QnnModule
from ...passes.rewrite import bindings_of
from ..channel_groups import Group, plain_groups_of
from ..config import QConfig
from ..scales import scaled
from .fitting import fitted, result_error
from .layers import GroupedLayer, weight_of

_EXPONENTS = np.linspace(0.0, 1.0, 11)  # 0: no scaling
_MOST = 1e4  # the largest factor relative to the smallest

Reader = tuple[np.ndarray, GroupedLayer, np.ndarray]  # the weight (N, K), its layer, H


def activation_aware(
    module: QnnModule, layers: Mapping[str, GroupedLayer], moments: Mapping[str, np.ndarray], config: QConfig
) -> tuple[QnnModule, dict[str, np.ndarray]]:
    """The same function with scaled channels, and the moments of its tensors.

    layers: by variable; moments: H of the data of each, by tensor. In exact arithmetic the function is the same; in
    float32, up to rounding.
    """
    bindings = bindings_of(module.ir["main"])
    factors: list[tuple[Group, np.ndarray]] = []
    moments = dict(moments)
    for group in plain_groups_of(module.ir["main"]):
        readers: list[Reader] = []
        for index in group.consumers:
            layer = layers.get(str(bindings[index].var.name))
            weight = weight_of(bindings[index].value)
            if layer is not None and layer.data is not None and weight is not None:
                readers.append((weight.astype(np.float64), layer, moments[layer.data]))
        if not readers or group.factors:
            continue
        found = best_scales(readers, config)
        factors.append((group, found))
        for name in {layer.data for _, layer, _ in readers if layer.data is not None}:
            moments[name] = moments[name] / np.outer(found, found)
    return scaled(module, factors), moments


def best_scales(readers: Sequence[Reader], config: QConfig) -> np.ndarray:
    """The factors (K,) of the channels that several weights read, which add the least error to their results."""
    channels = np.sqrt(np.diagonal(sum(moment for _, _, moment in readers)))
    tried = [_scales(channels, exponent) for exponent in _EXPONENTS]
    return tried[int(np.argmin([_error(readers, scales, config) for scales in tried]))]


def _scales(channels: np.ndarray, exponent: float) -> np.ndarray:
    """a^α over the geometric mean of its ends; 1 where a is 0."""
    alive = channels > 0
    if not alive.any():
        return np.ones(len(channels))
    scales = np.where(alive, channels, 1.0) ** exponent
    scales = np.maximum(scales, scales[alive].max() / _MOST)
    middle = np.sqrt(scales[alive].max() * scales[alive].min())
    return np.asarray(np.where(alive, scales / middle, 1.0))


def _error(readers: Sequence[Reader], scales: np.ndarray, config: QConfig) -> float:
    total = 0.0
    for weight, layer, moment in readers:
        values = fitted(weight * scales, layer.form(config), layer.config.weight_scale).values
        total += result_error(weight, values / scales, moment)
    return total

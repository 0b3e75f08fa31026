"""What "auto" means for `equalize` and `smooth`: whether rescaled channels make a model's integers clearly better.

Both keep the float function and cost nothing at run time. Equalization gains most where the channels of a tensor
differ much, as in small networks of depthwise convolutions (18 dB on one whose channels differ by hundreds), smoothing
where activations have outliers behind a normalization (17 dB on a vision transformer); elsewhere either may cost
something. So it is measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import QuantizationError
from ..module import QnnModule
from .annotate import annotate
from .calibrate import usual_errors
from .choose import is_better
from .config import QConfig, replace_fields
from .dataset import Batches, ShardedBatches
from .engines import shared_engines
from .equalize import equalizing_factors
from .scales import Group, groups_of, scaled
from .smooth import smoothing_factors

_ALPHA = 0.5
_BATCHES = 16  # that outputs are compared on: what is clearly better shows on few
_CLEARLY = 0.9  # of the other error

Scales = Mapping[int, Sequence[float]]  # number of a group of `groups_of` → the factors of its channels


def settled(plain: QnnModule, config: QConfig, data: Batches | None) -> QConfig:
    """The configuration with what is better in place of "auto" for `equalize` and `smooth`.

    plain: folded, before what is "auto"; data: None: nothing is measured, and nothing rescaled

    Each is used if the error of the worst output falls by a tenth or more and by more than twice its standard error, on
    parts of the data that ranges do not come from. Equalization is tried first, and smoothing on top of it. Models with
    states, with ranges that the user fixed or that another calibrator finds, and data in shards that other machines
    read are left as they are.
    """
    chosen = replace(
        config,
        equalize=False if config.equalize == "auto" else config.equalize,
        smooth=None if config.smooth == "auto" else config.smooth,
    )
    remote = isinstance(data, ShardedBatches) and data.dataset.map is not None
    if chosen == config or data is None or remote or plain.states or config.calibrate_mode != "auto":
        return chosen
    samples = [list(batch) for batch in itertools.islice(data, _BATCHES)]
    if not samples:
        return chosen  # calibration says so
    errors: np.ndarray | None = None
    found: Scales = {}  # of what is chosen
    with shared_engines():
        for field, value in (("equalize", True), ("smooth", _ALPHA)):
            if getattr(config, field) != "auto":
                continue
            other = replace_fields(chosen, {field: value})
            scales = found_scales(plain, config, other, samples)
            if scales.keys() == found.keys():
                continue  # there is nothing to rescale
            if errors is None:
                errors = usual_errors(annotate(plain, chosen), samples, chosen)
            with_scales = usual_errors(annotate(rescaled(plain, scales), other), samples, other)
            if errors is None or with_scales is None:
                return chosen
            if is_better(with_scales, errors) and with_scales.sum() < _CLEARLY * errors.sum():
                chosen, errors, found = other, with_scales, scales
    return chosen


def found_scales(plain: QnnModule, config: QConfig, chosen: QConfig, data: Any) -> Scales:
    """The factors of what is "auto" in `config` as it is in `chosen`. data: batches that smoothing looks at"""
    scales: dict[int, Sequence[float]] = {}
    if config.equalize == "auto" and chosen.equalize:
        scales |= _numbered(plain, equalizing_factors(plain))
    if config.smooth == "auto" and isinstance(chosen.smooth, float):
        module = rescaled(plain, scales)
        scales |= _numbered(module, smoothing_factors(module, data, chosen.smooth))
    return scales


def _numbered(module: QnnModule, factors: Sequence[tuple[Group, np.ndarray]]) -> dict[int, Sequence[float]]:
    def key(group: Group) -> tuple[Any, ...]:
        return (*group.scaled, *group.producers)

    numbers = {key(group): number for number, group in enumerate(groups_of(module.ir["main"]))}
    return {numbers[key(group)]: scale.tolist() for group, scale in factors}


def rescaled(module: QnnModule, scales: Scales) -> QnnModule:
    """The same function with the channels of these groups rescaled. Raises QuantizationError if they do not fit."""
    groups = groups_of(module.ir["main"]) if scales else []
    for number, factors in scales.items():
        channels = groups[number].channels if number < len(groups) else None
        if channels != len(factors):
            raise QuantizationError(
                f"the scales of the calibration table do not fit: group {number} has {len(factors)}, the model's "
                f"{'has ' + str(channels) if channels else 'is missing'}; calibrate again"
            )
    return scaled(module, [(groups[number], np.asarray(factors, np.float64)) for number, factors in scales.items()])

"""What "auto" means for `balance`, `equalize` and `smooth`: whether rescaled channels make a model's integers clearly
better.

All keep the float function and cost next to nothing at run time. Balancing gains most where activations behind
hard-swish and the like differ from channel to channel (13 to 20 dB on small networks for text). Without it,
equalization gains most where the channels of a tensor differ much, as in small networks of depthwise convolutions
(18 dB on one whose channels differ by hundreds), smoothing where activations have outliers behind a normalization
(17 dB on a vision transformer). Elsewhere each may cost something. So it is measured.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import QuantizationError, QuantizationWarning
from ..module import QnnModule
from .annotate import annotate
from .balance import balancing_factors
from .calibrate import usual_errors
from .channel_bounds import with_channel_bounds
from .channel_groups import Group, groups_of
from .choose import affordable, is_better
from .config import QConfig, replace_fields
from .dataset import Batches, ShardedBatches
from .engines import shared_engines
from .equalize import equalizing_factors
from .inserted_factors import factored_sites, with_factors
from .scales import scaled
from .smooth import smoothing_factors
from .table import CalibrationTable

_ALPHA = 0.5
_BATCHES = 16, 64  # that outputs are compared on, of large and of small models
_CLEARLY = 0.9  # of the other error
_BALANCED = 0.95

Scales = Mapping[int, Sequence[float]]  # number of a group of `groups_of` → the factors of its channels


@dataclass(frozen=True)
class Rescaling:
    """scales: as above; factored: the tensors that get factors of their own before groups are numbered"""

    scales: Scales
    factored: Sequence[str] = ()


def settled(plain: QnnModule, config: QConfig, data: Batches | None) -> QConfig:
    """The configuration with what is better in place of "auto" for `balance`, `equalize` and `smooth`.

    plain: folded, before what is "auto"; data: None: nothing is measured, and nothing rescaled

    Equalization and smoothing are used if the error of the worst output falls by a tenth or more and by more than twice
    its standard error, on parts of the data that ranges do not come from. Balancing is tried first, and used if the
    error falls by a twentieth, both in the mean and in that of the logarithms: its factors are already those with the
    least expected noise, so that a fall needs no proof. If it is not used, equalization is tried, and smoothing on top
    of it. Models with states, with ranges that the user fixed or that another calibrator finds, and
    data in shards that other machines read are left as they are. Nothing is balanced where activations between layers
    have 8 bits or weights a scale for all channels.
    """
    chosen = replace(
        config,
        balance=False if config.balance == "auto" else config.balance,
        equalize=False if config.equalize == "auto" else config.equalize,
        smooth=None if config.smooth == "auto" else config.smooth,
    )
    remote = isinstance(data, ShardedBatches) and data.dataset.map is not None
    if chosen == config or data is None or remote or plain.states or config.calibrate_mode != "auto":
        return chosen
    samples = [list(batch) for batch in itertools.islice(data, affordable(plain, *_BATCHES))]
    if not samples:
        return chosen  # calibration says so
    errors: np.ndarray | None = None
    found = Rescaling({})  # of what is chosen
    with shared_engines(), warnings.catch_warnings():
        warnings.simplefilter("ignore", QuantizationWarning)  # calibration says what is to be said of the data
        for field, value in (("balance", True), ("equalize", True), ("smooth", _ALPHA)):
            if getattr(config, field) != "auto" or (field == "balance" and not can_balance(config)):
                continue
            other = replace_fields(chosen, {field: value})
            rescaling = found_scales(plain, config, other, samples)
            if rescaling.scales.keys() == found.scales.keys():
                continue  # there is nothing to rescale
            if errors is None:
                # with factors of one, so that the same program computes both
                errors = usual_errors(annotate(with_factors(plain, rescaling.factored), chosen), samples, chosen)
            with_scales = usual_errors(annotate(rescaled(plain, rescaling), other), samples, other)
            if errors is None or with_scales is None:
                return chosen
            is_enough = _is_lower if field == "balance" else _is_clearly_better
            if is_enough(with_scales, errors):
                chosen, errors, found = other, with_scales, rescaling
                if field == "balance":
                    break  # equalization and smoothing would undo it
    return chosen


def _is_lower(errors: np.ndarray, others: np.ndarray) -> bool:
    """Whether the sum falls by a twentieth, and the mean of the logarithms does: single samples may have most of the
    error."""
    with np.errstate(divide="ignore"):
        logarithms = np.log(errors).mean(), np.log(others).mean()
    return bool(errors.sum() < _BALANCED * others.sum() and logarithms[0] < logarithms[1] + np.log(_BALANCED))


def _is_clearly_better(errors: np.ndarray, others: np.ndarray) -> bool:
    """Whether the sum falls by a tenth, and what falls is more than twice its standard error: the errors, or their
    logarithms, since single samples may have most of the error."""
    if not errors.sum() < _CLEARLY * others.sum():
        return False
    positive = bool((errors > 0).all() and (others > 0).all())
    return is_better(errors, others) or (positive and is_better(np.log(errors), np.log(others)))


def can_balance(config: QConfig) -> bool:
    """Whether balanced channels can gain: weights have a scale for each output, and kernels may compute in float."""
    return config.per_channel and config.nbit_activation > 8 and config.partition_conversions != "fully_integral"


def found_scales(plain: QnnModule, config: QConfig, chosen: QConfig, data: Any) -> Rescaling:
    """The factors of what is "auto" in `config` as it is in `chosen`. data: batches that balancing and smoothing look
    at"""
    if config.balance == "auto" and chosen.balance:
        factored = tuple(factored_sites(plain))
        module = with_factors(plain, factored)
        return Rescaling(_numbered(module, balancing_factors(module, data, chosen)), factored)
    scales: dict[int, Sequence[float]] = {}
    if config.equalize == "auto" and chosen.equalize:
        scales |= _numbered(plain, equalizing_factors(plain))
    if config.smooth == "auto" and isinstance(chosen.smooth, float):
        module = rescaled(plain, Rescaling(scales))
        scales |= _numbered(module, smoothing_factors(module, data, chosen.smooth))
    return Rescaling(scales)


def _numbered(module: QnnModule, factors: Sequence[tuple[Group, np.ndarray]]) -> dict[int, Sequence[float]]:
    def key(group: Group) -> tuple[Any, ...]:
        return (*group.scaled, *group.producers)

    numbers = {key(group): number for number, group in enumerate(groups_of(module.ir["main"]))}
    return {numbers[key(group)]: scale.tolist() for group, scale in factors}


def rescaled(module: QnnModule, rescaling: Rescaling | CalibrationTable) -> QnnModule:
    """The same function with the channels of these groups rescaled. Raises QuantizationError if they do not fit."""
    scales, module = rescaling.scales, with_factors(module, rescaling.factored)
    groups = groups_of(module.ir["main"]) if scales else []
    for number, factors in scales.items():
        channels = groups[number].channels if number < len(groups) else None
        if channels != len(factors):
            raise QuantizationError(
                f"the scales of the calibration table do not fit: group {number} has {len(factors)}, the model's "
                f"{'has ' + str(channels) if channels else 'is missing'}; calibrate again"
            )
    chosen = [(groups[number], np.asarray(factors, np.float64)) for number, factors in scales.items()]
    module = scaled(module, chosen)
    return with_channel_bounds(module) if rescaling.factored else module

"""Balancing: factors for the channels of activations, so that one scale serves all of them.

Where channels differ in size, a tensor's 256 steps are those of its largest channel. A tensor x that only products with
constant weights read, directly or through homogeneous operators, is divided by S, channel by channel, and the weights
that read it are multiplied by S: the function stays the same. Weights with a scale for each output channel lose nothing
by that if they are depthwise, and little otherwise.

Where x comes from a product, or a sum of such, its weights and biases take 1 / S, as in `equalize`. Behind any other
function, such as a hard-swish or a clip, and behind a squeeze and excitation, a multiplication by 1 / S is inserted,
which becomes one more factor in the kernel that computes x.

`least_noise` chooses S. Tensors with a single value for each channel of a sample, as behind a global pooling, are left
alone: a channel that stands for a rare class may be small in all samples that were seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..module import QnnModule
from ..op.arguments import data_of
from ..op.base import constant_value
from ..passes.rewrite import bindings_of, variables_of
from .annotate.families import Family, family_of
from .channel_bounds import with_channel_bounds
from .channel_groups import Group, groups_of
from .channel_values import channel_values
from .channels import Weight
from .config import QConfig
from .importance import importances
from .inserted_factors import channel_axes, factored_sites, with_factors
from .least_noise import Reader, best_scales
from .scales import scaled, weights_by_position


def balance(module: QnnModule, dataset: Any, config: QConfig | None = None) -> QnnModule:
    """The same function with the channels of activations balanced.

    module: float, folded; dataset: as `quantize` takes it, of which 64 batches at most are looked at

    In exact arithmetic the function is the same; in float32, up to rounding. Raises QuantizationError for a data set
    that is empty or does not fit.
    """
    factored = with_factors(module, factored_sites(module))
    return with_channel_bounds(scaled(factored, balancing_factors(factored, dataset, config or QConfig())))


def balancing_factors(factored: QnnModule, dataset: Any, config: QConfig) -> list[tuple[Group, np.ndarray]]:
    """The groups that `balance` scales, each with its S. factored: by `with_factors`"""
    groups = groups_of(factored.ir["main"])
    if not groups:
        return []
    values, energies = channel_values(factored, groups, dataset, config)
    bindings = bindings_of(factored.ir["main"])
    sources = {str(binding.var.name): binding.value for binding in bindings}
    weights = weights_by_position(factored.ir["main"])
    importance = importances(factored.ir["main"], channel_axes(factored.ir["main"]), energies.tolist())
    factors = []
    for group in groups:
        readers = []
        for index, channels, weight, important in _reading(group, bindings, weights, importance):
            name = str(data_of(bindings[index].value).name)
            while name not in values and name in sources:
                name = _before(sources[name], group)
            places = _places(group.tensors[name].factors, channels) if name in values else None
            if places is not None:
                readers.append(Reader(values[name].of(places), channels, weight, important))
        if readers:
            factors.append((group, best_scales(readers, group.fixed, bool(config.symmetric or config.power_of_two))))
    return factors


def _before(value: Any, group: Group) -> str:
    """The tensor of the group from which a value comes, or one from which it is moved, such as shuffled channels."""
    read = [str(var.name) for var in variables_of(value)]
    moved = read[:1] if family_of(value, ()) is Family.MOVE else []
    return next(iter([*(name for name in read if name in group.tensors), *moved]), "")


def _reading(
    group: Group,
    bindings: Sequence[relax.VarBinding],
    weights: Mapping[int, Weight],
    importance: Mapping[Any, np.ndarray],
) -> Iterator[tuple[int, np.ndarray, Weight | None, np.ndarray]]:
    """What reads a group, products and multiplications: position, the factors of its channels, its weight if it is a
    product, and Reader's `important`."""

    def of(index: int) -> np.ndarray:
        return importance.get(bindings[index].var, np.ones(()))

    for index, channels in group.consumers.items():
        yield index, channels, weights[index], of(index)
    for (index, position), along in group.factors.items():
        own = np.square(np.asarray(constant_value(bindings[index].value.args[position]), np.float64).ravel())
        yield index, along.factors, None, own * of(index)


def _places(factors: np.ndarray, wanted: np.ndarray) -> np.ndarray | None:
    """Where each wanted factor is among others: at the same place, if it is there, too; None if one is missing."""
    if np.array_equal(factors, wanted):
        return np.arange(len(factors))
    order = np.argsort(factors, kind="stable")
    places = order[np.minimum(np.searchsorted(factors[order], wanted), len(order) - 1)]
    return places if np.array_equal(factors[places], wanted) else None

"""Channels rescaled: weights and constants of a group divided and multiplied by its factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from tvm import relax

from ..module import QnnModule
from ..op.arguments import data_of, with_arguments, with_data
from ..op.base import constant, constant_value
from ..op.relax_table import traits_of
from ..passes.rewrite import Rebuild, bindings_of
from .channel_groups import Group
from .channels import Weight, weight_of


def weights_by_position(function: relax.Function) -> dict[int, Weight]:
    """The weights of all products that have one, by position of their binding."""
    found = {index: weight_of(binding.value, transposed=True) for index, binding in enumerate(bindings_of(function))}
    return {index: weight for index, weight in found.items() if weight is not None}


def scaled(module: QnnModule, factors: Sequence[tuple[Group, np.ndarray]]) -> QnnModule:
    """`module` with the channels of each group divided by its factors S (channels,), which the consumers undo.

    In exact arithmetic the function is the same; in float32, up to rounding.
    """
    if not factors:
        return module
    function = module.ir["main"]
    weights = weights_by_position(function)
    constants: dict[tuple[int, int], np.ndarray] = {}
    changed: set[int] = set()
    bindings = bindings_of(function)

    def multiply(place: tuple[int, int], axis: int, by: np.ndarray) -> None:
        index, position = place
        value = constants.get(place)
        value = np.asarray(constant_value(bindings[index].value.args[position]), np.float64) if value is None else value
        constants[place] = value * by.reshape(-1, *(1,) * (-axis - 1))

    for group, found in factors:
        scale = np.where(group.fixed, 1.0, found)
        for index, channels in group.producers.items():
            weights[index] = weights[index].scaled_outputs(1 / scale[channels])
        for index, channels in group.consumers.items():
            weights[index] = weights[index].scaled_inputs(scale[channels])
        changed |= {*group.producers, *group.consumers}
        for place, along in group.scaled.items():
            multiply(place, along.axis, 1 / scale[along.factors])
        for place, along in group.factors.items():
            multiply(place, along.axis, scale[along.factors])
    return _with_constants(module, {index: weights[index] for index in changed}, constants)


def _with_constants(
    module: QnnModule, weights: Mapping[int, Weight], constants: Mapping[tuple[int, int], np.ndarray]
) -> QnnModule:
    new = Rebuild(module.ir["main"])
    with new.main():
        for index, binding in enumerate(new.bindings):
            value = new.substituted(binding.value)
            if index in weights:
                value = with_data(value, data_of(value), constant(weights[index].array.astype(np.float32)))
            own = {place: array for (at, place), array in constants.items() if at == index}
            if own:
                names = traits_of(value).arguments
                value = with_arguments(value, **{names[i]: constant(a.astype(np.float32)) for i, a in own.items()})
            new.bind(binding.var, value)
    return replace(module, ir=new.module())

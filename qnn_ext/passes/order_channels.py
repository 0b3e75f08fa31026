"""Order channels: a convolution whose channels a shuffle splits computes them in the order in which they are stored.

Weights, biases and scales are permuted, and the shuffle keeps the order of the channels' parts: as many neighbours as
possible stay neighbours, so that they can be stored as vectors. A shuffle stays as it is if anything that has a value
for each channel is known at run time only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..op.arguments import data_of, factors_of, with_arguments
from ..op.base import call_attributes, constant, constant_value, shape_of
from ..op.relax_table import traits_of
from ..op.traits import Kind
from ..topi_int8.schedule_util import CHANNELS
from .fuse import is_elementwise
from .matrix_moves import axes_of
from .rewrite import Rebuild, bindings_of, consumers, op_name, variables_of
from .shuffles import is_convolution, is_split


def order_channels(mod: IRModule) -> IRModule:
    """`mod` with the channels of convolutions in the order in which the shuffles behind them store them."""
    function = mod["main"]
    bindings = bindings_of(function)
    index = {binding.var: place for place, binding in enumerate(bindings)}
    readers = consumers(function, bindings)
    changed: dict[int, relax.Call] = {}
    for transpose, binding in enumerate(bindings):
        apart = index.get(data_of(binding.value)) if traits_of(binding.value).permutes else None
        if apart is not None and len(readers[bindings[apart].var]) == 1 and is_split(bindings[apart].value):
            changed.update(_ordered(bindings, index, readers, apart, transpose))
    if not changed:
        return mod
    new = Rebuild(function)
    with new.main():
        for place, binding in enumerate(bindings):
            new.bind(binding.var, new.substituted(changed.get(place, binding.value)))
    return new.module()


def _ordered(
    bindings: Sequence[relax.VarBinding],
    index: dict[Any, int],
    readers: dict[Any, list[int]],
    apart: int,
    transpose: int,
) -> dict[int, relax.Call]:
    """The operators from the convolution up to the shuffle that change; none if that is as it should be or cannot
    change."""
    shape, axes = shape_of(bindings[apart].var), axes_of(bindings[transpose].value)
    order = [axis for axis in axes if axis >= CHANNELS]
    members = [] if order == sorted(order) else _in_front(bindings, index, readers, apart)
    channels = np.arange(math.prod(shape[CHANNELS:])).reshape(shape[CHANNELS:])
    source = channels.transpose([axis - CHANNELS for axis in order]).reshape(-1)  # new channel -> old one
    inside = {bindings[member].var for member in members}
    moved = {member: _with_channels(bindings[member].value, source, inside) for member in members}
    found = {member: value for member, value in moved.items() if value is not None}
    if not members or len(found) < len(members):
        return {}
    sizes = [*shape[:CHANNELS], *(shape[axis] for axis in order)]
    kept = [axis if axis < CHANNELS else CHANNELS + order.index(axis) for axis in axes]
    found[apart] = relax.op.reshape(data_of(bindings[apart].value), sizes)
    found[transpose] = relax.op.permute_dims(data_of(bindings[transpose].value), kept)
    return found


def _in_front(
    bindings: Sequence[relax.VarBinding], index: dict[Any, int], readers: dict[Any, list[int]], apart: int
) -> list[int]:
    """The convolution that leads to a shuffle and the elementwise operators between; none if anything else reads one of
    them, or the shuffle does not move the result of one convolution."""
    members: set[int] = set()
    pending = [data_of(bindings[apart].value)]
    while pending:
        member = index.get(pending.pop())
        if member is None or member in members:
            continue
        value = bindings[member].value
        if not is_convolution(value):
            if not is_elementwise(value):
                return []
            pending.extend(variables_of(value))
        members.add(member)
    alone = all(set(readers[bindings[member].var]) <= {*members, apart} for member in members)
    return sorted(members) if alone and sum(is_convolution(bindings[member].value) for member in members) == 1 else []


def _with_channels(call: relax.Call, source: np.ndarray, inside: set[Any]) -> relax.Call | None:
    """An operator of the kernel for data whose channel i was channel source[i]; None if it cannot be changed so."""
    if is_convolution(call):
        weight = constant_value(factors_of(call)[1])
        return None if weight is None else with_arguments(call, weight=constant(weight[source]))
    traits = traits_of(call)
    if traits.kind is not Kind.POINTWISE or any(_size(traits.argument(call, name)) > 1 for name in traits.others):
        return None
    attributes = call_attributes(call) if op_name(call).startswith("qnn.") else {}
    changes: dict[str, Any] = {}
    for one in (*traits.data, traits.output):
        if one is None:
            continue
        name = getattr(one, "name", None)
        if name is not None and (operand := traits.argument(call, name)) not in inside:
            changes[name] = _permuted(operand, source, shape_of(operand)[-1:] == source.shape)
        for parameter in (one.scale, one.zero_point):
            if parameter is not None and _size(value := traits.argument(call, parameter)) > 1:
                along = attributes[one.axis] % (CHANNELS + 1) == CHANNELS if one.axis is not None else False
                changes[parameter] = _permuted(value, source, along)
    if any(value is None for value in changes.values()):
        return None
    return with_arguments(call, **changes)


def _permuted(operand: Any, source: np.ndarray, along: bool) -> Any:
    """A constant with a value for each channel on its last axis, permuted; anything with one value for all channels as
    it is; None for anything else. along: whether its last axis is that of the channels"""
    if shape_of(operand)[-1:] in ((), (1,)):
        return operand
    value = constant_value(operand)
    return constant(value[..., source]) if along and value is not None else None


def _size(operand: Any) -> int:
    return math.prod(shape_of(operand)) if isinstance(getattr(operand, "ty", None), relax.TensorType) else 1

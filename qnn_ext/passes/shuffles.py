"""The shuffle behind a convolution as part of its kernel, which stores its result where the transpose would put it.

The channels are put in the order in which their parts are stored, by permuting weights, biases and scales: as many
neighbours as possible stay neighbours, so that they are stored as vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..op.arguments import data_of, factors_of, with_arguments
from ..op.base import call_attributes, constant, constant_value, shape_of
from ..op.relax_table import traits_of
from ..op.traits import Kind
from ..topi_int8.schedule_util import CHANNELS, run_of
from .matrix_moves import axes_of
from .regions import Regions
from .rewrite import op_name

SHORTEST_RUN = 4  # channels stored side by side: fewer take so many stores that a transpose afterwards is faster


def is_convolution(value: Any) -> bool:
    """Whether it is an accumulator whose channels may be in any order."""
    return op_name(value) == "qnn.conv2d_accumulate" and call_attributes(value)["groups"] == 1


def behind(graph: Regions, head: int, members: list[int]) -> list[int]:
    """`members` and the shuffle of their result, if `head` is a convolution that can store it so."""
    bindings, last = graph.bindings, members[-1]
    if not is_convolution(bindings[head].value) or shape_of(bindings[last].var) != shape_of(bindings[head].var):
        return members
    apart = _only_reader(graph, last)
    transpose = None if apart is None else _only_reader(graph, apart)
    if apart is None or transpose is None or not _is_split(bindings[apart].value):
        return members
    if not traits_of(bindings[transpose].value).permutes or _is_cropped(graph, transpose):
        return members
    whole = [*members, apart, transpose]
    bound = [bindings[index] for index in whole]
    as_it_is = None, shape_of(bindings[apart].var), axes_of(bindings[transpose].value)
    _, shape, axes = _ordered(bound) or as_it_is
    return whole if run_of(shape, axes) % SHORTEST_RUN == 0 else members


def _only_reader(graph: Regions, index: int) -> int | None:
    """The only binding that reads a value, unless that belongs to a kernel already."""
    readers = graph.readers(index)
    reader = next(iter(readers)) if len(readers) == 1 else len(graph.bindings)
    return None if reader >= len(graph.bindings) or reader in graph.taken else reader


def _is_split(value: Any) -> bool:
    """Whether it is a reshape that only splits the channels."""
    if not traits_of(value).reshapes:
        return False
    before, after = shape_of(data_of(value)), shape_of(value)
    return len(after) > len(before) and after[:CHANNELS] == before[:CHANNELS]


def _is_cropped(graph: Regions, index: int) -> bool:
    """Whether only a part of the result is used, which is then copied anyway."""
    reader = _only_reader(graph, index)
    if reader is not None and traits_of(graph.bindings[reader].value).reshapes:
        reader = _only_reader(graph, reader)
    return reader is not None and graph.names[reader] == "strided_slice"


def shuffle_of(values: Sequence[Any]) -> tuple[Sequence[int], Sequence[int]] | None:
    """(shape with the channels split, axes of the transpose) of a kernel's operators that end with a shuffle."""
    ends = len(values) > 2 and traits_of(values[-1]).permutes and _is_split(values[-2])
    if not ends or not any(map(is_convolution, values)):
        return None
    return shape_of(values[-2]), axes_of(values[-1])


def in_order(members: list[relax.VarBinding]) -> list[relax.VarBinding]:
    """A kernel that ends with a shuffle, its channels in the order in which they are stored. Unchanged if anything that
    has a value for each channel is known at run time only."""
    found = _ordered(members)
    if found is None:
        return members
    values, shape, axes = found
    *_, apart, transpose = (binding.value for binding in members)
    values += [relax.op.reshape(data_of(apart), shape), relax.op.permute_dims(data_of(transpose), axes)]
    return [relax.VarBinding(binding.var, value) for binding, value in zip(members, values, strict=True)]


def _ordered(members: list[relax.VarBinding]) -> tuple[list[Any], Sequence[int], Sequence[int]] | None:
    """The operators before the shuffle, changed, and the new shuffle; None if there is none or nothing to change."""
    values = [binding.value for binding in members]
    found = shuffle_of(values)
    if found is None:
        return None
    *body, _, _ = values
    shape, axes = found
    order = [axis for axis in axes if axis >= CHANNELS]
    if order == sorted(order):
        return None
    channels = np.arange(math.prod(shape[CHANNELS:])).reshape(shape[CHANNELS:])
    source = channels.transpose([axis - CHANNELS for axis in order]).reshape(-1)  # new channel -> old one
    inside = {binding.var for binding in members}
    moved = [_with_channels(value, source, inside) for value in body]
    if any(value is None for value in moved):
        return None
    sizes = [*shape[:CHANNELS], *(shape[axis] for axis in order)]
    return moved, sizes, [axis if axis < CHANNELS else CHANNELS + order.index(axis) for axis in axes]


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

"""reshape and related operators on data with a different axis order: flatten, squeeze, split and merged channels."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from ...op.base import constant_value, shape_of
from ...op.relax_table import RELAX
from .forms import Form, Forms, Order, channels_last_order
from .propagation import layout_rule

Block = tuple[tuple[int, ...], tuple[int, ...]]


def blocks(before: tuple[int, ...], after: tuple[int, ...]) -> list[Block]:
    """The finest pairs (axes before, axes after) with equal numbers of elements, leaving out axes of 1.

    (2, 6, 4, 1) -> (2, 2, 3, 4): (0)-(0), (1)-(1, 2), (2)-(3).
    """
    left = [axis for axis, size in enumerate(before) if size != 1]
    right = [axis for axis, size in enumerate(after) if size != 1]
    found: list[Block] = []
    while left:
        ins, outs = [left.pop(0)], [right.pop(0)]
        while (have := math.prod(before[a] for a in ins)) != (want := math.prod(after[a] for a in outs)):
            (ins.append(left.pop(0)) if have < want else outs.append(right.pop(0)))
        found.append((tuple(ins), tuple(outs)))
    return found


def _result_order(order: Order, shape: tuple[int, ...], pairs: list[Block], ndim: int) -> Order | None:
    """The order of the result's axes if data in that order is reshaped in place; None if that would break it up."""
    wide = [axis for axis in order if shape[axis] != 1]
    result: list[int] = []
    while wide:
        ins, outs = next(pair for pair in pairs if wide[0] in pair[0])
        if tuple(wide[: len(ins)]) != ins:
            return None
        result += outs
        wide = wide[len(ins) :]
    return _with_ones(result, ndim, order == tuple(range(len(shape))))


def _with_ones(wide: list[int], ndim: int, original: bool = False) -> Order:
    """A complete order, with axes of 1 placed so that it is channels last or the model's order, if possible.

    original: try the model's order first, because the data has it
    """
    candidates = [channels_last_order(ndim), tuple(range(ndim))]
    for candidate in reversed(candidates) if original else candidates:
        if [axis for axis in candidate if axis in wide] == wide:
            return candidate
    return (*(axis for axis in range(ndim) if axis not in wide), *wide)


@layout_rule(*(name for name, traits in RELAX.items() if traits.reshapes))
def reshape_rule(call: relax.Call, forms: Forms) -> list[Form] | None:
    """A reshape in place, if the axes that it merges are adjacent; otherwise of the data in an order where they are."""
    data = call.args[0]
    shape, result = shape_of(data), tuple(int(dim) for dim in call.ty.shape)
    if constant_value(data) is not None or 0 in shape:
        return None
    pairs = blocks(shape, result)
    preferred = forms.preferred(data)
    for order in (preferred, *forms.of(data)):
        found = _result_order(order, shape, pairs, len(result))
        if found is not None:
            return [_reshaped(forms, forms.get(data, order), result, found)]
    if preferred == tuple(range(len(shape))):
        return None
    wanted = _with_ones([a for a in channels_last_order(len(result)) if result[a] != 1], len(result))
    owners = {outs: ins for ins, outs in pairs}
    if any(list(outs) != [a for a in wanted if a in outs] for outs in owners) or not _grouped(wanted, owners, result):
        return None
    merged = [axis for outs in _in_turn(wanted, owners) for axis in owners[outs]]
    order = (*(axis for axis in range(len(shape)) if axis not in merged), *merged)
    return [_reshaped(forms, forms.get(data, order), result, wanted)]


def _in_turn(order: Order, owners: dict[tuple[int, ...], tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The groups of axes after the reshape, in the order in which they begin."""
    return sorted(owners, key=lambda outs: order.index(outs[0]))


def _grouped(order: Order, owners: dict[tuple[int, ...], tuple[int, ...]], shape: tuple[int, ...]) -> bool:
    """Whether the axes of each group are adjacent."""
    flat = [axis for outs in _in_turn(order, owners) for axis in outs]
    return flat == [axis for axis in order if shape[axis] != 1]


def _reshaped(forms: Forms, expr: Any, shape: tuple[int, ...], order: Order) -> Form:
    return forms.reshape(expr, [shape[axis] for axis in order]), order

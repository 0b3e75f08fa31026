"""Moves of elements: the axes with such sizes go elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tvm import relax

from ...op.base import shape_of
from ..sizes import Axes, Size, Sizes, refusal
from .pointwise import broadcast_axes
from .registry import only_data, rule


@rule("permute_dims")
def _permute(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    data, ndim = call.args[0], len(shape_of(call.args[0]))
    order = list(range(ndim))[::-1] if call.attrs.axes is None else [int(axis) % ndim for axis in call.attrs.axes]
    return call, {order.index(axis): size for axis, size in sizes.of(data).items()}


@rule("expand_dims")
def _expand(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    data, added = call.args[0], [int(axis) for axis in call.attrs.axis]
    ndim = len(shape_of(data)) + len(added)
    kept = [axis for axis in range(ndim) if axis not in {one % ndim for one in added}]
    return call, {kept[axis]: size for axis, size in sizes.of(data).items()}


@rule("triu", "tril")
def _triangle(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """A number of matrices."""
    data = only_data(sizes, call)
    if any(axis >= len(shape_of(data)) - 2 for axis in sizes.of(data)):
        raise sizes.refused(call)
    return call, sizes.of(data)


@rule("squeeze")
def _squeeze(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Of named axes: which others have the length 1 may change from call to call."""
    data, ndim = call.args[0], len(shape_of(call.args[0]))
    axes = sizes.of(data)
    if call.attrs.axis is None:
        raise sizes.refused(call, "a squeeze without axes")
    dropped = [int(axis) % ndim for axis in call.attrs.axis]
    if any(axis in dropped for axis in axes):
        raise sizes.refused(call)
    return call, {axis - sum(one < axis for one in dropped): size for axis, size in axes.items()}


@rule("reshape", "flatten", "nn.batch_flatten")
def _reshape(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    data, after = call.args[0], sizes.result_shape(call)
    before = shape_of(data)
    return call, dict(reshaped(sizes, axis, size, before, after) for axis, size in sizes.of(data).items())


def reshaped(
    sizes: Sizes, axis: int, size: Size, before: Sequence[int], after: Sequence[int], hint: int | None = None
) -> tuple[int, Size]:
    """The axis with a size after a reshape, and its size then: elements keep their order, so it is an axis with as many
    elements before it. hint: that axis, where several have."""
    places = [
        index
        for index in range(len(after))
        if prod(after[:index]) == prod(before[:axis]) and (after[index] != 1 or before[axis] == 1)
    ]
    if hint in places:
        places = [hint]  # type: ignore[list-item]
    elif len(places) > 1 and before[axis] == 1:
        places = [index for index in places if index == axis and len(before) == len(after)]
    what = f"a reshape from {_shown(before, axis)} to {tuple(after)}"
    if len(places) != 1:
        raise refusal(size, what)
    (place,) = places
    behind, now_behind = prod(before[axis + 1 :]), prod(after[place + 1 :])
    if behind == now_behind:
        return place, size
    if now_behind and behind % now_behind == 0:
        return place, sizes.times(size, behind // now_behind)
    if behind and now_behind % behind == 0:
        return place, sizes.divided(size, now_behind // behind, what)
    raise refusal(size, what)


def _shown(shape: Sequence[int], axis: int) -> str:
    return f"({', '.join(f'≤{length}' if index == axis else str(length) for index, length in enumerate(shape))})"


@rule("broadcast_to")
def _broadcast(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    return call, broadcast_axes(sizes, call, [call.args[0]])


@rule("strided_slice")
def _slice(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Of other axes. Bounds along an axis with such a size count from an end that is not known here."""
    data, axes, *_ = call.args
    ndim = len(shape_of(data))
    touched = {int(getattr(axis, "value", axis)) % ndim for axis in axes.fields}
    if touched & set(sizes.of(data)):
        raise sizes.refused(call, "this slice of it")
    return call, sizes.of(data)


@rule("nn.pad")
def _pad(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """A constant before the first element and after the last one that counts."""
    data, widths = only_data(sizes, call), [int(width) for width in call.attrs.pad_width]
    axes = sizes.of(data)
    padded = {axis: widths[2 * axis] + widths[2 * axis + 1] for axis in axes}
    if not any(padded.values()):
        return call, axes
    if call.attrs.pad_mode != "constant":
        raise sizes.refused(call)
    value = float(call.attrs.pad_value)
    filled = sizes.filled(data, value, {axis: axes[axis] for axis in axes if widths[2 * axis + 1]})
    longer = {axis: sizes.plus(size, padded[axis]) for axis, size in axes.items()}
    return relax.Call(call.op, [filled, *call.args[1:]], call.attrs, call.ty_args), longer


@rule("tile")
def _tile(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    data, repeats = call.args[0], [int(count) for count in call.attrs.repeats]
    behind = len(repeats) - len(shape_of(data))
    axes = {axis + max(behind, 0): size for axis, size in sizes.of(data).items()}
    if any(axis >= max(-behind, 0) and repeats[axis - max(-behind, 0)] != 1 for axis in axes):
        raise sizes.refused(call)
    return call, axes


@rule("split", "flip", "repeat")
def _along_other_axes(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    data = only_data(sizes, call)
    axis = call.attrs.axis
    if axis is None or int(axis) % len(shape_of(data)) in sizes.of(data):
        raise sizes.refused(call)
    return call, sizes.of(data)

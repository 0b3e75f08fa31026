"""Where an axis of an operator's data ends up in its result: the functions for the trait `moved_axis`."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from .base import normalize_axis, shape_of


def permuted(call: relax.Call, axis: int) -> int | None:
    """For a transpose."""
    ndim = len(shape_of(call.args[0]))
    axes = [int(a) % ndim for a in call.attrs.axes] if call.attrs.axes is not None else list(range(ndim))[::-1]
    return axes.index(axis)


def reshaped(call: relax.Call, axis: int) -> int | None:
    """For a reshape: the dimension of the same size with the same number of elements in front of it."""
    before, after = shape_of(call.args[0]), shape_of(call)
    for new, size in enumerate(after):
        if size == before[axis] and math.prod(after[:new]) == math.prod(before[:axis]):
            return new
    return None


def untouched(call: relax.Call, axis: int) -> int | None:
    """For operators that work along named axes: any other axis, if its length and position are unchanged."""
    before, after = shape_of(call.args[0]), shape_of(call)
    touched = {int(a) % len(before) for a in _named_axes(call)}
    return axis if len(before) == len(after) and axis not in touched and before[axis] == after[axis] else None


def _named_axes(call: relax.Call) -> list[Any]:
    if len(call.args) > 1 and isinstance(call.args[1], relax.Tuple):  # strided_slice
        return [field.value if hasattr(field, "value") else field for field in call.args[1].fields]
    axis = getattr(call.attrs, "axis", None)
    return [] if axis is None else [axis]


def broadcast(call: relax.Call, axis: int) -> int | None:
    """For a broadcast, which adds axes in front."""
    before, after = shape_of(call.args[0]), shape_of(call)
    new = axis + len(after) - len(before)
    return new if after[new] == before[axis] else None


def reduced(call: relax.Call, axis: int) -> int | None:
    """For a reduction over other axes."""
    ndim = len(shape_of(call.args[0]))
    axes = range(ndim) if call.attrs.axis is None else [normalize_axis(int(a), ndim) for a in call.attrs.axis]
    if axis in axes:
        return None
    return axis if call.attrs.keepdims else axis - sum(a < axis for a in axes)


def not_spatial(call: relax.Call, axis: int) -> int | None:
    """For operators on images: batch and channels stay where they are."""
    return axis if str(call.attrs.layout)[axis] in "NC" else None


def not_padded(call: relax.Call, axis: int) -> int | None:
    """For a pad: an axis to which nothing is added."""
    return None if any(int(width) for width in call.attrs.pad_width[2 * axis : 2 * axis + 2]) else axis


def tiled(call: relax.Call, axis: int) -> int | None:
    """For a tile: an axis that is not repeated."""
    repeats = [int(times) for times in call.attrs.repeats]
    added = max(len(repeats) - len(shape_of(call.args[0])), 0)
    repeats = [1] * (len(shape_of(call.args[0])) - len(repeats)) + repeats
    return axis + added if repeats[axis + added] == 1 else None


def divided(call: relax.Call, axis: int) -> int | None:
    """For a split, the same in each of its results: an axis that is not divided."""
    return None if normalize_axis(int(call.attrs.axis), len(shape_of(call.args[0]))) == axis else axis


def torn(call: relax.Call, axis: int) -> int | None:
    """For operators that may break up any axis."""
    return None

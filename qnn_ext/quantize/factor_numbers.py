"""Numbers of factors: which factor each channel of a tensor has.

`Numbers` says which are equal, which are in one group, and which are fixed. For a tensor there is an array of numbers,
of as many dimensions, and of length 1 in those along which its values have the same factor; `moved` says what operators
make of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ..op.base import constant_value, normalize_axis, shape_of
from ..op.relax_table import traits_of
from ..passes.rewrite import op_name
from .channels import channel_axis_behind

_MOST_ELEMENTS = 1 << 24  # of a tensor whose reshape is looked at element by element


class Numbers:
    """Which numbers are equal, which are in one group, and which are fixed. Those that begin together are a block, and
    in one group."""

    def __init__(self) -> None:
        self.equal = np.zeros(0, np.int64)  # number → a smaller or the same one that it equals
        self.block = np.zeros(0, np.int64)
        self.fixed = np.zeros(0, bool)
        self._group: list[int] = []  # block → another, or the same, of its group

    def begin(self, count: int, fixed: bool = False) -> np.ndarray:
        """New numbers."""
        first = len(self.equal)
        found = np.arange(first, first + count)
        self.equal = np.concatenate([self.equal, found])
        self.block = np.concatenate([self.block, np.full(count, len(self._group))])
        self.fixed = np.concatenate([self.fixed, np.full(count, fixed)])
        self._group.append(len(self._group))
        return found

    def roots(self, numbers: np.ndarray) -> np.ndarray:
        """The smallest number that each equals."""
        while True:
            found = self.equal[numbers]
            if np.array_equal(found, numbers):
                return found
            numbers = found

    def unite(self, one: np.ndarray, two: np.ndarray) -> None:
        """Make numbers equal, pair by pair."""
        one, two = (self.roots(np.ravel(numbers)) for numbers in np.broadcast_arrays(one, two))
        for pair in np.unique(np.stack([one, two])[:, one != two], axis=1).T:
            low, high = sorted(int(self.roots(pair[i : i + 1])[0]) for i in range(2))
            self.equal[high] = low
        self.join(np.concatenate([one, two]))

    def join(self, numbers: np.ndarray) -> None:
        """Numbers belong to one group."""
        found = {self._group_of(int(block)) for block in np.unique(self.block[numbers])}
        for block in found:
            self._group[block] = min(found)

    def _group_of(self, block: int) -> int:
        while self._group[block] != block:
            block = self._group[block]
        return block

    def groups(self) -> np.ndarray:
        """The group of each number."""
        return np.array([self._group_of(block) for block in range(len(self._group))], np.int64)[self.block]


# ---- those of a tensor ------------------------------------------------------------------------------------------


def placed(numbers: np.ndarray, axis: int, ndim: int) -> np.ndarray:
    return numbers.reshape([-1 if i == axis else 1 for i in range(ndim)])


def axis_of(numbers: np.ndarray, shape: Sequence[int]) -> int | None:
    """The only axis along which they may differ; None where there are several."""
    axes = [i for i, n in enumerate(numbers.shape) if n > 1]
    if len(axes) > 1:
        return None
    return axes[0] if axes else min(1, len(shape) - 1) if shape else None


def compressed(numbers: np.ndarray) -> np.ndarray:
    """With length 1 along axes on which they do not depend."""
    for axis in range(numbers.ndim):
        first = numbers.take([0], axis)
        if numbers.shape[axis] > 1 and (numbers == first).all():
            numbers = first
    return numbers


def moved(call: relax.Call, data: relax.Var, numbers: np.ndarray) -> list[np.ndarray] | None:
    """The numbers of each result of a homogeneous operator; None if it mixes channels."""
    traits, before = traits_of(call), shape_of(data)
    if traits.reshapes:
        if np.prod(before) > _MOST_ELEMENTS:
            return None
        return [compressed(np.broadcast_to(numbers, before).reshape(shape_of(call)))]
    if traits.permutes:
        axes = call.attrs.axes
        return [numbers.transpose(None if axes is None else [int(axis) for axis in axes])]
    if op_name(call) == "take":
        return _taken(call, numbers, before)
    if numbers.size == 1:
        parts = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
        return [numbers.reshape((1,) * len(part.shape)) for part in parts]
    axis = axis_of(numbers, before)
    if axis is None:
        return None
    own = np.broadcast_to(np.ravel(numbers), (before[axis],))
    if op_name(call) == "split":
        results = [tuple(int(n) for n in part.shape) for part in call.ty.fields]
        if normalize_axis(int(call.attrs.axis), len(before)) != axis:
            return [numbers] * len(results)
        ends = np.cumsum([shape[axis] for shape in results])
        return [placed(part, axis, len(before)) for part in np.split(own, ends[:-1])]
    if op_name(call) == "strided_slice":
        bounds = _slice_along(call, axis, len(before))
        part = own if bounds is None else own[bounds]
        return [placed(part, axis, len(before))] if len(part) == shape_of(call)[axis] else None
    behind = channel_axis_behind(call, data, axis)
    if behind is None or shape_of(call)[behind] != before[axis]:
        return None
    return [placed(own, behind, len(shape_of(call)))]


def _taken(call: relax.Call, numbers: np.ndarray, before: Sequence[int]) -> list[np.ndarray] | None:
    """Behind a choice of constant places along an axis, such as one half of shuffled channels."""
    places, along = constant_value(call.args[1]), call.attrs.axis
    if places is None or along is None:
        return None
    axis = normalize_axis(int(along), len(before))
    known = np.broadcast_to(numbers, [n if i == axis else numbers.shape[i] for i, n in enumerate(before)])
    return [compressed(known.take(places, axis, mode="wrap" if call.attrs.mode == "wrap" else "clip"))]


def _slice_along(call: relax.Call, axis: int, ndim: int) -> slice | None:
    """What a strided_slice takes of an axis; None: all."""
    axes, *bounds = ([int(n.value if hasattr(n, "value") else n) for n in arg.fields] for arg in call.args[1:])
    axes = [normalize_axis(one, ndim) for one in axes]
    return slice(*(bound[axes.index(axis)] for bound in bounds)) if axis in axes else None

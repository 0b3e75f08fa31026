"""What frontends build of tensors whose sizes depend on data: positions of true elements, parts along such an axis, and
sizes computed from data. Shapes with such sizes are in `sized_shapes.py`; how other operators carry the sizes on is in
`sizes.py`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from .. import op as qnn
from ..errors import UnsupportedOperatorError
from ..limits import check_elements
from ..op.base import constant, shape_of
from .bounded_values import bounds_of, scalars_of
from .building import padded as pad
from .run_time import check_count, checked_indices
from .size_rules.across import extreme
from .sized_shapes import Dims, reshape, rows
from .sizes import Axes, Size, Sizes, refusal

WHOLE = 1 << 62
"""Bounds of slices from here on mean the end."""


# ---- positions ---------------------------------------------------------------------------------------------------


def true_positions(sizes: Sizes, mask: relax.Expr, origin: str) -> tuple[relax.Expr, Size]:
    """Where a bool tensor is true in row-major order: (N,) int32, and how many there are. The same mask gives the same
    size."""

    def make() -> tuple[relax.Expr, Size]:
        shape = shape_of(mask)
        valid = sizes.filled(mask, False)
        flat = reshape(sizes, valid, [-1], origin) if len(shape) != 1 else valid
        count = sizes.emit(relax.op.sum(sizes.emit(relax.op.astype(flat, "int64"))))
        size = sizes.size(count, prod(shape), origin)
        return sizes.emit(qnn.true_positions(flat), {0: size}), size

    return sizes.once(("true_positions", mask), make)


def coordinates(sizes: Sizes, mask: relax.Expr, origin: str) -> tuple[list[relax.Expr], Size]:
    """The index of each true element along each axis, int64 (N,)."""

    def make() -> tuple[list[relax.Expr], Size]:
        shape = shape_of(mask)
        positions, size = true_positions(sizes, mask, origin)
        wide = sizes.emit(relax.op.astype(positions, "int64"), {0: size})
        found = []
        for axis, length in enumerate(shape):
            index, behind = wide, prod(shape[axis + 1 :])
            if behind != 1:
                index = sizes.emit(relax.op.floor_divide(index, constant(np.int64(max(behind, 1)))), {0: size})
            if axis:
                index = sizes.emit(relax.op.floor_mod(index, constant(np.int64(max(length, 1)))), {0: size})
            found.append(index)
        return found, size

    return sizes.once(("coordinates", mask), make)


def nonzero_mask(sizes: Sizes, data: relax.Expr) -> relax.Expr:
    """Which elements are not 0, as a bool tensor."""
    dtype = str(data.ty.dtype)
    if dtype == "bool":
        return data
    zero = constant(np.zeros((), dtype))
    return sizes.once(("nonzero", data), lambda: sizes.emit(relax.op.not_equal(data, zero), sizes.of(data)))


def masked(sizes: Sizes, data: relax.Expr, mask: relax.Expr, axis: int, origin: str) -> relax.Expr:
    """The parts of the data for which a mask of its axes from `axis` on is true, along one axis in their place."""
    shape, covered = shape_of(data), len(shape_of(mask))
    behind = axis + covered
    if any(axis <= one < behind and not _has(sizes.of(mask), one - axis, size) for one, size in sizes.of(data).items()):
        raise refusal(next(iter(sizes.of(data).values())), "a mask whose size may be another one")
    positions, _ = true_positions(sizes, mask, origin)
    if covered != 1:
        axes = {one - (covered - 1 if one >= behind else 0): size for one, size in sizes.of(data).items()}
        flat = (*shape[:axis], prod(shape[axis:behind]), *shape[behind:])
        data = sizes.emit(relax.op.reshape(data, flat), {one: size for one, size in axes.items() if one != axis})
    return rows(sizes, data, positions, axis)


def _has(axes: Axes, axis: int, size: Size) -> bool:
    return axis in axes and axes[axis].same(size)


def counted_from_end(sizes: Sizes, indices: relax.Expr, size: Size, label: str) -> relax.Expr:
    """Indices into an axis of this size; negative ones count from its end. Raises nothing for indices beyond it."""
    dtype, own = str(indices.ty.dtype), sizes.of(indices)
    checked = indices
    if isinstance(indices, relax.Var):
        checked = sizes.builder.emit(qnn.check_bounds(indices, -size.most, size.most - 1, label))
    length = sizes.emit(relax.op.astype(size.value, dtype)) if dtype != "int64" else size.value
    negative = sizes.emit(relax.op.less(checked, constant(np.zeros((), dtype))), own)
    return sizes.emit(relax.op.where(negative, sizes.emit(relax.op.add(checked, length), own), checked), own)


def rows_by(sizes: Sizes, data: relax.Expr, indices: relax.Expr, axis: int, label: str) -> relax.Expr:
    """data[…, indices, …] along an axis; negative indices count from its end. Indices of an axis of known size are
    checked."""
    size = sizes.of(data).get(axis)
    if size is None:
        places = checked_indices(sizes.builder.emit, indices, shape_of(data)[axis], label, negative=True)
    else:
        places = counted_from_end(sizes, indices, size, label)
    return rows(sizes, data, places, axis)


def elements(sizes: Sizes, data: relax.Expr, indices: Sequence[relax.Expr], label: str) -> relax.Expr:
    """data[i, j, …]: one element, or slice, for each place in indices of one shape along the first axes."""
    shape, depth, emit = shape_of(data), len(indices), sizes.builder.emit
    for size in sizes.of(data).values():
        raise refusal(size, "indices along several axes, of which it is one,")
    place: Any = None
    for axis, index in enumerate(indices):
        wide = emit(relax.op.astype(checked_indices(emit, index, shape[axis], label, negative=True), "int64"))
        step = emit(relax.op.multiply(wide, constant(np.int64(prod(shape[axis + 1 : depth])))))
        place = step if place is None else emit(relax.op.add(place, step))
    flat = emit(relax.op.reshape(data, (prod(shape[:depth]), *shape[depth:])))
    return rows(sizes, flat, place, 0)


# ---- parts -------------------------------------------------------------------------------------------------------


def sliced(sizes: Sizes, data: relax.Expr, axis: int, start: Any, end: Any, step: int = 1) -> relax.Expr:
    """data[start:end:step] along an axis, as in Python; start and end are integers or sizes, and so is the length."""
    length = shape_of(data)[axis]
    size: Any = sizes.of(data).get(axis, length)
    length_most = size if isinstance(size, int) else size.most
    # what starts beyond the end has no elements, whatever its start
    first = min(start, length_most) if isinstance(start, int) and start >= 0 else _bound(sizes, start, size)
    last = _bound(sizes, end, size)
    if step < 1:
        raise UnsupportedOperatorError(f"a slice in steps of {step}, where sizes are known only at run time")
    lowest = first if isinstance(first, int) else 0
    most = max((last if isinstance(last, int) else last.most) - lowest, 0)
    if isinstance(start, int) and start < 0:
        most = min(most, -start)
    count = _difference(sizes, last, first, most)
    if step > 1:
        count = _rounded_up(sizes, count, step)
    most = -(-most // step)
    if not most and length:  # one element, which does not count: kernels need one
        origin = next((one.origin for one in (size, first, last) if isinstance(one, Size)), "a slice of nothing")
        count, most, lowest = sizes.size(constant(np.int64(0)), 1, origin), 1, min(lowest, length - 1)
    axes = {one: found for one, found in sizes.of(data).items() if one != axis}
    if isinstance(count, Size):
        axes[axis] = count
    if isinstance(first, int):
        return sizes.emit(relax.op.strided_slice(data, [axis], [lowest], [lowest + most * step], [step]), axes)
    steps = constant(np.arange(most, dtype=np.int64) * step)
    return sizes.emit(relax.op.take(data, sizes.emit(relax.op.add(steps, first.value)), axis, mode="clip"), axes)


def _any_size(*values: Any) -> Size:
    return next(value for value in values if isinstance(value, Size))


def _bound(sizes: Sizes, bound: Any, size: Any) -> Any:
    """A bound of a slice as a position from 0 to the size."""
    if isinstance(bound, int) and bound >= WHOLE:
        return size
    if isinstance(bound, int) and bound < 0:
        if isinstance(size, int):
            return max(size + bound, 0)
        if size.most + bound <= 0:
            return 0
        bound = sizes.greatest(sizes.plus(size, bound), 0)
    if bound == 0:
        return 0
    return sizes.least(bound, size)


def _difference(sizes: Sizes, last: Any, first: Any, most: int) -> Any:
    """max(last − first, 0)."""
    if isinstance(last, int) and isinstance(first, int):
        return max(last - first, 0)
    if first == 0:
        return last

    def make() -> Size:
        values = [constant(np.int64(one)) if isinstance(one, int) else one.value for one in (last, first)]
        value = sizes.emit(relax.op.subtract(*values))
        value = sizes.emit(relax.op.maximum(value, constant(np.int64(0))))
        return sizes.size(value, most, _any_size(last, first).origin)

    return sizes.once(("difference", *(getattr(one, "value", one) for one in (last, first))), make)


def _rounded_up(sizes: Sizes, count: Any, step: int) -> Any:
    if isinstance(count, int):
        return -(-count // step)
    raised = sizes.emit(relax.op.add(count.value, constant(np.int64(step - 1))))
    value = sizes.emit(relax.op.floor_divide(raised, constant(np.int64(step))))
    return sizes.size(value, -(-count.most // step), count.origin)


def padded(
    sizes: Sizes, data: relax.Expr, axes: Sequence[int], widths: Sequence[Any], value: Any, label: str
) -> relax.Expr:
    """The data with a value before and after it along some axes; `widths` are as in ONNX. An axis whose size is known
    only at run time can be padded by known widths, or at its end up to a size that is known."""
    whole, before = sizes.of(data), list(widths[: len(axes)])
    for axis, low, high in zip(axes, before, widths[len(axes) :], strict=True):
        size, shape = whole.get(axis), list(shape_of(data))
        if isinstance(low, Size) or (size is None and isinstance(high, Size)):
            raise refusal(_any_size(low, high), "padding of this width")
        if (low, high) == (0, 0):
            continue
        if size is not None and isinstance(high, int) and min(low, high) >= 0:
            pads = [0] * (2 * len(shape))
            pads[2 * axis : 2 * axis + 2] = low, high
            data = sizes.builder.emit(pad(sizes.builder.emit, data, pads, np.asarray(value).item()))
            continue
        if size is not None:
            rest = high.rest if isinstance(high, Size) else None
            if low or rest is None or not rest[1].same(size):
                raise refusal(size, "padding it, other than up to a known size,")
            others = {one: found for one, found in sizes.of(data).items() if one != axis}
            data = sizes.set(sizes.filled(data, value, {axis: size}), others)
            high = rest[0] - shape[axis]
        others = sizes.of(data)
        check_elements([*shape[:axis], max(shape[axis] + low + high, 0), *shape[axis + 1 :]], label)
        if low < 0 or high < 0:
            begin, end = max(-low, 0), shape[axis] - max(-high, 0)
            data = sizes.emit(relax.op.strided_slice(data, [axis], [begin], [end]), others)
        pads = [0] * (2 * len(shape))
        pads[2 * axis : 2 * axis + 2] = max(low, 0), max(high, 0)
        if any(pads):
            number = np.asarray(value).item()
            data = sizes.emit(pad(partial(sizes.emit, axes=others), data, pads, number), others)
    return data


def top_k(
    sizes: Sizes, data: relax.Expr, k: int | Size, axis: int, largest: bool, dtype: str, label: str
) -> tuple[relax.Expr, relax.Expr]:
    """Values and positions of the k largest or smallest elements. Where fewer count than an integer k, the engine
    raises InputError."""
    length, axes = shape_of(data)[axis], sizes.of(data)
    most = k if isinstance(k, int) else min(k.most, length)
    check_count(most, length, label)
    own = axes.get(axis)
    k = k if isinstance(k, int) else sizes.least(k, length)
    if own is not None:
        if isinstance(k, int):
            enough = qnn.check_bounds(sizes.emit(relax.op.reshape(own.value, (1,))), k, own.most, f"{label}: k")
            value = sizes.emit(relax.op.reshape(sizes.emit(enough), ()))
            own = Size(value, own.most, own.origin, value)
        data = sizes.filled(data, extreme(str(data.ty.dtype), not largest), {axis: own})
    found = {one: size for one, size in axes.items() if one != axis}
    if isinstance(k, Size):
        found[axis] = k
    both = sizes.emit(relax.op.topk(data, most, axis, ret_type="both", largest=largest, dtype=dtype))
    values, positions = (sizes.emit(relax.TupleGetItem(both, index), found) for index in range(2))
    return values, positions


# ---- numbers computed from data ----------------------------------------------------------------------------------


def computed_dims(sizes: Sizes, value: relax.Expr, label: str) -> Dims:
    """The elements of an integer vector that the model computes from data, as sizes. Raises UnsupportedOperatorError
    where the largest value of one is not known; the engine raises InputError for negative ones."""
    found = scalars_of(sizes.builder, value)
    return [_computed(sizes, one, label) if isinstance(one, relax.Expr) else one for one in found]


def _computed(sizes: Sizes, value: relax.Expr, label: str) -> Size:
    bounds = bounds_of(sizes.builder, value)
    if bounds is None:
        raise UnsupportedOperatorError(
            f"{label}: a size computed at run time whose largest value is not known is not supported: limit it "
            "(tf.minimum), or compute this part outside of the model"
        )
    low, high = bounds

    def make() -> Size:
        checked = sizes.builder.emit(qnn.check_bounds(value, 0, max(high, 0), label)) if low < 0 else value
        return sizes.size(_wide(sizes, checked), max(high, 1), label)

    return sizes.once(("computed", value), make)


def computed_position(sizes: Sizes, value: Any, size: Any, label: str) -> Any:
    """A bound of a slice along an axis of this size, which the model computes from data, from 0 to the size; negative
    ones count from the end."""
    if not isinstance(value, relax.Expr):
        return value
    bounds = bounds_of(sizes.builder, value) or (-1, WHOLE)
    length = constant(np.int64(size)) if isinstance(size, int) else size.value
    most = size if isinstance(size, int) else size.most

    def make() -> Size:
        place = _wide(sizes, value)
        if bounds[0] < 0:
            negative = sizes.emit(relax.op.less(place, constant(np.int64(0))))
            from_end = sizes.emit(relax.op.maximum(sizes.emit(relax.op.add(place, length)), constant(np.int64(0))))
            place = sizes.emit(relax.op.where(negative, from_end, place))
        place = sizes.emit(relax.op.minimum(place, length))
        return sizes.size(place, most if bounds[0] < 0 else min(most, max(bounds[1], 0)), label)

    return sizes.once(("position", value, getattr(size, "value", size)), make)


def window(sizes: Sizes, data: relax.Expr, axis: int, start: relax.Expr, length: int, label: str) -> relax.Expr:
    """data[start : start + length] along an axis of known size, start computed from data. The engine raises InputError
    where it reaches beyond the data."""
    emit = sizes.builder.emit
    start = emit(qnn.check_bounds(start, 0, shape_of(data)[axis] - length, label))
    places = emit(relax.op.add(constant(np.arange(length, dtype=np.int64)), _wide(sizes, start)))
    return rows(sizes, data, places, axis)


def _wide(sizes: Sizes, value: relax.Expr) -> relax.Expr:
    """A tensor of one integer as an int64 scalar."""
    scalar = sizes.emit(relax.op.reshape(value, ())) if shape_of(value) else value
    return scalar if str(value.ty.dtype) == "int64" else sizes.emit(relax.op.astype(scalar, "int64"))

"""Tensors one behind the other, or stacked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from tvm import relax

from ... import op as qnn
from ...op.arguments import data_of
from ...op.base import constant, shape_of
from ..sizes import Axes, Size, Sizes
from .pointwise import broadcast_axes
from .registry import rule


@rule("stack")
def _stack(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    fields = list(data_of(call).fields)
    shape = shape_of(fields[0])
    axes = broadcast_axes(sizes, call, fields, shape)
    new = int(call.attrs.axis) % (len(shape) + 1)
    return call, {axis + (axis >= new): size for axis, size in axes.items()}


@rule("concat")
def _concat(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Along another axis; along this one, what does not count is left out between the tensors."""
    fields = list(data_of(call).fields)
    ndim = len(shape_of(fields[0]))
    joined = int(call.attrs.axis) % ndim
    fields = _as_long_as_others(sizes, fields, joined)
    fields = [field for field in fields if shape_of(field)[joined]] or fields[:1]
    if len(fields) == 1:
        return fields[0], sizes.of(fields[0])
    call = relax.Call(call.op, [relax.Tuple(fields)], call.attrs, call.ty_args)
    rest = _common(sizes, call, fields, joined)
    lengths = [shape_of(field)[joined] for field in fields]
    counted = [sizes.of(field).get(joined) for field in fields]
    if not any(counted):
        return call, rest
    found: Any = reduce(
        sizes.plus, [length if size is None else size for length, size in zip(lengths, counted, strict=True)]
    )
    if not any(counted[:-1]):
        return call, {**rest, joined: found}
    masks = [
        constant(np.ones(length, np.bool_)) if size is None else sizes.valid(size, length)
        for length, size in zip(lengths, counted, strict=True)
    ]
    positions = sizes.emit(qnn.true_positions(sizes.emit(relax.op.concat(masks, 0))))
    whole = sizes.emit(call)
    return relax.op.take(whole, positions, joined, mode="clip"), {**rest, joined: found}


def _as_long_as_others(sizes: Sizes, fields: Sequence[Any], joined: int) -> list[Any]:
    """Tensors with the lengths that others have along other axes than the one along which they are joined. The engine
    raises InputError where a size is another one."""
    result = list(fields)
    for axis in range(len(shape_of(fields[0]))):
        known = {shape_of(field)[axis] for field in fields if axis not in sizes.of(field)}
        if axis == joined or len(known) != 1:
            continue
        (length,) = known
        for index, field in enumerate(result):
            size = sizes.of(field).get(axis)
            if size is not None and size.most >= length:
                result[index] = _of_length(sizes, field, axis, size, length)
    return result


def _of_length(sizes: Sizes, data: Any, axis: int, size: Size, length: int) -> relax.Expr:
    """Data whose size is checked to be a length."""
    more = sizes.emit(relax.op.subtract(size.value, constant(np.int64(length))))
    label = f"the size that comes from {size.origin}, less the length {length} of what it is joined with"
    checked = sizes.emit(qnn.check_bounds(more, 0, 0, label))
    places = sizes.emit(relax.op.add(constant(np.arange(length, dtype=np.int64)), checked))
    others = {one: found for one, found in sizes.of(data).items() if one != axis}
    return sizes.emit(relax.op.take(data, places, axis, mode="clip"), others)


def _common(sizes: Sizes, call: relax.Call, fields: Sequence[Any], joined: int) -> Axes:
    """The sizes along all axes but one, which all tensors must have."""
    first = {axis: size for axis, size in sizes.of(fields[0]).items() if axis != joined}
    for field in fields[1:]:
        other = {axis: size for axis, size in sizes.of(field).items() if axis != joined}
        if other.keys() != first.keys() or any(not other[axis].same(size) for axis, size in first.items()):
            raise sizes.refused(call)
    return first

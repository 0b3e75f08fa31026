"""The distinct elements of a tensor, whose number is known only at run time."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import relax

from .. import op as qnn
from ..limits import check_elements
from ..op.base import constant, shape_of
from .data_dependent import true_positions
from .size_rules.across import extreme
from .sized_shapes import rows
from .sizes import Sizes, refusal


@dataclass(frozen=True)
class Distinct:
    """values: each element once; first: where it is first; counts: how often; all of one size known only at run time.
    inverse: for each element, which of the values it is. The last three are int64."""

    values: relax.Expr
    first: relax.Expr
    inverse: relax.Expr
    counts: relax.Expr


def distinct(sizes: Sizes, data: relax.Expr, in_order: bool, origin: str) -> Distinct:
    """Of a vector, which may have a size known only at run time.

    in_order: ascending; else in the order in which they are first. Each NaN is an element of its own.
    """
    (length,), dtype, own = shape_of(data), str(data.ty.dtype), sizes.of(data).get(0)
    given = sizes.of(data)
    if not length:
        empty = constant(np.zeros(0, np.int64))
        return Distinct(data, empty, empty, empty)
    if length == 1:
        zero, one = (sizes.emit(constant(np.asarray([number], np.int64)), given) for number in (0, 1))
        return Distinct(data, zero, zero, one)
    end = constant(np.int64(length)) if own is None else own.value

    def take(values: relax.Expr, places: relax.Expr) -> relax.Expr:
        return sizes.emit(relax.op.take(values, places, 0, mode="clip"), sizes.of(places))

    # what is behind a vector's end stays last, as sorting is stable
    last = np.nan if dtype.startswith("float") else extreme(dtype, True)
    order = sizes.emit(relax.op.argsort(sizes.filled(data, last), 0, dtype="int64"))
    ascending = take(data, order)
    before, behind = (
        sizes.emit(relax.op.strided_slice(ascending, [0], *one)) for one in (([0], [length - 1]), ([1], [length]))
    )
    changes = sizes.emit(relax.op.not_equal(before, behind))
    begins = sizes.emit(relax.op.concat([constant(np.ones(1, np.bool_)), changes], 0))
    if own is not None:
        begins = sizes.emit(relax.op.logical_and(begins, sizes.valid(own, length)))
    starts, size = true_positions(sizes, begins, origin)
    back = sizes.set(sizes.emit(relax.op.argsort(order, 0, dtype="int64")), given)
    inverse = take(_numbered(sizes, begins), back)
    first = rows(sizes, order, starts, 0)
    wide = sizes.emit(relax.op.astype(starts, "int64"))
    wide = sizes.emit(relax.op.where(sizes.valid(size, length), wide, end))
    following = sizes.emit(relax.op.strided_slice(wide, [0], [1], [length]))
    following = sizes.emit(relax.op.concat([following, sizes.emit(relax.op.reshape(end, (1,)))], 0))
    counts = sizes.emit(relax.op.subtract(following, wide), {0: size})
    if in_order:
        return Distinct(rows(sizes, ascending, starts, 0), first, inverse, counts)
    is_first = take(begins, back)
    places = sizes.emit(qnn.true_positions(is_first), {0: size})
    return Distinct(
        rows(sizes, data, places, 0),
        sizes.emit(relax.op.astype(places, "int64"), {0: size}),
        take(_numbered(sizes, is_first), take(first, inverse)),
        take(counts, take(inverse, places)),
    )


def ranks(sizes: Sizes, data: relax.Expr, axis: int, label: str) -> relax.Expr:
    """For each slice along an axis, how many slices come before it in lexicographic order: int64, the same for equal
    ones. Only that axis may have a size known only at run time; what is behind its end changes no order.

    All pairs are compared: n² · m steps for n slices of m elements.
    """
    shape, own = shape_of(data), sizes.of(data)
    for one, size in own.items():
        if one != axis:
            raise refusal(size, "comparing slices with it")
    count = shape[axis]
    order = [axis, *(one for one in range(len(shape)) if one != axis)]
    elements = prod(shape) // max(count, 1)
    check_elements((count, count, elements), label)
    rows = sizes.emit(relax.op.permute_dims(data, order))
    if str(data.ty.dtype) == "bool":
        rows = sizes.emit(relax.op.astype(rows, "uint8"))
    one, two = (sizes.emit(relax.op.reshape(rows, form)) for form in ((count, 1, elements), (1, count, elements)))
    differs = sizes.emit(relax.op.astype(sizes.emit(relax.op.not_equal(one, two)), "int32"))
    first = sizes.emit(relax.op.argmax(differs, 2, keepdims=True))
    places = sizes.emit(relax.op.equal(constant(np.arange(elements, dtype=np.int64)), first))
    behind = sizes.emit(relax.op.logical_and(places, sizes.emit(relax.op.greater(one, two))))
    numbers = sizes.emit(relax.op.astype(behind, "int64"))
    return sizes.emit(relax.op.sum(numbers, [1, 2]), {0: own[axis]} if axis in own else {})


def _numbered(sizes: Sizes, mask: relax.Expr) -> relax.Expr:
    """For each element of a vector, how many of those up to it are true, counted from 0: int64."""
    total = sizes.emit(relax.op.cumsum(sizes.emit(relax.op.astype(mask, "int64")), 0))
    return sizes.emit(relax.op.subtract(total, constant(np.int64(1))))

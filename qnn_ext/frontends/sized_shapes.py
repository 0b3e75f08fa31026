"""Shapes with sizes that depend on data: their arithmetic, and the tensors that frontends reshape, broadcast or make by
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import prod
from typing import Any, TypeAlias

import numpy as np
from tvm import relax

from .. import op as qnn
from ..errors import ModelFormatError
from ..limits import check_elements
from ..op.base import constant, shape_of
from .size_rules.moves import reshaped
from .sizes import Axes, Size, Sizes, refusal

Dims: TypeAlias = "Sequence[int | Size]"


def objects(values: Any) -> np.ndarray:
    """An array of integers and sizes."""
    if isinstance(values, np.ndarray) and values.dtype == object:
        return values
    result = np.empty(np.shape(values) if isinstance(values, (list, np.ndarray)) else (), object)
    result[...] = values
    return result


def arithmetic(sizes: Sizes, name: str, inputs: Sequence[np.ndarray]) -> np.ndarray | None:
    """A function of arrays of integers and sizes, element by element, from the first array to the last; None if a
    divisor is not a positive integer. Raises TypeError for what sizes do not support."""
    if name == "divide" and any(isinstance(divisor, Size) or divisor < 1 for divisor in inputs[1].reshape(-1)):
        return None
    step = np.frompyfunc(partial(_ARITHMETIC[name], sizes), 2, 1)
    return objects(reduce(step, inputs))


def _quotient(sizes: Sizes, one: Any, divisor: int) -> Any:
    """one / divisor, towards 0."""
    if isinstance(one, int):
        return one // divisor if one >= 0 else -(-one // divisor)
    if one.factor % divisor == 0:
        return sizes.divided(one, divisor, "this division")
    return sizes.quotient(one, divisor)


_ARITHMETIC: dict[str, Callable[[Sizes, Any, Any], Any]] = {
    "add": Sizes.plus,
    "subtract": Sizes.minus,
    "multiply": Sizes.times,
    "minimum": Sizes.least,
    "maximum": Sizes.greatest,
    "divide": _quotient,
}


def dims_of(sizes: Sizes, value: relax.Expr) -> list[int | Size]:
    """A shape."""
    axes = sizes.of(value)
    return [axes.get(axis, length) for axis, length in enumerate(shape_of(value))]


def largest(dims: Dims) -> list[int]:
    """The largest shape."""
    return [dim if isinstance(dim, int) else dim.most for dim in dims]


def _axes_of(dims: Dims) -> Axes:
    return {axis: dim for axis, dim in enumerate(dims) if isinstance(dim, Size)}


def rows(sizes: Sizes, data: relax.Expr, positions: relax.Expr, axis: int) -> relax.Expr:
    """data[…, positions, …] along an axis, which may have a size known only at run time; the positions count from its
    start."""
    rank = len(shape_of(positions))
    axes = {one + (rank - 1 if one > axis else 0): size for one, size in sizes.of(data).items() if one != axis}
    axes |= {axis + one: size for one, size in sizes.of(positions).items()}
    return sizes.emit(relax.op.take(data, positions, axis, mode="clip"), axes)


def reshape(sizes: Sizes, data: relax.Expr, dims: Dims, label: str) -> relax.Expr:
    """A reshape; one dimension may be −1."""
    before, after = shape_of(data), largest(dims)
    inferred = after.index(-1) if -1 in after else None
    if inferred is not None:
        known = -prod(after)
        after[inferred] = prod(before) // known if known > 0 else 0
    if prod(after) != prod(before) or min(after, default=0) < 0:
        raise ModelFormatError(f"{label}: cannot reshape {before} to {after}")
    for first, last in _groups(before, after):
        if any(axis in sizes.of(data) for axis in range(first + 1, last)):
            return reshape(sizes, _merged(sizes, data, first, last), dims, label)
    wanted, axes = _axes_of(dims), {}
    for axis, size in sizes.of(data).items():
        hint = next((place for place, one in wanted.items() if one.same(size)), inferred)
        place, found = reshaped(sizes, axis, size, before, after, hint)
        axes[place] = found
    for place, size in wanted.items():
        if place not in axes or not axes[place].same(size):
            raise refusal(size, f"a reshape from {before} to a shape with it in place {place}")
    if 0 in after:  # which means to TVM: as before
        return sizes.emit(constant(np.zeros(after, str(data.ty.dtype))), axes)
    return sizes.emit(relax.op.reshape(data, after), axes)


def _groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of axes, longer than 1, that a reshape makes one axis."""
    found, start = [], 0
    for place, length in enumerate(after):
        while start < len(before) and prod(before[:start]) < prod(after[:place]):
            start += 1
        end = next((end for end in range(start, len(before) + 1) if prod(before[start:end]) == length), start)
        if prod(before[:start]) == prod(after[:place]) and end > start + 1 and length > 1:
            found.append((start, end))
    return found


def _merged(sizes: Sizes, data: relax.Expr, first: int, last: int) -> relax.Expr:
    """Axes first … last − 1 as one, what counts at its beginning: of sizes (m, n), element (i, j) at i · n + j."""
    shape, emit = shape_of(data), sizes.emit
    dims = dims_of(sizes, data)[first:last]
    lengths, whole = shape[first:last], prod(shape[first:last])
    size: Any = reduce(sizes.times, dims, 1)

    def make() -> relax.Expr:
        left: Any = constant(np.arange(whole, dtype=np.int64))
        place: Any = constant(np.zeros(whole, np.int64))
        for axis, length in reversed(list(enumerate(dims))):
            dim = constant(np.int64(length)) if isinstance(length, int) else length.value
            dim = emit(relax.op.maximum(dim, constant(np.int64(1))))
            step = constant(np.int64(prod(lengths[axis + 1 :])))
            place = emit(relax.op.add(place, emit(relax.op.multiply(emit(relax.op.floor_mod(left, dim)), step))))
            left = emit(relax.op.floor_divide(left, dim))
        return place

    key = tuple(getattr(dim, "value", dim) for dim in dims)
    places = emit(sizes.once(("merged", *key), make), {0: size})
    others = {axis: one for axis, one in sizes.of(data).items() if not first <= axis < last}
    axes = {axis if axis < first else axis - (last - first - 1): one for axis, one in others.items()}
    flat = emit(relax.op.reshape(data, [*shape[:first], whole, *shape[last:]]), axes)
    return rows(sizes, flat, places, first)


def broadcast(sizes: Sizes, data: relax.Expr, dims: Dims, label: str) -> relax.Expr:
    """The data and a tensor of these dimensions broadcast together."""
    own = dims_of(sizes, data)
    rank = max(len(own), len(dims))
    pairs = zip([1] * (rank - len(own)) + own, [1] * (rank - len(dims)) + list(dims), strict=True)
    result = [_broadcast_dim(one, two, label) for one, two in pairs]
    shape = check_elements(largest(result), label)
    return sizes.emit(relax.op.broadcast_to(data, shape), _axes_of(result))


def _broadcast_dim(one: Any, two: Any, label: str) -> Any:
    if one == 1 or two == 1:
        return two if isinstance(one, int) and one == 1 else one
    if isinstance(one, Size) and isinstance(two, Size) and one.same(two):
        return one
    for size in (one, two):
        if isinstance(size, Size):
            raise refusal(size, "broadcasting it to a size that may be another one")
    if one != two:
        raise ModelFormatError(f"{label}: dimensions {one} and {two} do not broadcast")
    return one


def full(sizes: Sizes, dims: Dims, value: np.ndarray, label: str) -> relax.Expr:
    """A tensor of equal elements."""
    shape = check_elements(largest(dims), label)
    return sizes.emit(relax.op.broadcast_to(constant(np.asarray(value).reshape(())), shape), _axes_of(dims))


def emptied(sizes: Sizes, value: relax.Expr, shape: Sequence[int], empty: relax.Expr) -> relax.Expr:
    """The value, or, if `empty` is true, a tensor of this shape, which has no elements. Raises ModelFormatError if the
    shapes differ along other axes than those of 0 elements."""
    own, dims = shape_of(value), dims_of(sizes, value)
    if len(own) != len(shape) or any(size and size != dim for size, dim in zip(shape, dims, strict=True)):
        raise ModelFormatError(f"a branch has a result of shape {tuple(shape)}, the other one of {own}")
    for axis, dim in enumerate(dims):
        if shape[axis] == 0:
            size = dim.value if isinstance(dim, Size) else constant(np.int64(dim))
            left = sizes.emit(relax.op.where(empty, constant(np.int64(0)), size))
            origin = dim.origin if isinstance(dim, Size) else "a branch without elements"
            dims[axis] = sizes.size(left, own[axis], origin)
    return sizes.emit(relax.op.reshape(value, own), _axes_of(dims))


def counting(sizes: Sizes, start: int, count: Size, step: int, dtype: str) -> relax.Expr:
    """start, start + step, … in a tensor of this size."""
    values = start + step * np.arange(count.most, dtype=np.int64)
    return sizes.emit(constant(values.astype(dtype)), {0: count})


def counted(sizes: Sizes, start: int, limit: int | Size, step: int, dtype: str) -> relax.Expr:
    """start, start + step, … below a limit."""
    count: Any = sizes.greatest(sizes.plus(limit, -start), 0) if start else limit
    if step > 1:
        count = sizes.quotient(sizes.plus(count, step - 1), step)
    if isinstance(count, int):
        return constant(np.arange(start, start + count * step, step).astype(dtype))
    return counting(sizes, start, count, step, dtype)


def trimmed(sizes: Sizes, value: relax.Expr) -> tuple[relax.Expr, tuple[int, ...]]:
    """An output of the model, and its axes whose sizes are known only at run time."""
    axes = sizes.of(value)
    for axis, size in sorted(axes.items()):
        value = sizes.emit(qnn.trim(value, size.value, axis))
    return value, tuple(sorted(axes))

"""Operators that TVM leaves to libraries on GPUs, or maps to threads in its own way, legalized to TE: cumulative sums,
sorting, scattering.

Sorting is counting: an element's position is the number of elements that come before it, with equal ones in their
original order, as in the CPU's stable sort. That takes n² comparisons for a row of n, all of them in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import relax, te, tirx, topi

from ..op.arguments import data_of
from ..op.base import shape_of
from . import legalize_moves as moves

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def gpu_legalizations() -> dict[str, Legalization]:
    """Legalizations by operator, for the `customize_legalize_map` of `relax.transform.LegalizeOps`."""
    return {
        "relax.cumsum": _cumsum,
        "relax.scatter_elements": _scatter_elements,
        "relax.scatter_nd": _scatter_nd,
        "relax.argsort": _argsort,
        "relax.sort": _sort,
        "relax.topk": _topk,
        "relax.matmul": _matmul,
    }


def _matmul(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """TVM's plain sums, a thread for each: a GPU needs no strips of columns for vectors."""
    return call.op.get_attr("FLegalize")(builder, call)


def _scatter_elements(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """The CPU's loops, mapped to threads like all others; TVM's GPU version uses two thread counts in one kernel. Both
    are wrong where the updates are fewer along an axis before the scattered one; then one thread does it all."""
    axis, reduction = int(call.attrs.axis) % len(shape_of(call)), str(call.attrs.reduction)
    if (
        shape_of(call.args[1])[:axis] != shape_of(call)[:axis]
        or shape_of(call.args[1])[axis + 1 :] != shape_of(call)[axis + 1 :]
    ):
        return moves.scatter_elements(builder, call)
    return builder.call_te(topi.scatter_elements, *call.args, axis, reduction, primfunc_name_hint="scatter_elements")


def _scatter_nd(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Like `_scatter_elements`. In topi, the components of an index are along the first axis."""

    def scatter(data: te.Tensor, indices: te.Tensor, updates: te.Tensor) -> te.Tensor:
        last = len(indices.shape) - 1
        return topi.scatter_nd(data, topi.transpose(indices, [last, *range(last)]), updates, str(call.attrs.reduction))

    return builder.call_te(scatter, *call.args, primfunc_name_hint="scatter_nd")


def _cumsum(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    sizes = axis, str(call.ty.dtype), bool(call.attrs.exclusive)
    return builder.call_te(cumulative_sum, data_of(call), *sizes, primfunc_name_hint="cumsum")


def cumulative_sum(x: te.Tensor, axis: int | None, dtype: str, exclusive: bool) -> te.Tensor:
    """For each element, Σ of the elements up to it, or before it if `exclusive`; in order, so that sums of floats equal
    a running sum."""
    if axis is None:
        x, axis = topi.reshape(x, (prod(int(size) for size in x.shape),)), 0
    shape = [int(size) for size in x.shape]
    axis %= len(shape)
    j = te.reduce_axis((0, shape[axis]), "j")

    def total(*indices: Any) -> Any:
        term = x(*(j if number == axis else index for number, index in enumerate(indices))).astype(dtype)
        counts = j < indices[axis] if exclusive else j <= indices[axis]
        return te.sum(tirx.Select(counts, term, tirx.const(0, dtype)), axis=j)

    return te.compute(shape, total, name="cumsum")


def sorted_positions(x: te.Tensor, axis: int, descending: bool, count: int, dtype: str) -> te.Tensor:
    """For each of the first `count` places of the sorted row, the position of its element in the row, in `dtype`."""
    shape = [int(size) for size in x.shape]
    axis %= len(shape)
    j = te.reduce_axis((0, shape[axis]), "j")
    i = te.reduce_axis((0, shape[axis]), "i")

    def at(indices: Sequence[Any], position: Any) -> list[Any]:
        return [position if number == axis else index for number, index in enumerate(indices)]

    def is_before(*indices: Any) -> Any:
        own, other = x(*indices), x(*at(indices, j))
        ahead = other > own if descending else other < own
        return te.sum(tirx.any(ahead, tirx.all(other == own, j < indices[axis])).astype("int32"), axis=j)

    ranks = te.compute(shape, is_before, name="rank")

    def position(*indices: Any) -> Any:
        zero = tirx.const(0, "int32")
        return te.sum(tirx.Select(ranks(*at(indices, i)) == indices[axis], i.var.astype("int32"), zero), axis=i)

    places = [count if number == axis else size for number, size in enumerate(shape)]
    found = te.compute(places, position, name="position")
    return found if dtype == "int32" else te.compute(places, lambda *k: found(*k).astype(dtype), name="position_cast")


def _sorted_values(x: te.Tensor, axis: int, descending: bool, count: int) -> te.Tensor:
    positions = sorted_positions(x, axis, descending, count, "int32")
    axis %= len(x.shape)

    def value(*indices: Any) -> Any:
        return x(*(positions(*indices) if number == axis else index for number, index in enumerate(indices)))

    return te.compute(positions.shape, value, name="sorted")


def _length(call: relax.Call, axis: int) -> int:
    return int(data_of(call).ty.shape[axis])


def _argsort(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    axis = int(call.attrs.axis)
    sizes = bool(call.attrs.descending), _length(call, axis), str(call.ty.dtype)
    return builder.call_te(sorted_positions, data_of(call), axis, *sizes, primfunc_name_hint="argsort")


def _sort(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    axis = int(call.attrs.axis)
    sizes = bool(call.attrs.descending), _length(call, axis)
    return builder.call_te(_sorted_values, data_of(call), axis, *sizes, primfunc_name_hint="sort")


def _topk(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    axis, k, kind = int(call.attrs.axis), int(call.attrs.k), str(call.attrs.ret_type)
    sizes = bool(call.attrs.largest), k if k > 0 else _length(call, axis)
    results = []
    if kind in ("both", "values"):
        results.append(builder.call_te(_sorted_values, data_of(call), axis, *sizes, primfunc_name_hint="topk"))
    if kind in ("both", "indices"):
        dtype = str(call.attrs.dtype)
        hint = "topk_indices"
        results.append(builder.call_te(sorted_positions, data_of(call), axis, *sizes, dtype, primfunc_name_hint=hint))
    return relax.Tuple([builder.emit(value) for value in results]) if kind == "both" else results[0]

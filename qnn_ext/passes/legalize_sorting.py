"""Sorting on CPUs: the positions of the sorted elements in a kernel, then what is at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te

from ..op.arguments import data_of
from ..topi_int8.generic.sorting import sorted_positions

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def sorting_legalizations() -> dict[str, Legalization]:
    """Legalizations by operator, for the `customize_legalize_map` of `relax.transform.LegalizeOps`."""
    return {"relax.argsort": _argsort, "relax.sort": _sort, "relax.topk": _topk}


def _argsort(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return _typed(builder, _positions(builder, call, bool(call.attrs.descending)), str(call.ty.dtype))


def _sort(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return _values(builder, call, _positions(builder, call, bool(call.attrs.descending)))


def _topk(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    kind, k = str(call.attrs.ret_type), int(call.attrs.k)
    positions = _positions(builder, call, bool(call.attrs.largest), k)
    if kind == "values":
        return _values(builder, call, positions)
    indices = _typed(builder, positions, str(call.attrs.dtype))
    if kind == "indices":
        return indices
    return relax.Tuple([builder.emit(_values(builder, call, positions)), builder.emit(indices)])


def _positions(builder: relax.BlockBuilder, call: relax.Call, descending: bool, count: int = 0) -> relax.Var:
    """count: how many come first; 0: all."""
    x, axis = data_of(call), int(call.attrs.axis)
    length = int(x.ty.shape[axis])
    count = min(count, length) if count > 0 else length
    hint = str(call.op.name).removeprefix("relax.")
    return builder.emit(builder.call_te(sorted_positions, x, axis, descending, count, primfunc_name_hint=hint))


def _values(builder: relax.BlockBuilder, call: relax.Call, positions: relax.Var) -> relax.Expr:
    axis = int(call.attrs.axis) % len(positions.ty.shape)

    def values(x: te.Tensor, order: te.Tensor) -> te.Tensor:
        def value(*indices: Any) -> Any:
            return x(*indices[:axis], order(*indices), *indices[axis + 1 :])

        return te.compute(order.shape, value, name="sorted")

    return builder.call_te(values, data_of(call), positions, primfunc_name_hint="sorted")


def _typed(builder: relax.BlockBuilder, positions: relax.Var, dtype: str) -> relax.Expr:
    if dtype == "int32":
        return positions

    def typed(order: te.Tensor) -> te.Tensor:
        return te.compute(order.shape, lambda *indices: order(*indices).astype(dtype), name="positions")

    return builder.call_te(typed, positions, primfunc_name_hint="positions")

"""A copy of a tensor with some elements replaced or changed, at positions known only at run time.

The updates are applied one after another, so that of several at one position the last one stays, or all of them count.
Unlike in TVM's own kernels, the buffers start at offset zero: a program over one workspace can hold them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .nest import nest

Expr = Any

REDUCTIONS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "update": lambda _, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": tirx.min,
    "max": tirx.max,
}


def scatter_elements(data: te.Tensor, indices: te.Tensor, updates: te.Tensor, axis: int, reduction: str) -> te.Tensor:
    """out[…, indices[…, k, …], …] = f(out[…], updates[…, k, …]) for all k along the axis; negative indices count from
    the end."""
    shape, places = _sizes(data), _sizes(indices)
    axis %= len(shape)

    def target(ins: list[Any], place: list[Expr]) -> list[Expr]:
        index = ins[1][tuple(place)]
        wrapped = tirx.Select(index < 0, index + tirx.const(shape[axis], index.ty.dtype), index)
        return [*place[:axis], wrapped, *place[axis + 1 :]]

    return _scattered([data, indices, updates], places, target, reduction, "scatter_elements")


def scatter_nd(data: te.Tensor, indices: te.Tensor, updates: te.Tensor, reduction: str) -> te.Tensor:
    """out[indices[i, …], …] = f(out[…], updates[i, …]) for all i; the last axis of the indices holds the components."""
    *outer, count = _sizes(indices)

    def target(ins: list[Any], place: list[Expr]) -> list[Expr]:
        first = place[: len(outer)]
        return [*(ins[1][(*first, component)] for component in range(count)), *place[len(outer) :]]

    return _scattered([data, indices, updates], _sizes(updates), target, reduction, "scatter_nd")


def _sizes(tensor: te.Tensor) -> list[int]:
    return [int(size) for size in tensor.shape]


def _scattered(
    tensors: list[te.Tensor],
    places: list[int],
    target: Callable[[list[Any], list[Expr]], list[Expr]],
    reduction: str,
    name: str,
) -> te.Tensor:
    """places: the shape of the updates that count; target: where one of them goes"""
    shape = _sizes(tensors[0])

    def body(inputs: list[Any], outputs: list[Any]) -> Any:
        ins, out = [T.buffer_proxy(buffer) for buffer in inputs], T.buffer_proxy(outputs[0])
        with IRBuilder() as builder, T.serial(0, 1):  # one statement of two loops
            with T.grid(*shape, 1) as (*element, _):
                out[tuple(element)] = ins[0][tuple(element)]
            with T.grid(*places, 1) as (*place, _):
                goal = tuple(target(ins, place))
                out[goal] = REDUCTIONS[reduction](out[goal], ins[2][tuple(place)])
        return builder.get()

    return nest(tensors[0].shape, tensors, body, dtype=tensors[0].dtype, name=name)

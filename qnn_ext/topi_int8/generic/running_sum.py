"""Running sums along an axis as a loop nest, which a program can call; TVM's scan has buffers with run-time offsets."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

from tvm import te, tirx, topi
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .nest import nest
from .rows import unravel


def running_sum(x: te.Tensor, axis: int | None, dtype: str, exclusive: bool) -> te.Tensor:
    """For each element Σ of those up to it along an axis, or before it if `exclusive`, added in order in `dtype`; for
    the axis None, of the flattened tensor."""
    shape = [int(size) for size in x.shape]
    if axis is None:
        shape, axis = [prod(shape)], 0
        x = topi.reshape(x, shape)
    body = partial(_nest, shape=shape, axis=axis % len(shape), dtype=dtype, exclusive=exclusive)
    return nest([tirx.const(size, "int64") for size in shape], [x], body, dtype=dtype, name="running_sum")


def _nest(ins: list[Any], outs: list[Any], shape: list[int], axis: int, dtype: str, exclusive: bool) -> Any:
    """Step after step, each for all places of the inner axes, which are next to each other in memory."""
    data, sums = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
    leading, trailing = shape[:axis], shape[axis + 1 :]

    def at(outer: Any, step: Any, inner: Any) -> tuple[Any, ...]:
        return (*unravel(outer, leading), step, *unravel(inner, trailing))

    with IRBuilder() as builder, T.serial(0, prod(leading)) as outer:
        with T.serial(0, prod(trailing)) as inner:
            first = at(outer, tirx.const(0, "int32"), inner)
            sums[first] = tirx.const(0, dtype) if exclusive else data[first].astype(dtype)
        with T.serial(1, shape[axis]) as step, T.serial(0, prod(trailing)) as inner:
            term = data[at(outer, step - 1 if exclusive else step, inner)].astype(dtype)
            sums[at(outer, step, inner)] = sums[at(outer, step - 1, inner)] + term
    return builder.get()

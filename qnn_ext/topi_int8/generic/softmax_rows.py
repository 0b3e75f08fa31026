"""Softmax of bytes along the last axis with float32 sums, several rows at a time.

A row's sum is sequential, one rounding after another: summing several rows in parallel hides its latency. The
exponentials that they look up stay in the L1 cache for the division.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...targets.features import current_backend, current_caches
from ..blocking import MOST_L1
from .nest import nest
from .rows import unravel

MOST_ROWS = 8
SUMS = 3  # in parallel: enough to hide an addition's latency, and few enough that LLVM makes no vector of strided loads

Expr = Any
Finish = Callable[[Expr, Expr], Expr]


def rows_together(shape: Sequence[int]) -> int:
    """How many neighbouring rows are summed in parallel, with their exponentials in the L1 cache; 1 if no such number
    divides them, they are too long, or each has its own GPU thread."""
    if current_backend().grid:
        return 1
    rows = shape[-2] if len(shape) > 1 else 1
    fitting = min(MOST_ROWS, _room() // (4 * shape[-1]))
    return next((count for count in range(fitting, 1, -1) if rows % count == 0), 1)


def _room() -> int:
    """Bytes of the L1 cache for exponentials: all of it, unless instructions count, of which more rows take more.

    With the 48 KiB of a Zen 5 instead of 32, rows of 1500 and 4000 took 15 and 8 % less time; with the 64 KiB of a
    Cortex-A76 these executed 1 and 7 % more instructions.
    """
    level_1 = current_caches().l1_bytes
    return min(level_1, MOST_L1) if current_backend().counts else level_1


def softmax_rows(data: te.Tensor, table: te.Tensor, finish: Finish, dtype: str) -> te.Tensor:
    """finish(exponential, sum of its row) of every element; the table holds exponentials by steps below the maximum."""
    shape = [int(size) for size in data.shape]
    body = partial(_nest, shape=shape, together=rows_together(shape), finish=finish)
    return nest(shape, [data, table], body, dtype=dtype, name="softmax")


def _nest(ins: list[Any], outs: list[Any], shape: list[int], together: int, finish: Finish) -> Any:
    data, table, result = (T.buffer_proxy(buffer) for buffer in (*ins, *outs))
    *leading, rows, length = shape
    groups = rows // together
    loop = T.parallel if prod(shape) >= current_backend().sharing.softmax_elements else T.serial
    with IRBuilder() as builder, loop(0, prod(leading) * groups) as group:
        outer = unravel(group // groups, leading)
        exps = T.buffer_proxy(T.decl_buffer([together, length], "float32", scope="global"))
        high = T.buffer_proxy(T.decl_buffer([together], str(data.dtype), scope="local"))
        total = T.buffer_proxy(T.decl_buffer([together], "float32", scope="local"))

        def at(row: int, k: Expr) -> tuple[Expr, ...]:
            return (*outer, group % groups * together + row, k)

        for row in range(together):
            high[row] = data[at(row, 0)]
            with T.serial(0, length) as k:
                high[row] = tirx.max(high[row], data[at(row, k)])
            total[row] = tirx.const(0.0, "float32")
        for first in range(0, together, SUMS):
            with T.serial(0, length) as k:
                for row in range(first, min(first + SUMS, together)):
                    exps[row, k] = table[high[row].astype("int32") - data[at(row, k)].astype("int32")]
                    total[row] = total[row] + exps[row, k]
        for row in range(together):
            with T.serial(0, length) as k:
                result[at(row, k)] = finish(exps[row, k], total[row])
    return builder.get()

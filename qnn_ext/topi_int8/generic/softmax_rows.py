"""ONNX Runtime's softmax of bytes along the last axis, several rows at a time.

The sum of a row is sequential, one rounding after another: those of several rows side by side hide its latency. The
exponentials that they look up stay in the first cache level for the division.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..features import on_gpu
from .nest import nest
from .rows import unravel

MOST_ROWS = 8
SUMS = 3  # side by side: they hide the latency of an addition, and LLVM does not make them a vector of strided loads
CACHE_BYTES = 1 << 15  # of exponentials
PARALLEL_ELEMENTS = 1 << 14  # that are worth threads

Expr = Any
Finish = Callable[[Expr, Expr], Expr]


def rows_together(shape: Sequence[int]) -> int:
    """How many neighbouring rows are summed side by side; 1 if no number divides them, they are too long, or each has a
    thread of a GPU to itself."""
    if on_gpu():
        return 1
    rows = shape[-2] if len(shape) > 1 else 1
    fitting = min(MOST_ROWS, CACHE_BYTES // (4 * shape[-1]))
    return next((count for count in range(fitting, 1, -1) if rows % count == 0), 1)


def softmax_rows(data: te.Tensor, table: te.Tensor, finish: Finish, dtype: str) -> te.Tensor:
    """finish(exponential, sum of its row) of every element; the table holds exponentials by steps below the maximum."""
    shape = [int(size) for size in data.shape]
    body = partial(_nest, shape=shape, together=rows_together(shape), finish=finish)
    return nest(shape, [data, table], body, dtype=dtype, name="softmax")


def _nest(ins: list[Any], outs: list[Any], shape: list[int], together: int, finish: Finish) -> Any:
    data, table, result = (T.buffer_proxy(buffer) for buffer in (*ins, *outs))
    *leading, rows, length = shape
    groups = rows // together
    loop = T.parallel if prod(shape) >= PARALLEL_ELEMENTS else T.serial
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

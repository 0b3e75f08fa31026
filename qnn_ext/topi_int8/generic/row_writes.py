"""Rows of a tensor replaced at positions known only at run time: into a copy of it, or into its own memory."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .nest import nest


def write_rows(data: te.Tensor, rows: te.Tensor, positions: te.Tensor, axis: int) -> te.Tensor:
    """The kernel of qnn.write_rows: a copy of the data, then the rows."""
    shape = [int(size) for size in data.shape]

    def body(inputs: list[Any], outputs: list[Any]) -> Any:
        source, out = T.buffer_proxy(inputs[0]), T.buffer_proxy(outputs[0])
        with IRBuilder() as builder, T.serial(0, 1):  # one statement of two loops
            with T.grid(*shape, 1) as (*element, _):
                out[tuple(element)] = source[tuple(element)]
            _write([*inputs[1:], outputs[0]], axis)
        return builder.get()

    return nest(data.shape, [data, rows, positions], body, dtype=data.dtype, name="write_rows")


def rows_writer(function: tirx.PrimFunc, axis: int) -> tirx.PrimFunc:
    """(rows, positions, out), which writes the rows only: from the function (data, rows, positions, out) of
    `write_rows`."""
    _, *params = function.params
    with IRBuilder() as builder:
        _write(params, axis)
    return tirx.PrimFunc(params, builder.get(), function.ret_type, function.attrs)


def _write(buffers: list[Any], axis: int) -> None:
    """Emit the loops that write the rows that have a place. buffers: rows, positions, out"""
    rows, positions, out = buffers
    sizes = [int(size) for size in rows.ty.shape]
    per_sample, length = len(positions.ty.shape) == 2, int(out.ty.shape[axis])
    source, places, target = map(T.buffer_proxy, buffers)
    with T.grid(*sizes[: axis + 1], 1) as (*before, row, _):
        place = places[(before[0], row) if per_sample else row]
        # two loops at least: the grid of one is a variable, no tuple
        with T.If(tirx.all(place >= 0, place < length)), T.Then(), T.grid(*sizes[axis + 1 :], 1, 1) as (*after, _, _):
            target[(*before, place, *after)] = source[(*before, row, *after)]

"""qnn.partial_sort as a loop nest: what moves depends on the data, so it is no TE compute."""

from __future__ import annotations

from typing import Any

from tvm import te
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .heaps import Heap
from .nest import memory, nest, number, variable
from .operands import Constants, Expr, Operand
from .stages import stages


@stages("qnn.partial_sort")
def _partial_sort(constants: Constants, shape: tuple[int, ...], data: Operand, *, count: int) -> te.Tensor:
    """Rows run in parallel, each as op.partial_sort._sorted."""
    tensor = data.tensor if data.tensor is not None else constants.add(data.value)

    def body(ins: list[Any], outs: list[Any]) -> Any:
        with IRBuilder() as builder, T.parallel(0, shape[0]) as row:
            _sort_row(row, T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0]), count)
        return builder.get()

    return nest(shape, [tensor], body, dtype="int32", name="partial_sort")


def _sort_row(row: Expr, values: Any, out: Any, count: int) -> None:
    items, last = memory([count], scope="global"), variable(0)

    def larger(one: Expr, two: Expr) -> Expr:
        return values[row, one] > values[row, two]

    heap = Heap(items, larger)
    with T.serial(0, count) as place:
        items[place] = place
    with T.serial(0, count // 2) as behind:
        place = number(count // 2 - 1) - behind
        heap.settle(place, number(count), items[place])
    with T.serial(0, int(values.shape[1]) - count) as rest:
        position = rest + count
        with T.If(larger(position, items[0])), T.Then():
            heap.settle(number(0), number(count), position)
    with T.serial(0, count - 1) as behind:
        size = number(count - 1) - behind
        last[0] = items[size]
        items[size] = items[0]
        heap.settle(number(0), size, last[0])
    with T.serial(0, count) as place:
        out[row, place] = items[place]

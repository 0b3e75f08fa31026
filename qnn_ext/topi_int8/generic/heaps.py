"""Heaps of positions in loop nests that are being built: op.heaps as TIR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .nest import number, variable
from .operands import Expr


class Heap:
    """Functions of the same names in op.heaps.

    items: an array of int32 to read and write
    less:  whether one item is less than another
    """

    def __init__(self, items: Any, less: Callable[[Expr, Expr], Expr]) -> None:
        self.items, self.less = items, less
        self.size, self._hole, self._child, self._first, self._item = (variable(0) for _ in range(5))

    def push(self, item: Expr) -> None:
        self._hole[0] = self.size[0]
        self.size[0] = self.size[0] + 1
        self._rise(number(0), item)

    def pop(self) -> Expr:
        """The first item. What this returns is it until the next one is taken."""
        self._first[0] = self.items[0]
        self.size[0] = self.size[0] - 1
        with T.If(self.size[0] > 0), T.Then():
            self.settle(number(0), self.size[0], self.items[self.size[0]])
        return self._first[0]

    def settle(self, top: Expr, size: Expr, item: Expr) -> None:
        items, hole, child = self.items, self._hole, self._child
        self._item[0], hole[0] = item, top
        with T.While(2 * hole[0] + 2 < size):
            child[0] = 2 * hole[0] + 2
            with T.If(self.less(items[child[0]], items[child[0] - 1])), T.Then():
                child[0] = child[0] - 1
            items[hole[0]] = items[child[0]]
            hole[0] = child[0]
        with T.If(2 * hole[0] + 2 == size), T.Then():
            items[hole[0]] = items[size - 1]
            hole[0] = size - 1
        self._rise(top, self._item[0])

    def _rise(self, top: Expr, item: Expr) -> None:
        hole, items, going = self._hole, self.items, self._child
        going[0] = number(1)
        with T.While(tirx.all(hole[0] > top, going[0] == 1)):
            parent = tirx.shift_right(hole[0] - 1, number(1))
            with T.If(self.less(items[parent], item)):
                with T.Then():
                    items[hole[0]] = items[parent]
                    hole[0] = parent
                with T.Else():
                    going[0] = number(0)
        items[hole[0]] = item

"""Terms: formulas of integers or floats in Python's notation, each operation one call of Relax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ....op.base import constant, shape_of
from ..node import Node
from .shape import block, reshape


@dataclass(frozen=True)
class Term:
    """A tensor in a formula of one operator. Other operands are terms, arrays or numbers, which take its dtype.

    Arithmetic wraps as the dtype does; >> keeps the sign. Comparisons give terms of bool.
    """

    node: Node
    expr: relax.Expr

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of(self.expr)

    @property
    def dtype(self) -> str:
        return str(self.expr.ty.dtype)

    def number(self, value: np.ndarray | float) -> Term:
        """A constant of the same dtype."""
        return Term(self.node, self._operand(value))

    def __add__(self, other: Term | np.ndarray | float) -> Term:
        return self._both(relax.op.add, other)

    def __sub__(self, other: Term | np.ndarray | float) -> Term:
        return self._both(relax.op.subtract, other)

    def __mul__(self, other: Term | np.ndarray | float) -> Term:
        return self._both(relax.op.multiply, other)

    def __truediv__(self, other: Term | np.ndarray | float) -> Term:
        return self._both(relax.op.divide, other)

    def __neg__(self) -> Term:
        return self._one(relax.op.negative)

    def __lshift__(self, other: Term | np.ndarray | float) -> Term:
        return self._both(relax.op.left_shift, other)

    def __rshift__(self, other: Term | np.ndarray | float) -> Term:
        return self._both(relax.op.right_shift, other)

    def __and__(self, other: Term | np.ndarray | float) -> Term:
        return self._both(relax.op.logical_and if self.dtype == "bool" else relax.op.bitwise_and, other)

    def __or__(self, other: Term) -> Term:
        return self._both(relax.op.logical_or, other)

    def __lt__(self, other: Term | int) -> Term:
        return self._both(relax.op.less, other)

    def __le__(self, other: Term | int) -> Term:
        return self._both(relax.op.less_equal, other)

    def __gt__(self, other: Term | int) -> Term:
        return self._both(relax.op.greater, other)

    def __ge__(self, other: Term | int) -> Term:
        return self._both(relax.op.greater_equal, other)

    def equals(self, other: Term | int) -> Term:
        return self._both(relax.op.equal, other)

    def at_most(self, other: Term | np.ndarray | float) -> Term:
        return self._both(relax.op.minimum, other)

    def at_least(self, other: Term | np.ndarray | float) -> Term:
        return self._both(relax.op.maximum, other)

    def where(self, yes: Term, no: Term | float) -> Term:
        """Elements of `yes` where this term, of bool, is true, and of `no` elsewhere."""
        return Term(self.node, self.node.emit(relax.op.where(self.expr, yes.expr, yes._operand(no))))

    def to(self, dtype: str) -> Term:
        return self if dtype == self.dtype else self._one(lambda expr: relax.op.astype(expr, dtype))

    def wrapped(self, dtype: str) -> Term:
        """The lowest bits as a number of a narrower dtype, in this one."""
        return self.to(dtype).to(self.dtype)

    def saturated(self, dtype: str) -> Term:
        info = np.iinfo(dtype)
        return self._one(lambda expr: relax.op.clip(expr, info.min, info.max)).to(dtype)

    def sum(self, axis: int) -> Term:
        return self._one(lambda expr: relax.op.sum(expr, [axis]))

    def largest(self, axis: int) -> Term:
        return self._one(lambda expr: relax.op.max(expr, [axis]))

    def smallest(self, axis: int) -> Term:
        return self._one(lambda expr: relax.op.min(expr, [axis]))

    def sqrt(self) -> Term:
        return self._one(relax.op.sqrt)

    def reshape(self, *shape: int) -> Term:
        return Term(self.node, reshape(self.node, self.expr, shape))

    def part(self, start: int, stop: int, axis: int = -1, step: int = 1) -> Term:
        """[start:stop:step] along an axis."""
        axes = [axis % len(self.shape)]
        return Term(self.node, block(self.node, self.expr, axes, [start], [stop], [step]))

    def taken(self, places: Term | np.ndarray, axis: int = 0) -> Term:
        """The elements at these places along an axis."""
        where = places.expr if isinstance(places, Term) else constant(np.asarray(places, np.int32))
        return self._one(lambda expr: relax.op.take(expr, where, axis=axis, mode="clip"))

    def _one(self, function: Callable[[relax.Expr], relax.Expr]) -> Term:
        return Term(self.node, self.node.emit(function(self.expr)))

    def _both(self, function: Callable[[relax.Expr, relax.Expr], relax.Expr], other: Term | np.ndarray | float) -> Term:
        return Term(self.node, self.node.emit(function(self.expr, self._operand(other))))

    def _operand(self, other: Term | np.ndarray | float) -> relax.Expr:
        return other.expr if isinstance(other, Term) else constant(np.asarray(other, self.dtype))


def joined(terms: Sequence[Term], axis: int = -1) -> Term:
    """Terms one after another along an axis; those without elements are left out."""
    filled = [term for term in terms if 0 not in term.shape] or list(terms[:1])
    if len(filled) == 1:
        return filled[0]
    node, axis = filled[0].node, axis % len(filled[0].shape)
    return Term(node, node.emit(relax.op.concat([term.expr for term in filled], axis=axis)))

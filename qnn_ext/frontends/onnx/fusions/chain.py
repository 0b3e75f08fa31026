"""Operators of a graph by who reads what they compute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ....op.base import constant_value
from ..node import Node
from ..reader import Operator


class Chain:
    """Steps from an operator to those that compute what it reads, and to what reads its result."""

    def __init__(self, node: Node) -> None:
        self._assembly, self._graph = node.assembly, node.assembly.neighbours

    def value(self, name: str) -> relax.Expr:
        """What an operator reads under this name."""
        return self._assembly.value(name)

    def before(self, name: str, op_type: str) -> Operator | None:
        """The operator that computes a value, if it is of this type."""
        return _of_type(self._graph.writers.get(name), op_type)

    def only(self, name: str, op_type: str) -> Operator | None:
        """The same, if the value has no more than one reader."""
        return self.before(name, op_type) if self._graph.only_reader(name) is not None else None

    def after(self, operator: Operator, op_type: str) -> Operator | None:
        """The only operator that reads a result, if it is of this type."""
        return _of_type(self._graph.only_reader(operator.outputs[0]), op_type)

    def with_constant(self, operator: Operator, op_type: str) -> tuple[Operator | None, relax.Expr | None]:
        """What computes one operand, if it is of this type, and the other operand, if it is a float32 constant."""
        for name, other in (operator.inputs, operator.inputs[::-1]):
            value, writer = self.value(other), self.only(name, op_type)
            known = constant_value(value)
            if writer is not None and known is not None and known.dtype == np.float32:
                return writer, value
        return None, None

    def number(self, name: str) -> np.float32 | None:
        """A float32 constant of one element."""
        known = constant_value(self.value(name))
        if known is None or known.dtype != np.float32 or known.size != 1 or known.ndim > 1:
            return None
        return np.float32(known.item())

    def is_read_only_by(self, name: str, readers: Sequence[Operator]) -> bool:
        """Whether nothing else reads a value."""
        return name not in self._graph.outputs and all(
            any(reader is one for one in readers) for reader in self._graph.readers[name]
        )


def _of_type(operator: Operator | None, op_type: str) -> Operator | None:
    return operator if operator is not None and (operator.op_type, operator.domain) == (op_type, "") else None

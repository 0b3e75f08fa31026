"""Layer normalizations that are written out in single operators, as before operator set 17: ONNX Runtime makes one
operator of each, with bits of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ....op.base import constant_value, shape_of
from ..node import Node
from ..reader import Operator


def layer_normalization(node: Node) -> relax.Expr | None:
    """(x − mean) / √(variance + ε) · γ + β over the last axis, if that is what an Add of β ends; None otherwise."""
    chain = _Chain(node)
    scaled, beta = chain.with_constant(node.operator, "Mul")
    if scaled is None:
        return None
    unit, gamma = chain.with_constant(scaled, "Div")
    if unit is None:
        return None
    deviation, root = chain.before(unit.inputs[0], "Sub"), chain.only(unit.inputs[1], "Sqrt")
    shifted = root and chain.only(root.inputs[0], "Add")
    if deviation is None or not shifted:
        return None
    variance, epsilon = chain.with_constant(shifted, "ReduceMean")
    power = variance and chain.only(variance.inputs[0], "Pow")
    same = power and chain.before(power.inputs[0], "Sub")
    if not variance or not power or not same or chain.number(power.inputs[1]) != 2 or epsilon is None:
        return None
    data = node.assembly.value(deviation.inputs[0])
    shape = shape_of(data)
    if not chain.is_centred(deviation, shape, [unit, power]) or not chain.is_centred(same, shape, [unit, power]):
        return None
    parameters = [value for value in (gamma, beta) if value is not None and shape_of(value) == shape[-1:]]
    small = constant_value(epsilon)
    if len(parameters) != 2 or small is None or small.size != 1 or not chain.is_mean(variance, len(shape)):
        return None
    return relax.op.nn.layer_norm(data, *parameters, axes=[-1], epsilon=float(small.item()))


class _Chain:
    """Operators of float32 values by who reads them."""

    def __init__(self, node: Node) -> None:
        self._assembly, self._graph = node.assembly, node.assembly.neighbours

    def before(self, name: str, op_type: str) -> Operator | None:
        """The operator that computes a value, if it is of this type."""
        writer = self._graph.writers.get(name)
        return writer if writer is not None and (writer.op_type, writer.domain) == (op_type, "") else None

    def only(self, name: str, op_type: str) -> Operator | None:
        """The same, if the value has no more than one reader."""
        return self.before(name, op_type) if self._graph.only_reader(name) is not None else None

    def with_constant(self, operator: Operator, op_type: str) -> tuple[Operator | None, relax.Expr | None]:
        """What computes one operand, if it is of this type, and the other operand, if it is a float32 constant."""
        for name, other in (operator.inputs, operator.inputs[::-1]):
            value, writer = self._assembly.value(other), self.only(name, op_type)
            known = constant_value(value)
            if writer is not None and known is not None and known.dtype == np.float32:
                return writer, value
        return None, None

    def number(self, name: str) -> float | None:
        """A constant of one element."""
        known = constant_value(self._assembly.value(name))
        return float(known.item()) if known is not None and known.size == 1 else None

    def is_mean(self, operator: Operator, rank: int) -> bool:
        """Whether a ReduceMean is over the last axis and keeps it."""
        axes = operator.attributes.get("axes")
        if axes is None and len(operator.inputs) > 1:
            known = constant_value(self._assembly.value(operator.inputs[1]))
            axes = None if known is None else known.tolist()
        return axes in ([-1], [rank - 1]) and operator.attributes.get("keepdims", 1) == 1

    def is_centred(self, operator: Operator, shape: Sequence[int], readers: Sequence[Operator]) -> bool:
        """Whether a Sub takes the mean of the rows of its first operand from it, and nothing else reads the result."""
        mean, name = self.before(operator.inputs[1], "ReduceMean"), operator.outputs[0]
        return (
            mean is not None
            and mean.inputs[0] == operator.inputs[0]
            and self.is_mean(mean, len(shape))
            and name not in self._graph.outputs
            and all(any(reader is one for one in readers) for reader in self._graph.readers[name])
        )

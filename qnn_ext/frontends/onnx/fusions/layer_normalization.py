"""Layer normalizations that are written out, as before operator set 17, also those by root mean squares."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ....op.base import constant_value, shape_of
from ..node import Node
from ..reader import Operator
from .chain import Chain


def layer_normalization(node: Node) -> relax.Expr | None:
    """(x − mean) / √(variance + ε) · γ + β over the last axis, if that is what an Add of β ends; None otherwise."""
    chain = Chain(node)
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
    if not all(_is_centred(chain, one, shape, [unit, power]) for one in (deviation, same)):
        return None
    parameters = [value for value in (gamma, beta) if value is not None and shape_of(value) == shape[-1:]]
    small = constant_value(epsilon)
    if len(parameters) != 2 or small is None or small.size != 1 or not _is_mean(chain, variance, len(shape)):
        return None
    return relax.op.nn.layer_norm(data, *parameters, axes=[-1], epsilon=float(small.item()))


def rms_normalization(node: Node) -> relax.Expr | None:
    """x / √(mean of x² + ε) · γ over the last axis, if that is what a Mul by γ ends; None otherwise.

    ONNX Runtime finds none of a DequantizeLinear, as it gives the square and the quotient a copy of that each.
    """
    chain = Chain(node)
    unit, gamma = chain.with_constant(node.operator, "Div")
    root = unit and chain.only(unit.inputs[1], "Sqrt")
    shifted = root and chain.only(root.inputs[0], "Add")
    if not unit or not shifted:
        return None
    mean, epsilon = chain.with_constant(shifted, "ReduceMean")
    power = mean and chain.only(mean.inputs[0], "Pow")
    if not mean or not power or power.inputs[0] != unit.inputs[0] or chain.number(power.inputs[1]) != 2:
        return None
    data, small = node.assembly.value(unit.inputs[0]), None if epsilon is None else constant_value(epsilon)
    if gamma is None or small is None or small.size != 1 or chain.before(unit.inputs[0], "DequantizeLinear"):
        return None
    shape = shape_of(data)
    if shape_of(gamma) != shape[-1:] or not _is_mean(chain, mean, len(shape)):
        return None
    return relax.op.nn.rms_norm(data, gamma, axes=[-1], epsilon=float(small.item()))


def _is_mean(chain: Chain, operator: Operator, rank: int) -> bool:
    """Whether a ReduceMean is over the last axis and keeps it."""
    axes = operator.attributes.get("axes")
    if axes is None and len(operator.inputs) > 1:
        known = constant_value(chain.value(operator.inputs[1]))
        axes = None if known is None else known.tolist()
    return axes in ([-1], [rank - 1]) and operator.attributes.get("keepdims", 1) == 1


def _is_centred(chain: Chain, operator: Operator, shape: Sequence[int], readers: Sequence[Operator]) -> bool:
    """Whether a Sub takes the mean of the rows of its first operand from it, and nothing else reads the result."""
    mean = chain.before(operator.inputs[1], "ReduceMean")
    return (
        mean is not None
        and mean.inputs[0] == operator.inputs[0]
        and _is_mean(chain, mean, len(shape))
        and chain.is_read_only_by(operator.outputs[0], readers)
    )

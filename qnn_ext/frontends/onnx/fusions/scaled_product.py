"""Float products of two computed tensors whose operands or results are multiplied by numbers, as attention's are: ONNX
Runtime multiplies once, behind the product."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ....op.base import constant, constant_value, shape_of
from ..node import Node
from ..reader import Operator
from .chain import Chain


def scaled_matmul(node: Node) -> relax.Expr:
    """A · B, multiplied by what A and B were multiplied by."""
    chain = Chain(node)
    if not _is_of_two_computed(chain, node.operator):
        return relax.op.matmul(node.input(0), node.input(1))
    return _product(node, chain, node.operator, np.float32(1))


def rescaled_matmul(node: Node) -> relax.Expr | None:
    """What a multiplication or division by a number makes of a `scaled_matmul`, multiplied only once; None for other
    operators."""
    chain = Chain(node)
    scaled = _scaled(chain, node.operator)
    writer = None if scaled is None else chain.only(scaled[0], "MatMul")
    if scaled is None or writer is None or not _is_of_two_computed(chain, writer):
        return None
    return _product(node, chain, writer, scaled[1])


def _product(node: Node, chain: Chain, matmul: Operator, factor: np.float32) -> relax.Expr:
    operands, factors = zip(*(_without_factor(node, chain, name) for name in matmul.inputs), strict=True)
    product, factor = node.emit(relax.op.matmul(*operands)), factors[0] * factors[1] * factor
    return product if factor == 1 else relax.op.multiply(product, constant(factor))


def _is_of_two_computed(chain: Chain, matmul: Operator) -> bool:
    operands = [chain.value(name) for name in matmul.inputs]
    return all(constant_value(value) is None and str(value.ty.dtype) == "float32" for value in operands)


def _without_factor(node: Node, chain: Chain, name: str) -> tuple[relax.Expr, np.float32]:
    """An operand, possibly with its last two axes swapped, before it was multiplied, and by what."""
    operand, factor = chain.value(name), np.float32(1)
    rank = len(shape_of(operand))
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    transposed = chain.before(name, "Transpose")
    is_swapped = transposed is not None and transposed.attributes.get("perm") == swapped
    if transposed is not None and is_swapped:
        name = transposed.inputs[0]
    while (scaled := _scaled(chain, chain.before(name, "Mul") or chain.before(name, "Div"))) is not None:
        name, factor = scaled[0], factor * scaled[1]
    if factor == 1:
        return operand, factor
    value = chain.value(name)
    return node.emit(relax.op.permute_dims(value, swapped)) if is_swapped else value, factor


def _scaled(chain: Chain, operator: Operator | None) -> tuple[str, np.float32] | None:
    """The tensor that a Mul or Div multiplies or divides by a number, and the factor; None for other numbers."""
    if operator is None:
        return None
    divides = operator.op_type == "Div"
    for data, other in (operator.inputs, operator.inputs[::-1])[: 1 if divides else 2]:
        value = chain.number(other)
        if value is not None and value != 0 and np.isfinite(value):
            return data, np.float32(1) / value if divides else value
    return None

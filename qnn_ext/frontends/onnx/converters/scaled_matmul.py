"""Float products of two computed tensors whose operands or results are multiplied by numbers, as attention's are: ONNX
Runtime multiplies once, behind the product."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ....op.base import constant_value, shape_of
from ..assembly import OnnxAssembly
from ..node import Node
from ..reader import Operator
from .arithmetic import number


def scaled_matmul(node: Node) -> relax.Expr:
    """A · B, multiplied by what A and B were multiplied by."""
    if not _is_of_two_computed(node.assembly, node.operator):
        return relax.op.matmul(node.input(0), node.input(1))
    return _product(node, node.operator, np.float32(1))


def rescaled_matmul(node: Node) -> relax.Expr | None:
    """What a multiplication or division by a number makes of a `scaled_matmul`, multiplied only once; None for other
    operators."""
    scaled, graph = _scaled(node.assembly, node.operator), node.assembly.neighbours
    writer = None if scaled is None else graph.writers.get(scaled[0])
    if scaled is None or writer is None or graph.only_reader(writer.outputs[0]) is not node.operator:
        return None
    return _product(node, writer, scaled[1]) if _is_of_two_computed(node.assembly, writer) else None


def _product(node: Node, operator: Operator, factor: np.float32) -> relax.Expr:
    operands, factors = zip(*(_without_factor(node, name) for name in operator.inputs), strict=True)
    product, factor = node.emit(relax.op.matmul(*operands)), factors[0] * factors[1] * factor
    return product if factor == 1 else relax.op.multiply(product, number(float(factor)))


def _is_of_two_computed(assembly: OnnxAssembly, operator: Operator) -> bool:
    if operator.op_type != "MatMul" or operator.domain:
        return False
    operands = [assembly.value(name) for name in operator.inputs]
    return all(constant_value(value) is None and str(value.ty.dtype) == "float32" for value in operands)


def _without_factor(node: Node, name: str) -> tuple[relax.Expr, np.float32]:
    """An operand, possibly with its last two axes swapped, before it was multiplied, and by what."""
    assembly, writers, factor = node.assembly, node.assembly.neighbours.writers, np.float32(1)
    operand = assembly.value(name)
    rank = len(shape_of(operand))
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    transposed = writers.get(name)
    is_swapped = transposed is not None and transposed.attributes.get("perm") == swapped
    if transposed is not None and is_swapped:
        name = transposed.inputs[0]
    while (writer := writers.get(name)) is not None and (scaled := _scaled(assembly, writer)) is not None:
        name, factor = scaled[0], factor * scaled[1]
    if factor == 1:
        return operand, factor
    value = assembly.value(name)
    return node.emit(relax.op.permute_dims(value, swapped)) if is_swapped else value, factor


def _scaled(assembly: OnnxAssembly, operator: Operator) -> tuple[str, np.float32] | None:
    """The tensor that an operator multiplies or divides by a number, and the factor; None for other operators."""
    if operator.op_type not in ("Mul", "Div") or operator.domain:
        return None
    for data, other in (operator.inputs, operator.inputs[::-1])[: 2 if operator.op_type == "Mul" else 1]:
        known = constant_value(assembly.value(other))
        if known is None or known.dtype != np.float32 or known.size != 1 or known.ndim > 1:
            continue
        value = np.float32(known.item())
        if value != 0 and np.isfinite(value):
            return data, value if operator.op_type == "Mul" else np.float32(1) / value
    return None

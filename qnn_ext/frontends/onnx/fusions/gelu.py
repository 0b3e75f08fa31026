"""GELUs that are written out: ONNX Runtime multiplies by √½ where the first operator divides by √2, and makes one
operator of those by tanh."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op.base import constant
from ..node import Node
from ..reader import Operator
from .chain import Chain

_SLOPE, _CUBIC = math.sqrt(2.0 / math.pi), 0.044715


def gelu_argument(node: Node) -> relax.Expr | None:
    """x · √½ for x / √2, if that is only read by erf(…) + 1, multiplied; None otherwise."""
    chain = Chain(node)
    if chain.number(node.operator.inputs[1]) != np.float32(math.sqrt(2.0)):
        return None
    following = node.operator
    for op_type in ("Erf", "Add", "Mul"):
        reader = chain.after(following, op_type)
        if reader is None:
            return None
        following = reader
    return relax.op.multiply(node.input(0), constant(np.float32(math.sqrt(0.5))))


def gelu_by_tanh(node: Node) -> relax.Expr | None:
    """½·x · (1 + tanh(√(2/π) · x · (1 + 0.044715·x²))), or with x + 0.044715·x³, if that is what a Mul of both ends;
    None otherwise. ONNX Runtime finds none whose result the graph returns."""
    chain = Chain(node)
    for name, other in (node.operator.inputs, node.operator.inputs[::-1]):
        half, raised = _scaled(chain, name, 0.5), chain.only(other, "Add")
        name_of_tanh = None if raised is None else _operand_beside(chain, raised, 1.0)
        tanh = chain.only(name_of_tanh, "Tanh") if name_of_tanh else None
        if half is None or tanh is None or node.operator.outputs[0] in node.assembly.neighbours.outputs:
            continue
        x = chain.value(half)
        if str(x.ty.dtype) == "float32" and _is_inner(chain, tanh.inputs[0], half):
            return qnn.float_function(x, "gelu_tanh")
    return None


def _is_inner(chain: Chain, name: str, x: str) -> bool:
    """Whether a value is √(2/π) · (x + 0.044715·x³), or (√(2/π)·x) · (1 + 0.044715·x·x)."""
    total = _scaled(chain, name, _SLOPE)
    added = chain.only(total, "Add") if total else None
    if added is not None:
        return any(one == x and _is_scaled_cube(chain, other, x) for one, other in (added.inputs, added.inputs[::-1]))
    product = chain.only(name, "Mul")
    if product is None:
        return False
    for scaled, other in (product.inputs, product.inputs[::-1]):
        raised = chain.only(other, "Add")
        square = raised and _operand_beside(chain, raised, 1.0)
        if square and _scaled(chain, scaled, _SLOPE) == x and _is_scaled_square(chain, square, x):
            return True
    return False


def _is_scaled_cube(chain: Chain, name: str, x: str) -> bool:
    cube = _scaled(chain, name, _CUBIC)
    power = chain.only(cube, "Pow") if cube else None
    return power is not None and power.inputs[0] == x and _is_number(chain, power.inputs[1], 3.0)


def _is_scaled_square(chain: Chain, name: str, x: str) -> bool:
    product = chain.only(name, "Mul")
    return product is not None and any(
        one == x and _scaled(chain, other, _CUBIC) == x for one, other in (product.inputs, product.inputs[::-1])
    )


def _scaled(chain: Chain, name: str, factor: float) -> str | None:
    """What a Mul whose result is read once multiplies by a number."""
    product = chain.only(name, "Mul")
    return None if product is None else _operand_beside(chain, product, factor)


def _operand_beside(chain: Chain, operator: Operator, number: float) -> str | None:
    """The other operand of an operator of two, one of which is a number."""
    for name, other in (operator.inputs, operator.inputs[::-1]):
        if _is_number(chain, other, number):
            return name
    return None


def _is_number(chain: Chain, name: str, expected: float) -> bool:
    """Whether ONNX Runtime takes a constant for this number."""
    value = chain.number(name)
    return value is not None and math.isclose(float(value), expected, rel_tol=1e-5, abs_tol=1e-8)

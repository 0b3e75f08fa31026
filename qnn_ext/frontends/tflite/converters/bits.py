"""BITWISE_XOR and RIGHT_SHIFT."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ....op.base import constant
from ..integers import require_dtype, same_dtype
from ..node import Node
from ..registry import converter

_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")


@converter("BITWISE_XOR", max_version=1)
def convert_bitwise_xor(node: Node) -> relax.Expr:
    """The bits in which the operands differ."""
    require_dtype(node, same_dtype(node, 0, 1), *_INTEGERS)
    return relax.op.bitwise_xor(node.input(0), node.input(1))


@converter("RIGHT_SHIFT", max_version=1)
def convert_right_shift(node: Node) -> relax.Expr:
    """x >> n with x's sign; n counts as at least 0 and at most one bit less than x has."""
    dtype = same_dtype(node, 0, 1)
    require_dtype(node, dtype, *_INTEGERS)
    most = np.iinfo(dtype).bits - 1
    bits = node.emit(relax.op.minimum(node.input(1), constant(np.array(most, dtype))))
    bits = node.emit(relax.op.maximum(bits, constant(np.array(0, dtype))))
    return relax.op.right_shift(node.input(0), bits)

"""GELUs that are written out: ONNX Runtime multiplies by √½ where the first operator divides by √2."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ....op.base import constant
from ..node import Node
from .chain import Chain


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

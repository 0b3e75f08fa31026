"""Constant folding: calls of constants, computed by the references."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..limits import checkpoint, most_folded
from .base import constant, constant_value, module_of
from .cost import is_quick
from .evaluate import interpret

_SMALL_RESULT = 2**22  # elements that folding may create from small operands


def folded(call: relax.Call) -> relax.Expr | None:
    """The result of a call whose tensor arguments are all constant; None if one is not, if there are none or several
    results, or if the result would be large or take more than seconds."""
    values = [constant_value(leaf) for leaf in leaves(call)]
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    mod = module_of(call)
    if not _is_cheap(call, mod["main"].ret_ty, known):
        return None
    checkpoint()
    with np.errstate(all="ignore"):  # the model's own arithmetic: an infinity may well be intended
        (result,) = interpret(mod, [])
    return constant(result)


def leaves(call: relax.Call) -> list[Any]:
    """The tensor arguments of a call, with tuples unpacked and without shapes and plain numbers."""
    parts = [part for arg in call.args for part in (arg.fields if isinstance(arg, relax.Tuple) else (arg,))]
    return [part for part in parts if not isinstance(part, (relax.ShapeExpr, tirx.IntImm, tirx.FloatImm))]


def _is_cheap(call: relax.Call, result: Any, operands: Sequence[np.ndarray]) -> bool:
    """Whether a result is small, or about as big as its operands, and computed in a few seconds."""
    if not isinstance(result, relax.TensorType):
        return False
    size = math.prod(int(dim) for dim in result.shape)
    if size > min(max(_SMALL_RESULT, 2 * max(operand.size for operand in operands)), most_folded()):
        return False
    return is_quick(call, size, operands)

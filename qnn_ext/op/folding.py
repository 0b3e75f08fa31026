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

_LONGEST_CHAIN = 256  # calls on the way from constants to a value
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


def known_value(builder: relax.BlockBuilder, expr: Any) -> np.ndarray | None:
    """The value of an expression that depends on constants alone, through whatever computes it: as shapes whose
    arithmetic a quantizer has quantized. None if it depends on an input, or what computes it is long or costly."""
    bindings: dict[Any, relax.Call] = {}
    pending = [expr]
    while pending:
        one = pending.pop()
        if one in bindings or constant_value(one) is not None:
            continue
        call = builder.lookup_binding(one) if isinstance(one, relax.Var) else None
        if not isinstance(call, relax.Call) or len(bindings) == _LONGEST_CHAIN:
            return None
        bindings[one] = call
        pending += leaves(call)
    known: dict[Any, relax.Expr] = {}
    order = [expr]
    while order:
        one = order[-1]
        if one not in bindings or one in known:
            order.pop()
            continue
        missing = [leaf for leaf in leaves(bindings[one]) if leaf in bindings and leaf not in known]
        if missing:
            order += missing
            continue
        found = folded(_with_known(bindings[one], known))
        if found is None:
            return None
        known[one] = found
    return constant_value(known.get(expr, expr))


def _with_known(call: relax.Call, known: dict[Any, relax.Expr]) -> relax.Call:
    def replaced(arg: Any) -> Any:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([replaced(field) for field in arg.fields])
        return known.get(arg, arg) if isinstance(arg, relax.Var) else arg

    return relax.Call(call.op, [replaced(arg) for arg in call.args], call.attrs, call.ty_args)


def leaves(call: relax.Call) -> list[Any]:
    """The tensor arguments of a call, with tuples unpacked and without shapes and plain numbers."""
    parts = [part for arg in call.args[:] for part in (arg.fields[:] if isinstance(arg, relax.Tuple) else (arg,))]
    return [part for part in parts if not isinstance(part, (relax.ShapeExpr, tirx.IntImm, tirx.FloatImm))]


def _is_cheap(call: relax.Call, result: Any, operands: Sequence[np.ndarray]) -> bool:
    """Whether a result is small, or about as big as its operands, and computed in a few seconds."""
    if not isinstance(result, relax.TensorType):
        return False
    size = math.prod(int(dim) for dim in result.shape)
    if size > min(max(_SMALL_RESULT, 2 * max(operand.size for operand in operands)), most_folded()):
        return False
    return is_quick(call, size, operands)

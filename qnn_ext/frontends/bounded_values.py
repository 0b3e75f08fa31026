"""Bounds of integers that a model computes, as far as they follow from what computes them: the largest value of one
that is a size."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, TypeAlias

import numpy as np
from tvm import relax

from ..op.arguments import data_of
from ..op.base import constant_value, shape_of
from ..op.cost import attribute
from ..op.relax_table import traits_of
from ..op.traits import Kind
from ..passes.rewrite import op_name

Bounds: TypeAlias = "tuple[int, int] | None"
Of: TypeAlias = "Callable[[Any], Bounds]"
_DEEPEST = 64
_BYTES = ("bool", "int8", "uint8")


def bounds_of(builder: relax.BlockBuilder, value: relax.Expr) -> Bounds:
    """The least and the largest value that elements of an integer or bool tensor can have. None if only its dtype
    bounds them and has more than 8 bits."""
    return _bounds(builder, value, 0, {})


def scalars_of(builder: Any, value: relax.Expr) -> list[Any]:
    """The elements of an integer vector, each an integer or a scalar; those of a vector joined from parts are these
    parts."""
    known, count = constant_value(value), prod(shape_of(value))
    if known is not None:
        return [int(element) for element in known.reshape(-1)]
    call = builder.lookup_binding(value) if isinstance(value, relax.Var) else value
    name = op_name(call) if isinstance(call, relax.Call) else ""
    if name == "concat" and isinstance(call.args[0], relax.Tuple):
        return [scalar for field in call.args[0].fields for scalar in scalars_of(builder, field)]
    if name in ("reshape", "expand_dims", "squeeze"):
        return scalars_of(builder, call.args[0])
    if count == 1:
        return [value if not shape_of(value) else builder.emit(relax.op.reshape(value, ()))]
    parts = [builder.emit(relax.op.strided_slice(value, [0], [place], [place + 1])) for place in range(count)]
    return [builder.emit(relax.op.reshape(part, ())) for part in parts]


def _bounds(builder: relax.BlockBuilder, value: relax.Expr, depth: int, known: dict[relax.Expr, Bounds]) -> Bounds:
    """known: the bounds of expressions seen before; a graph may lead to one in any number of ways"""
    if value not in known:
        known[value] = _found(builder, value, depth, known)
    return known[value]


def _found(builder: relax.BlockBuilder, value: relax.Expr, depth: int, seen: dict[relax.Expr, Bounds]) -> Bounds:
    dtype, known = str(value.ty.dtype), constant_value(value)
    if dtype.startswith(("float", "bfloat")):
        return None
    if known is not None:
        return (int(known.min()), int(known.max())) if known.size else None
    low, high = (0, 1) if dtype == "bool" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    call = builder.lookup_binding(value) if isinstance(value, relax.Var) else value
    if depth < _DEEPEST and isinstance(call, relax.Call):
        found = _of_call(call, lambda operand: _bounds(builder, operand, depth + 1, seen))
        if found is not None and low <= found[0] and found[1] <= high:  # else it may wrap around
            return found
    return (low, high) if dtype in _BYTES else None


def _of_call(call: relax.Call, of: Of) -> Bounds:
    rule, traits = _RULES.get(op_name(call)), traits_of(call)
    if rule is not None:
        return rule(call, of)
    moves = traits.kind is Kind.SELECTION or (traits.kind is Kind.MOVE and traits.fill is None)
    return of(data_of(call)) if moves and isinstance(data_of(call).ty, relax.TensorType) else None


def _sum(call: relax.Call, of: Of) -> Bounds:
    data = of(data_of(call))
    count = prod(shape_of(data_of(call))) // max(prod(shape_of(call)), 1)
    return None if data is None else (count * data[0], count * data[1])


def _position(call: relax.Call, of: Of) -> Bounds:
    shape, axis = shape_of(data_of(call)), attribute(call, "axis")
    return 0, max(prod(shape) if axis is None else shape[int(axis)], 1) - 1


def _ends(function: Callable[[int, int], int]) -> Callable[[relax.Call, Of], Bounds]:
    """Of a function that is monotonic in each operand: its extremes are at the ends of the operands' bounds."""

    def rule(call: relax.Call, of: Of) -> Bounds:
        one, two = (of(operand) for operand in call.args)
        if one is None or two is None:
            return None
        found = [function(a, b) for a in one for b in two]
        return min(found), max(found)

    return rule


def _or_any(value: relax.Expr, of: Of) -> tuple[int, int]:
    """The bounds of an operand, those of its dtype if nothing else bounds it."""
    limits = np.iinfo(str(value.ty.dtype))
    return of(value) or (int(limits.min), int(limits.max))


def _extreme(function: Callable[[int, int], int]) -> Callable[[relax.Call, Of], Bounds]:
    """A minimum or maximum, which is bounded if one operand is."""

    def rule(call: relax.Call, of: Of) -> Bounds:
        if all(of(operand) is None for operand in call.args):
            return None
        one, two = (_or_any(operand, of) for operand in call.args)
        return function(one[0], two[0]), function(one[1], two[1])

    return rule


def _clipped(call: relax.Call, of: Of) -> Bounds:
    data, *ends = call.args
    low, high = (int(end.value) for end in ends)
    least, most = (min(max(end, low), high) for end in _or_any(data, of))
    return least, most


_RULES: dict[str, Callable[[relax.Call, Of], Bounds]] = {
    "add": _ends(lambda a, b: a + b),
    "subtract": _ends(lambda a, b: a - b),
    "multiply": _ends(lambda a, b: a * b),
    "minimum": _extreme(min),
    "maximum": _extreme(max),
    "clip": _clipped,
    "astype": lambda call, of: of(call.args[0]),
    "sum": _sum,
    "argmax": _position,
    "argmin": _position,
    "qnn.check_bounds": lambda call, of: (min(attribute(call, "low")), max(attribute(call, "high"))),
}

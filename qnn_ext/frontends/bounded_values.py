"""Bounds of numbers that a model computes, as far as they follow from what computes them: the largest value of one
that is a size.

Bounds of floats hold for all but NaN: the functions below are monotonic, and so is rounding, hence bounds are rounded
as the values are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

Bounds: TypeAlias = "tuple[Any, Any] | None"
Of: TypeAlias = "Callable[[Any], Bounds]"
_DEEPEST = 64
_BYTES = ("bool", "int8", "uint8")


def bounds_of(builder: relax.BlockBuilder, value: relax.Expr) -> Bounds:
    """The least and the largest value that elements of a tensor can have. None if only its dtype bounds them and has
    more than 8 bits."""
    return _bounds(builder, value, 0, {})


def scalars_of(builder: Any, value: relax.Expr) -> list[Any]:
    """The elements of an integer vector, each an integer, a size, or a scalar; those of a vector joined from parts are
    these parts."""
    known, count = builder.sizes.elements(value), prod(shape_of(value))
    if known is not None:
        return known.reshape(-1).tolist()
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
    floats = dtype.startswith("float")
    if known is not None and dtype != "bfloat16":
        ends = (known.min(), known.max()) if known.size else None
        return ends and _inside(floats, ends if floats else tuple(map(int, ends)))
    expr = builder.lookup_binding(value) if isinstance(value, relax.Var) else value
    if isinstance(expr, relax.TupleGetItem) and isinstance(expr.tuple_value, relax.Var):
        call = builder.lookup_binding(expr.tuple_value)  # the parts of a split
        expr = call if isinstance(call, relax.Call) and traits_of(call).kind is Kind.MOVE else None
    if depth < _DEEPEST and isinstance(expr, relax.Call):
        with np.errstate(all="ignore"):
            found = _of_call(expr, lambda operand: _bounds(builder, operand, depth + 1, seen))
        if found is not None:
            found = _inside(floats, tuple(np.dtype(dtype).type(end) if floats else int(end) for end in found))
        low, high = (-np.inf, np.inf) if floats else _limits(dtype)
        if found is not None and low <= found[0] and found[1] <= high:  # else it may wrap around
            return found
    return _limits(dtype) if dtype in _BYTES else None


def _inside(floats: bool, ends: Any) -> Bounds:
    return None if floats and np.isnan(ends).any() else ends


def _limits(dtype: str) -> tuple[int, int]:
    return (0, 1) if dtype == "bool" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def _of_call(call: relax.Call, of: Of) -> Bounds:
    rule, traits = _RULES.get(op_name(call)), traits_of(call)
    if rule is not None:
        return rule(call, of)
    if traits.kind is Kind.JOIN:
        return _any_of(call, list(data_of(call).fields), of)
    moves = traits.kind is Kind.SELECTION or (traits.kind is Kind.MOVE and traits.fill is None)
    return of(data_of(call)) if moves and isinstance(data_of(call).ty, relax.TensorType) else None


def _any_of(call: relax.Call, operands: Sequence[relax.Expr], of: Of) -> Bounds:
    """The bounds of an element of one of these operands."""
    found = [of(operand) for operand in operands if prod(shape_of(operand))]
    if None in found or not found:
        return None
    lows, highs = zip(*found, strict=True)  # type: ignore[arg-type]
    return min(lows), max(highs)


def _sum(call: relax.Call, of: Of) -> Bounds:
    data = of(data_of(call))
    count = prod(shape_of(data_of(call))) // max(prod(shape_of(call)), 1)
    return None if data is None or isinstance(data[0], np.floating) else (count * data[0], count * data[1])


def _position(call: relax.Call, of: Of) -> Bounds:
    shape, axis = shape_of(data_of(call)), attribute(call, "axis")
    return 0, max(prod(shape) if axis is None else shape[int(axis)], 1) - 1


def _ends(function: Callable[[Any, Any], Any]) -> Callable[[relax.Call, Of], Bounds]:
    """Of a function that is monotonic in each operand: its extremes are at the ends of the operands' bounds."""

    def rule(call: relax.Call, of: Of) -> Bounds:
        one, two = (of(operand) for operand in call.args)
        if one is None or two is None:
            return None
        found = [function(a, b) for a in one for b in two]
        return min(found), max(found)

    return rule


def _along(function: Callable[[Any], Any]) -> Callable[[relax.Call, Of], Bounds]:
    """Of a monotonic function of one operand."""

    def rule(call: relax.Call, of: Of) -> Bounds:
        data = of(call.args[0])
        return None if data is None else (function(data[0]), function(data[1]))

    return rule


def _quotient(call: relax.Call, of: Of) -> Bounds:
    """Of a division of floats by floats of one sign."""
    divisor = of(call.args[1])
    ends = divisor is not None and isinstance(divisor[0], np.floating) and not divisor[0] <= 0 <= divisor[1]
    return _DIVIDE(call, of) if ends else None


def _remainder(call: relax.Call, of: Of) -> Bounds:
    """Of a division by positive integers, rounded down."""
    divisor = of(call.args[1])
    return None if divisor is None or divisor[0] <= 0 else (0, divisor[1] - 1)


def _converted(call: relax.Call, of: Of) -> Bounds:
    """Integers from floats are these without their fraction."""
    data, dtype = of(call.args[0]), str(call.attrs.dtype)
    if data is None or dtype.startswith(("float", "bfloat")):
        return data
    return (int(data[0]), int(data[1])) if dtype != "bool" and np.isfinite(data).all() else None


def _dequantized(call: relax.Call, of: Of) -> Bounds:
    """(q − zero point) · scale, for known parameters."""
    data, scale, zero_point = of(call.args[0]), constant_value(call.args[1]), constant_value(call.args[2])
    if data is None or scale is None or zero_point is None:
        return None
    ends = np.stack([(np.float32(end) - zero_point.astype(np.float32)) * scale for end in data])
    return ends.min(), ends.max()


def _or_any(value: relax.Expr, of: Of) -> tuple[Any, Any]:
    """The bounds of an operand, those of its dtype if nothing else bounds it."""
    dtype = str(value.ty.dtype)
    return of(value) or ((-np.inf, np.inf) if dtype.startswith(("float", "bfloat")) else _limits(dtype))


def _extreme(function: Callable[[Any, Any], Any]) -> Callable[[relax.Call, Of], Bounds]:
    """A minimum or maximum, which is bounded if one operand is."""

    def rule(call: relax.Call, of: Of) -> Bounds:
        if all(of(operand) is None for operand in call.args):
            return None
        one, two = (_or_any(operand, of) for operand in call.args)
        return function(one[0], two[0]), function(one[1], two[1])

    return rule


def _clipped(call: relax.Call, of: Of) -> Bounds:
    data, *ends = call.args
    number = float if str(data.ty.dtype).startswith(("float", "bfloat")) else int
    low, high = (number(end.value) for end in ends)
    least, most = (min(max(end, low), high) for end in _or_any(data, of))
    return least, most


_DIVIDE = _ends(lambda a, b: a / b)
_RULES: dict[str, Callable[[relax.Call, Of], Bounds]] = {
    "add": _ends(lambda a, b: a + b),
    "subtract": _ends(lambda a, b: a - b),
    "multiply": _ends(lambda a, b: a * b),
    "minimum": _extreme(min),
    "maximum": _extreme(max),
    "clip": _clipped,
    "astype": _converted,
    "qnn.dequantize": _dequantized,
    "where": lambda call, of: _any_of(call, call.args[1:], of),
    "divide": _quotient,
    "floor_mod": _remainder,
    "negative": lambda call, of: None if (data := of(call.args[0])) is None else (-data[1], -data[0]),
    "floor": _along(np.floor),
    "ceil": _along(np.ceil),
    "round": _along(np.round),
    "nn.relu": _along(lambda end: max(end, 0)),
    "sum": _sum,
    "argmax": _position,
    "argmin": _position,
    "qnn.check_bounds": lambda call, of: (min(attribute(call, "low")), max(attribute(call, "high"))),
}

"""Sink: moves reshapes behind the elementwise operators that follow them, where they cancel or cost nothing.

A matrix product of a batch, or a convolution over one or three dimensions, is computed in another shape than the model
sees. Its bias, scales and activation then stand behind a reshape, out of reach of its kernel; computed in the shape of
the product they are in it, and the reshapes of one product and the next meet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..op.base import OPS, call_attributes, constant, constant_value, definition_of, shape_of
from .fuse import is_elementwise
from .layout.forms import is_tensor, static_shape
from .layout.reshapes import blocks
from .rewrite import Emit, op_name, rewrite

MOVES = ("reshape", "flatten", "squeeze", "expand_dims", "nn.batch_flatten")
# operators whose arguments behind the first few are scales, zero points or tables: how many are data, and which
# attributes name an axis of each of them
DATA: dict[str, tuple[int, tuple[str, ...]]] = {
    **{f"qnn.{name}": (1, ("axis",)) for name in ("quantize", "dequantize", "requantize")},
    **{f"qnn.{name}": (2, ("lhs_axis", "rhs_axis")) for name in ("add", "subtract", "mul")},
    **{f"qnn.{name}": (2, ()) for name in ("qlinear_add", "qlinear_mul", "prelu")},
    "qnn.table": (1, ()),
}


def sink_reshapes(mod: IRModule) -> IRModule:
    """`mod` with every elementwise operator behind a reshape computed in the shape in front of it."""
    sources: dict[Any, Any] = {}  # variable -> what it is a reshape of

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        if op_name(expr) in MOVES and isinstance(expr.args[0], relax.Var):
            var = emit(expr)
            moved = reshaped(sources.get(expr.args[0], expr.args[0]), static_shape(var), emit)
            return var if moved is None else moved
        if not is_elementwise(expr):
            return None
        var = emit(expr)
        shape = static_shape(var)
        moved = None if shape is None else _in_front(expr, shape, sources, emit)
        return var if moved is None else reshaped(moved, shape, emit)

    def reshaped(source: Any, shape: tuple[int, ...] | None, emit: Emit) -> Any:
        if shape is None or static_shape(source) is None:
            return None
        if shape_of(source) == shape:
            return source
        var = emit(relax.op.reshape(source, list(shape)))
        sources[var] = source
        return var

    return rewrite(mod, rule)


def _in_front(expr: relax.Call, shape: tuple[int, ...], sources: dict[Any, Any], emit: Emit) -> Any:
    """The operator on what its operands were reshaped from, or None."""
    count, axes = DATA.get(op_name(expr), (len(expr.args), ()))
    data = [arg for arg in expr.args[:count] if is_tensor(arg)]
    source = next((sources[v] for v in data if v in sources and shape_of(v) == shape), None)
    if source is None or 0 in shape:
        return None
    wanted = shape_of(source)
    pairs = blocks(shape, wanted)
    args = [_moved(arg, shape, wanted, pairs, sources, emit) if is_tensor(arg) else arg for arg in expr.args[:count]]
    if any(arg is None for arg in args):
        return None
    args += expr.args[count:]
    if definition_of(expr) is None:
        return emit(relax.Call(expr.op, args, expr.attrs, expr.ty_args))
    attributes = call_attributes(expr)
    for name, before, after, scale in zip(axes, expr.args, args, _vectors(expr, axes), strict=False):
        axis = _moved_axis(attributes[name], before, after, shape, wanted, pairs) if scale else 0
        if axis is None:
            return None
        attributes[name] = axis
    return emit(OPS[op_name(expr).removeprefix("qnn.")].call(*args, **attributes))


def _vectors(expr: relax.Call, axes: tuple[str, ...]) -> list[bool]:
    """Whether each operand has parameters along its axis, as opposed to single numbers."""
    count = len(axes)
    parameters = expr.args[count:]
    if count == 1:
        return [any(np.prod(shape_of(p)) > 1 for p in parameters)]
    return [any(np.prod(shape_of(p)) > 1 for p in parameters[2 * i : 2 * i + 2]) for i in range(count)]


def _moved(operand: Any, shape: tuple, wanted: tuple, pairs: list, sources: dict[Any, Any], emit: Emit) -> Any:
    """An operand of a result of `shape`, reshaped for a result of `wanted`; None if it is broadcast inside a block."""
    own = shape_of(operand)
    if operand in sources and own == shape and shape_of(sources[operand]) == wanted:
        return sources[operand]
    full = (1,) * (len(shape) - len(own)) + own
    target = [1] * len(wanted)
    for before, after in pairs:
        if all(full[axis] == shape[axis] for axis in before):
            for axis in after:
                target[axis] = wanted[axis]
        elif any(full[axis] != 1 for axis in before):
            return None
    value = constant_value(operand)
    if value is not None:
        lead = next((i for i, size in enumerate(target) if size != 1), len(target))
        return constant(value.reshape(target[lead:]))
    return emit(relax.op.reshape(operand, target)) if tuple(target) != own else operand


def _moved_axis(axis: int, before: Any, after: Any, shape: tuple, wanted: tuple, pairs: list) -> int | None:
    """An axis of an operand as one of the moved operand; None if a block tears it apart."""
    ndim = len(shape_of(before))
    of_result = axis % ndim + len(shape) - ndim
    found = next((pair[1] for pair in pairs if pair[0] == (of_result,) and len(pair[1]) == 1), None)
    return None if found is None else found[0] - (len(wanted) - len(shape_of(after)))

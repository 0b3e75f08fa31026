"""Sink: moves reshapes past the elementwise operators that follow them, to where they cancel or cost nothing.

A batched matrix product, or a convolution over one or three dimensions, is computed in a different shape from the
model's. Its bias, scales and activation then come after a reshape, out of reach of its kernel; computed in the shape of
the product they become part of the kernel, and the reshapes of one product and the next meet. What is already computed
in the shape of a product stays there: a residual sum belongs to the product's kernel, whatever its other operand is.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import IRModule, relax

from ..op.arguments import data_of
from ..op.base import constant, constant_value, shape_of
from ..op.cost import attribute
from ..op.relax_table import traits_of
from ..op.traits import Data, Kind, Traits
from .fuse import is_elementwise
from .layout.forms import is_tensor, static_shape
from .layout.propagation import rebuild
from .layout.reshapes import blocks
from .rewrite import Emit, operands, rewrite


def sink_reshapes(mod: IRModule) -> IRModule:
    """`mod` with every elementwise operator that follows a reshape computed in the shape before it."""
    sources: dict[Any, Any] = {}  # variable -> what it is a reshape of
    products: set[Any] = set()  # variables in the shape of a product: its result, and elementwise operators behind it

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        if traits_of(expr).reshapes and isinstance(data := data_of(expr), relax.Var):
            var = emit(expr)
            moved = reshaped(sources.get(data, data), static_shape(var), emit)
            return var if moved is None else moved
        if traits_of(expr).kind is Kind.ACCUMULATOR:
            var = emit(expr)
            products.add(var)
            return var
        if not is_elementwise(expr):
            return None
        var = emit(expr)
        shape = static_shape(var)
        if any(operand in products and static_shape(operand) == shape for operand in operands(expr)):
            products.add(var)
            return var
        moved = None if shape is None else _in_front(expr, shape, sources, products, emit)
        if moved is None:
            return var
        if any(operand in products for operand in map(sources.get, operands(expr))):
            products.add(moved)
        return reshaped(moved, shape, emit)

    def reshaped(source: Any, shape: tuple[int, ...] | None, emit: Emit) -> Any:
        if shape is None or static_shape(source) is None or 0 in shape:  # which means to TVM: as before
            return None
        if shape_of(source) == shape:
            return source
        var = emit(relax.op.reshape(source, list(shape)))
        sources[var] = source
        return var

    return rewrite(mod, rule)


def _in_front(expr: relax.Call, shape: tuple[int, ...], sources: dict[Any, Any], products: set[Any], emit: Emit) -> Any:
    """The operator applied to the sources of its reshaped operands, in the shape of a product if one is among them; or
    None."""
    traits, args = traits_of(expr), list(expr.args)
    positions = [traits.index(one.name) for one in traits.data]
    data = [args[i] for i in positions if is_tensor(args[i])]
    found = [sources[v] for v in data if v in sources and shape_of(v) == shape]
    source = min(found, key=lambda one: one not in products, default=None)
    if source is None or 0 in shape:
        return None
    wanted = shape_of(source)
    pairs = blocks(shape, wanted)
    for i in positions:
        if is_tensor(args[i]):
            args[i] = _moved(args[i], shape, wanted, pairs, sources, emit)
    if any(arg is None for arg in args):
        return None
    changes = {}
    for i, one in zip(positions, traits.data, strict=True):
        if one.axis is None:
            continue
        vectors = _has_vectors(expr, traits, one)
        own = int(attribute(expr, one.axis))
        axis = _moved_axis(own, expr.args[i], args[i], shape, wanted, pairs) if vectors else 0
        slopes_alone = one.scale is None and not shape_of(args[i])  # nn.prelu takes no scalar
        if axis is None or slopes_alone:
            return None
        changes[one.axis] = axis
    return emit(rebuild(expr, args, **changes))


def _has_vectors(call: relax.Call, traits: Traits, data: Data) -> bool:
    """Whether an operand, or the result if it uses the same axis attribute, has per-channel parameters, not scalars."""
    names = [data.scale, data.zero_point]
    if traits.output is not None and traits.output.axis == data.axis:
        names += [traits.output.scale, traits.output.zero_point]
    if data.scale is None:
        names += traits.others  # slopes of nn.prelu
    return any(math.prod(shape_of(traits.argument(call, name))) > 1 for name in names if name is not None)


def _moved(operand: Any, shape: tuple, wanted: tuple, pairs: list, sources: dict[Any, Any], emit: Emit) -> Any:
    """An operand for a result of `shape`, reshaped for a result of `wanted`; None if it is broadcast inside a block."""
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
    """The axis of the moved operand that corresponds to an axis of the original; None if a block breaks it up."""
    ndim = len(shape_of(before))
    of_result = axis % ndim + len(shape) - ndim
    found = next((pair[1] for pair in pairs if pair[0] == (of_result,) and len(pair[1]) == 1), None)
    return None if found is None else found[0] - (len(wanted) - len(shape_of(after)))

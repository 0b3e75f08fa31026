"""Sink shuffles: moves the operators that reorder or crop a product's result past the elementwise operators after them.

A transposed convolution is computed with the phases of its output as channels, which a reshape, a transpose and a crop
then put in place. If bias, scales and activation come before these, per phase, the product's kernel applies them, and
bytes are shuffled instead of accumulators. Elementwise operators commute with any such move; constants must be the same
for all elements of a channel of the product, which is decided by tracing every element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..op.arguments import data_of, with_data
from ..op.base import call_attributes, constant, constant_value, definition_of, shape_of
from ..op.cost import attribute
from ..op.relax_table import traits_of
from ..op.traits import Kind
from .fuse import is_elementwise
from .layout.forms import is_tensor, static_shape
from .layout.propagation import rebuild
from .matrix_moves import MOST, axes_of
from .rewrite import Emit, op_name, rewrite


@dataclass(frozen=True)
class Chain:
    """A value that results from moves of another one.

    source:   what is moved
    moves:    the calls, in order
    channels: for each element, the index along the last axis of `source` that it comes from
    """

    source: relax.Var
    moves: tuple[relax.Call, ...]
    channels: np.ndarray

    @property
    def shuffles(self) -> bool:
        """Whether it contains moves other than reshapes."""
        return any(not traits_of(move).reshapes for move in self.moves)


def sink_shuffles(mod: IRModule) -> IRModule:
    """`mod` with every elementwise operator on a shuffled product computed before the shuffle."""
    products: set[Any] = set()
    chains: dict[Any, Chain] = {}

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        if traits_of(expr).kind is Kind.ACCUMULATOR:
            var = emit(expr)
            products.add(var)
            return var
        if traits_of(expr).reshapes or op_name(expr) in _SHUFFLES:
            return _extended(expr, products, chains, emit)
        if not is_elementwise(expr):
            return None
        var = emit(expr)
        found = _in_front(expr, static_shape(var), chains, emit)
        if found is None:
            if any(arg in products and static_shape(var) == static_shape(arg) for arg in _data(expr)):
                products.add(var)
            return var
        chain, moved = found
        products.add(moved)
        result = moved
        for move in chain.moves:
            result = emit(_replayed(move, result))
        chains[result] = Chain(moved, chain.moves, chain.channels)
        return result

    return rewrite(mod, rule)


def _data(expr: relax.Call) -> list[Any]:
    """The operands of an elementwise operator, without scales, zero points and tables."""
    traits = traits_of(expr)
    return [arg for data in traits.data if is_tensor(arg := traits.argument(expr, data.name))]


def _replayed(move: relax.Call, operand: relax.Expr) -> relax.Call:
    return with_data(move, operand)


def _extended(expr: relax.Call, products: set[Any], chains: dict[Any, Chain], emit: Emit) -> relax.Expr | None:
    """A move of a product or of an already moved value, bound and recorded; None for any other."""
    operand = data_of(expr)
    if operand in products:
        shape = static_shape(operand)
        if shape is None or not 0 < int(np.prod(shape)) <= MOST:
            return None
        chain = Chain(operand, (), np.broadcast_to(np.arange(shape[-1], dtype=np.int32), shape))
    elif operand in chains:
        chain = chains[operand]
    else:
        return None
    var = emit(expr)
    channels = _SHUFFLES[op_name(expr)](chain.channels, expr) if op_name(expr) in _SHUFFLES else chain.channels
    if channels is not None and static_shape(var) is not None:
        chains[var] = Chain(chain.source, (*chain.moves, expr), channels.reshape(shape_of(var)))
    return var


def _transposed(channels: np.ndarray, call: relax.Call) -> np.ndarray:
    return channels.transpose(axes_of(call))


def _sliced(channels: np.ndarray, call: relax.Call) -> np.ndarray | None:
    """None for a slice that discards most elements: computing anything on those before it would be wasted."""
    _, *bounds = call.args
    numbers = [[int(value) for value in bound.fields] for bound in bounds]
    axes, begin, end, strides = [*numbers, [1] * len(numbers[0])][:4]
    places = [slice(None)] * channels.ndim
    for axis, first, last, step in zip(axes, begin, end, strides, strict=True):
        if first < 0 or last < 0 or step < 1:
            return None
        places[axis] = slice(first, last, step)
    kept = channels[tuple(places)]
    return kept if 2 * kept.size >= channels.size else None


def _in_front(expr: relax.Call, shape: tuple[int, ...] | None, chains: dict[Any, Chain], emit: Emit) -> Any:
    """(an operand's chain, the operator applied to that chain's source); None if it cannot be computed there."""
    chain = next((chains[arg] for arg in _data(expr) if arg in chains), None)
    if chain is None or not chain.shuffles or chain.channels.shape != shape:
        return None
    traits, definition = traits_of(expr), definition_of(expr)
    attributes = {} if definition is None else call_attributes(expr)
    args = list(expr.args)
    for data in traits.data:
        position = traits.index(data.name)
        if is_tensor(args[position]):
            args[position] = _at_source(args[position], chain, chains)
    for parameters in (*traits.data, traits.output):
        if parameters is None:
            continue
        axis = -1 if parameters.axis is None else int(attribute(expr, parameters.axis))
        for parameter in (parameters.scale, parameters.zero_point):
            if parameter is not None:
                args[traits.index(parameter)] = _per_channel(traits.argument(expr, parameter), axis, chain)
        if definition is None and parameters.axis is not None:  # nn.prelu, whose slopes are a vector
            for name in traits.others:
                args[traits.index(name)] = _vector(_per_channel(traits.argument(expr, name), axis, chain), chain)
    if any(arg is None for arg in args):
        return None
    if definition is None:
        last = len(shape_of(chain.source)) - 1
        return chain, emit(rebuild(expr, args, **{data.axis: last for data in traits.data if data.axis is not None}))
    attributes.update({data.axis: -1 for data in traits.data if data.axis is not None})
    return chain, emit(definition.call(*args, **attributes))


def _at_source(operand: Any, chain: Chain, chains: dict[Any, Chain]) -> Any:
    """An operand before the moves: the source if it has the same moves, a constant per channel; None for any other."""
    if operand in chains:
        return chains[operand].source if chains[operand].channels is chain.channels else None
    return _per_channel(operand, None, chain)


def _vector(values: Any, chain: Chain) -> Any:
    """What `_per_channel` found as a vector, even of a single value."""
    return (
        None
        if values is None
        else constant(np.broadcast_to(np.asarray(constant_value(values)), shape_of(chain.source)[-1:]))
    )


def _per_channel(operand: Any, axis: int | None, chain: Chain) -> Any:
    """A constant as one value for each of the source's channels, None if it is not that; `axis`: that of a vector."""
    value = constant_value(operand)
    if value is None:
        return None
    if value.size == 1:
        return constant(value.reshape(()))
    shape = chain.channels.shape
    if axis is not None:
        value = value.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])
    everywhere = np.broadcast_to(value, shape)
    found = np.zeros(shape_of(chain.source)[-1], value.dtype)
    found[chain.channels] = everywhere
    return constant(found) if np.array_equal(found[chain.channels], everywhere) else None


_SHUFFLES = {"permute_dims": _transposed, "strided_slice": _sliced}

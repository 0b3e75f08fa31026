"""Sink shuffles: moves what reorders or crops the result of a product behind the elementwise operators that follow.

A transposed convolution is computed with the phases of its output as channels, which a reshape, a transpose and a crop
bring to their places. With bias, scales and activation per phase in front of them, the product's kernel applies these,
and bytes are shuffled in place of accumulators. Elementwise operators commute with any such move; constants must be the
same for all elements of one of the product's channels, which is decided by following every element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..op.base import OPS, call_attributes, constant, constant_value, definition_of, shape_of
from .fuse import ANCHORS, is_elementwise
from .layout.forms import is_tensor, static_shape
from .matrix_moves import MOST, axes_of
from .rewrite import Emit, op_name, rewrite
from .sink import DATA, MOVES


@dataclass(frozen=True)
class Chain:
    """A value as moves of another one.

    source:   what is moved
    moves:    the calls, first one first
    channels: for each element, the index along the last axis of `source` where it comes from
    """

    source: relax.Var
    moves: tuple[relax.Call, ...]
    channels: np.ndarray

    @property
    def shuffles(self) -> bool:
        """Whether it is more than reshapes."""
        return any(op_name(move) not in MOVES for move in self.moves)


def sink_shuffles(mod: IRModule) -> IRModule:
    """`mod` with every elementwise operator behind a shuffled product computed in front of the shuffle."""
    products: set[Any] = set()
    chains: dict[Any, Chain] = {}

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        if op_name(expr) in ANCHORS:
            var = emit(expr)
            products.add(var)
            return var
        if op_name(expr) in MOVES or op_name(expr) in _SHUFFLES:
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
    count = DATA[op_name(expr)][0] if op_name(expr) in DATA else len(expr.args)
    return [arg for arg in expr.args[:count] if is_tensor(arg)]


def _replayed(move: relax.Call, operand: relax.Expr) -> relax.Call:
    return relax.Call(move.op, [operand, *move.args[1:]], move.attrs, move.ty_args)


def _extended(expr: relax.Call, products: set[Any], chains: dict[Any, Chain], emit: Emit) -> relax.Expr | None:
    """A move of a product, or of what is moved already; None for any other."""
    operand = expr.args[0]
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
    """None for a slice that throws most of it away: what is computed in front of that is computed in vain."""
    numbers = [[int(value) for value in arg.fields] for arg in call.args[1:]]
    axes, begin, end, strides = [*numbers, [1] * len(numbers[0])][:4]
    places = [slice(None)] * channels.ndim
    for axis, first, last, step in zip(axes, begin, end, strides, strict=True):
        if first < 0 or last < 0 or step < 1:
            return None
        places[axis] = slice(first, last, step)
    kept = channels[tuple(places)]
    return kept if 2 * kept.size >= channels.size else None


def _in_front(expr: relax.Call, shape: tuple[int, ...] | None, chains: dict[Any, Chain], emit: Emit) -> Any:
    """(an operand's chain, the operator on that chain's source); None if it cannot be computed there."""
    name = op_name(expr)
    qnn = definition_of(expr) is not None
    chain = next((chains[arg] for arg in _data(expr) if arg in chains), None)
    if chain is None or not chain.shuffles or chain.channels.shape != shape or (qnn and name not in DATA):
        return None
    count, axes = DATA.get(name, (len(expr.args), ()))
    args = [_at_source(arg, chain, chains) if is_tensor(arg) else arg for arg in expr.args[:count]]
    if any(arg is None for arg in args):
        return None
    if not qnn:
        return chain, emit(relax.Call(expr.op, args, expr.attrs, expr.ty_args))
    attributes = call_attributes(expr)
    for position, parameter in enumerate(expr.args[count:]):
        # A second operand's scale and zero point stand behind the first one's; what comes last belongs to the result.
        operand = min(position // 2, len(axes)) if count == 2 else 0
        axis = attributes[axes[operand]] if operand < len(axes) else -1
        args.append(parameter if name == "qnn.table" else _per_channel(parameter, axis, chain))
    attributes.update(dict.fromkeys(axes, -1))
    if any(arg is None for arg in args):
        return None
    return chain, emit(OPS[name.removeprefix("qnn.")].call(*args, **attributes))


def _at_source(operand: Any, chain: Chain, chains: dict[Any, Chain]) -> Any:
    """An operand of the same moves in front of them, a constant per channel; None for any other."""
    if operand in chains:
        return chains[operand].source if chains[operand].channels is chain.channels else None
    return _per_channel(operand, None, chain)


def _per_channel(operand: Any, axis: int | None, chain: Chain) -> Any:
    """A constant as one for each of the source's channels, if it is that; along an axis if it is a vector for one."""
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

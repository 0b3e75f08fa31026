"""What all attention operators share: heads, grouped keys and values, masks, softmax with a cap or a sink."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ....op import compound
from ....op.base import constant, shape_of
from ..node import Node
from .arithmetic import cast, number, over, plus, times

LOWEST = float(np.finfo(np.float32).min)


def split_heads(node: Node, rows: relax.Expr, heads: int) -> relax.Expr:
    """(B, S, heads · size) → (B, heads, S, size)"""
    batch, length, width = shape_of(rows)
    if heads < 1 or width % heads:
        raise node.malformed(f"{width} columns cannot be divided among {heads} heads")
    return compound.permute(
        compound.reshape(rows, (batch, length, heads, width // heads), node.emit), [0, 2, 1, 3], node.emit
    )


def join_heads(node: Node, heads: relax.Expr) -> relax.Expr:
    """(B, heads, S, size) → (B, S, heads · size)"""
    batch, count, length, size = shape_of(heads)
    return compound.reshape(compound.permute(heads, [0, 2, 1, 3], node.emit), (batch, length, count * size), node.emit)


def part(node: Node, data: relax.Expr, axis: int, begin: int, end: int) -> relax.Expr:
    """data[…, begin:end, …]"""
    whole = begin == 0 and end == shape_of(data)[axis]
    return data if whole else node.emit(relax.op.strided_slice(data, [axis], [begin], [end]))


@dataclass(frozen=True)
class Attended:
    """The result of `attend`, (B, heads, S, size of a value), and what it is computed from, each (B, heads, S, T)."""

    mixed: relax.Expr
    products: relax.Expr
    capped: relax.Expr
    masked: relax.Expr
    shares: relax.Expr


def attend(
    node: Node,
    query: relax.Expr,
    key: relax.Expr,
    value: relax.Expr,
    scale: float,
    masks: list[relax.Expr],
    softcap: float = 0.0,
    sink: relax.Expr | None = None,
) -> Attended:
    """softmax(cap(scale · Q·Kᵀ) + masks)·V with cap(x) = softcap · tanh(x / softcap).

    query: (B, heads, S, size); key, value: (B, groups, T, size): heads // groups heads share one, without copies of it
    masks: bool, true where a key counts, or floats to add; they broadcast against (B, heads, S, T)
    sink:  a score for each head that takes its share of the softmax and of nothing else, (1, heads, 1, 1)
    """
    batch, heads, length, size = shape_of(query)
    _, groups, total, _ = shape_of(key)
    if groups < 1 or heads % groups or shape_of(value)[:3] != (batch, groups, total) or shape_of(key)[3] != size:
        raise node.malformed(
            f"queries {shape_of(query)}, keys {shape_of(key)} and values {shape_of(value)} do not belong together"
        )
    rows = compound.reshape(query, (batch, groups, heads // groups * length, size), node.emit)
    turned = compound.permute(key, [0, 1, 3, 2], node.emit)
    scores = node.emit(relax.op.matmul(rows, turned))
    products = times(node, compound.reshape(scores, (batch, heads, length, total), node.emit), number(scale))
    capped = products
    if softcap:
        capped = times(node, node.emit(relax.op.tanh(over(node, products, number(softcap)))), number(softcap))
    scores = masked = capped
    for mask in masks:
        if str(mask.ty.dtype) == "bool":
            scores = node.emit(relax.op.where(mask, scores, number(LOWEST)))
        else:
            scores = plus(node, scores, cast(node, mask, "float32"))
        masked = scores
    if sink is not None:
        column = node.emit(relax.op.broadcast_to(sink, (batch, heads, length, 1)))
        scores = node.emit(relax.op.concat([scores, column], axis=3))
    shares = part(node, node.emit(relax.op.nn.softmax(scores, axis=-1)), 3, 0, total)
    rows = compound.reshape(shares, (batch, groups, heads // groups * length, total), node.emit)
    mixed = node.emit(relax.op.matmul(rows, value))
    mixed = compound.reshape(mixed, (batch, heads, length, shape_of(value)[3]), node.emit)
    return Attended(mixed, products, capped, masked, shares)


def near(
    node: Node, before: relax.Expr | int, length: int, total: int, left: int | None = None, right: int | None = 0
) -> relax.Expr:
    """Which keys count for each query: from `left` positions in front of its own to `right` behind it; None: all there
    are.

    before: the number of keys in front of the first query, or one for each sample, (B)

    Returns bool of shape (S, T), or (B, 1, S, T).
    """
    keys = np.arange(total, dtype=np.int32)
    own = np.arange(length, dtype=np.int32)[:, None]
    if isinstance(before, int):
        places = before + own
        ahead = keys <= places + right if right is not None else np.ones((length, total), bool)
        return constant(ahead & (keys >= places - left) if left is not None else ahead)
    offset = compound.reshape(before, (shape_of(before)[0], 1, 1, 1), node.emit)
    positions = plus(node, offset, constant(own))

    def beside(compare: Callable[..., relax.Expr], distance: int) -> relax.Expr:
        return node.emit(compare(constant(keys), plus(node, positions, number(distance, "int32"))))

    sides = [] if right is None else [beside(relax.op.less_equal, right)]
    sides += [] if left is None else [beside(relax.op.greater_equal, -left)]
    return sides[0] if len(sides) == 1 else node.emit(relax.op.logical_and(*sides))

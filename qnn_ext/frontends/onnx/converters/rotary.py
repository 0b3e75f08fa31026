"""Rotary position embeddings (Su et al., RoFormer, 2021): pairs of a head's elements turned by an angle that grows with
the position."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op import compound
from ....op.base import constant, shape_of
from ...run_time import checked_indices
from ..node import Node
from ..registry import MICROSOFT, converter
from .arithmetic import cast, minus, plus, times
from .attention_core import join_heads, part, split_heads

_LANES = 8  # pairs that ONNX Runtime turns at once


@converter("RotaryEmbedding", domain=MICROSOFT)
def microsoft_rotary_embedding(node: Node) -> relax.Expr:
    """Of (B, S, heads · size) or (B, heads, S, size); position_ids (B, S), or one number: the first position.

    As in ONNX Runtime on CPUs, the attributes scale and is_packed_batching make no difference.
    """
    tables = node.input(2), node.input(3)
    heads, flat = _heads(node, shape_of(tables[0])[-1])
    batch, _, length, _ = shape_of(heads)
    positions = node.input(1)
    if shape_of(positions) in ((), (1,)):
        first = cast(node, compound.reshape(positions, (1, 1), node.emit), "int64")
        steps = constant(np.arange(length, dtype=np.int64)[None])
        positions = node.emit(relax.op.broadcast_to(plus(node, first, steps), (batch, length)))
    found = [looked_up(node, table, positions) for table in tables]
    result = rotated(node, heads, found[0], found[1], bool(node.attribute("interleaved", 0)))
    return join_heads(node, result) if flat else result


@converter("RotaryEmbedding", since=23)
def rotary_embedding(node: Node) -> relax.Expr:
    """The same with tables of angles (B, S, size / 2) if there are no position_ids."""
    tables = node.input(1), node.input(2)
    heads, flat = _heads(node, shape_of(tables[0])[-1])
    if node.has_input(3):
        tables = tuple(looked_up(node, table, node.input(3)) for table in tables)  # type: ignore[assignment]
    result = rotated(node, heads, tables[0], tables[1], bool(node.attribute("interleaved", 0)))
    return join_heads(node, result) if flat else result


def _heads(node: Node, half: int) -> tuple[relax.Expr, bool]:
    """The first input as (B, heads, S, size), and whether it has to be put back into rows."""
    data = node.input(0)
    rank = len(shape_of(data))
    if rank == 4:
        return data, False
    if rank != 3:
        raise node.malformed(f"the input must have 3 or 4 dimensions, found shape {shape_of(data)}")
    heads = node.attribute("num_heads", 0)
    if not heads:
        if node.attribute("rotary_embedding_dim", 0):
            raise node.malformed("rotary_embedding_dim needs num_heads for an input of 3 dimensions")
        heads = shape_of(data)[2] // (2 * half)
    return split_heads(node, data, heads), True


def looked_up(node: Node, table: relax.Expr, positions: relax.Expr) -> relax.Expr:
    """Rows of a table (positions, half) for positions (B, S) → (B, S, half). Raises InputError at run time for a
    position beyond the table."""
    checked = checked_indices(node.emit, positions, shape_of(table)[0], node.label)
    return node.emit(relax.op.take(table, checked, axis=0, mode="clip"))


def _turned(
    node: Node, pair: tuple[relax.Expr, relax.Expr], angle: tuple[relax.Expr, relax.Expr], fused: bool
) -> tuple[relax.Expr, relax.Expr]:
    """(cos · first − sin · second, sin · first + cos · second), the first product unrounded if they are fused, as ONNX
    Runtime's vector code computes them; what remains of interleaved pairs behind whole vectors is rounded."""
    (first, second), (cos, sin) = pair, angle
    real, imaginary = times(node, sin, second), times(node, cos, second)
    if not fused or str(first.ty.dtype) != "float32":
        return minus(node, times(node, cos, first), real), plus(node, times(node, sin, first), imaginary)
    negative = node.emit(relax.op.negative(real))
    return node.emit(qnn.fma(cos, first, negative)), node.emit(qnn.fma(sin, first, imaginary))


def rotated(node: Node, heads: relax.Expr, cos: relax.Expr, sin: relax.Expr, interleaved: bool) -> relax.Expr:
    """(B, heads, S, size), of which the first 2 · half elements are turned by (B, S, half) angles."""
    batch, count, length, size = shape_of(heads)
    half = shape_of(cos)[-1]
    if shape_of(cos) != shape_of(sin) or shape_of(cos)[:2] not in ((batch, length), (1, length)) or 2 * half > size:
        raise node.malformed(
            f"tables of cosines {shape_of(cos)} and sines {shape_of(sin)} do not fit heads {shape_of(heads)}"
        )
    cos, sin = (compound.reshape(t, (shape_of(t)[0], 1, length, half), node.emit) for t in (cos, sin))
    turning = part(node, heads, 3, 0, 2 * half)
    if interleaved:
        pairs = compound.reshape(turning, (batch, count, length, half, 2), node.emit)
        first, second = (
            compound.reshape(part(node, pairs, 4, index, index + 1), (batch, count, length, half), node.emit)
            for index in range(2)
        )
    else:
        first, second = part(node, turning, 3, 0, half), part(node, turning, 3, half, 2 * half)
    real, imaginary = _turned(node, (first, second), (cos, sin), fused=not interleaved or half % _LANES == 0)
    if interleaved:
        stacked = node.emit(relax.op.stack([real, imaginary], axis=4))
        result = compound.reshape(stacked, (batch, count, length, 2 * half), node.emit)
    else:
        result = node.emit(relax.op.concat([real, imaginary], axis=3))
    if 2 * half == size:
        return result
    return node.emit(relax.op.concat([result, part(node, heads, 3, 2 * half, size)], axis=3))

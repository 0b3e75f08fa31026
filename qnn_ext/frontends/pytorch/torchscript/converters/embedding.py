"""Rows of quantized tables: f32(q) · s + b, rounded once, with one scale s and offset b = −s · z per row."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .....op.base import constant
from ....run_time import checked_indices
from ...bags import members, sums
from ...common import import_torch
from ..formulas import f32
from ..node import Node
from ..registry import converter
from ..values import array_of


def _table(node: Node) -> np.ndarray:
    """The rows in float32, as PyTorch's kernel computes them: q · s + b by a fused multiply-add."""
    packed = node["weight"]
    if not hasattr(packed, "unpack"):
        raise node.unsupported("packed embedding weights")
    if node.get("pruned_weights") or node.get("compressed_indices_mapping") is not None:
        raise node.unsupported("rows that were pruned; quantize the whole table")
    torch = import_torch()
    rows = packed.unpack()
    values = array_of(rows.int_repr())
    scale = array_of(rows.q_per_channel_scales()).astype(f32)
    offset = -scale * array_of(rows.q_per_channel_zero_points()).astype(f32)
    if rows.dtype == torch.quint4x2:  # two values a byte, the lower half first; packed with numbers of 16 bits
        values = np.stack([values & 15, values >> 4], axis=-1).reshape(tuple(rows.shape))
        scale, offset = scale.astype(np.float16), offset.astype(np.float16)
    # a product of 8 and 24 bits and its sum with 24 more are nearly always exact in double: one rounding remains
    return (values * scale.astype(np.float64)[:, None] + offset.astype(np.float64)[:, None]).astype(f32)


def _rows(node: Node) -> relax.Expr:
    """The rows looked up, one per index: (number of indices, width)."""
    table = _table(node)
    node.note("a table of weights, read as float")
    indices = checked_indices(node.emit, node.expr("indices"), len(table), node.label)
    flat = node.emit(relax.op.reshape(indices, [-1]))
    return node.emit(relax.op.take(constant(table), flat, axis=0, mode="clip"))


@converter("quantized::embedding_byte", "quantized::embedding_4bit")
def _embedding(node: Node) -> relax.Expr:
    return node.move(_rows(node))


@converter("quantized::embedding_bag_byte", "quantized::embedding_bag_4bit")
def _embedding_bag(node: Node) -> relax.Expr:
    """Sums of rows, each times its weight if there are any: of each row of indices, or of those between two offsets.

    Like PyTorch's kernels, it sums whatever `mode` says.
    """
    rows, count = _rows(node), int(np.prod(node.shape_of("indices")))
    if node["offsets"] is None:
        bags = node.shape_of("indices")[0]
        offsets = constant(np.arange(bags, dtype=np.int64) * (count // max(bags, 1)))
        inside = members(node.emit, offsets, count, closed=False)
    else:
        inside = members(node.emit, node.expr("offsets"), count, closed=bool(node["include_last_offset"]))
    weights = None
    if node["per_sample_weights"] is not None:
        weights = node.emit(relax.op.reshape(node.expr("per_sample_weights"), [count]))
    return node.move(sums(node.emit, rows, inside, weights))

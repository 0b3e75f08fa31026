"""Quantized tables of embeddings: rows q · s + b, and sums of them."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...common import import_torch
from ...tables import BITS, Table, bags_of, looked_up, of_bytes
from ..formulas import f32
from ..node import Node
from ..registry import converter
from ..values import Traced, array_of


def _bits(node: Node) -> int:
    return next(bits for name, bits in BITS.items() if f"_{name}" in node.kind)


def _packed(node: Node) -> Table:
    """The table in an object of PyTorch's."""
    packed = node["weight"]
    if not hasattr(packed, "unpack"):
        raise node.unsupported("packed embedding weights")
    torch = import_torch()
    rows = packed.unpack()
    bits = 4 if rows.dtype == torch.quint4x2 else 8
    if bits != _bits(node):
        raise node.unsupported(
            f"a table of {bits} bits, which this operator reads as {_bits(node)}: torch.ao.nn.quantized.Embedding does "
            "so with dtype=torch.quint4x2; quantize its table to torch.quint8"
        )
    scale = array_of(rows.q_per_channel_scales()).astype(f32)
    offset = -scale * array_of(rows.q_per_channel_zero_points()).astype(f32)
    if bits == 4:  # packed with numbers of 16 bits
        scale, offset = (values.astype(np.float16).astype(f32) for values in (scale, offset))
    return Table(array_of(rows.int_repr()).reshape(len(scale), -1), scale, offset, bits)


@converter("quantized::embedding_byte", "quantized::embedding_4bit")
def _embedding(node: Node) -> relax.Expr:
    if node["pruned_weights"]:
        raise node.unsupported("rows that were pruned; quantize the whole table")
    node.note("a table of weights, read as float")
    return node.move(looked_up(node.emit, _packed(node), node.expr("indices"), node.label))


@converter("quantized::embedding_bag_byte", "quantized::embedding_bag_4bit")
def _packed_bags(node: Node) -> relax.Expr:
    return _bags(node, _packed(node))


@converter(*(f"quantized::embedding_bag_{name}_rowwise_offsets" for name in BITS))
def _bags_of_bytes(node: Node) -> relax.Expr:
    return _bags(node, of_bytes(_constant(node, "weight"), _bits(node), node.label))


def _bags(node: Node, table: Table) -> relax.Expr:
    """Like PyTorch's kernels, it sums whatever `mode` says."""

    def given(name: str) -> relax.Expr | None:
        return None if node[name] is None else node.expr(name)

    node.note("a table of weights, read as float")
    kept = _constant(node, "compressed_indices_mapping") if node["pruned_weights"] else None
    weights, closed = given("per_sample_weights"), bool(node["include_last_offset"])
    indices, offsets = node.expr("indices"), given("offsets")
    return node.move(bags_of(node.emit, table, indices, offsets, weights, kept, closed, node.label))


def _constant(node: Node, name: str) -> np.ndarray:
    value = node.raw(name)
    if isinstance(value, Traced):
        raise node.unsupported(f"argument '{name}' that is computed at run time; make it a buffer of the model")
    return array_of(value)


@converter(
    "quantized::embedding_bag_prepack",
    "quantized::embedding_bag_unpack",
    *(f"quantized::embedding_bag_{name}_{kind}" for name in BITS for kind in ("prepack", "unpack")),
)
def _repacked(node: Node) -> relax.Expr:
    """PyTorch computes it for a constant table."""
    raise node.unsupported("a table that is computed at run time; make it a buffer of the model")

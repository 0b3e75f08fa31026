"""Padding and the operators that trade space for depth or batch. They move stored integers; padding with zero writes
the zero point."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax

from ...building import padded
from ..node import Node
from ..registry import converter
from .shape import block, check_elements, reshape, take

# ---- PAD, PADV2, MIRROR_PAD --------------------------------------------------------------------------------------


def paddings(node: Node, index: int, ndim: int) -> list[tuple[int, int]]:
    """A constant (ndim, 2) input as (before, after) pairs, none negative."""
    numbers = node.integers(index)
    pairs = list(zip(numbers[::2], numbers[1::2], strict=False))
    if len(numbers) != 2 * ndim or any(min(pair) < 0 for pair in pairs):
        raise node.malformed(f"paddings {pairs} do not match {ndim} dimensions")
    return pairs


def zero_value(node: Node) -> int:
    """The integer that stands for 0.0 in the output, 0 for other dtypes."""
    output = node.output_tensor()
    return int(output.qparams.zero_point) if output.qparams is not None and not output.qparams.per_channel else 0


def pad_constant(node: Node, expr: relax.Expr, pairs: Sequence[tuple[int, int]], value: int | float) -> relax.Expr:
    """`expr` padded with `value`; unchanged when every pair is zero."""
    shape = [int(dim) for dim in expr.ty.shape]
    check_elements(node, [before + dim + after for dim, (before, after) in zip(shape, pairs, strict=True)])
    if not any(map(any, pairs)):
        return expr
    return node.emit(padded(node.emit, expr, [n for pair in pairs for n in pair], value))


@converter("PAD", max_version=5)
def convert_pad(node: Node) -> relax.Expr:
    """Pads the input with zeros."""
    return pad_constant(node, node.input(0), paddings(node, 1, len(node.shape(0))), zero_value(node))


@converter("PADV2", max_version=5)
def convert_padv2(node: Node) -> relax.Expr:
    """Pads the input with a constant; if quantized, it must be in the output's QParams."""
    value = node.constant(2).reshape(-1)
    if value.size != 1 or str(value.dtype) != node.dtype():
        raise node.malformed(f"the padding value must be one {node.dtype()}, found {value.size} {value.dtype}")
    if node.is_quantized(0) and node.is_quantized(2) and node.qparams(2) != node.output_qparams():
        raise node.malformed("the padding value's quantization differs from the output's")
    return pad_constant(node, node.input(0), paddings(node, 1, len(node.shape(0))), value[0].item())


@converter("MIRROR_PAD", max_version=3)
def convert_mirror_pad(node: Node) -> relax.Expr:
    """Pads the input by mirroring it at its edges: SYMMETRIC repeats the edge, REFLECT does not."""
    modes = {"REFLECT": "reflect", "SYMMETRIC": "symmetric"}
    if node.options["mode"] not in modes:
        raise node.unsupported(f"padding mode {node.options['mode']}")
    shape, result = node.shape(0), node.input(0)
    pairs = paddings(node, 1, len(shape))
    check_elements(node, [before + dim + after for dim, (before, after) in zip(shape, pairs, strict=True)])
    for axis, (size, pair) in enumerate(zip(shape, pairs, strict=True)):
        if max(pair) > size - (node.options["mode"] == "REFLECT"):
            raise node.malformed(f"cannot mirror {max(pair)} of the {size} elements of dimension {axis}")
        if any(pair):
            check_elements(node, [sum(pair) + size], "folded")
            indices = np.pad(np.arange(size), pair, mode=modes[node.options["mode"]])  # type: ignore[call-overload]
            result = take(node, result, indices, axis)
    return result


# ---- space and depth ---------------------------------------------------------------------------------------------


def _block_size(node: Node) -> int:
    size = int(node.options["block_size"])
    if size < 1 or len(node.shape(0)) != 4:
        raise node.malformed(
            f"block size {size} and shape {node.shape(0)}: the size must be positive, and the data have 4 dimensions"
        )
    return size


@converter("SPACE_TO_DEPTH", max_version=2)
def convert_space_to_depth(node: Node) -> relax.Expr:
    """(n, h·b, w·b, c) → (n, h, w, b·b·c)."""
    size, (n, h, w, c) = _block_size(node), node.shape(0)
    if h % size or w % size:
        raise node.malformed(f"block size {size} does not divide {h}×{w}")
    parts = reshape(node, node.input(0), [n, h // size, size, w // size, size, c])
    parts = node.emit(relax.op.permute_dims(parts, [0, 1, 3, 2, 4, 5]))
    return reshape(node, parts, [n, h // size, w // size, size * size * c])


@converter("DEPTH_TO_SPACE", max_version=2)
def convert_depth_to_space(node: Node) -> relax.Expr:
    """(n, h, w, b·b·c) → (n, h·b, w·b, c)."""
    size, (n, h, w, c) = _block_size(node), node.shape(0)
    if c % (size * size):
        raise node.malformed(f"{c} channels cannot be divided by block size {size}")
    parts = reshape(node, node.input(0), [n, h, w, size, size, c // (size * size)])
    parts = node.emit(relax.op.permute_dims(parts, [0, 1, 3, 2, 4, 5]))
    return reshape(node, parts, [n, h * size, w * size, c // (size * size)])


# ---- space and batch ---------------------------------------------------------------------------------------------


def _blocks_and_margins(node: Node) -> tuple[list[int], list[tuple[int, int]]]:
    """The block size of each spatial dimension (those after the batch) and the pairs of input 2."""
    blocks = node.integers(1)
    if not blocks or min(blocks) < 1 or len(node.shape(0)) < 1 + len(blocks):
        raise node.malformed(f"blocks {blocks} do not match shape {node.shape(0)}")
    return blocks, paddings(node, 2, len(blocks))


@converter("SPACE_TO_BATCH_ND", max_version=4)
def convert_space_to_batch(node: Node) -> relax.Expr:
    """Spatial blocks become batch entries: (n, h·b, c) → (b·n, h, c), for one or more spatial dimensions."""
    blocks, margins = _blocks_and_margins(node)
    rank = len(blocks)
    pairs = [(0, 0), *margins, *[(0, 0)] * (len(node.shape(0)) - 1 - rank)]
    data = pad_constant(node, node.input(0), pairs, zero_value(node))
    batch, *dims = (int(dim) for dim in data.ty.shape)
    spatial, rest = dims[:rank], dims[rank:]
    if any(dim % size for dim, size in zip(spatial, blocks, strict=True)):
        raise node.malformed(f"blocks {blocks} do not divide the padded dimensions {spatial}")
    outer = [dim // size for dim, size in zip(spatial, blocks, strict=True)]
    split = reshape(node, data, [batch, *(n for pair in zip(outer, blocks, strict=True) for n in pair), *rest])
    inner_axes, outer_axes = [2 * i + 2 for i in range(rank)], [2 * i + 1 for i in range(rank)]
    order = [*inner_axes, 0, *outer_axes, *range(2 * rank + 1, 2 * rank + 1 + len(rest))]
    moved = node.emit(relax.op.permute_dims(split, order))
    return reshape(node, moved, [batch * math.prod(blocks), *outer, *rest])


@converter("BATCH_TO_SPACE_ND", max_version=4)
def convert_batch_to_space(node: Node) -> relax.Expr:
    """The inverse of SPACE_TO_BATCH_ND; margins are cropped."""
    blocks, margins = _blocks_and_margins(node)
    rank = len(blocks)
    batch, *dims = node.shape(0)
    spatial, rest = dims[:rank], dims[rank:]
    if batch % math.prod(blocks):
        raise node.malformed(f"blocks {blocks} do not divide batch {batch}")
    split = reshape(node, node.input(0), [*blocks, batch // math.prod(blocks), *dims])
    pairs = [axis for i in range(rank) for axis in (rank + 1 + i, i)]
    moved = node.emit(relax.op.permute_dims(split, [rank, *pairs, *range(2 * rank + 1, 2 * rank + 1 + len(rest))]))
    full = [dim * size for dim, size in zip(spatial, blocks, strict=True)]
    whole = reshape(node, moved, [batch // math.prod(blocks), *full, *rest])
    if any(before + after > dim for dim, (before, after) in zip(full, margins, strict=True)):
        raise node.malformed(f"crops {margins} are larger than {full}")
    begin = [before for before, _ in margins]
    end = [dim - after for dim, (_, after) in zip(full, margins, strict=True)]
    return block(node, whole, range(1, rank + 1), begin, end, [1] * rank)

"""Rows that several stages share: softmax, normalizations, pooling and stages that follow it.

If the last stages of a function agree on their leading axes, one task can compute all of them for one row. That keeps
the data they exchange in the L1 cache and launches threads once instead of once per stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from .block import Block


def shared_rows(blocks: Sequence[Block], wanted: int) -> tuple[int, int]:
    """(blocks, axes): how many of the last blocks share how many leading spatial axes, with `wanted` rows or more.

    (1, ...) means that no two do.
    """
    count, axes = 1, _shared_axes(blocks[-1:], wanted)
    for size in range(2, len(blocks) + 1):
        shared = _shared_axes(blocks[-size:], wanted)
        if shared == 0:
            break
        count, axes = size, shared
    return count, axes


def _shared_axes(blocks: Sequence[Block], wanted: int) -> int:
    """The fewest leading axes, shared by all blocks, that give `wanted` rows; 0 if the shared axes give fewer."""
    written = [store.buffer for block in blocks for store in block.stores]
    limit = min(_leading_spatial(block) for block in blocks)
    axes = 0
    while axes < limit and _agrees(blocks, written, axes):
        axes += 1
        if prod(loop.extent for loop in blocks[0].loops[:axes]) >= wanted:
            return axes
    return 0


def _leading_spatial(block: Block) -> int:
    kinds = [loop.kind for loop in block.loops]
    return kinds.index("R") if "R" in kinds else max(len(kinds) - 1, 0)


def _agrees(blocks: Sequence[Block], written: Sequence[tirx.Buffer], axis: int) -> bool:
    """Whether axis number `axis` has one extent everywhere and is the same index of every exchanged buffer."""
    if len({block.loops[axis].extent for block in blocks}) != 1:
        return False
    for block in blocks:
        own = [load.indices for load in block.loads if any(load.source.same_as(buffer) for buffer in written)]
        own += [store.indices for store in block.stores]
        var = block.loops[axis].var
        if not all(len(indices) > axis and indices[axis].same_as(var) for indices in own):
            return False
    return True


def fuse_rows(sch: Schedule, blocks: Sequence[Block], axes: int) -> Any:
    """Move all but the last block into the last one's rows, which run in parallel; returns the loop over the rows."""
    *producers, last = blocks
    loops = [loop.rv for loop in last.loops[:axes]]
    rows = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    for block in reversed(producers):
        sch.compute_at(block.rv, rows, preserve_unit_loops=True)
    sch.parallel(rows)
    return rows


def unravel(index: Any, sizes: Sequence[int]) -> list[Any]:
    """The indices of row number `index` into leading axes of these sizes."""
    inside = [prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    return [index // stride % size for stride, size in zip(inside, sizes, strict=True)]

"""Ordering dot products that share loads: steps along k outside, accumulators inside.

An instruction of several steps (`dot.DotInstruction.chain`) updates its accumulator several times in a row, and a tile
is a row of such instructions. In that order each update waits for the previous one, and the weights of all steps are
live at once, more than there are registers. In the order made here,

    for step in chain: for pixel in tile: for block in tile: C[pixel, block] += A[pixel, step] · B[step, block]

updates of the same accumulator are as far apart as possible, and weights are read when they are needed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad


def by_step(sequence: tirx.SeqStmt) -> tirx.SeqStmt:
    """`sequence` with every run of accumulator updates sorted by how many updates of the same accumulator precede each.

    That changes no result: an update reads no accumulator but its own. Values bound between them, parts of addresses,
    come first.
    """
    ordered: list[tirx.Stmt] = []
    bound: list[tirx.Bind] = []
    run: list[tirx.BufferStore] = []
    for stmt in sequence.seq:
        if isinstance(stmt, tirx.Bind) and not _loads(stmt.value):
            bound.append(stmt)
        elif _is_update(stmt) and (not run or stmt.buffer.same_as(run[0].buffer)):
            run.append(stmt)
        else:
            ordered += [*bound, *_ordered(run)]
            bound, run = [], [stmt] if _is_update(stmt) else []
            ordered += [] if run else [stmt]
    return tirx.SeqStmt([*ordered, *bound, *_ordered(run)])


def _ordered(run: list[tirx.BufferStore]) -> list[tirx.BufferStore]:
    """The updates by rank: how many earlier ones update the same accumulator."""
    seen: Counter[int] = Counter()
    ranks = []
    for update in run:
        place = int(update.indices[0])
        ranks.append(seen[place])
        seen[place] += 1
    return [update for _, update in sorted(zip(ranks, run, strict=True), key=lambda item: item[0])]


def _is_update(stmt: tirx.Stmt) -> bool:
    """Whether a statement updates one element, a register of accumulators, at a constant index of a small buffer of
    vectors, and reads no other element of that buffer."""
    if not isinstance(stmt, tirx.BufferStore) or len(stmt.indices) != 1 or not isinstance(stmt.indices[0], tirx.IntImm):
        return False
    own = [load for load in _loads(stmt.value) if load.source.same_as(stmt.buffer)]
    return bool(own) and all(tvm_ffi.structural_equal(load.indices[0], stmt.indices[0]) for load in own)


def _loads(value: Any) -> list[TensorLoad]:
    found: list[TensorLoad] = []
    tvm_ffi.structural_walk(value, (TensorLoad, found.append))
    return found

"""Which results may share memory with an operand of the kernel that computes them, and how far they must be apart.

A kernel that goes through memory in one direction overwrites an operand behind the place where it reads. Only operands
that nothing reads afterwards are given up, and only those that are no parts of other tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock

from ...numerics.annotations import BEHIND
from .graph import Graph, Step
from .storage import Storage

Overlaps = dict[tuple[Storage, Storage], int]
"""(operand, result) -> the bytes by which the operand must at least start behind the result."""


def overlaps_of(graph: Graph, functions: Mapping[ir.GlobalVar, tirx.PrimFunc]) -> Overlaps:
    """The pairs of tensors that may overlap."""
    wholes = {storage.whole for storage in graph.storages()}
    found: Overlaps = {}
    for index, step in enumerate(graph.steps):
        behind = _behind(functions[step.kernel])
        if step.loop is not None or len(step.writes) != 1 or behind is None:
            continue
        (result,) = step.writes
        free = [storage for storage in (*step.reads, result) if storage.whole is None and storage not in wholes]
        for operand in set(step.reads) & set(free):
            distances = _distances(step, functions[step.kernel], operand, behind)
            if result in free and operand.array is None and operand.last == index and min(distances) >= 0:
                found[operand, result] = max(distances)
    return found


def _behind(function: tirx.PrimFunc) -> dict[Any, int] | None:
    """The distances that a kernel states, by buffer."""
    blocks: list[SBlock] = []
    tvm_ffi.structural_walk(function.body, (SBlock, lambda block: blocks.append(block)))
    noted = [block for block in blocks if BEHIND in block.annotations]
    if len(noted) != 1 or len(noted) < sum(bool(block.writes) for block in blocks):
        return None  # other stages may read the operands too
    (block,) = noted
    pairs = zip(block.reads, block.annotations[BEHIND], strict=True)
    return {region.source: int(distance) for region, distance in pairs}


def _distances(step: Step, function: tirx.PrimFunc, operand: Storage, behind: Mapping[Any, int]) -> list[int]:
    """The distances for each place where a step reads an operand."""
    params = list(function.params)[: len(step.reads)]
    return [
        next((distance for buffer, distance in behind.items() if buffer.same_as(param)), -1)
        for param, storage in zip(params, step.reads, strict=True)
        if storage is operand
    ]

"""dense: rows of activations × packed weights (N/lanes, K/depth, lanes, depth), the same tile as convolution.

If K is no multiple of the instruction's depth, it is padded in a copy of the activations. Rows that fill up the last
tile repeat the last row, so they need no copy; N is padded only in the packed weights. A single row (GEMV) is a tile of
one row and several blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from ...numerics.annotations import OPERAND
from ...targets.backend import Caches
from ..blocking import blocked_caches
from ..initial import in_lanes
from ..schedule_util import inline_epilogue, schedule_root_blocks
from ..strategy import Implementation, cheapest_first
from ..workload import BatchMatmulWorkload, DenseWorkload, value_bytes
from .dot import DotInstruction, implementation_with
from .matrix import MatrixDot
from .microkernel import (
    Domain,
    Tile,
    is_ragged,
    lane_of,
    legal_tiles,
    other_strips,
    panel_ahead,
    round_up,
    schedule_microkernel,
    strip_size,
    tile_cost,
)


@dataclass(frozen=True)
class Plan:
    """Register tile, and the sizes padded to it: rows, depth of the reduction, blocks of N; whether x is copied."""

    tile: Tile
    rows: int
    run: int
    blocks: int
    staged: bool


@lru_cache(maxsize=4096)
def plan(workload: DenseWorkload | BatchMatmulWorkload, instruction: DotInstruction, tile: Tile | None = None) -> Plan:
    """Padded sizes for a register tile, by default the cheapest."""
    if tile is None:
        tile = next(iter(tiles(workload, instruction)))
    domain = _domain(workload, instruction)
    rows = round_up(workload.m, tile.columns)
    run = domain.steps * instruction.depth
    staged = run != workload.k or workload.data_dtype != instruction.data_dtype
    staged |= rows > workload.m and isinstance(instruction, MatrixDot)
    return Plan(tile, rows, run, round_up(domain.blocks, tile.blocks), staged)


@lru_cache(maxsize=4096)
def tiles(workload: DenseWorkload | BatchMatmulWorkload, instruction: DotInstruction) -> dict[Tile, float]:
    """The legal register tiles with their predicted cost, cheapest first."""
    domain = _domain(workload, instruction)
    costs = {tile: tile_cost(tile, domain, instruction) for tile in legal_tiles(domain, instruction)}
    return cheapest_first(costs)


def _domain(workload: DenseWorkload | BatchMatmulWorkload, instruction: DotInstruction) -> Domain:
    run = round_up(workload.k, instruction.span)
    blocks = round_up(workload.n, instruction.lanes) // instruction.lanes
    ragged = is_ragged(workload.n, instruction)
    copied = run != workload.k or not isinstance(instruction, MatrixDot)  # else no tile needs a copy
    return Domain(1, workload.m, blocks, run // instruction.depth, copied, ragged)


def stage(
    workload: DenseWorkload | BatchMatmulWorkload, layout: Plan, x: te.Tensor, instruction: DotInstruction
) -> te.Tensor:
    """x (..., M, K) padded to the plan's run and widened to the instruction's dtype, or x itself.

    Rows of matrices are at equal distances: for these, rows are padded as well.
    """
    if not layout.staged:
        return x
    rows = layout.rows if isinstance(instruction, MatrixDot) else workload.m

    def padded(*indices):
        *batch, m, k = indices
        value, zero = x(*batch, _least(m, workload, rows), k), tirx.const(0, instruction.data_dtype)
        value = value.astype(instruction.data_dtype)
        return tirx.if_then_else(k < workload.k, value, zero) if layout.run > workload.k else value

    return te.compute((*x.shape[:-2], rows, layout.run), padded, name="pad", attrs={OPERAND: True})


def row_of(m: Any, workload: DenseWorkload | BatchMatmulWorkload, layout: Plan, data: te.Tensor) -> Any:
    """The row of staged activations to read for row m of the plan."""
    return m if int(data.shape[-2]) == layout.rows else _least(m, workload, layout.rows)


def _least(m: Any, workload: DenseWorkload | BatchMatmulWorkload, rows: int) -> Any:
    """Row m of so many, of which those after the last of x repeat it."""
    return tirx.min(m, workload.m - 1) if rows > workload.m else m


def pack_weight(
    workload: DenseWorkload, weight: np.ndarray, instruction: DotInstruction, tile: Tile | None = None
) -> np.ndarray:
    """(N, K) weights to (N/lanes, K/depth, lanes, depth), zero where N or K were padded."""
    layout = plan(workload, instruction, tile)
    lanes, depth = instruction.lanes, instruction.depth
    packed = np.zeros((layout.blocks * lanes, layout.run), instruction.weight_dtype)
    packed[: workload.n, : workload.k] = weight
    return np.ascontiguousarray(packed.reshape(layout.blocks, lanes, -1, depth).transpose(0, 2, 1, 3))


def initial(
    workload: DenseWorkload, bias: np.ndarray, instruction: DotInstruction, tile: Tile | None = None
) -> np.ndarray:
    """The bias as the accumulators' initial values."""
    return in_lanes(bias, plan(workload, instruction, tile).blocks, instruction.lanes)


def compute(
    workload: DenseWorkload,
    x: te.Tensor,
    w: te.Tensor,
    pad_value: int,
    instruction: DotInstruction,
    tile: Tile | None = None,
) -> te.Tensor:
    """The accumulator, (M, N). `pad_value` is not used."""
    layout = plan(workload, instruction, tile)
    lanes, reduction = instruction.lanes, instruction.reduction(layout.run)
    data = stage(workload, layout, x, instruction)
    acc = te.compute(
        (layout.rows, layout.blocks, lanes),
        lambda m, block, lane: te.sum(
            instruction.value(data(row_of(m, workload, layout, data), reduction.k))
            * instruction.value(w[block, reduction.step, lane, reduction.inner]),
            axis=reduction.axes,
        ),
        name="dense",
    )
    return te.compute(
        (workload.m, workload.n), lambda m, n: acc[m, n // lanes, lane_of(n, workload.n, lanes)], name="logical"
    )


def schedule(
    sch: Schedule, workload: DenseWorkload, target: Target, instruction: DotInstruction, tile: Tile | None = None
) -> None:
    """Fuse the epilogue, tile rows × blocks of N into registers, tensorize, run tiles in parallel."""
    accumulator = sch.get_sblock("dense")
    output = inline_epilogue(sch, accumulator)
    schedule_root_blocks(sch, [accumulator, output], target, vector=64)
    layout = plan(workload, instruction, tile)
    tiles_by_panel = layout.rows // layout.tile.columns
    weight_bytes = layout.blocks * instruction.vector_bytes * layout.run // instruction.depth
    schedule_microkernel(
        sch,
        accumulator,
        output,
        instruction,
        layout.tile,
        pixel_axes=1,
        macs=workload.macs,
        strip=strip_of(workload, layout, blocked_caches(target)),
        prefetch=panel_ahead(layout.tile, tiles_by_panel, weight_bytes, layout.blocks, blocked_caches(target)),
    )


def strip_of(workload: DenseWorkload | BatchMatmulWorkload, layout: Plan, caches: Caches) -> int:
    """How many tiles of rows go through the panels of weights together."""
    count, row_bytes = layout.rows // layout.tile.columns, value_bytes(workload) * workload.k
    return layout.tile.strip or strip_size(count, layout.tile.columns * row_bytes, workload.n * row_bytes, caches)


def strips(workload: DenseWorkload | BatchMatmulWorkload, tile: Tile, instruction: DotInstruction) -> list[Tile]:
    """A tile with every strip size that it can have."""
    return other_strips(tile, plan(workload, instruction, tile).rows // tile.columns)


def refuses(workload: DenseWorkload | BatchMatmulWorkload, target: Target, instruction: DotInstruction) -> str | None:
    """Why the instruction does not compute the product, or is not the best to."""
    return instruction.refuses(workload, target) or instruction.pads(workload.k)


def implementation(instruction: DotInstruction, architecture: str, priority: int) -> Implementation:
    """The kernel with one instruction, as the strategy registry takes it."""
    return implementation_with(
        instruction,
        "dense",
        architecture,
        priority,
        accumulator="dense",
        refuses=refuses,
        compute=compute,
        schedule=schedule,
        pack_weight=pack_weight,
        initial=initial,
        tiles=tiles,
        variants=strips,
    )

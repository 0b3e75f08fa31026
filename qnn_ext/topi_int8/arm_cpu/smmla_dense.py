"""dense and batch_matmul with smmla: rows of activations in pairs, staged as (…, K/8, rows, 8).

Weights are packed to (panels of a tile's blocks, K/8, block, quad, lane, 8), zero where N or K were padded: at compile
time, or inside the kernel if the operand is computed at run time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from ...numerics.annotations import OPERAND
from ...targets.families import backends_with
from ...targets.features import sharing_of
from ..blocking import blocked_caches
from ..cpu.batch_matmul import inline_operands, order_output, reads_in_order
from ..cpu.dense import Plan, strip_of
from ..cpu.microkernel import Domain, Tile, other_strips, round_up
from ..initial import in_lanes
from ..schedule_util import inline_epilogue, parallel_rows, schedule_root_blocks
from ..strategy import Implementation, register
from ..workload import BatchMatmulWorkload, DenseWorkload
from .smmla import CHANNELS, DEPTH, LANES, QUADS, SMMLA, wasted
from .smmla_tile import (
    Steps,
    accumulators,
    copy_steps,
    in_panels,
    initial_of,
    place_of,
    schedule_tile,
    strip_for,
    tiles_of,
)

Workload = DenseWorkload | BatchMatmulWorkload


@lru_cache(maxsize=4096)
def plan(workload: Workload, tile: Tile | None = None) -> Plan:
    """Padded sizes for a register tile, by default the cheapest."""
    tile = tile or next(iter(tiles(workload)))
    domain = _domain(workload)
    blocks = round_up(domain.blocks, tile.blocks)
    return Plan(tile, round_up(workload.m, tile.columns), domain.steps * DEPTH, blocks, True)


@lru_cache(maxsize=4096)
def tiles(workload: Workload) -> dict[Tile, float]:
    """The legal register tiles with their predicted cost, cheapest first."""
    return tiles_of(_domain(workload))


def _domain(workload: Workload) -> Domain:
    blocks, steps = -(-workload.n // CHANNELS), -(-workload.k // DEPTH)
    return Domain(1, workload.m, blocks, steps, True, False)


def pack_weight(workload: DenseWorkload, weight: np.ndarray, tile: Tile | None = None) -> np.ndarray:
    """(N, K) weights to (panels, K/8, block, quad, lane, 8), zero where N or K were padded."""
    layout = plan(workload, tile)
    packed = np.zeros((layout.blocks * CHANNELS, layout.run), np.int8)
    packed[: workload.n, : workload.k] = weight
    blocks = packed.reshape(layout.blocks, CHANNELS, -1, DEPTH).transpose(0, 2, 1, 3)
    return in_panels(blocks, layout.tile.blocks)


def initial(workload: DenseWorkload, bias: np.ndarray, tile: Tile | None = None) -> np.ndarray:
    """The bias as the accumulators' initial values."""
    return initial_of(in_lanes(bias, plan(workload, tile).blocks, CHANNELS))


def compute(workload: DenseWorkload, x: te.Tensor, w: te.Tensor, pad_value: int, tile: Tile | None = None) -> te.Tensor:
    """The accumulator, (M, N) int32. `pad_value` is not used."""
    acc = _product(workload, plan(workload, tile), x, w, "dense")
    shape = (workload.m, workload.n)
    return te.compute(shape, lambda m, n: acc[_place(workload, m, n)], name="logical")


def compute_batch(
    workload: BatchMatmulWorkload, x: te.Tensor, y: te.Tensor, pad_value: int, tile: Tile | None = None
) -> te.Tensor:
    """The accumulator, (B, M, N) int32. `pad_value` is not used."""
    layout = plan(workload, tile)
    acc = _product(workload, layout, x, _pack(workload, layout, y), "batch_matmul")
    shape = (workload.batch, workload.m, workload.n)
    return te.compute(shape, lambda b, m, n: acc[(b, *_place(workload, m, n))], name="logical")


def _place(workload: Workload, m: Any, n: Any) -> tuple[Any, ...]:
    """The index of row m, column n in the accumulators."""
    return place_of(m, workload.m, n // CHANNELS, n, workload.n)


def _product(workload: Workload, layout: Plan, x: te.Tensor, w: te.Tensor, name: str) -> te.Tensor:
    """The accumulators of x (batch..., M, K) and packed weights (batch..., panels, K/8, block, quad, lane, 8)."""
    batch = [int(size) for size in x.shape[:-2]]
    steps, tile_blocks = Steps(layout.run), layout.tile.blocks

    def staged(*index):
        *outer, step, m, k = index
        m = tirx.min(m, workload.m - 1) if layout.rows > workload.m else m
        return _within(step * DEPTH + k, workload.k, layout.run, lambda k: x(*outer, m, k))

    data = te.compute((*batch, layout.run // DEPTH, layout.rows, DEPTH), staged, name="pad", attrs={OPERAND: True})

    def sums(*index):
        *outer, m, block, quad, lane = index
        value = data(*outer, steps.step, m, steps.k)
        weight = w(*outer, block // tile_blocks, steps.step, block % tile_blocks, quad, lane, steps.k)
        return te.sum(value.astype("int32") * weight.astype("int32"), axis=steps.axes)

    return accumulators(batch, layout.rows, layout.blocks, sums, name)


def _pack(workload: BatchMatmulWorkload, layout: Plan, y: te.Tensor) -> te.Tensor:
    """y (B, N, K) as (B, panels, K/8, block, quad, lane, 8)."""
    blocks = layout.tile.blocks

    def packed(b, panel, step, block, quad, lane, k):
        n = (panel * blocks + block) * CHANNELS + quad * LANES + lane

        def column(n):
            return _within(step * DEPTH + k, workload.k, layout.run, lambda k: y(b, n, k))

        return _within(n, workload.n, layout.blocks * CHANNELS, column)

    shape = (workload.batch, layout.blocks // blocks, layout.run // DEPTH, blocks, QUADS, LANES, DEPTH)
    return te.compute(shape, packed, name="pack")


def _within(index: Any, size: int, padded: int, value: Any) -> Any:
    """value(index), zero from `size` on."""
    if padded == size:
        return value(index)
    return tirx.if_then_else(index < size, value(index), tirx.const(0, "int8"))


def schedule(sch: Schedule, workload: DenseWorkload, target: Target, tile: Tile | None = None) -> None:
    """Fuse the epilogue, stage x, tile pairs of rows × blocks of N into registers, tensorize, run tiles in parallel."""
    accumulator, stage = sch.get_sblock("dense"), sch.get_sblock("pad")
    output = inline_epilogue(sch, accumulator)
    schedule_root_blocks(sch, [accumulator, output, stage], target, vector=64)
    layout = plan(workload, tile)
    _schedule(sch, workload, target, layout, accumulator, output, stage)


def schedule_batch(sch: Schedule, workload: BatchMatmulWorkload, target: Target, tile: Tile | None = None) -> None:
    """Fuse the epilogue, stage x, pack y, tile pairs of rows × blocks of N into registers, tensorize."""
    accumulator, stage, pack = (sch.get_sblock(name) for name in ("batch_matmul", "pad", "pack"))
    output = inline_epilogue(sch, accumulator)
    inline_operands(sch, accumulator, output, pack)
    schedule_root_blocks(sch, [accumulator, output, stage, pack], target, vector=64)
    _schedule_pack(sch, workload, pack, target)
    order_output(sch, accumulator, output)
    _schedule(sch, workload, target, plan(workload, tile), accumulator, output, stage)


def _schedule(
    sch: Schedule,
    workload: Workload,
    target: Target,
    layout: Plan,
    accumulator: SBlockRV,
    output: SBlockRV,
    stage: SBlockRV,
) -> None:
    count, matrices = layout.rows // layout.tile.columns, getattr(workload, "batch", 1)
    *batch, step, row, values = sch.get_loops(stage)
    sch.reorder(*batch, row, step, values)
    parallel_rows(sch, [*batch, row], layout.rows * layout.run * matrices, sharing_of(target).moved_elements)
    copy_steps(sch, step, values, workload.k // DEPTH)
    strip = strip_of(workload, layout, blocked_caches(target))
    strip = layout.tile.strip or strip_for(workload.n, count, strip, matrices)
    schedule_tile(sch, accumulator, output, layout.tile, pixel_axes=1, macs=workload.macs, strip=strip)


def _schedule_pack(sch: Schedule, workload: BatchMatmulWorkload, pack: SBlockRV, target: Target) -> None:
    """Pack eight values at a time if neighbours in k are adjacent in memory."""
    side_by_side = reads_in_order(sch, pack)
    batch, panel, step, *columns, values = sch.get_loops(pack)
    sch.reorder(batch, panel, *columns, step, values)
    parallel_rows(sch, [batch, panel], workload.batch * workload.n * workload.k, sharing_of(target).moved_elements)
    if side_by_side:
        copy_steps(sch, step, values, workload.k // DEPTH)


def strips(workload: Workload, tile: Tile) -> list[Tile]:
    """A tile with every strip size that it can have."""
    return other_strips(tile, plan(workload, tile).rows // tile.columns)


def _refuses(workload: Workload, target: Target) -> str | None:
    return SMMLA.refuses(workload, target) or wasted(workload.m, workload.n)


PRIORITY = 30

DENSE = register(
    DenseWorkload,
    Implementation(
        name="dense_smmla.arm_cpu",
        priority=PRIORITY,
        backends=backends_with(SMMLA.product),
        refuses=_refuses,
        compute=compute,
        schedule=schedule,
        pack_weight=pack_weight,
        initial=initial,
        accumulator="dense",
        tiles=tiles,
        variants=strips,
    ),
)

BATCH_MATMUL = register(
    BatchMatmulWorkload,
    Implementation(
        name="batch_matmul_smmla.arm_cpu",
        priority=PRIORITY,
        backends=backends_with(SMMLA.product),
        refuses=_refuses,
        compute=compute_batch,
        schedule=schedule_batch,
        tiles=tiles,
        variants=strips,
    ),
)

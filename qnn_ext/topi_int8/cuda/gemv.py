"""Products of a few rows: dense of batch 1 to 4, and convolutions of one-pixel images, as in squeeze-and-excitation.

Only x is read more than once, so memory bandwidth decides: the threads of a warp, or of part of one, read neighbouring
16 bytes of one row of the weights until its end, multiply them by x with DP4A, and add up their sums by shuffles. Each
read of the weights serves all rows of x. A tile of `dp4a` or of tensor cores would have 16 rows or more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tvm.s_tir import Schedule
from tvm.target import Target

from ...numerics.annotations import OPERAND, has
from ..schedule_util import inline_epilogue
from ..strategy import cheapest_first
from ..workload import BatchMatmulWorkload, Workload
from . import gemm
from .dp4a import BYTES, MULTIPROCESSORS, RESIDENT, rate, refuses
from .dp4a_intrin import DEPTH, dp4a
from .generic import bind_blocks
from .registration import register_products

ROWS = 4  # of x: with more, it pays to have tiles of the weights in shared memory

BLOCK = 128
"""Threads of a block that spread over the multiprocessors and still fill them."""
OTHER_BLOCK = 1.1
"""How many times longer blocks of another size take: decides between tiles that are equal otherwise; an estimate."""


@dataclass(frozen=True)
class Tile:
    """How many threads share an output, a power of two up to a warp, and how many outputs a block computes."""

    lanes: int
    outputs: int

    @property
    def block(self) -> gemm.BlockSize:
        return gemm.BlockSize(1, self.outputs, self.lanes * BYTES)


TILES = [Tile(lanes, threads // lanes) for lanes in (4, 8, 16, 32) for threads in (64, 128, 256)]


@lru_cache(maxsize=4096)
def tiles(workload: Workload) -> dict[Tile, float]:
    """All tiles with their predicted cost, cheapest first."""
    sizes = gemm.gemm_of(workload)
    costs = {tile: tile_cost(tile, sizes) for tile in TILES}
    return cheapest_first(costs)


def tile_cost(tile: Tile, sizes: gemm.Gemm) -> float:
    """Bytes that are read, padding included, and the cost of shuffles in bytes, over the share of the GPU in use.

    More threads per output make more threads in all, each with fewer successive loads.
    """
    padded = tile.block.pad(sizes)
    bytes_read = padded.batch * padded.n * padded.k
    shuffles = padded.batch * padded.n * sizes.m * tile.lanes.bit_length() * tile.lanes
    busy = min(1.0, padded.batch * padded.n * tile.lanes / (MULTIPROCESSORS * RESIDENT))
    uneven = OTHER_BLOCK if tile.lanes * tile.outputs != BLOCK else 1.0
    return (bytes_read + shuffles) * uneven / rate(busy)


def schedule(sch: Schedule, workload: Workload, target: Target, tile: Tile) -> None:
    """Adjacent threads share an output, with sums by shuffles, followed by the epilogue."""
    product = sch.get_sblock(gemm.ACCUMULATOR)
    output = inline_epilogue(sch, product)
    gemm.as_gemm(sch, workload, output)
    epilogue, write = gemm.stage_output(sch, workload, output, tile.block, 1, 1)
    sch.set_scope(product, 0, "local")

    _, lane, _ = sch.split(sch.get_loops(product)[-1], [None, tile.lanes, BYTES])
    partial = sch.rfactor(lane, factor_axis=3)
    sch.set_scope(partial, 0, "local")
    *batch, row, n = sch.get_loops(write)
    block, thread = sch.split(n, [None, tile.outputs])
    sch.reorder(*batch, block, thread, row)
    for loop in batch:
        sch.bind(loop, "blockIdx.y")
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.y")
    for stage in (epilogue, product):
        sch.compute_at(stage, thread, preserve_unit_loops=True)
    lane, *spatial = sch.get_loops(product)[-4:]  # the factored axis comes first
    sch.reorder(*spatial, lane)
    sch.bind(lane, "threadIdx.x")

    operands = [sch.cache_read(partial, index, "local", [partial]) for index in (0, 1)]
    sch.compute_at(partial, thread, preserve_unit_loops=True)
    lane, _, row, _, step, k = sch.get_loops(partial)[-6:]
    word, byte = sch.split(k, [None, DEPTH])
    sch.reorder(lane, step, row, word, byte)
    sch.bind(lane, "threadIdx.x")
    run = gemm.run_of(workload)
    runs = (run, run if isinstance(workload, BatchMatmulWorkload) else BYTES)
    for operand, together in zip(operands, runs, strict=True):
        sch.compute_at(operand, step, preserve_unit_loops=True)
        for producer in sch.get_producers(operand):
            if has(sch, producer, OPERAND):
                sch.compute_inline(producer)
        outer, vector = sch.split(sch.get_loops(operand)[-1], [None, together])
        sch.unroll(outer)
        if together > 1:
            sch.vectorize(vector)
    sch.unroll(row)
    sch.unroll(word)
    sch.decompose_reduction(partial, step)
    sch.tensorize(byte, dp4a())
    bind_blocks(sch)


def _refuses(workload: Workload, target: Target) -> str | None:
    rows = gemm.gemm_of(workload).m
    return refuses(workload, target) or (f"{rows} rows, more than {ROWS}" if rows > ROWS else None)


register_products(
    "gemv",
    priority=40,  # above tensor cores, which would mostly multiply rows of padding
    refuses=_refuses,
    tiles=tiles,
    schedule=schedule,
)

"""conv2d, dense and batch_matmul with DP4A: for GPUs without tensor cores, and for products that do not fill these.

A block of threads computes `rows` × `columns` of the product of `gemm`, `depth` bytes of k at a time. Both operands are
copied through registers into shared memory, 16 bytes per load if their layout allows it, and are stored there as words
of four k, with the words of neighbouring rows side by side:

    shared[k / 4][quarter][thread][row of the quarter][k % 4]

so that each thread reads four of its rows with one 16-byte instruction, and neighbouring threads read neighbouring 16
bytes: there are no bank conflicts. A thread's own tile is 4×4 to 8×8 accumulators in registers: each word of A or B is
used 4 or 8 times. The epilogue runs on them and stores four bytes at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.sym import Analyzer
from tvm.target import Target

from ...numerics.annotations import OPERAND, has
from ..refusal import other_dtypes
from ..schedule_util import inline_epilogue
from ..strategy import cheapest_first
from ..workload import AnyWorkload, BatchMatmulWorkload, Workload, is_float
from . import gemm
from .dp4a_intrin import DEPTH, dp4a
from .generic import bind_blocks
from .registration import register_products

QUARTER = 4  # rows of a thread in one 16-byte load
BYTES = gemm.WIDEST  # in the widest load


@dataclass(frozen=True)
class Instruction:
    """What a thread multiplies with, from registers to a register, in words of four bytes.

    depth: how many values of k a word has; apply: makes it the body of a block that adds products to sums, under its
    loop over the values of a word
    """

    depth: int
    apply: Callable[[Schedule, SBlockRV, LoopRV], None]

    @property
    def loaded(self) -> int:
        """Values in the widest load."""
        return self.depth * BYTES // 4


DP4A = Instruction(DEPTH, lambda sch, product, value: sch.tensorize(value, dp4a()))


@dataclass(frozen=True)
class Tile:
    """A block's rows, columns and values of k; a thread's rows and columns, multiples of 4 that divide the block's."""

    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int

    @property
    def threads(self) -> int:
        return self.rows // self.thread_rows * (self.columns // self.thread_columns)

    @property
    def block(self) -> gemm.BlockSize:
        return gemm.BlockSize(self.rows, self.columns, self.depth)


TILES = [
    Tile(rows, columns, depth, thread_rows, thread_columns)
    for thread_rows, thread_columns in ((8, 8), (4, 8), (8, 4), (4, 4))
    for rows in (16, 32, 64, 128)
    for columns in (16, 32, 64, 128)
    for depth in (16, 32, 64)
    if 64 <= rows // thread_rows * (columns // thread_columns) <= 256
]

# ---- choice ----------------------------------------------------------------------------------------------------------

MULTIPROCESSORS = 64
"""Of a mid-range GPU, for which tiles are chosen without tuning: a GeForce RTX 3060 has 28, an RTX 4090 128."""
RESIDENT = 512
"""Threads of a multiprocessor that hide each other's memory latency: four warps for each of its four schedulers."""
WARP = 32
"""Threads of a warp."""

SHARED_LOAD = 4
"""Cycles of a warp's 16-byte load from shared memory, which delivers 128 bytes per cycle."""
COPY = 3
"""Instructions to copy a word to shared memory: its address, load and store."""
BARRIERS = 60
"""Cycles that a step waits at its two barriers: an estimate of 30 cycles each."""
ALONE = 0.25
"""The share of its rate at which a multiprocessor issues if few threads hide no latency: one scheduler of four."""


@lru_cache(maxsize=4096)
def tiles(workload: Workload) -> dict[Tile, float]:
    """All tiles with their predicted cost, cheapest first."""
    sizes = gemm.gemm_of(workload)
    costs = {tile: tile_cost(tile, sizes, DP4A) for tile in TILES}
    return cheapest_first(costs)


def tile_cost(tile: Tile, sizes: gemm.Gemm, instruction: Instruction, more: float = 0.0) -> float:
    """Warp instructions that the busiest multiprocessor issues. more: other instructions of a thread.

    In each step of a word of k a thread multiplies once per accumulator, loads its rows and columns from shared memory,
    and does its share of the copies into it; a step's barriers cost what few warps cannot hide. Blocks run in waves.
    """
    padded = tile.block.pad(sizes)
    blocks = padded.batch * (padded.m // tile.rows) * (padded.n // tile.columns)
    products = tile.thread_rows * tile.thread_columns
    loads = (tile.thread_rows + tile.thread_columns) / QUARTER * SHARED_LOAD
    copies = (tile.rows + tile.columns) / tile.threads * COPY
    steps, barriers = padded.k / instruction.depth, padded.k / tile.depth * BARRIERS
    busiest = -(-blocks // MULTIPROCESSORS)
    hidden = min(1.0, busiest * tile.threads / RESIDENT)
    issued = busiest * tile.threads / WARP * (steps * (products + loads + copies) + barriers + more)
    return issued / rate(hidden)


def rate(busy: float) -> float:
    """The share of its peak that a GPU reaches with this share of the threads that would hide all latency."""
    return ALONE + (1 - ALONE) * busy


def schedule(sch: Schedule, workload: Workload, target: Target, tile: Tile, instruction: Instruction = DP4A) -> None:
    """Blocks of threads with shared memory, tiles in registers, the epilogue on those."""
    product = sch.get_sblock(gemm.ACCUMULATOR)
    output = inline_epilogue(sch, product)
    gemm.as_gemm(sch, workload, output)
    epilogue, write = gemm.stage_output(sch, workload, output, tile.block, QUARTER, 1)
    sch.set_scope(product, 0, "local")
    thread = bind_tiles(sch, write, tile)
    for block in (epilogue, product):
        sch.compute_at(block, thread, preserve_unit_loops=True)
    multiply(sch, workload, product, tile, instruction)
    store_tile(sch, workload, epilogue, write)
    bind_blocks(sch)


def store_tile(sch: Schedule, workload: AnyWorkload, epilogue: SBlockRV, write: SBlockRV) -> None:
    """Compute and store a thread's results, vectors of its columns at a time.

    Functions of floats are computed one by one: GPUs do so in any case, and TVM makes invalid code of vectors of
    conditions that it finds to be constant, as in SiLU.
    """
    for block in (epilogue, write):
        *_, rows, columns = sch.get_loops(block)
        sch.unroll(rows)
        if block is epilogue and is_float(workload):
            sch.unroll(columns)
        else:
            vectorize(sch, block, math.gcd(gemm.gemm_of(workload).n, QUARTER), columns)


def bind_tiles(sch: Schedule, write: SBlockRV, tile: Tile) -> LoopRV:
    """Blocks and threads for the tiles of the output; returns the innermost loop over threads."""
    *batch, m, n = sch.get_loops(write)
    block_m, thread_m, row = sch.split(m, [None, tile.rows // tile.thread_rows, tile.thread_rows])
    block_n, thread_n, column = sch.split(n, [None, tile.columns // tile.thread_columns, tile.thread_columns])
    sch.reorder(*batch, block_m, block_n, thread_m, thread_n, row, column)
    for loop in batch:
        sch.bind(loop, "blockIdx.z")
    for loop, thread in (
        (block_m, "blockIdx.y"),
        (block_n, "blockIdx.x"),
        (thread_m, "threadIdx.y"),
        (thread_n, "threadIdx.x"),
    ):
        sch.bind(loop, thread)
    return thread_n


def multiply(sch: Schedule, workload: Workload, product: SBlockRV, tile: Tile, instruction: Instruction) -> None:
    """Stage the operands of a thread's tile step by step, and tensorize its product."""
    run = gemm.run_of(workload)
    runs = (run, run if isinstance(workload, BatchMatmulWorkload) else instruction.loaded)  # packed weights are padded
    operands = [stage(sch, product, index, runs[index]) for index in (0, 1)]
    row, column, k = sch.get_loops(product)[-3:]
    step, word, value = sch.split(k, [None, tile.depth // instruction.depth, instruction.depth])
    sch.reorder(step, word, row, column, value)
    sides = ((tile.rows, tile.thread_rows), (tile.columns, tile.thread_columns))
    for operand, (size, own), run in zip(operands, sides, runs, strict=True):
        thread = place(sch, operand, (step, word), size, own, tile, instruction.loaded, instruction)
        load(sch, operand, thread, run)
    accumulate(sch, product, step, (row, column, value), instruction)


def accumulate(
    sch: Schedule, product: SBlockRV, step: LoopRV, loops: tuple[LoopRV, LoopRV, LoopRV], instruction: Instruction
) -> None:
    """Keep a thread's sums in registers, which begin before the loop `step`, and tensorize the product.

    loops: over rows, columns, and the values that one instruction takes
    """
    row, column, value = loops
    sch.unroll(row)
    sch.unroll(column)
    initial = sch.decompose_reduction(product, step)
    for loop in sch.get_loops(initial)[-2:]:
        sch.unroll(loop)
    instruction.apply(sch, product, value)


@dataclass(frozen=True)
class Operand:
    """The stages of an operand: memory → `loaded` (registers) → `shared` → `own` (a thread's registers)."""

    loaded: SBlockRV
    shared: SBlockRV
    own: SBlockRV


def stage(sch: Schedule, product: SBlockRV, index: int, run: int) -> Operand:
    """Give an operand of the product its stages, and compute its gathering or padding there."""
    shared = sch.cache_read(product, index, "shared", [product])
    own = sch.cache_read(product, index, "local", [product])
    loaded = sch.cache_read(shared, 0, "local")
    for producer in sch.get_producers(loaded):
        if has(sch, producer, OPERAND):
            sch.compute_inline(producer)
    if run > 1:
        split_runs(sch, loaded, run)
    return Operand(loaded, shared, own)


def split_runs(sch: Schedule, block: SBlockRV, run: int) -> None:
    """Express k of a block, and everything computed from it, by k // run and k % run.

    TVM keeps channel and column of a window as one remainder of k, and would not see that a run is contiguous in
    memory.
    """
    *axes, k = (iter_var.var for iter_var in sch.get(block).iter_vars)
    sch.transform_block_layout(block, tirx.IndexMap([*axes, k], [*axes, k // run, k % run], None))
    found = sch.get(block)
    analyzer = Analyzer()
    for iter_var in found.iter_vars:
        analyzer.bind(iter_var.var, iter_var.dom)
    kinds = [(kind, analyzer.simplify) for kind in (tirx.FloorDiv, tirx.FloorMod)]
    simplified = tvm_ffi.structural_map(found, kinds)
    sch.state.replace(sch.get_sref(block), simplified, {found: simplified})


def place(
    sch: Schedule,
    operand: Operand,
    loops: tuple[LoopRV, LoopRV],
    size: int,
    own: int,
    tile: Tile,
    chunk: int,
    instruction: Instruction,
) -> LoopRV:
    """Copy an operand's `size` rows to shared memory once a step, and `own` of them to registers once a word, which are
    the two `loops`. A thread copies `chunk` values of k at a time; returns the loop over threads."""
    quarters, depth = own // QUARTER, instruction.depth
    step, word = loops

    def shared_layout(*indices: Any) -> list[Any]:
        *lead, row, k = indices
        inside = row % size
        place_ = [inside % own // QUARTER, inside // own, inside % QUARTER] if quarters > 1 else [inside]
        return [*lead, row // size, k // depth, *place_, k % depth]

    sch.compute_at(operand.own, word, preserve_unit_loops=True)
    vectorize(sch, operand.own, QUARTER * depth, sch.fuse(*sch.get_loops(operand.own)[-2:]))
    sch.transform_layout(operand.shared, ("write", 0), shared_layout)
    sch.compute_at(operand.shared, step, preserve_unit_loops=True)
    row, k = sch.get_loops(operand.shared)[-2:]
    chunks, _ = sch.split(k, [None, chunk])
    threads = [tile.rows // tile.thread_rows, tile.columns // tile.thread_columns]
    outer, thread_m, thread_n = sch.split(sch.fuse(row, chunks), [None, *threads])
    sch.bind(thread_m, "threadIdx.y")
    sch.bind(thread_n, "threadIdx.x")
    sch.unroll(outer)
    vectorize(sch, operand.shared, depth)
    return thread_n


def load(sch: Schedule, operand: Operand, thread: LoopRV, run: int) -> None:
    """Load what a thread copies, `run` values at once."""
    sch.compute_at(operand.loaded, thread, preserve_unit_loops=True)
    *_, outer, k = sch.get_loops(operand.loaded)
    sch.unroll(outer)
    (sch.vectorize if run > 1 else sch.unroll)(k)


def vectorize(sch: Schedule, block: SBlockRV, lanes: int, loop: LoopRV | None = None) -> None:
    """Vectorize the last loop of a block, or another one, `lanes` iterations at a time."""
    outer, inner = sch.split(sch.get_loops(block)[-1] if loop is None else loop, [None, lanes])
    sch.unroll(outer)
    if lanes > 1:
        sch.vectorize(inner)


def refuses(workload: Workload, target: Target) -> str | None:
    """Why a product is not one of int8."""
    return other_dtypes(workload, ("int8",), ("int8",))


register_products("dp4a", priority=10, refuses=refuses, tiles=tiles, schedule=schedule)

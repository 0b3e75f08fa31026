"""conv2d, dense and batch_matmul on tensor cores: mma.sync with int8 operands, for sm_75 and later, and with float16 or
bfloat16 for sm_80 and later.

A block of warps computes a tile of the product of `gemm`, `depth` of k at a time:

    memory → shared memory   16 bytes per copy if channels allow; the windows of a convolution are gathered here. From
                             sm_80 on, copies are asynchronous (`copies.py`): they overlap the products of earlier steps
    shared memory → warps    ldmatrix, fragments of 16 × 32 bytes; rows are padded against bank conflicts (`intrin.PAD`)
    warps                    mma.sync m16n8k32, on sm_75 four of m8n8k16; accumulators stay in a warp's registers
    epilogue                 on these registers; int32 never leaves them

Of eight columns a lane has two adjacent ones, so a row of int8 would be stored two bytes at a time. Weights are packed
with the columns of a warp's tile permuted such that a lane's are all adjacent, see `columns_of`: it stores up to 16
bytes at once. The second operand of batch_matmul is never packed, and its results are stored in pairs.

Exact in any order of the sums: int32 accumulators wrap around (mma.sync without .satfinite). Products of floats are
exact too, but the hardware rounds their sums of sixteen to float32 in a way that NVIDIA does not specify.

Not used: wgmma of sm_90. TVM 0.27 can emit the instruction (`T.ptx.wgmma`, also for s8), but schedules do not support
it: its operands are in shared memory in swizzled layouts given by descriptors, its accumulators spread over 128
threads. mma.sync reaches some 60 % of an H100's peak. sm_72 has tensor cores only for WMMA and uses DP4A.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product as combinations
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from ...numerics.annotations import OPERAND, has
from ...targets.families import KIB, SHARED_BYTES
from ...targets.gpus import version_of
from ..refusal import other_dtypes
from ..schedule_util import extent, inline_epilogue
from ..strategy import cheapest_first
from ..workload import AnyWorkload, BatchMatmulWorkload, BlockwiseWorkload, Conv2dWorkload, Workload, is_float
from . import gemm, intrin
from .dp4a import refuses
from .generic import bind_blocks
from .registration import cheapest, register_products

OLDEST = 75  # with mma.sync of int8 and ldmatrix
ASYNCHRONOUS = 80  # with cp.async and m16n8k32
VECTOR = 16  # bytes of the widest access
PAIR = 2  # columns of a lane that are neighbours anyway


@dataclass(frozen=True)
class Tile:
    """A block's rows and columns of the product and its depth, the extent of k per step; its warps along rows and
    columns; how many steps are in shared memory at a time; the bytes of a value."""

    rows: int
    columns: int
    depth: int
    warp_rows: int
    warp_columns: int
    stages: int
    item: int = 1

    @property
    def block(self) -> gemm.BlockSize:
        return gemm.BlockSize(self.rows, self.columns, self.depth)

    @property
    def threads(self) -> int:
        return intrin.LANES * self.warp_rows * self.warp_columns

    @property
    def of_warp(self) -> tuple[int, int]:
        """Rows and columns that a warp computes."""
        return self.rows // self.warp_rows, self.columns // self.warp_columns

    @property
    def registers(self) -> int:
        """Of a thread: sums and fragments."""
        rows, columns = self.of_warp
        return rows * columns // intrin.LANES + (rows + columns) // 4

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.rows + self.columns) * (self.depth * self.item + intrin.PAD)

    @property
    def legal(self) -> bool:
        """Whether a warp's tile fits its registers and all threads copy equally."""
        rows, columns = self.of_warp
        fits = 16 <= rows <= 64 and 16 <= columns <= 64
        copies = self.threads * VECTOR
        alike = all(size * self.depth * self.item % copies == 0 for size in (self.rows, self.columns))
        return fits and alike and 64 <= self.threads <= 256


def _tiles_of(item: int, shared_bytes: int) -> list[Tile]:
    """All tiles for values of so many bytes that fit a block's shared memory."""
    depths = tuple(size // item for size in (32, 64, 128, 256))
    sizes = combinations(
        (32, 64, 128, 256), (16, 32, 64, 128, 256), depths, (1, 2, 4), (1, 2, 4), (2, 3, 4, 6, 8), (item,)
    )
    return [tile for size in sizes if (tile := Tile(*size)).legal and tile.shared_bytes <= shared_bytes]


TILES, WIDE_TILES = (_tiles_of(item, 96 * KIB) for item in (1, 2))
TILES_OF_TURING = _tiles_of(1, SHARED_BYTES)


# ---- choice ----------------------------------------------------------------------------------------------------------

# Rates per cycle, and cycles, of a multiprocessor of sm_90. Fitted to the times of 780 kernels on an H200, for 19
# products of ResNet-50 and BERT at batch 1 and 64 with up to 55 tiles each: the tile chosen takes 1.07 times as long as
# the best of them in the mean, and at most 1.74 times.
MULTIPROCESSORS = 132
PRODUCTS = 2130  # multiply-accumulates of its tensor cores by mma.sync, of bytes: half as many of 16 bits
SHARED_RATE = 112  # bytes to and from shared memory
GATHER = 0.48  # for a copy of a run: some 60 instructions, 128 lanes
LATENCY = 505  # until data requested from L2 arrive
COPY = 54  # for each copy that a thread makes in a step: its address, its predicate, its store
APART = 4.8  # times as long is a copy from the image if the runs of a step belong to several taps of the window
STEP = 177  # the barriers of a step
REGISTERS = 65536
SHARED = 192 * KIB  # bytes of shared memory for blocks


@lru_cache(maxsize=4096)
def tiles(workload: Workload, of_turing: bool = False) -> dict[Tile, float]:
    """The tiles that the product fills to a quarter, or all, with their predicted cost, cheapest first.

    of_turing: only those that the smaller shared memory of sm_75 holds
    """
    sizes = gemm.gemm_of(workload)
    known = WIDE_TILES if is_float(workload) else TILES_OF_TURING if of_turing else TILES
    filled = [tile for tile in known if _fills(sizes, tile)]
    costs = {tile: tile_cost(tile, sizes, gemm.run_of(workload), _apart(workload, tile)) for tile in filled or known}
    return cheapest_first(costs)


def _apart(workload: Workload, tile: Tile) -> bool:
    """Whether a step gathers values from several taps of a window."""
    if not isinstance(workload, Conv2dWorkload) or math.prod(workload.kernel) == 1:
        return False
    return gemm.channels_of(workload) % tile.depth != 0


def tile_cost(tile: Tile, sizes: gemm.Gemm, run: int, apart: bool) -> float:
    """Cycles of the busiest multiprocessor, if A is gathered in runs of `run` values, of several taps if `apart`.

    Blocks that it holds at a time share its units: a step takes as long as the busiest of tensor cores, shared memory
    and the lanes that compute copy addresses, by far the busiest for single bytes of a first layer. If few blocks
    share it, a step takes at least what it takes a block alone: the memory latency, less what the stages hide, what a
    thread's own copies take one after the other, and its products.
    """
    padded = tile.block.pad(sizes)
    blocks = padded.batch * (padded.m // tile.rows) * (padded.n // tile.columns)
    rows, columns = tile.of_warp
    warps = tile.warp_rows * tile.warp_columns
    width = tile.depth * tile.item
    copied = (tile.rows + tile.columns) * width
    loaded = warps * (rows + columns) * width
    gathers, copies = tile.rows * tile.depth / run, tile.columns * width / VECTOR
    products = tile.rows * tile.columns * width
    step = max(products / PRODUCTS, (loaded + copied) / SHARED_RATE, (gathers + copies) * GATHER)
    own = (gathers * (APART if apart else 1) + copies) / tile.threads * COPY
    return cycles(tile, blocks, padded.k // tile.depth, step, own, tile.registers, tile.shared_bytes)


def cycles(tile: Tile, blocks: int, steps: int, step: float, own: float, registers: int, shared_bytes: int) -> float:
    """Cycles of the busiest multiprocessor, if a step takes `step` of its busiest unit, and `own` of the copies that a
    thread makes one after the other."""
    busiest = -(-blocks // MULTIPROCESSORS)
    together = max(1, min(busiest, REGISTERS // (tile.threads * registers), SHARED // shared_bytes))
    alone = LATENCY / min(tile.stages, steps) + own + step
    return steps * max(busiest * (step + STEP), -(-busiest // together) * alone)


# ---- compute ---------------------------------------------------------------------------------------------------------


def columns_of(workload: AnyWorkload, tile: Tile) -> Callable[[Any], Any] | None:
    """The position of channel n among the columns of a warp's tile, None if it is n itself.

    Of every eight columns lane t has 2t and 2t + 1. Channels t·w/4 … (t + 1)·w/4 − 1 of a tile of w are put there.
    """
    if isinstance(workload, BatchMatmulWorkload | BlockwiseWorkload):
        return None
    width = tile.of_warp[1]
    quarter = width // 4
    return lambda n: n // width * width + n % quarter // 2 * 8 + n % width // quarter * 2 + n % 2


def run_of(workload: AnyWorkload, tile: Tile) -> int:
    """The number of neighbours in n that a lane has."""
    return tile.of_warp[1] // 4 if columns_of(workload, tile) else PAIR


# ---- schedule --------------------------------------------------------------------------------------------------------


def schedule(
    sch: Schedule, workload: Workload, target: Target, tile: Tile, kind: intrin.Operands = intrin.INT8
) -> None:
    """Blocks of warps, operands through shared memory, products by tensor cores, the epilogue on their registers."""
    product = sch.get_sblock(gemm.ACCUMULATOR)
    output = inline_epilogue(sch, product)
    gemm.as_gemm(sch, workload, output)
    width = tile.of_warp[1]
    epilogue, write = gemm.stage_output(sch, workload, output, tile.block, run_of(workload, tile), width)
    row, column, warp = bind_warps(sch, write, tile)
    for block in (epilogue, product):
        sch.compute_at(block, warp, preserve_unit_loops=True)
    _multiply(sch, workload, product, tile, version_of(str(target.attrs["arch"])), kind)
    write_fragments(sch, workload, epilogue, write, row, column, tile)
    bind_blocks(sch)


def bind_warps(sch: Schedule, write: SBlockRV, tile: Tile) -> tuple[LoopRV, LoopRV, LoopRV]:
    """Blocks and warps for the tiles of the output. Returns the loops over a warp's rows and columns, and over warps.

    Neighbouring blocks share their rows, of which there are more than columns: these are in L2 only once.
    """
    *batch, m, n = sch.get_loops(write)
    rows, columns = tile.of_warp
    block_row, warp_row, row = sch.split(m, [None, tile.warp_rows, rows])
    block_column, warp_column, column = sch.split(n, [None, tile.warp_columns, columns])
    sch.reorder(block_row, block_column, warp_row, warp_column, row, column)
    sch.bind(sch.fuse(*batch, block_row, block_column), "blockIdx.x")
    sch.bind(warp_row, "threadIdx.y")
    sch.bind(warp_column, "threadIdx.z")
    return row, column, warp_column


def _multiply(
    sch: Schedule, workload: Workload, product: SBlockRV, tile: Tile, version: int, kind: intrin.Operands
) -> None:
    """Stage the operands step by step, and tensorize the product of each step."""
    shared = [sch.cache_read(product, index, "shared.dyn", [product]) for index in range(2)]
    step = multiply_fragments(sch, product, tile.depth, version, kind)
    run = gemm.run_of(workload)
    runs = (run, run if isinstance(workload, BatchMatmulWorkload) else VECTOR // kind.item)  # packed weights are padded
    for block, together in zip(shared, runs, strict=True):
        sch.compute_at(block, step, preserve_unit_loops=True)
        copy_by_all(sch, block, together, tile)
    overlap(sch, step, tile, version, 2)


def multiply_fragments(sch: Schedule, product: SBlockRV, depth: int, version: int, kind: intrin.Operands) -> LoopRV:
    """Tensorize a product of operands in shared memory, `depth` of k at a time; returns the loop over these steps."""
    lead, row, column, k = sch.get_loops(product)[-4:]
    rows, row = sch.split(row, [None, intrin.M])
    columns, column = sch.split(column, [None, intrin.N])
    step, fragment, k = sch.split(k, [None, depth // kind.k, kind.k])
    sch.reorder(lead, step, fragment, rows, columns, row, column, k)
    loaded = [sch.cache_read(product, index, "warp", [product]) for index in range(2)]
    sch.set_scope(product, 0, "warp")
    for block, name in zip(loaded, "ab", strict=True):
        sch.compute_at(block, fragment, preserve_unit_loops=True)
        _load(sch, block, name, kind)
    initial = sch.decompose_reduction(product, step)
    lay_out(sch, product, intrin.accumulator, intrin.N)
    of_bytes = intrin.M16N8K32 if version >= ASYNCHRONOUS else intrin.M8N8K16
    sch.tensorize(row, intrin.multiply(of_bytes if kind is intrin.INT8 else intrin.M16N8K16, kind))
    *_, first_rows, first_columns, first_row, _ = sch.get_loops(initial)
    sch.tensorize(first_row, intrin.clear(kind))
    for loop in (fragment, rows, columns, first_rows, first_columns):
        sch.unroll(loop)
    return step


def overlap(sch: Schedule, step: LoopRV, tile: Tile, version: int, copies: int, uses: int = 1) -> None:
    """Overlap copying the operands of later steps, a step's first statements, with what uses this step's, its last
    ones."""
    stages = min(tile.stages, extent(sch, step))
    if stages == 1:
        return
    sch.annotate(step, "software_pipeline_stage", [0] * copies + [stages - 1] * uses)
    sch.annotate(step, "software_pipeline_order", list(range(copies + uses)))
    if version >= ASYNCHRONOUS:
        sch.annotate(step, "software_pipeline_async_stages", [0])


def _load(sch: Schedule, block: SBlockRV, operand: str, kind: intrin.Operands) -> None:
    """Load fragments of an operand with ldmatrix."""
    *_, row, k = sch.get_loops(block)
    rows, row = sch.split(row, [None, intrin.M])
    steps, k = sch.split(k, [None, kind.k])
    sch.reorder(rows, steps, row, k)
    lay_out(sch, block, kind.operand_a if operand == "a" else kind.operand_b, kind.k)
    sch.unroll(rows)
    sch.tensorize(row, intrin.load(operand, kind))


def lay_out(sch: Schedule, block: SBlockRV, place: Callable[[Any, Any], tuple[Any, Any]], width: int) -> None:
    """Lay out a block's result as fragments of 16 × width: (..., row, column) is (..., tile, tile, lane, register)."""

    def layout(*indices: Any) -> list[Any]:
        *outer, i, j = indices
        return [*outer, i // 16, j // width, *place(i % 16, j % width)]

    axes = len(sch.get(block).writes[0].region)
    sch.transform_layout(block, ("write", 0), tirx.IndexMap.from_func(layout, ndim=axes, index_dtype="int32"))


def copy_by_all(sch: Schedule, block: SBlockRV, run: int, tile: Tile) -> None:
    """Schedule an operand's copy to shared memory, with its gathering or padding, by all threads, `run` values each."""
    for producer in sch.get_producers(block):
        if has(sch, producer, OPERAND):
            sch.compute_inline(producer)
    *_, row, k = sch.get_loops(block)
    threads = [tile.warp_rows, tile.warp_columns, intrin.LANES]
    _, warp_row, warp_column, lane, vector = sch.split(sch.fuse(row, k), [None, *threads, run])
    for loop, thread in ((warp_row, "threadIdx.y"), (warp_column, "threadIdx.z"), (lane, "threadIdx.x")):
        sch.bind(loop, thread)
    if run > 1:
        sch.vectorize(vector)
    row_axis = len(sch.get(block).iter_vars) - 2
    sch.storage_align(block, 0, row_axis, tile.depth, intrin.PAD // tile.item)


def write_fragments(
    sch: Schedule, workload: AnyWorkload, epilogue: SBlockRV, write: SBlockRV, row: LoopRV, column: LoopRV, tile: Tile
) -> None:
    """Store a lane's rows and columns of the output, in the order of `intrin.accumulator`, each run as vectors."""
    run = run_of(workload, tile)
    tiles_, half, group = sch.split(row, [None, 2, 8])
    runs, quad, column = sch.split(column, [None, 4, run])
    sch.reorder(group, quad, tiles_, half, runs, column)
    sch.bind(sch.fuse(group, quad), "threadIdx.x")
    sch.compute_at(epilogue, runs, preserve_unit_loops=True)
    itemsize = tvm.DataType(str(sch.get(write).writes[0].source.dtype)).bits // 8
    width = math.gcd(gemm.gemm_of(workload).n, run, VECTOR // itemsize)
    outer, vector = sch.split(column, [None, width])
    if width > 1:
        sch.vectorize(vector)
    for loop in (tiles_, half, runs, outer, sch.get_loops(epilogue)[-1]):
        sch.unroll(loop)


# ---- registration ----------------------------------------------------------------------------------------------------


def _refuses(workload: Workload, target: Target) -> str | None:
    """Also products that fill less than a quarter of a tile: for these DP4A is as good."""
    refused, version = refuses(workload, target), version_of(str(target.attrs["arch"]))
    if refused or version < OLDEST:
        return refused or f"needs sm_{OLDEST}"
    return _unfilled(workload) if version >= ASYNCHRONOUS else f"has tiles for sm_{ASYNCHRONOUS} and later"


def _refuses_turing(workload: Workload, target: Target) -> str | None:
    refused = refuses(workload, target)
    if refused or not OLDEST <= version_of(str(target.attrs["arch"])) < ASYNCHRONOUS:
        return refused or f"has tiles for sm_{OLDEST}"
    return _unfilled(workload)


def _unfilled(workload: Workload) -> str | None:
    fills = _fills(gemm.gemm_of(workload), cheapest(tiles, workload))
    return None if fills else "fills less than a quarter of its tiles"


def _fills(sizes: gemm.Gemm, tile: Tile) -> bool:
    return tile.block.pad(sizes).macs <= 4 * sizes.macs


def _refuses_floats(workload: Workload, target: Target, kind: intrin.Operands) -> str | None:
    refused = other_dtypes(workload, (kind.dtype,), (kind.dtype,), kind.sums)
    if refused or version_of(str(target.attrs["arch"])) < ASYNCHRONOUS:
        return refused or f"needs sm_{ASYNCHRONOUS}"
    return _unfilled(workload)


IMPLEMENTATIONS = register_products(
    "mma", priority=30, refuses=_refuses, tiles=tiles, schedule=schedule, columns_of=columns_of
)
register_products(
    "mma_turing",
    priority=30,
    refuses=_refuses_turing,
    tiles=partial(tiles, of_turing=True),
    schedule=schedule,
    columns_of=columns_of,
)
for _kind, _name in ((intrin.FLOAT16, "float16"), (intrin.BFLOAT16, "bfloat16")):
    register_products(
        f"mma_{_name}",
        priority=30,
        refuses=partial(_refuses_floats, kind=_kind),
        tiles=tiles,
        schedule=partial(schedule, kind=_kind),
        columns_of=columns_of,
        floats=True,
    )

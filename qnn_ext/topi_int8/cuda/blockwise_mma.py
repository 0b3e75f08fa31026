"""Products of many rows with block-wise quantized weights on tensor cores: the kernels of `tensor_core` for `grouped`.

    global memory → shared memory   rows of x, packed bytes of the weights, scales, zero points, sums of x
    shared → shared memory          weights are unpacked, a word of bytes at a time, once for all warps of a block
    shared memory → warps           ldmatrix and mma.sync, into the sums of one group
    warps                           at the end of each group its sums are scaled and added to those of float32

int8 activations on sm_75 and later, float16 and bfloat16 on sm_80 and later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product as combinations

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from ...numerics.packed import WIDTHS
from ...targets.families import KIB, SHARED_BYTES
from ...targets.gpus import version_of
from ..schedule_util import inline_epilogue
from ..strategy import Implementation, cheapest_first
from ..workload import BlockwiseWorkload
from . import blockwise, gemm, grouped, intrin, tensor_core
from .generic import bind_blocks
from .unpacking import WORD, Form, unpack, values_of_word

SHARED, STATIC = "shared.dyn", "shared"
MOST_SUMS = 2048  # of a warp: 64 registers, and as many for a group's
SUM_BYTES = 4


# ---- choice ----------------------------------------------------------------------------------------------------------

ISSUED = 4
"""Instructions of warps that a multiprocessor issues in a cycle."""
MEMORY = 15
"""Bytes from memory in a cycle, of each multiprocessor: 3.35 TB/s of an H100 at 1.7 GHz. Not measured."""
LANES = 128
"""Lanes of a multiprocessor."""
UNHIDDEN = 2.2
"""How many times as long as what is counted here kernels took on an H200: 1.6 to 2.9 times, of 32 to 512 rows."""


def form_of(kind: intrin.Operands) -> Form:
    """The values that an instruction multiplies."""
    return Form(kind.dtype, kind.k, kind.sums)


@dataclass(frozen=True)
class Tile(tensor_core.Tile):
    """A tile whose columns are packed in `bits` bits."""

    bits: int = 4

    @property
    def legal(self) -> bool:
        """Whether two sets of sums fit a thread's registers, and all threads copy and unpack equally."""
        rows, columns = self.of_warp
        fits = 16 <= rows <= 64 and 16 <= columns <= 64 and rows * columns <= MOST_SUMS
        copied = self.rows * self.depth * self.item % (self.threads * tensor_core.VECTOR) == 0
        unpacked = self.columns * self.depth * self.bits // 8 % (self.threads * WORD) == 0
        return fits and copied and unpacked and 64 <= self.threads <= 256

    @property
    def registers(self) -> int:
        rows, columns = self.of_warp
        return super().registers + rows * columns // intrin.LANES

    @property
    def packed(self) -> int:
        """Bytes of a step's weights."""
        return self.columns * self.depth * self.bits // 8

    def shared_of(self, workload: BlockwiseWorkload, steps: grouped.Steps) -> int:
        """Bytes of shared memory."""
        width = self.depth * self.item + intrin.PAD
        values = steps.groups * SUM_BYTES * sum(grouped.parameters(workload, self.rows, self.columns))
        return self.stages * (self.rows * width + self.packed + values) + self.columns * width


@lru_cache(maxsize=4096)
def tiles(workload: BlockwiseWorkload, kind: intrin.Operands, shared_bytes: int) -> dict[Tile, float]:
    """The tiles that fit a block's shared memory, with their predicted cost, cheapest first."""
    bits = WIDTHS[workload.weight_dtype]
    sizes = combinations(
        (32, 64, 128),
        (16, 32, 64, 128),
        tuple(size // kind.item for size in (32, 64, 128, 256)),
        (1, 2, 4),
        (1, 2, 4),
        (2, 3, 4),
        (kind.item,),
        (bits,),
    )
    found = {}
    for tile in (Tile(*size) for size in sizes):
        steps = grouped.steps_of(workload, tile.depth, kind.k)
        idle = (tile.warp_rows - 1) * tile.of_warp[0] >= workload.m  # TVM cannot schedule warps without a row, either
        if tile.legal and not idle and steps is not None and tile.shared_of(workload, steps) <= shared_bytes:
            found[tile] = tile_cost(tile, workload, steps, kind)
    return cheapest_first(found)


def tile_cost(tile: Tile, workload: BlockwiseWorkload, steps: grouped.Steps, kind: intrin.Operands) -> float:
    """Cycles of the busiest multiprocessor, as of `tensor_core.tile_cost`.

    A step issues, besides products, the instructions that unpack its weights, `Form.instructions` for each, and those
    that scale the sums of its groups, `grouped.instructions` for each. All weights are read from memory once.
    """
    blocks = -(-workload.m // tile.rows) * -(-workload.n // tile.columns)
    rows, columns = tile.of_warp
    width = tile.depth * tile.item
    moved = tile.rows * width + 2 * tile.packed + tile.columns * width
    loaded = tile.warp_rows * tile.warp_columns * (rows + columns) * width
    gathers = tile.rows * tile.depth / grouped.run_of(workload)
    copies = tile.packed / grouped.run_of_bytes(workload)
    products = tile.rows * tile.columns * width
    scaled = tile.rows * tile.columns * steps.groups / steps.of_group * grouped.instructions(workload)
    unpacked = tile.columns * tile.depth * form_of(kind).instructions(tile.bits)
    issued = products / (intrin.M * intrin.N * intrin.LANES) + (unpacked + scaled) / intrin.LANES
    step = max(
        products / tensor_core.PRODUCTS,
        (moved + loaded) / tensor_core.SHARED_RATE,
        (gathers + copies) * tensor_core.GATHER,
        issued / ISSUED,
    )
    own = (gathers + copies) / tile.threads * tensor_core.COPY
    count = workload.groups * steps.width // tile.depth
    computed = tensor_core.cycles(tile, blocks, count, step, own, tile.registers, tile.shared_of(workload, steps))
    return max(UNHIDDEN * computed, blockwise.bytes_of_weights(workload) / (MEMORY * tensor_core.MULTIPROCESSORS))


def schedule(sch: Schedule, workload: BlockwiseWorkload, target: Target, tile: Tile, kind: intrin.Operands) -> None:
    """Blocks of warps, operands through shared memory, products of each group by tensor cores, sums in registers."""
    total, dots = sch.get_sblock(gemm.ACCUMULATOR), sch.get_sblock(grouped.DOTS)
    version, form = version_of(str(target.attrs["arch"])), form_of(kind)
    output = inline_epilogue(sch, total)
    gemm.as_gemm(sch, workload, output)
    epilogue, write = gemm.stage_output(sch, workload, output, tile.block, tensor_core.PAIR, tensor_core.PAIR)
    row, column, warp = tensor_core.bind_warps(sch, write, tile)
    for block in (epilogue, total):
        sch.compute_at(block, warp, preserve_unit_loops=True)
    steps = grouped.steps_of(workload, tile.depth, form.unit)
    assert steps is not None, "tiles divide K"
    *_, g = sch.get_loops(total)
    step, group = sch.split(g, [None, steps.groups])
    _, m, n = sch.get_loops(total)[-5:-2]
    sch.reorder(step, group, m, n)
    sch.compute_at(dots, group, preserve_unit_loops=True)
    weight, packed = sch.get_sblock(grouped.WEIGHT), sch.get_sblock(grouped.PACKED)
    parameters = grouped.parameters_of(sch)
    # Of a single step TVM would give packed bytes and what they become the same memory, while other threads still read.
    once = workload.groups * steps.width == tile.depth
    scope = STATIC if once else SHARED
    sch.set_scope(packed, 0, scope)
    for block in (weight, *parameters):
        sch.set_scope(block, 0, SHARED)
    data = sch.cache_read(dots, 0, SHARED, [dots])
    inner = tensor_core.multiply_fragments(sch, dots, min(tile.depth, steps.width), version, kind)
    _add(sch, total, step, m, n)
    for block in parameters:
        sch.compute_at(block, step, preserve_unit_loops=True, index=grouped.FIRST)
        _share(sch, sch.get_loops(block)[-2:], tile)
    copied = step if steps.of_group == 1 else inner
    for block in (data, weight, packed):
        sch.compute_at(block, copied, preserve_unit_loops=True)
    tensor_core.copy_by_all(sch, data, grouped.run_of(workload), tile)
    _copy_bytes(sch, workload, packed, tile)
    _unpack(sch, workload, weight, tile, form, scope)
    copies = 2 + (len(parameters) if steps.of_group == 1 else 0)
    tensor_core.overlap(sch, copied, tile, version, copies, 2)
    tensor_core.write_fragments(sch, workload, epilogue, write, row, column, tile)
    bind_blocks(sch)


def _copy_bytes(sch: Schedule, workload: BlockwiseWorkload, packed: SBlockRV, tile: Tile) -> None:
    """Copy packed weights, as many bytes at once as are aligned and there for each thread."""
    run = math.gcd(grouped.run_of_bytes(workload), tile.packed // tile.threads)
    row, byte = sch.get_loops(packed)[-2:]
    runs, vector = sch.split(byte, [None, run])
    _share(sch, [row, runs], tile)
    if run > 1:
        sch.vectorize(vector)


def _unpack(sch: Schedule, workload: BlockwiseWorkload, weight: SBlockRV, tile: Tile, form: Form, scope: str) -> None:
    """Unpack a word at a time; rows are padded against bank conflicts."""
    words, word = sch.split(sch.get_loops(weight)[-1], [None, values_of_word(workload.weight_dtype)])
    row = sch.get_loops(weight)[-3]
    whole = sch.blockize(word)
    offset = grouped.offset_of(workload.weight_dtype)
    sch.tensorize(whole, unpack(workload.weight_dtype, form, offset, scope, SHARED))
    sch.storage_align(whole, 0, 0, tile.depth, intrin.PAD // tile.item)
    _share(sch, [row, words], tile)


def _share(sch: Schedule, loops: list[LoopRV], tile: Tile) -> None:
    """Share the iterations of a copy between all threads."""
    threads = [tile.warp_rows, tile.warp_columns, intrin.LANES]
    _, warp_row, warp_column, lane = sch.split(sch.fuse(*loops), [None, *threads])
    for loop, thread in ((warp_row, "threadIdx.y"), (warp_column, "threadIdx.z"), (lane, "threadIdx.x")):
        sch.bind(loop, thread)


def _add(sch: Schedule, total: SBlockRV, step: LoopRV, m: LoopRV, n: LoopRV) -> None:
    """Scale a group's sums and add them, each lane its own."""
    sch.set_scope(total, 0, "warp")
    tensor_core.lay_out(sch, total, intrin.accumulator, intrin.N)
    rows, half, group = sch.split(m, [None, 2, 8])
    columns, quad, pair = sch.split(n, [None, 4, tensor_core.PAIR])
    sch.reorder(group, quad, rows, half, columns, pair)
    lane = sch.fuse(group, quad)
    sch.bind(lane, "threadIdx.x")
    initial = sch.decompose_reduction(total, step)
    first_lane, *others = sch.get_loops(initial)[-5:]
    sch.bind(first_lane, "threadIdx.x")
    for loop in (rows, half, columns, pair, *others):
        sch.unroll(loop)


# ---- registration ----------------------------------------------------------------------------------------------------


def _refuses(
    workload: BlockwiseWorkload, target: Target, kind: intrin.Operands, oldest: int, newest: int
) -> str | None:
    if workload.data_dtype != kind.dtype:
        return f"{workload.data_dtype} activations"
    return None if oldest <= version_of(str(target.attrs["arch"])) < newest else f"has tiles for sm_{oldest}"


def few_rows_cost(workload: BlockwiseWorkload) -> float:
    """Cycles of the busiest multiprocessor if the kernel of few rows multiplies."""
    issued = blockwise.instructions(workload) / LANES
    return max(issued, blockwise.bytes_read(workload) / MEMORY) / tensor_core.MULTIPROCESSORS


def _register(name: str, kind: intrin.Operands, oldest: int, newest: int, shared_bytes: int) -> Implementation:
    return grouped.register_method(
        name,
        priority=30,
        refuses=partial(_refuses, kind=kind, oldest=oldest, newest=newest),
        few_rows_cost=few_rows_cost,
        tiles=partial(tiles, kind=kind, shared_bytes=shared_bytes),
        form=form_of(kind),
        schedule=partial(schedule, kind=kind),
    )


NEVER = 1 << 16
INT8, INT8_OF_TURING, FLOAT16, BFLOAT16 = (
    _register(name, kind, oldest, newest, shared_bytes)
    for name, kind, oldest, newest, shared_bytes in (
        ("mma", intrin.INT8, tensor_core.ASYNCHRONOUS, NEVER, 96 * KIB),
        ("mma_turing", intrin.INT8, tensor_core.OLDEST, tensor_core.ASYNCHRONOUS, SHARED_BYTES),
        ("mma_float16", intrin.FLOAT16, tensor_core.ASYNCHRONOUS, NEVER, 96 * KIB),
        ("mma_bfloat16", intrin.BFLOAT16, tensor_core.ASYNCHRONOUS, NEVER, 96 * KIB),
    )
)

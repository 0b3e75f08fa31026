"""Products of many rows with block-wise quantized weights by tiles of threads: the kernels of `dp4a` and `ffma` for
`grouped`.

int8 activations by DP4A, where there are no tensor cores for them; floats by a fused multiply-add of float32. A thread
loads words of packed weights, unpacks them in registers and stores them to shared memory, once for all rows of a block;
it has two tiles of sums, of which one is a group's.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from ...numerics.packed import WIDTHS
from ..schedule_util import inline_epilogue
from ..strategy import Implementation, cheapest_first
from ..workload import BlockwiseWorkload
from . import blockwise, dp4a, ffma, gemm, grouped
from .dp4a import Instruction, Operand, Tile
from .generic import bind_blocks
from .unpacking import Form, unpack, values_of_word

UNIT = 16
"""A group's values are padded to a multiple of it: words of packed weights are in one group, whatever their bits."""
LOCAL, SHARED = "local", "shared"

INTEGERS, FLOATS = Form("int8", UNIT, "int32"), Form("float32", UNIT, "float32")


MOST_DEPTH = {"int8": 64, "float32": 32}
"""Values of k in shared memory at a time."""


def chunk_of(workload: BlockwiseWorkload, instruction: Instruction) -> int:
    """Weights that a thread unpacks at a time. TVM tensorizes no copy in which some threads have no part."""
    return max(instruction.loaded, values_of_word(workload.weight_dtype))


@lru_cache(maxsize=4096)
def tiles(workload: BlockwiseWorkload, form: Form, instruction: Instruction) -> dict[Tile, float]:
    """All tiles with their predicted cost, cheapest first; the unit is that of `dp4a.tile_cost`."""
    known = [tile for tile in dp4a.TILES if tile.depth <= MOST_DEPTH[form.dtype]]
    unpacked = form.instructions(WIDTHS[workload.weight_dtype])
    found = {}
    for tile in known:
        steps = grouped.steps_of(workload, tile.depth, UNIT)
        chunks = tile.columns * tile.depth // chunk_of(workload, instruction)
        if steps is None or chunks % tile.threads:
            continue
        depth = workload.groups * steps.width
        scaled = tile.thread_rows * tile.thread_columns * workload.groups * grouped.instructions(workload)
        more = scaled + tile.columns * depth * unpacked / tile.threads
        found[tile] = dp4a.tile_cost(tile, gemm.Gemm(1, workload.m, workload.n, depth), instruction, more)
    return cheapest_first(found)


def schedule(
    sch: Schedule, workload: BlockwiseWorkload, target: Target, tile: Tile, form: Form, instruction: Instruction
) -> None:
    """Blocks of threads with shared memory, tiles in registers, group by group, the epilogue on those."""
    total, dots = sch.get_sblock(gemm.ACCUMULATOR), sch.get_sblock(grouped.DOTS)
    steps = grouped.steps_of(workload, tile.depth, UNIT)
    assert steps is not None, "tiles divide K"
    output = inline_epilogue(sch, total)
    gemm.as_gemm(sch, workload, output)
    epilogue, write = gemm.stage_output(sch, workload, output, tile.block, dp4a.QUARTER, 1)
    thread = dp4a.bind_tiles(sch, write, tile)
    for block in (epilogue, total):
        sch.compute_at(block, thread, preserve_unit_loops=True)
    for block in (total, dots):
        sch.set_scope(block, 0, LOCAL)
    m, n, g = sch.get_loops(total)[-3:]
    step, group = sch.split(g, [None, steps.groups])
    sch.reorder(step, group, m, n)
    sch.compute_at(dots, group, preserve_unit_loops=True)
    parameters = grouped.parameters_of(sch)
    for block in parameters:
        sch.set_scope(block, 0, SHARED)
        sch.compute_at(block, step, preserve_unit_loops=True, index=grouped.FIRST)
        _share(sch, block, tile)
    _multiply(sch, workload, dots, step, steps, tile, form, instruction)
    initial = sch.decompose_reduction(total, step)
    for loop in (m, n, *sch.get_loops(initial)[-2:]):
        sch.unroll(loop)
    dp4a.store_tile(sch, workload, epilogue, write)
    bind_blocks(sch)


def _share(sch: Schedule, block: SBlockRV, tile: Tile) -> None:
    """Share a copy between all threads of a block."""
    threads = [tile.rows // tile.thread_rows, tile.columns // tile.thread_columns]
    _, thread_m, thread_n = sch.split(sch.fuse(*sch.get_loops(block)[-2:]), [None, *threads])
    sch.bind(thread_m, "threadIdx.y")
    sch.bind(thread_n, "threadIdx.x")


def _multiply(
    sch: Schedule,
    workload: BlockwiseWorkload,
    dots: SBlockRV,
    outer: LoopRV,
    steps: grouped.Steps,
    tile: Tile,
    form: Form,
    instruction: Instruction,
) -> None:
    """Stage the operands of a thread's tile step by step, and multiply."""
    run = grouped.run_of(workload) if workload.data_dtype == form.dtype else 1  # what is converted is no vector
    x, weight = dp4a.stage(sch, dots, 0, run), _stage_packed(sch, dots)
    row, column, k = sch.get_loops(dots)[-3:]
    depth = min(tile.depth, steps.width)
    inner, word, value = sch.split(k, [None, depth // instruction.depth, instruction.depth])
    sch.reorder(inner, word, row, column, value)
    loops = (outer if steps.of_group == 1 else inner, word)
    thread = dp4a.place(sch, x, loops, tile.rows, tile.thread_rows, tile, instruction.loaded, instruction)
    dp4a.load(sch, x, thread, run)
    chunk = chunk_of(workload, instruction)
    thread = dp4a.place(sch, weight, loops, tile.columns, tile.thread_columns, tile, chunk, instruction)
    _unpack(sch, workload, weight.loaded, thread, form)
    dp4a.accumulate(sch, dots, inner, (row, column, value), instruction)


def _stage_packed(sch: Schedule, dots: SBlockRV) -> Operand:
    """The stages of the weights, which are unpacked where others are loaded."""
    weight = sch.get_sblock(grouped.WEIGHT)
    shared = sch.cache_read(dots, 1, SHARED, [dots])
    own = sch.cache_read(dots, 1, LOCAL, [dots])
    sch.set_scope(weight, 0, LOCAL)
    sch.set_scope(sch.get_sblock(grouped.PACKED), 0, LOCAL)
    return Operand(weight, shared, own)


def _unpack(sch: Schedule, workload: BlockwiseWorkload, weight: SBlockRV, thread: LoopRV, form: Form) -> None:
    """Unpack what a thread copies, from bytes that it loads at once as far as they are aligned."""
    packed, dtype = sch.get_sblock(grouped.PACKED), workload.weight_dtype
    for block in (weight, packed):
        sch.compute_at(block, thread, preserve_unit_loops=True)
    run = math.gcd(grouped.run_of_bytes(workload), int(sch.get(sch.get_loops(packed)[-1]).extent))
    dp4a.vectorize(sch, packed, run)
    words, word = sch.split(sch.get_loops(weight)[-1], [None, values_of_word(dtype)])
    sch.unroll(words)
    sch.tensorize(word, unpack(dtype, form, grouped.offset_of(dtype), LOCAL, LOCAL))


# ---- registration ----------------------------------------------------------------------------------------------------


def few_rows_cost(workload: BlockwiseWorkload) -> float:
    """Warp instructions of the busiest multiprocessor if the kernel of few rows multiplies."""
    return blockwise.instructions(workload) / dp4a.WARP / dp4a.MULTIPROCESSORS


def _refuses(workload: BlockwiseWorkload, target: Target, integers: bool) -> str | None:
    return None if workload.integers == integers else f"{workload.data_dtype} activations"


def _register(name: str, form: Form, instruction: Instruction) -> Implementation:
    return grouped.register_method(
        name,
        priority=20,
        refuses=partial(_refuses, integers=form is INTEGERS),
        few_rows_cost=few_rows_cost,
        tiles=partial(tiles, form=form, instruction=instruction),
        form=form,
        schedule=partial(schedule, form=form, instruction=instruction),
    )


DP4A, FFMA = _register("dp4a", INTEGERS, dp4a.DP4A), _register("ffma", FLOATS, ffma.FFMA)

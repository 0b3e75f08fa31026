"""Schedule steps that every integer kernel shares: fusing the epilogue, staging root blocks, going parallel.

Nothing here knows an instruction or a workload; blocks are found by their place in the graph, not by their names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from ..numerics.saturate import is_saturate

# Where tasks meet after a kernel they wait for each other and fetch what the other cores have written: some 0.3 µs.
# So a kernel goes parallel that takes about 1 µs alone. In multiply-accumulates, by how fast the kernel is:
PARALLEL_MACS = 10_000
"""Plain loops, about 10 per ns."""

PARALLEL_MACS_DEPTHWISE = 40_000
"""Vector code over channels, about 50 per ns."""

PARALLEL_MACS_TENSORIZED = 200_000
"""Dot-product instructions, about 150 per ns."""

PARALLEL_BYTES = 16_384
"""The same for stages that only move or transform elements, in elements written or read."""

TASKS = 16
"""Parallel iterations that are enough for some cores; loops inside stay serial and keep their data at hand."""

# TVM has a vector form of nearbyint but does not say so; without this, one call in an epilogue makes scalars of it all.
Op.get("tirx.nearbyint").set_attr("TVectorizable", True)


def num_threads(target: Target) -> int:
    """Between how many threads parallel loops are shared out."""
    return max(1, int(target.attrs.get("num-cores", 1)))


def extent(sch: Schedule, loop: LoopRV) -> int:
    """The constant extent of a loop."""
    return int(sch.get(loop).extent)


def is_reduction(sch: Schedule, block: SBlockRV) -> bool:
    """Whether a block reduces over some axis."""
    return any(iter_var.iter_type == tirx.IterVar.CommReduce for iter_var in sch.get(block).iter_vars)


def inline_epilogue(sch: Schedule, accumulator: SBlockRV) -> SBlockRV:
    """Inline every elementwise stage behind `accumulator` into the last one and return that, the output block.

    Elementwise stages that feed the epilogue from the side (a residual input, a window sum times its zero point) are
    inlined too; reductions on that road, such as a window sum, stay blocks of their own. With no stage behind it, the
    accumulator itself is returned.
    """
    name = sch.get(accumulator).name_hint
    current = accumulator
    while True:
        consumers = [block for block in sch.get_consumers(current) if not is_reduction(sch, block)]
        if not consumers:
            break
        for block in consumers:
            if sch.get_consumers(block):
                sch.compute_inline(block)
                break
        else:
            current = consumers[0]
            break
    if sch.get(current).name_hint != name:
        _inline_side_inputs(sch, current, name)
    return current


def _inline_side_inputs(sch: Schedule, output: SBlockRV, accumulator: str) -> None:
    pending = True
    while pending:
        pending = False
        for block in sch.get_producers(output):
            if sch.get(block).name_hint != accumulator and not is_reduction(sch, block):
                sch.compute_inline(block)
                pending = True
                break


def resolve_groups(sch: Schedule, output: SBlockRV, group_axis: int) -> None:
    """Write the quotient and remainder of g·C + c by C as g and c: axis `group_axis` and c < C, the last.

    TVM does not, and with a tile that does not divide the channels it could not tell which part of the accumulator that
    tile needs.
    """
    block = sch.get(output)
    group, channel = block.iter_vars[group_axis].var, block.iter_vars[-1].var
    count = int(block.iter_vars[-1].dom.extent)
    flat = group * count + channel

    def resolve(node):
        if isinstance(node.b, tirx.IntImm) and int(node.b) == count and tvm_ffi.structural_equal(node.a, flat):
            return group if isinstance(node, tirx.FloorDiv) else channel
        return node

    resolved = tvm_ffi.structural_map(block, ((tirx.FloorDiv, tirx.FloorMod), resolve))
    sch.state.replace(sch.get_sref(output), resolved, {block: resolved})


def saturates(block: SBlock) -> bool:
    """Whether the block narrows to 8 bits, which CPUs do for several registers at a time."""
    found: list[Call] = []
    tvm_ffi.structural_walk(block.body, (Call, lambda call: found.append(call)))
    return any(map(is_saturate, found))


def root_blocks(sch: Schedule, done: Sequence[SBlockRV]) -> list[SBlockRV]:
    """The blocks of the function that are not in `done`."""
    names = {sch.get(block).name_hint for block in done}
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    return [block for block in blocks if sch.get(block).name_hint not in names]


def schedule_root_blocks(sch: Schedule, done: Sequence[SBlockRV], vector: int = 16) -> None:
    """Schedule what is left beside the kernel, such as window sums and copies, at root level."""
    for block in root_blocks(sch, done):
        schedule_stage(sch, block, vector)


def schedule_stage(sch: Schedule, block: SBlockRV, vector: int = 16) -> None:
    """Schedule one stage by itself: rows in parallel when there is enough of it, the innermost axis as vectors.

    A spatial innermost axis is vectorised by the largest divisor up to `vector` lanes. A reduction keeps its order of
    loops, with the initial value set before them; LLVM vectorises integer sums over contiguous memory by itself.
    """
    loops = sch.get_loops(block)
    kinds = [iter_var.iter_type for iter_var in sch.get(block).iter_vars]
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar]
    reduce = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.CommReduce]
    work = math.prod(extent(sch, loop) for loop in loops)
    if reduce:
        sch.reorder(*spatial, *reduce)
        lanes = _run_of_sum(sch, block, reduce)
        if lanes:
            _sum_by_lanes(sch, block, spatial, reduce[0], lanes, work)
            return
        parallel_rows(sch, spatial, work)
        sch.decompose_reduction(block, reduce[0])
        return
    vectorize_inner(sch, spatial[-1], vector)
    if len(spatial) > 1:
        parallel_rows(sch, spatial[:-1], work)


def _run_of_sum(sch: Schedule, block: SBlockRV, reduce: Sequence[LoopRV]) -> int:
    """Lanes for an integer sum over a single axis that holds whole vectors, 0 for other reductions."""
    update = sch.get(block).body
    integer = isinstance(update, tirx.BufferStore) and str(update.buffer.dtype) in ("int32", "int64")
    if len(reduce) != 1 or not integer or not isinstance(update.value, tirx.Add):
        return 0
    return next((lanes for lanes in (16, 8) if extent(sch, reduce[0]) % lanes == 0), 0)


def _sum_by_lanes(
    sch: Schedule, block: SBlockRV, spatial: Sequence[LoopRV], run: LoopRV, lanes: int, work: int
) -> None:
    """Sum a run of memory vector by vector, its lanes at the end: no element is left over, as in a loop by LLVM."""
    _, lane = sch.split(run, [None, lanes])
    partial = sch.rfactor(lane, factor_axis=len(spatial))
    innermost = parallel_rows(sch, sch.get_loops(block)[: len(spatial)], work)[-1]
    sch.compute_at(partial, innermost, preserve_unit_loops=True)
    lane, *_, step = sch.get_loops(partial)[-len(spatial) - 2 :]  # lanes come first in a factored block
    sch.reorder(step, lane)
    sch.vectorize(lane)
    initial = sch.decompose_reduction(partial, step)
    sch.vectorize(sch.get_loops(initial)[-1])
    last = sch.get_loops(block)[-1]
    sch.decompose_reduction(block, last)
    sch.unroll(last)


def parallel_rows(sch: Schedule, loops: Sequence[LoopRV], work: int, threshold: int = PARALLEL_BYTES) -> list[LoopRV]:
    """Fuse the outermost loops until there are tasks enough to share out, and run them in parallel.

    Nothing happens when `work` is below `threshold`. Returns the loops as they are now, outermost first.
    """
    count, taken = 1, 0
    while taken < len(loops) and count < TASKS:
        count *= extent(sch, loops[taken])
        taken += 1
    if work < threshold or count == 1:
        return list(loops)
    fused = sch.fuse(*loops[:taken]) if taken > 1 else loops[0]
    sch.parallel(fused)
    return [fused, *loops[taken:]]


def vectorize_inner(sch: Schedule, loop: LoopRV, lanes: int) -> LoopRV | None:
    """Vectorise a loop by a power of two that divides its extent, up to `lanes`; returns the loop outside the vector.

    Extents without a divisor of at least four stay scalar (None is returned): LLVM copes better with a plain loop.
    """
    width = largest_divisor(extent(sch, loop), lanes)
    width &= -width  # the power of two in it: other vectors split badly into registers
    if width < 4:
        return None
    outer, inner = sch.split(loop, [None, width])
    sch.vectorize(inner)
    return outer


def schedule_contraction(
    sch: Schedule, accumulator: SBlockRV, output: SBlockRV, macs: int, vectorize: bool, strip: int = 32
) -> None:
    """Schedule a product-sum without an instruction of its own: strips of output channels, epilogue right behind.

    `vectorize` says that neighbouring outputs read neighbouring weights; without it, each output is a sum along
    contiguous operands, which LLVM vectorises.
    """
    kinds = [iter_var.iter_type for iter_var in sch.get(accumulator).iter_vars]
    spatial = kinds.count(tirx.IterVar.DataPar)
    fused = sch.get(output).name_hint != sch.get(accumulator).name_hint
    *rows, channel = sch.get_loops(output) if fused else sch.get_loops(output)[:spatial]
    width = largest_divisor(extent(sch, channel), strip)
    outer, inner = sch.split(channel, [None, width])
    tiles = parallel_rows(sch, [*rows, outer], macs, PARALLEL_MACS)
    if fused:
        # Not left to LLVM, which would mask the rest of a short loop: LLVM 22 miscompiles masked int64 -> int8 stores.
        (sch.vectorize if width % 4 == 0 else sch.unroll)(inner)
        sch.compute_at(accumulator, tiles[-1], preserve_unit_loops=True)
        inner = sch.get_loops(accumulator)[-len(kinds) :][spatial - 1]
    reduction = sch.get_loops(accumulator)[spatial - len(kinds) :]
    if vectorize:
        sch.reorder(*reduction, inner)
        if width % 4 == 0:
            sch.vectorize(inner)
    initial = sch.decompose_reduction(accumulator, reduction[0])
    if vectorize and width % 4 == 0:
        sch.vectorize(sch.get_loops(initial)[-1])


def largest_divisor(size: int, limit: int) -> int:
    """The largest divisor of `size` up to `limit`."""
    return max(divisor for divisor in range(1, min(size, limit) + 1) if size % divisor == 0)

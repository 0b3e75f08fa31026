"""Schedule steps shared by all integer kernels: fusing the epilogue, scheduling root blocks, parallelizing.

Nothing here depends on an instruction or workload; blocks are found by their place in the graph, not by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from ..numerics.saturate import is_saturate
from ..targets.features import sharing_of

TASKS = 16
"""Enough parallel iterations for several cores; loops inside stay serial and keep their data in cache."""

LEAST_VECTOR = 4  # lanes
CHANNELS = 3  # their axis in a convolution's result, (N, H, W, C)

RUN = "qnn_ext.run"  # on an output block: how many of its channels are stored side by side
APART = "qnn_ext.apart"  # on a block that moves an epilogue's result, tile by tile: the order of its axes then
PARTS = "qnn_ext.parts"  # on the same block: how its channels are split

_copy = tvm.get_global_func("s_tir.schedule.ScheduleCopy")

# TVM can vectorize nearbyint but does not declare it; without this, one call makes the whole epilogue scalar.
Op.get("tirx.nearbyint").set_attr("TVectorizable", True)


class Unchecked(Schedule):
    """TVM's Schedule without its tests of arguments' Python types, which take a quarter of the time of scheduling."""

    def copy(self) -> Unchecked:
        """A copy of the schedule that tests no types either."""
        copy = Unchecked.__new__(Unchecked)
        copy.__init_handle_by_constructor__(_copy, self)
        return copy


for _name, _method in vars(Schedule).items():
    if hasattr(_method, "__wrapped__") and _name not in vars(Unchecked):
        setattr(Unchecked, _name, _method.__wrapped__)


def extent(sch: Schedule, loop: LoopRV) -> int:
    """The constant extent of a loop."""
    return int(sch.get(loop).extent)


def is_reduction(sch: Schedule, block: SBlockRV) -> bool:
    """Whether a block reduces over some axis."""
    return any(iter_var.iter_type == tirx.IterVar.CommReduce for iter_var in sch.get(block).iter_vars[:])


def inline_epilogue(sch: Schedule, accumulator: SBlockRV) -> SBlockRV:
    """Inline every elementwise stage after `accumulator` into the last one and return that, the output block.

    Elementwise stages that feed the epilogue from the side (a residual input, a window sum times its zero point) are
    inlined too; reductions among them, such as a window sum, stay separate blocks. If no stage follows, the accumulator
    itself is returned. A block that moves the result, see `move_apart`, is not part of the epilogue.
    """
    name = sch.get(accumulator).name_hint
    current = accumulator
    while True:
        consumers = [block for block in _parts_behind(sch, current) if not is_reduction(sch, block)]
        if not consumers:
            break
        for block in consumers:
            if _parts_behind(sch, block):
                sch.compute_inline(block)
                break
        else:
            current = consumers[0]
            break
    if sch.get(current).name_hint != name:
        _inline_side_inputs(sch, current, name)
    return current


def inline_producers_of(sch: Schedule, copy: SBlockRV) -> None:
    """Inline what computes the values that a block copies, such as their dequantization."""
    while producers := sch.get_producers(copy):
        sch.compute_inline(producers[0])


def _parts_behind(sch: Schedule, block: SBlockRV) -> list[SBlockRV]:
    return [consumer for consumer in sch.get_consumers(block) if APART not in sch.get(consumer).annotations]


def _inline_side_inputs(sch: Schedule, output: SBlockRV, accumulator: str) -> None:
    pending = True
    while pending:
        pending = False
        for block in sch.get_producers(output):
            if sch.get(block).name_hint != accumulator and not is_reduction(sch, block):
                sch.compute_inline(block)
                pending = True
                break


def in_order_of_channels(sch: Schedule, shape: Sequence[int], axes: Sequence[int], tiled: bool) -> None:
    """Iterate the function's result over N, H, W and C, so that it is an epilogue like any other.

    It is (N, H, W, C) with the channels split as `shape` says, and its axes then in the order `axes`. Where few
    channels are stored side by side, the result of a schedule that is `tiled`, and so calls `move_apart`, stays a block
    of its own: the epilogue leaves a tile of vectors on the stack, which that block moves.
    """
    (output,) = sch.get_output_blocks(sch.get_sblock("root"))

    def original(*indices: Any) -> list[Any]:
        places = dict(zip(axes, indices, strict=True))
        channel = sum(places[axis] * math.prod(shape[axis + 1 :]) for axis in range(CHANNELS, len(shape)))
        return [places[0], places[1], places[2], channel]

    sch.transform_block_layout(output, tirx.IndexMap.from_func(original, ndim=len(axes), index_dtype="int32"))
    run = run_of(shape, axes)
    if tiled and run % LEAST_VECTOR:
        sch.annotate(output, APART, list(axes))
        sch.annotate(output, PARTS, list(shape[CHANNELS:]))
    else:
        sch.annotate(output, RUN, run)


def move_apart(sch: Schedule, output: SBlockRV, loop: LoopRV) -> None:
    """Compute the block that moves an epilogue's result, if there is one, behind each tile, which `loop` iterates over:
    in the order in which it is stored, if the channels of a tile are whole parts, and channel by channel otherwise."""
    moved = next((block for block in sch.get_consumers(output) if APART in sch.get(block).annotations), None)
    if moved is None:
        return
    axes, parts = ([int(size) for size in sch.get(moved).annotations[key]] for key in (APART, PARTS))
    sch.set_scope(output, 0, "local")
    sch.reverse_compute_at(moved, loop, preserve_unit_loops=True)
    *pixels, channel = sch.get_loops(moved)[-CHANNELS - 1 :]
    if extent(sch, channel) % math.prod(parts[1:]) == 0:
        loops = [*pixels, *sch.split(channel, [None, *parts[1:]])]
        sch.reorder(*(loops[axis] for axis in axes))


def run_of(shape: Sequence[int], axes: Sequence[int]) -> int:
    """How many channels, split as `shape` says, are neighbours in memory when the axes are in this order."""
    last = len(shape)
    while axes[last - 1] == last - 1 >= CHANNELS:
        last -= 1
    return math.prod(shape[last:])


def run_of_channels(sch: Schedule, output: SBlockRV) -> int:
    """The most channels of an epilogue that whole vectors may cover: neighbours in memory."""
    block = sch.get(output)
    channels = int(block.iter_vars[-1].dom.extent)
    return math.gcd(channels, int(block.annotations.get(RUN, channels)))


def resolve_groups(sch: Schedule, output: SBlockRV, group_axis: int) -> None:
    """Simplify (g·C + c) // C to g and (g·C + c) % C to c, where g is axis `group_axis` and c < C the last one.

    TVM does not, and then it cannot tell which part of the accumulator a tile needs if it does not divide the channels.
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


_FIELDS = ["iter_vars", "reads", "writes", "name_hint", "body", "init", "alloc_buffers", "match_buffers", "annotations"]


def changed_block(block: SBlock, **fields: Any) -> SBlock:
    """The block with some of its fields changed."""
    return SBlock(**{**{name: getattr(block, name) for name in _FIELDS}, **fields})


def saturates(block: SBlock) -> bool:
    """Whether the block narrows to 8 bits, which CPUs do several registers at a time."""
    found: list[Call] = []
    tvm_ffi.structural_walk(block.body, (Call, lambda call: found.append(call)))
    return any(map(is_saturate, found))


def root_blocks(sch: Schedule, done: Sequence[SBlockRV]) -> list[SBlockRV]:
    """The blocks of the function that are not in `done`."""
    names = {sch.get(block).name_hint for block in done}
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    others = [block for block in blocks if sch.get(block).name_hint not in names]
    return [block for block in others if APART not in sch.get(block).annotations]


def schedule_root_blocks(sch: Schedule, done: Sequence[SBlockRV], target: Target, vector: int = 16) -> None:
    """Schedule the blocks besides the kernel, such as window sums and copies, at root level."""
    for block in root_blocks(sch, done):
        schedule_stage(sch, block, target, vector)


def schedule_stage(sch: Schedule, block: SBlockRV, target: Target, vector: int = 16) -> None:
    """Schedule one stage by itself: rows in parallel if there is enough work, the innermost axis vectorized.

    A spatial innermost axis is vectorized by its largest divisor up to `vector` lanes. A reduction keeps its loop
    order, with the initial value set before the loops; LLVM vectorizes integer sums over contiguous memory by itself.
    """
    loops = sch.get_loops(block)
    kinds = [iter_var.iter_type for iter_var in sch.get(block).iter_vars]
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar]
    reduce = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.CommReduce]
    work, least = math.prod(extent(sch, loop) for loop in loops), sharing_of(target).moved_elements
    if reduce:
        sch.reorder(*spatial, *reduce)
        lanes = _run_of_sum(sch, block, reduce)
        if lanes:
            _sum_by_lanes(sch, block, spatial, reduce[0], lanes, work, least)
            return
        parallel_rows(sch, spatial, work, least)
        sch.decompose_reduction(block, reduce[0])
        return
    vectorize_inner(sch, spatial[-1], vector)
    if len(spatial) > 1:
        parallel_rows(sch, spatial[:-1], work, least)


def _run_of_sum(sch: Schedule, block: SBlockRV, reduce: Sequence[LoopRV]) -> int:
    """Lanes for an integer sum over a single axis of whole vectors, 0 for other reductions."""
    update = sch.get(block).body
    integer = isinstance(update, tirx.BufferStore) and str(update.buffer.dtype) in ("int32", "int64")
    if len(reduce) != 1 or not integer or not isinstance(update.value, tirx.Add):
        return 0
    return next((lanes for lanes in (16, 8) if extent(sch, reduce[0]) % lanes == 0), 0)


def _sum_by_lanes(
    sch: Schedule, block: SBlockRV, spatial: Sequence[LoopRV], run: LoopRV, lanes: int, work: int, least: float
) -> None:
    """Sum a run of memory vector by vector and its lanes at the end; unlike in LLVM's loop, no elements are left
    over."""
    _, lane = sch.split(run, [None, lanes])
    partial = sch.rfactor(lane, factor_axis=len(spatial))
    innermost = parallel_rows(sch, sch.get_loops(block)[: len(spatial)], work, least)[-1]
    sch.compute_at(partial, innermost, preserve_unit_loops=True)
    lane, *_, step = sch.get_loops(partial)[-len(spatial) - 2 :]  # lanes come first in a factored block
    sch.reorder(step, lane)
    sch.vectorize(lane)
    initial = sch.decompose_reduction(partial, step)
    sch.vectorize(sch.get_loops(initial)[-1])
    last = sch.get_loops(block)[-1]
    sch.decompose_reduction(block, last)
    sch.unroll(last)


def parallel_rows(sch: Schedule, loops: Sequence[LoopRV], work: int, least: float) -> list[LoopRV]:
    """Fuse the outermost loops until there are enough tasks to share out, and run them in parallel.

    Nothing happens when `work` is below `least`, a threshold of the target's `Sharing`. Returns the new loops,
    outermost first.
    """
    count, taken = 1, 0
    while taken < len(loops) and count < TASKS:
        count *= extent(sch, loops[taken])
        taken += 1
    if work < least or count == 1:
        return list(loops)
    fused = sch.fuse(*loops[:taken]) if taken > 1 else loops[0]
    sch.parallel(fused)
    return [fused, *loops[taken:]]


def vectorize_inner(sch: Schedule, loop: LoopRV, lanes: int) -> LoopRV | None:
    """Vectorize a loop by a power of two that divides its extent, up to `lanes`; returns the loop outside the vector.

    Extents without such a divisor of at least four stay scalar (None is returned): LLVM does better with a plain loop.
    """
    width = largest_divisor(extent(sch, loop), lanes)
    width &= -width  # its largest power of two: other vectors split badly into registers
    if width < 4:
        return None
    outer, inner = sch.split(loop, [None, width])
    sch.vectorize(inner)
    return outer


def schedule_contraction(
    sch: Schedule,
    accumulator: SBlockRV,
    output: SBlockRV,
    macs: int,
    target: Target,
    vectorize: bool,
    strip: int = 32,
) -> None:
    """Schedule a contraction that has no dedicated instruction: strips of output channels, each followed by its
    epilogue.

    `vectorize` states that neighbouring outputs read neighbouring weights; otherwise each output is a sum along
    contiguous operands, which LLVM vectorizes.
    """
    kinds = [iter_var.iter_type for iter_var in sch.get(accumulator).iter_vars]
    spatial = kinds.count(tirx.IterVar.DataPar)
    fused = sch.get(output).name_hint != sch.get(accumulator).name_hint
    *rows, channel = sch.get_loops(output) if fused else sch.get_loops(output)[:spatial]
    width = largest_divisor(extent(sch, channel), strip)
    outer, inner = sch.split(channel, [None, width])
    tiles = parallel_rows(sch, [*rows, outer], macs, sharing_of(target).plain_macs)
    if fused:
        # LLVM would mask the remainder of a short loop, and LLVM 22 miscompiles masked int64 -> int8 stores.
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

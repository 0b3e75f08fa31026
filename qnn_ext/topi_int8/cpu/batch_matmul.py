"""batch_matmul: dense with a second operand that is computed at run time and packed inside the kernel.

The pack stage turns y (B, N, K) into words (B, N/lanes, K/depth, lanes), zero where N or K were padded; everything
after it is the tile of dense, once per matrix of the batch. Stages that produce the operands, such as the moves that
split
heads, are inlined: the kernel reads their source tensors directly, whatever the order of their axes.
"""

from __future__ import annotations

from tvm import te, tirx
from tvm.ir import TensorLoad
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from ...numerics.annotations import OPERAND, has
from ...targets.features import sharing_of
from ..blocking import blocked_caches
from ..generic.block import read_block, stride_of, uses
from ..schedule_util import inline_epilogue, is_reduction, parallel_rows, schedule_root_blocks
from ..strategy import Implementation
from ..workload import BatchMatmulWorkload
from .dense import Plan, plan, refuses, row_of, stage, strip_of, strips, tiles
from .dot import DotInstruction, implementation_with, weight_value
from .microkernel import Tile, lane_of, schedule_microkernel
from .words import pack


def compute(
    workload: BatchMatmulWorkload,
    x: te.Tensor,
    y: te.Tensor,
    pad_value: int,
    instruction: DotInstruction,
    tile: Tile | None = None,
) -> te.Tensor:
    """The accumulator, (B, M, N). `pad_value` is not used."""
    layout = plan(workload, instruction, tile)
    lanes, reduction = instruction.lanes, instruction.reduction(layout.run)
    data = stage(workload, layout, x, instruction)
    packed = _pack(workload, layout, y, instruction)
    acc = te.compute(
        (workload.batch, layout.rows, layout.blocks, lanes),
        lambda b, m, block, lane: te.sum(
            instruction.value(data(b, row_of(m, workload, layout, data), reduction.k))
            * weight_value(instruction, packed, (b, block, reduction.step, lane), reduction.inner),
            axis=reduction.axes,
        ),
        name="batch_matmul",
    )
    return te.compute(
        (workload.batch, workload.m, workload.n),
        lambda b, m, n: acc[b, m, n // lanes, lane_of(n, workload.n, lanes)],
        name="logical",
    )


def _pack(workload: BatchMatmulWorkload, layout: Plan, y: te.Tensor, instruction: DotInstruction) -> te.Tensor:
    depth, lanes, dtype = instruction.depth, instruction.lanes, instruction.weight_dtype

    def packed(b, block, ko, lane):
        n = block * lanes + lane

        def weight(k):
            inside = [n < workload.n] if layout.blocks * lanes > workload.n else []
            inside += [k < workload.k] if layout.run > workload.k else []
            value = y(b, n, k).astype(dtype)
            return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, dtype)) if inside else value

        return pack(instruction, [weight(ko * depth + ki) for ki in range(depth)])

    return te.compute((workload.batch, layout.blocks, layout.run // depth, lanes), packed, name="pack")


def schedule(
    sch: Schedule,
    workload: BatchMatmulWorkload,
    target: Target,
    instruction: DotInstruction,
    tile: Tile | None = None,
) -> None:
    """Fuse the epilogue, pack y, tile rows × blocks of N into registers, tensorize, run tiles in parallel."""
    accumulator, pack = sch.get_sblock("batch_matmul"), sch.get_sblock("pack")
    output = inline_epilogue(sch, accumulator)
    inline_operands(sch, accumulator, output, pack)
    schedule_root_blocks(sch, [accumulator, output, pack], target, vector=64)
    _schedule_pack(sch, workload, pack, target)
    order_output(sch, accumulator, output)
    layout = plan(workload, instruction, tile)
    schedule_microkernel(
        sch,
        accumulator,
        output,
        instruction,
        layout.tile,
        pixel_axes=1,
        macs=workload.macs,
        strip=strip_of(workload, layout, blocked_caches(target)),
    )


def inline_operands(sch: Schedule, accumulator: SBlockRV, output: SBlockRV, pack: SBlockRV) -> None:
    """Inline the stages that produce the operands into their readers: the product, its packing, sums of rows.

    The instruction takes values as they lie in memory, so stages that compute the values it reads are kept.
    """
    kept = {sch.get(block).name_hint for block in (accumulator, output, pack)}
    product = sch.get(accumulator).name_hint
    for block in reversed(sch.get_child_blocks(sch.get_sblock("root"))):
        readers = {sch.get(reader).name_hint for reader in sch.get_consumers(block)}
        stays = sch.get(block).name_hint in kept or has(sch, block, OPERAND)
        if stays or is_reduction(sch, block) or not readers:
            continue
        if product not in readers or isinstance(sch.get(block).body.value, TensorLoad):
            sch.compute_inline(block)


def order_output(sch: Schedule, accumulator: SBlockRV, output: SBlockRV) -> None:
    """Put the loops of a transposed output in the order of the product: batch axes, rows, columns."""
    view, sums = read_block(sch, output), sch.get(accumulator).writes[0].source
    rows = [load.indices[1] for load in view.loads if load.source.same_as(sums)] if view else []
    if view is None or not rows:
        return
    *outer, column = view.loops
    row = [loop.rv for loop in outer if uses(rows[0], loop.var)]
    sch.reorder(*(loop.rv for loop in outer if loop.rv not in row), *row, column.rv)


def _schedule_pack(sch: Schedule, workload: BatchMatmulWorkload, pack: SBlockRV, target: Target) -> None:
    """Pack by vectors of lanes if neighbours in n are adjacent in memory; else rows in order, word by word."""
    side_by_side = reads_in_order(sch, pack)
    batch, block, ko, lane = sch.get_loops(pack)
    if side_by_side:
        sch.vectorize(lane)
    else:
        sch.reorder(batch, block, lane, ko)
    parallel_rows(sch, [batch, block], workload.batch * workload.n * workload.k, sharing_of(target).moved_elements)


def reads_in_order(sch: Schedule, block: SBlockRV) -> bool:
    """Whether the innermost loop of a block steps from one element in memory to the next in all its reads."""
    view = read_block(sch, block)
    return view is not None and all(stride_of(load.indices, view.loops[-1].var) != "far" for load in view.loads)


def implementation(instruction: DotInstruction, architecture: str, priority: int) -> Implementation:
    """The kernel with one instruction, as the strategy registry takes it."""
    return implementation_with(
        instruction,
        "batch_matmul",
        architecture,
        priority,
        refuses=refuses,
        compute=compute,
        schedule=schedule,
        tiles=tiles,
        variants=strips,
    )

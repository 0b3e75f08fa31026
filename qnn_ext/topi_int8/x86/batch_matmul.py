"""batch_matmul on x86: dense with a second operand that is computed at run time and packed inside the kernel.

The pack stage turns y (B, N, K) into (B, N/lanes, K/depth, lanes, depth), zero where N or K were padded, and widens it
to the instruction's dtype; everything behind that is the tile of dense, once per matrix of the batch.
"""

from __future__ import annotations

from functools import partial

from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from ..schedule_util import inline_epilogue, parallel_rows, schedule_root_blocks
from ..strategy import Implementation, register
from ..workload import BatchMatmulWorkload
from .dense import Plan, accepts, plan, stage, tiles
from .intrin import INSTRUCTIONS, DotInstruction
from .microkernel import Tile, lane_of, schedule_microkernel, strip_size


def compute(
    workload: BatchMatmulWorkload,
    x: te.Tensor,
    y: te.Tensor,
    pad_value: int,
    instruction: DotInstruction,
    tile: Tile | None = None,
) -> te.Tensor:
    """The accumulator, (B, M, N) int32. `pad_value` is not used."""
    layout = plan(workload, instruction, tile)
    depth, lanes = instruction.depth, instruction.lanes
    ko = te.reduce_axis((0, layout.run // depth), "ko")
    ki = te.reduce_axis((0, depth), "ki")
    data = stage(workload, layout, x, instruction)
    packed = _pack(workload, layout, y, instruction)
    acc = te.compute(
        (workload.batch, layout.rows, layout.blocks, lanes),
        lambda b, m, block, lane: te.sum(
            data[b, m, ko * depth + ki].astype("int32") * packed[b, block, ko, lane, ki].astype("int32"),
            axis=[ko, ki],
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

    def packed(b, block, ko, lane, ki):
        n, k = block * lanes + lane, ko * depth + ki
        inside = [n < workload.n] if layout.blocks * lanes > workload.n else []
        inside += [k < workload.k] if layout.run > workload.k else []
        value = y[b, n, k].astype(dtype)
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, dtype)) if inside else value

    shape = (workload.batch, layout.blocks, layout.run // depth, lanes, depth)
    return te.compute(shape, packed, name="pack")


def schedule(
    sch: Schedule, workload: BatchMatmulWorkload, target: Target, instruction: DotInstruction, tile: Tile | None = None
) -> None:
    """Fuse the epilogue, pack y, tile rows × blocks of N into registers, tensorize, run tiles in parallel."""
    accumulator, pack = sch.get_sblock("batch_matmul"), sch.get_sblock("pack")
    output = inline_epilogue(sch, accumulator)
    schedule_root_blocks(sch, [accumulator, output, pack], vector=64)
    _schedule_pack(sch, workload, pack)
    layout = plan(workload, instruction, tile)
    schedule_microkernel(
        sch,
        accumulator,
        output,
        instruction,
        layout.tile,
        pixel_axes=1,
        macs=workload.macs,
        strip=strip_size(layout.rows // layout.tile.columns, layout.tile.columns * workload.k, workload.n * workload.k),
    )


def _schedule_pack(sch: Schedule, workload: BatchMatmulWorkload, pack) -> None:
    """Read rows of y in order: the lane loop stays outside, neighbours in k move together."""
    batch, block, ko, lane, ki = sch.get_loops(pack)
    sch.reorder(batch, block, lane, ko, ki)
    if workload.k % sch.get(ki).extent == 0:
        sch.vectorize(ki)
    parallel_rows(sch, [batch, block], workload.batch * workload.n * workload.k)


for _rank, _instruction in enumerate(reversed(INSTRUCTIONS)):
    register(
        BatchMatmulWorkload,
        Implementation(
            name=f"batch_matmul_{_instruction.name}.x86",
            priority=10 + _rank,
            accepts=partial(accepts, instruction=_instruction),
            compute=partial(compute, instruction=_instruction),
            schedule=partial(schedule, instruction=_instruction),
            tiles=partial(tiles, instruction=_instruction),
        ),
    )

"""Depthwise conv2d on x86 where depthwise_conv2d_taps does not apply: CPUs without VNNI, wide or signed activations.

Every lane of a vector is one channel, taps are unrolled, the epilogue is fused.

    acc[n, y, x, c] = Σ_{r,s} data[n, y·sh + r·dh, x·sw + s·dw, c] · w[r, s, c]

No intrinsic is needed: for products of widened 8- and 16-bit values LLVM emits vpmaddwd, and vpdpwssd where the CPU has
it. What counts is that a tile of neighbouring pixels is unrolled, so that widened activations are shared between taps
and widened weights stay in registers, and that padding is done piecewise, just before its rows are used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from ..cpu.microkernel import round_up
from ..features import has_feature, is_x86
from ..schedule_util import PARALLEL_MACS_DEPTHWISE, extent, inline_epilogue, largest_divisor, schedule_root_blocks
from ..strategy import Implementation, register
from ..workload import Conv2dWorkload

COLUMNS = 4  # pixels of a register tile
MAX_UNROLLED_TAPS = 49
TASK_ROWS = 8
TASK_CHANNELS = 64


@dataclass(frozen=True)
class Plan:
    """Sizes of a depthwise convolution in vectors and tiles.

    staged:   whether the activations are copied first: padded, repeated by the multiplier, filled up to whole vectors
    lanes:    channels of one vector
    channels: output channels, a multiple of `lanes`
    columns:  pixels of a register tile
    width:    output columns, a multiple of `columns`
    """

    staged: bool
    lanes: int
    channels: int
    columns: int
    width: int


@lru_cache(maxsize=4096)
def plan(workload: Conv2dWorkload) -> Plan:
    """Choose vectors and tiles: whole vectors without a copy if possible, else a copy that makes them whole."""
    channels, width = workload.out_channels, workload.out_width
    must_stage = any(workload.padding) or workload.multiplier > 1
    columns = max((size for size in range(COLUMNS - 1, COLUMNS + 4) if width % size == 0), default=min(width, COLUMNS))
    aligned = channels % 8 == 0 and width % columns == 0
    if aligned and not must_stage:
        return Plan(False, 16 if channels % 16 == 0 else 8, channels, columns, width)
    lanes = 16 if channels > 8 else 8
    return Plan(True, lanes, round_up(channels, lanes), columns, round_up(width, columns))


def pack_weight(workload: Conv2dWorkload, weight: np.ndarray) -> np.ndarray:
    """OHWI weights (O, kh, kw, 1) to (kh, kw, O), zero in the channels that fill up the last vector."""
    channels = plan(workload).channels
    packed = np.zeros((*workload.kernel, channels), workload.weight_dtype)
    packed[..., : workload.out_channels] = weight[..., 0].transpose(1, 2, 0)
    return packed


def compute(workload: Conv2dWorkload, x: te.Tensor, w: te.Tensor, pad_value: int) -> te.Tensor:
    """The accumulator, (N, OH, OW, OC) int32."""
    layout = plan(workload)
    (stride_height, stride_width), (dilation_height, dilation_width) = workload.strides, workload.dilation
    kh = te.reduce_axis((0, workload.kernel[0]), "kh")
    kw = te.reduce_axis((0, workload.kernel[1]), "kw")
    data = _stage(workload, layout, x, pad_value) if layout.staged else x

    def depthwise(n, y, column, c):
        row, column = y * stride_height + kh * dilation_height, column * stride_width + kw * dilation_width
        return te.sum(data[n, row, column, c].astype("int32") * w[kh, kw, c].astype("int32"), axis=[kh, kw])

    acc = te.compute((workload.batch, workload.out_height, layout.width, layout.channels), depthwise, name="depthwise")
    return te.compute(
        (workload.batch, workload.out_height, workload.out_width, workload.out_channels),
        lambda n, y, column, c: acc[n, y, column, c],
        name="logical",
    )


def _stage(workload: Conv2dWorkload, layout: Plan, x: te.Tensor, pad_value: int) -> te.Tensor:
    """The activations padded, one channel per output channel, with room for whole tiles and vectors."""
    top, left = workload.padding[:2]
    rows, columns = workload.height, workload.width
    height = _reach(workload.out_height, workload.strides[0], workload.kernel[0], workload.dilation[0])
    width = _reach(layout.width, workload.strides[1], workload.kernel[1], workload.dilation[1])
    padding = tirx.const(pad_value, workload.data_dtype)

    def within(index, before, size, total):
        return ([index >= before] if before else []) + ([index < before + size] if before + size < total else [])

    def staged(n, y, column, c):
        inside = within(y, top, rows, height) + within(column, left, columns, width)
        inside += within(c, 0, workload.out_channels, layout.channels)
        value = x[n, y - top, column - left, c // workload.multiplier]
        return tirx.if_then_else(tirx.all(*inside), value, padding) if inside else value

    return te.compute((workload.batch, height, width, layout.channels), staged, name="pad")


def _reach(outputs: int, stride: int, kernel: int, dilation: int) -> int:
    """How many inputs `outputs` neighbouring outputs span."""
    return (outputs - 1) * stride + (kernel - 1) * dilation + 1


def schedule(sch: Schedule, workload: Conv2dWorkload, target: Target) -> None:
    """Tasks of rows × channels, each pads its own input, then walks one vector of channels over all its pixels."""
    layout = plan(workload)
    accumulator = sch.get_sblock("depthwise")
    output = inline_epilogue(sch, accumulator)
    done = [accumulator, output]
    if layout.staged:
        done.append(sch.get_sblock("pad"))
    schedule_root_blocks(sch, done, vector=64)

    n, y, column, c = sch.get_loops(output)
    task_rows, task_channels = _task(workload, layout)
    lanes = min(layout.lanes, 16 if has_feature(target, "avx512bw") else 8)
    row_outer, row = sch.split(y, [None, task_rows])
    column_outer, column = sch.split(column, [None, layout.columns])
    channel_outer, vector, lane = sch.split(c, [None, task_channels // lanes, lanes])
    sch.reorder(n, row_outer, channel_outer, vector, row, column_outer, column, lane)
    task = sch.fuse(n, row_outer, channel_outer)
    if workload.macs >= PARALLEL_MACS_DEPTHWISE and extent(sch, task) > 1:
        sch.parallel(task)

    sch.compute_at(accumulator, column_outer, preserve_unit_loops=True)
    if layout.staged:
        sch.compute_at(sch.get_sblock("pad"), task, preserve_unit_loops=True)
    _unroll_taps(sch, accumulator, workload)
    _vectorize_epilogue(sch, column, lane, math.gcd(workload.out_channels, lanes))


def _vectorize_epilogue(sch: Schedule, column: LoopRV, lane: LoopRV, lanes: int) -> None:
    """Vectors must not cross the last channel: a predicate that differs between lanes would make them scalars."""
    if lanes >= 4:
        outer, vector = sch.split(lane, [None, lanes])
        sch.reorder(outer, column, vector)
        sch.vectorize(vector)


def _task(workload: Conv2dWorkload, layout: Plan) -> tuple[int, int]:
    """Rows and channels of one parallel task: its padded input should stay in the first cache levels."""
    rows = largest_divisor(workload.out_height, TASK_ROWS)
    vectors = layout.channels // layout.lanes
    channels = largest_divisor(vectors, TASK_CHANNELS // layout.lanes) * layout.lanes
    return rows, channels


def _unroll_taps(sch: Schedule, accumulator: SBlockRV, workload: Conv2dWorkload) -> None:
    column, lane, kh, kw = sch.get_loops(accumulator)[-4:]
    sch.reorder(kh, kw, column, lane)
    sch.vectorize(lane)
    sch.unroll(column)
    sch.unroll(kw)
    if workload.kernel[0] * workload.kernel[1] <= MAX_UNROLLED_TAPS:
        sch.unroll(kh)
    sch.decompose_reduction(accumulator, kh)


def _accepts(workload: Conv2dWorkload, target: Target) -> bool:
    return workload.depthwise and workload.out_dtype == "int32" and is_x86(target)


register(
    Conv2dWorkload,
    Implementation(
        name="depthwise_conv2d_nhwc.x86",
        priority=10,
        accepts=_accepts,
        compute=compute,
        schedule=schedule,
        pack_weight=pack_weight,
    ),
)

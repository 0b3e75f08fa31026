"""Depthwise conv2d on CPUs, vectorized over channels: every lane is one channel, taps are unrolled, epilogue fused.

    acc[n, y, x, c] = Σ_{r,s} data[n, y·sh + r·dh, x·sw + s·dw, c] · w[r, s, c]

No intrinsic is needed: for products of widened 8- and 16-bit values LLVM emits what the CPU has. What matters is that a
tile of neighbouring pixels is unrolled, so that activations are shared between taps and weights stay in registers, and
that rows are padded piecewise, just before they are used. `Registers` holds what differs between CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from ...numerics.annotations import OPERAND
from ...targets.features import sharing_of
from ..schedule_util import extent, inline_epilogue, largest_divisor, schedule_root_blocks
from ..workload import Conv2dWorkload
from .microkernel import round_up

MAX_UNROLLED_TAPS = 49
TASK_ROWS = 8
TASK_CHANNELS = 64
LANES = (16, 8)
"""Channels that a vector may have; one longer than a register takes several."""


@dataclass(frozen=True)
class Registers:
    """The properties of a CPU that the kernel depends on.

    lanes:        the most channels computed together
    columns:      pixels that a register tile may have: the most that divide a row, else the first
    pairs:        LLVM's name of the product of two vectors of eight int8 as int16. With it, where the weights allow,
                  products of two taps are added in 16 bits
    weight_dtype: dtype of packed weights, if it is not the model's
    """

    lanes: int
    columns: Sequence[int]
    pairs: str = ""
    weight_dtype: str = ""


@dataclass(frozen=True)
class Plan:
    """Sizes of a depthwise convolution in vectors and tiles.

    staged:   whether the activations are copied first: padded, repeated by the multiplier, filled up to whole vectors
    lanes:    channels of one vector
    channels: output channels, a multiple of `lanes`
    columns:  pixels of a register tile
    width:    output columns, a multiple of `columns`
    pairs:    whether products are added in pairs
    """

    staged: bool
    lanes: int
    channels: int
    columns: int
    width: int
    pairs: bool


@lru_cache(maxsize=4096)
def plan(workload: Conv2dWorkload, registers: Registers) -> Plan:
    """Choose vectors and tiles: whole vectors without a copy if possible, else a copy padded to whole vectors."""
    channels, width = workload.out_channels, workload.out_width
    must_stage = any(workload.padding) or workload.multiplier > 1
    fitting = [size for size in registers.columns if width % size == 0]
    columns = max(fitting, default=min(width, registers.columns[0]))
    fit = workload.data_dtype == workload.weight_dtype == "int8" and workload.pairable_weights
    pairs = bool(registers.pairs) and fit
    if channels % LANES[-1] == 0 and width % columns == 0 and not must_stage:
        return Plan(False, next(n for n in LANES if channels % n == 0), channels, columns, width, pairs)
    lanes = LANES[0] if channels > LANES[-1] else LANES[-1]
    return Plan(True, lanes, round_up(channels, lanes), columns, round_up(width, columns), pairs)


def pack_weight(workload: Conv2dWorkload, weight: np.ndarray, registers: Registers) -> np.ndarray:
    """OHWI weights (O, kh, kw, 1) to (kh, kw, O), zero in the channels that fill up the last vector."""
    layout = plan(workload, registers)
    dtype = workload.weight_dtype if layout.pairs else registers.weight_dtype or workload.weight_dtype
    packed = np.zeros((*workload.kernel, layout.channels), dtype)
    packed[..., : workload.out_channels] = weight[..., 0].transpose(1, 2, 0)
    return packed


def compute(workload: Conv2dWorkload, x: te.Tensor, w: te.Tensor, pad_value: int, registers: Registers) -> te.Tensor:
    """The accumulator, (N, OH, OW, OC)."""
    layout = plan(workload, registers)
    data = _stage(workload, layout, x, pad_value) if layout.staged else x
    shape = workload.batch, workload.out_height, layout.width, layout.channels
    terms = _in_pairs(workload, data, w, registers.pairs) if layout.pairs else _tap_by_tap(workload, data, w)
    acc = te.compute(shape, terms, name="depthwise")
    return te.compute(
        (workload.batch, workload.out_height, workload.out_width, workload.out_channels),
        lambda n, y, column, c: acc[n, y, column, c],
        name="logical",
    )


def _tap_by_tap(workload: Conv2dWorkload, data: te.Tensor, w: te.Tensor) -> Any:
    dtype = workload.out_dtype
    kh, kw = (te.reduce_axis((0, size), name) for size, name in zip(workload.kernel, ("kh", "kw"), strict=True))

    def depthwise(n, y, column, c):
        value = _read(workload, data, (n, y, column, c), kh, kw)
        axes = [kw, kh] if workload.by_columns else [kh, kw]
        return te.sum(value.astype(dtype) * w[kh, kw, c].astype(dtype), axis=axes)

    return depthwise


def _in_pairs(workload: Conv2dWorkload, data: te.Tensor, w: te.Tensor, multiply: str) -> Any:
    """Two taps at a time: |a·v + b·w| ≤ 2 · 128 · 127 < 2¹⁵, so only their sum is widened.

    If the sequence is unrolled, it has the taps of all rows; else each row is one, and its last tap may be unpaired.
    """
    height, width = workload.kernel
    flat = height > 1 and _unrolled(workload)
    rows, taps = (1, height * width) if flat else workload.kernel
    row, pair = (te.reduce_axis((0, size), name) for size, name in ((rows, "kh"), (-(-taps // 2), "kw")))

    def depthwise(n, y, column, c):
        def product(tap):
            kh, kw = (tap // width, tap % width) if flat else (row, tap)
            value = _read(workload, data, (n, y, column, c), kh, kw)
            return tirx.call_llvm_pure_intrin("int16", multiply, value, w[kh, kw, c])

        second = product(tirx.min(2 * pair + 1, taps - 1))
        if taps % 2:
            second = tirx.if_then_else(2 * pair + 1 < taps, second, tirx.const(0, "int16"))
        return te.sum((product(2 * pair) + second).astype("int32"), axis=[row, pair])

    return depthwise


def initial(workload: Conv2dWorkload, bias: np.ndarray, registers: Registers) -> np.ndarray:
    """The bias as the accumulators' initial value, zero in the channels that fill up the last vector."""
    filling = plan(workload, registers).channels - workload.out_channels
    return np.pad(bias.reshape(-1), (0, filling))


def _read(workload: Conv2dWorkload, data: te.Tensor, at: tuple[Any, ...], kh: Any, kw: Any) -> Any:
    """The value that an output reads at one tap."""
    n, y, column, c = at
    row = y * workload.strides[0] + kh * workload.dilation[0]
    return data[n, row, column * workload.strides[1] + kw * workload.dilation[1], c]


def _unrolled(workload: Conv2dWorkload) -> bool:
    return workload.kernel[0] * workload.kernel[1] <= MAX_UNROLLED_TAPS


def _stage(workload: Conv2dWorkload, layout: Plan, x: te.Tensor, pad_value: int) -> te.Tensor:
    """The activations, padded to whole tiles and vectors."""
    height = reach(workload.out_height, workload.strides[0], workload.kernel[0], workload.dilation[0])
    width = reach(layout.width, workload.strides[1], workload.kernel[1], workload.dilation[1])
    return padded(workload, x, pad_value, (height, width, layout.channels))


def padded(workload: Conv2dWorkload, x: te.Tensor, pad_value: int, size: tuple[int, int, int]) -> te.Tensor:
    """The activations padded to a size in height, width and channels, one channel per output channel; stage "pad"."""
    top, left = workload.padding[:2]
    rows, columns = workload.height, workload.width
    height, width, channels = size
    padding = tirx.const(pad_value, workload.data_dtype)

    def within(index, before, size, total):
        return ([index >= before] if before else []) + ([index < before + size] if before + size < total else [])

    def staged(n, y, column, c):
        inside = within(y, top, rows, height) + within(column, left, columns, width)
        inside += within(c, 0, workload.out_channels, channels)
        value = x[n, y - top, column - left, c // workload.multiplier]
        return tirx.if_then_else(tirx.all(*inside), value, padding) if inside else value

    return te.compute((workload.batch, height, width, channels), staged, name="pad", attrs={OPERAND: True})


def reach(outputs: int, stride: int, kernel: int, dilation: int) -> int:
    """How many inputs `outputs` neighbouring outputs span."""
    return (outputs - 1) * stride + (kernel - 1) * dilation + 1


def schedule(sch: Schedule, workload: Conv2dWorkload, target: Target, registers: Registers) -> None:
    """Tasks of rows × channels: each pads its own input, then takes one vector of channels over all its pixels."""
    layout = plan(workload, registers)
    accumulator = sch.get_sblock("depthwise")
    output = inline_epilogue(sch, accumulator)
    done = [accumulator, output]
    if layout.staged:
        done.append(sch.get_sblock("pad"))
    schedule_root_blocks(sch, done, target, vector=64)

    n, y, column, c = sch.get_loops(output)
    task_rows, task_channels = _task(workload, layout)
    lanes = min(layout.lanes, registers.lanes)
    row_outer, row = sch.split(y, [None, task_rows])
    column_outer, column = sch.split(column, [None, layout.columns])
    channel_outer, vector, lane = sch.split(c, [None, task_channels // lanes, lanes])
    sch.reorder(n, row_outer, channel_outer, vector, row, column_outer, column, lane)
    task = sch.fuse(n, row_outer, channel_outer)
    if workload.macs >= sharing_of(target).depthwise_macs and extent(sch, task) > 1:
        sch.parallel(task)

    sch.compute_at(accumulator, column_outer, preserve_unit_loops=True)
    if layout.staged:
        sch.compute_at(sch.get_sblock("pad"), task, preserve_unit_loops=True)
        part_columns(sch, sch.get_sblock("pad"), workload)
    _unroll_taps(sch, accumulator, workload)
    vectorize_epilogue(sch, column, lane, math.gcd(workload.out_channels, lanes))


def part_columns(sch: Schedule, pad: SBlockRV, workload: Conv2dWorkload) -> None:
    """Make the columns inside the image a separate loop, whose only conditions are on rows."""
    column = sch.get_loops(pad)[-2]
    left, across = workload.padding[1], extent(sch, column)
    sizes = [left, min(workload.width, across - left), max(0, across - left - workload.width)]
    parts = [size for size in sizes if size > 0]
    if len(parts) > 1:
        sch.loop_partition(column, [*parts[:-1], None])


def vectorize_epilogue(sch: Schedule, column: LoopRV, lane: LoopRV, lanes: int) -> None:
    """Vectorize the epilogue. Vectors must not cross the last channel: a predicate per lane would make them scalar."""
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
    column, lane, outer, inner = sch.get_loops(accumulator)[-4:]
    sch.reorder(outer, inner, column, lane)
    sch.vectorize(lane)
    sch.unroll(column)
    sch.unroll(inner)
    if _unrolled(workload):
        sch.unroll(outer)
    sch.decompose_reduction(accumulator, outer)

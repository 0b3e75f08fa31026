"""conv2d with smmla: pairs of pixels × quads of channels, the epilogue fused into the register tile.

Weights are packed to (panels of a tile's blocks, kh, kw, I/8, block, quad, lane, 8), zero where dimensions were padded.
The activations are always staged, padded, in one of four forms:

    flat     1×1 without padding, any stride: (N, G·I/8, pixels, 8), the image's pixels as one row
    spatial  (N, rows, G·I/8, phase, columns / stride, 8): windows that begin `stride` columns apart lie side by side
    rows     (N, rows, run/8, 1, columns, 8): runs of a row of the window, where they waste less than padding each pixel
    window   (N, output rows, K/8, 1, columns, 8): all rows of the window, where padding each wastes more than copying
             it for each output row: what is whole eights of each row, then what is left of them, see `_Window`
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import tvm_ffi
from tvm import te, tirx
from tvm.ir import Range, TensorLoad, TensorRegion
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from ..cpu.conv2d import Plan, copy_runs, merged_groups, packed, reach, strip_of, tile_rows
from ..cpu.microkernel import Domain, Tile, other_strips, round_up
from ..initial import in_lanes
from ..schedule_util import (
    PARALLEL_MACS_TENSORIZED,
    TASKS,
    extent,
    inline_epilogue,
    num_threads,
    parallel_rows,
    resolve_groups,
    schedule_root_blocks,
)
from ..strategy import Implementation, register
from ..workload import Conv2dWorkload
from .smmla import CHANNELS, DEPTH, PIXELS, QUADS, SMMLA
from .smmla_tile import (
    Steps,
    accumulators,
    copy_steps,
    in_panels,
    initial_of,
    place_of,
    schedule_tile,
    strip_for,
    tiles_of,
)

COPY = 4
"""Instructions that copy some values of a pixel to where a step has them."""


@dataclass(frozen=True)
class _Window:
    """The values of a window in the order of mode "window": `heads` eights of each row, then the rows' last `tail`.

    A row has 8·heads + tail values. Rows are taken modulo their number, for TVM to see that there are no others.
    """

    rows: int
    heads: int
    tail: int

    @property
    def first(self) -> int:
        """Steps before the first one of tails."""
        return self.rows * self.heads

    @property
    def steps(self) -> int:
        """Steps along k."""
        return self.first + -(-self.rows * self.tail // DEPTH)

    @property
    def part(self) -> int:
        """Values of a step of tails that are neighbours in any case."""
        return math.gcd(self.tail, DEPTH)

    def head(self, step: Any, k: Any) -> tuple[Any, Any]:
        """Row and place in it of a value of a step of heads."""
        return step // self.heads % self.rows, step % self.heads * DEPTH + k

    def tails(self, step: Any, k: Any) -> tuple[Any, Any, Any]:
        """The same of a step of tails, and whether there is such a value."""
        index = (step - self.first) * DEPTH + k
        row, place = index // self.tail % self.rows, self.heads * DEPTH + index % self.tail
        return row, place, index < self.rows * self.tail

    def ordered(self, weight: np.ndarray) -> np.ndarray:
        """Weights (O, rows, values of a row) as (O, 1, 1, values)."""
        cut = self.heads * DEPTH
        parts = [weight[..., :cut].reshape(len(weight), -1), weight[..., cut:].reshape(len(weight), -1)]
        return np.concatenate(parts, axis=1)[:, None, None]


def _window(workload: Conv2dWorkload) -> _Window:
    return _Window(workload.kernel[0], *divmod(workload.kernel[1] * workload.in_channels, DEPTH))


def _gathers(workload: Conv2dWorkload) -> bool:
    """Whether mode "window" takes fewer instructions than "rows": per output pixel, what products of the steps it saves
    take, less what more copies do.

    Rows are copied once; the window's are for each row of output pixels.
    """
    window, blocks = _window(workload), -(-workload.out_channels // CHANNELS)
    if workload.groups > 1 or not window.tail:
        return False
    saved = window.rows * (window.heads + 1) - window.steps
    parts = window.first + window.rows * window.tail // window.part
    copies = parts - workload.strides[0] * (window.heads + 1)
    return saved * blocks * QUADS / PIXELS > COPY * copies


@lru_cache(maxsize=4096)
def plan(workload: Conv2dWorkload, tile: Tile | None = None) -> Plan:
    """Mode and padded sizes for a register tile, the cheapest one unless given."""
    tile = tile or next(iter(tiles(workload)))
    groups = _groups(workload)
    mode, taps = _reduction(workload, groups)
    domain = _domain(workload, groups)
    rows, columns = round_up(domain.rows, tile.rows), round_up(domain.columns, tile.columns)
    blocks = groups * round_up(domain.blocks, tile.blocks)
    return Plan(mode, groups, taps, tile, workload.batch, rows, columns, blocks, True)


@lru_cache(maxsize=4096)
def tiles(workload: Conv2dWorkload) -> dict[Tile, float]:
    """The legal register tiles with their predicted cost, cheapest first."""
    return _tiles(workload, _groups(workload))


@lru_cache(maxsize=4096)
def _tiles(workload: Conv2dWorkload, groups: int) -> dict[Tile, float]:
    """The same for a number of merged groups."""
    return tiles_of(_domain(workload, groups))


@lru_cache(maxsize=4096)
def _groups(workload: Conv2dWorkload) -> int:
    """Groups after merging neighbours as it suits the instruction."""

    def cost(groups: int) -> float:
        return next(iter(_tiles(workload, groups).values())) * groups * _domain(workload, groups).blocks

    return merged_groups(workload, cost)


def _reduction(workload: Conv2dWorkload, groups: int) -> tuple[str, tuple[int, int, int]]:
    """Mode, and the reduction's extents: taps of a row of the window, that is one run, or not."""
    in_group, (height, width) = workload.in_channels // groups, workload.kernel
    run = round_up(in_group, DEPTH)
    if workload.kernel == (1, 1) and not any(workload.padding):
        return "flat", (1, 1, run)
    line = round_up(width * in_group, DEPTH)
    if groups == 1 and workload.dilation[1] == 1 and line < width * run:
        if _gathers(workload):
            return "window", (1, 1, _window(workload).steps * DEPTH)
        return "rows", (height, 1, line)
    return "spatial", (height, width, run)


def _domain(workload: Conv2dWorkload, groups: int) -> Domain:
    """What a tile covers: pixels, and the blocks of one of so many merged groups."""
    out_group = workload.out_channels // groups
    mode, taps = _reduction(workload, groups)
    rows, columns = workload.out_height, workload.out_width
    if mode == "flat":
        rows, columns = 1, rows * columns
    return Domain(rows, columns, -(-out_group // CHANNELS), math.prod(taps) // DEPTH, True, False)


def pack_weight(workload: Conv2dWorkload, weight: np.ndarray, tile: Tile | None = None) -> np.ndarray:
    """OHWI weights to (panels, kh, kw, I/8, block, quad, lane, 8); zero in padding and between merged groups."""
    layout = plan(workload, tile)
    if layout.mode == "window":
        weight = _window(workload).ordered(weight.reshape(*weight.shape[:2], -1))
    return in_panels(packed(workload, layout, weight, SMMLA), layout.tile.blocks)


def initial(workload: Conv2dWorkload, bias: np.ndarray, tile: Tile | None = None) -> np.ndarray:
    """The bias as the accumulators' initial values."""
    layout = plan(workload, tile)
    return initial_of(in_lanes(bias, layout.blocks, CHANNELS, layout.groups))


def compute(
    workload: Conv2dWorkload, x: te.Tensor, w: te.Tensor, pad_value: int, tile: Tile | None = None
) -> te.Tensor:
    """The convolution's accumulator, (N, OH, OW, OC) int32."""
    layout = plan(workload, tile)
    taps_height, taps_width, run = layout.taps
    (stride_height, stride_width), (dilation_height, dilation_width) = workload.strides, workload.dilation
    out_group, group_blocks = workload.out_channels // layout.groups, layout.blocks // layout.groups
    kh = te.reduce_axis((0, taps_height), "kh")
    kw = te.reduce_axis((0, taps_width), "kw")
    steps, tile_blocks = Steps(run), layout.tile.blocks
    shape = (workload.batch, workload.out_height, workload.out_width, workload.out_channels)

    def step(block):
        return (block // group_blocks * (run // DEPTH) if layout.groups > 1 else 0) + steps.step

    def product(value, block, r, s, quad, lane):
        weight = w[block // tile_blocks, r, s, steps.step, block % tile_blocks, quad, lane, steps.k]
        return value.astype("int32") * weight.astype("int32")

    def place(pixel, pixels, c):
        first = c // out_group * group_blocks if layout.groups > 1 else 0
        c = c % out_group if layout.groups > 1 else c
        return place_of(pixel, pixels, first + c // CHANNELS, c, out_group)

    if layout.mode == "flat":
        data = _stage_flat(workload, layout, x)

        def flat(image, p, block, quad, lane):
            value = data[image, step(block), p, steps.k]
            return te.sum(product(value, block, 0, 0, quad, lane), axis=steps.axes)

        acc = accumulators((workload.batch,), layout.columns, layout.blocks, flat, "conv2d")
        pixels = workload.out_height * workload.out_width
        return te.compute(
            shape, lambda n, y, x, c: acc[(n, *place(y * workload.out_width + x, pixels, c))], name="logical"
        )

    data = (_stage_spatial if layout.mode == "spatial" else _stage_lines)(workload, layout, x, pad_value)

    def spatial(n, y, x, block, quad, lane):
        row = y if layout.mode == "window" else y * stride_height + kh * dilation_height
        start = kw * dilation_width
        value = data[n, row, step(block), start % stride_width, x + start // stride_width, steps.k]
        return te.sum(product(value, block, kh, kw, quad, lane), axis=[kh, kw, *steps.axes])

    acc = accumulators((workload.batch, layout.rows), layout.columns, layout.blocks, spatial, "conv2d")
    return te.compute(shape, lambda n, y, x, c: acc[(n, y, *place(x, workload.out_width, c))], name="logical")


def _channel(workload: Conv2dWorkload, layout: Plan, ko, ki):
    """The channel of a staged value, and the conditions under which there is one."""
    in_group, run = workload.in_channels // layout.groups, layout.taps[2]
    if in_group == run:
        return ko * DEPTH + ki, []
    within = ko % (run // DEPTH) * DEPTH + ki
    return ko // (run // DEPTH) * in_group + within, [within < in_group]


def _stage_flat(workload: Conv2dWorkload, layout: Plan, x: te.Tensor) -> te.Tensor:
    """(N, G·I/8, pixels, 8); behind the last pixel, that one again."""
    (stride_height, stride_width), width = workload.strides, workload.out_width
    pixels = workload.out_height * width

    def value(n, ko, p, ki):
        channel, inside = _channel(workload, layout, ko, ki)
        p = tirx.min(p, pixels - 1) if layout.columns > pixels else p
        return _guarded(inside, x[n, p // width * stride_height, p % width * stride_width, channel], 0)

    shape = (workload.batch, layout.groups * layout.taps[2] // DEPTH, layout.columns, DEPTH)
    return te.compute(shape, value, name="pad")


def _stage_spatial(workload: Conv2dWorkload, layout: Plan, x: te.Tensor, pad_value: int) -> te.Tensor:
    """(N, rows, G·I/8, phase, columns / stride, 8)."""
    top, left = workload.padding[:2]
    bottom, right = reach(workload, layout.rows, layout.columns)
    stride = workload.strides[1]
    columns = -(-right // stride)

    def value(n, y, ko, phase, column, ki):
        channel, within = _channel(workload, layout, ko, ki)
        column = column * stride + phase
        inside = _within(y, top, workload.height, bottom)
        inside += _within(column, left, workload.width, columns * stride)
        return _guarded(inside + within, x[n, y - top, column - left, channel], pad_value)

    shape = (workload.batch, bottom, layout.groups * layout.taps[2] // DEPTH, stride, columns, DEPTH)
    return te.compute(shape, value, name="pad")


def _stage_lines(workload: Conv2dWorkload, layout: Plan, x: te.Tensor, pad_value: int) -> te.Tensor:
    """(N, rows, run/8, 1, columns, 8): of each window its row, from padded lines of pixels; or all its rows."""
    top, left = workload.padding[:2]
    height, width, channels = workload.height, workload.width, workload.in_channels
    bottom = reach(workload, layout.rows, layout.columns)[0]
    steps, window = layout.taps[2] // DEPTH, _window(workload)
    pitch = workload.strides[1] * channels
    run = layout.taps[2] if layout.mode == "rows" else workload.kernel[1] * channels
    length = (layout.columns - 1) * pitch + run

    def line(n, y, j):
        inside = _within(y, top, height, bottom) + _within(j, left * channels, width * channels, length)
        j = j - left * channels
        return _guarded(inside, x[n, y - top, j // channels, j % channels], pad_value)

    lines = te.compute((workload.batch, bottom, length), line, name="line")

    def of_row(n, y, ko, _phase, column, ki):
        return lines[n, y, column * pitch + ko * DEPTH + ki]

    def of_window(n, y, ko, _phase, column, ki):
        def value(row, place):
            return lines[n, y * workload.strides[0] + row * workload.dilation[0], column * pitch + place]

        *place, inside = window.tails(ko, ki)
        tail = _guarded([inside], value(*place), 0)
        return tirx.if_then_else(ko < window.first, value(*window.head(ko, ki)), tail) if window.first else tail

    rows, value = (layout.rows, of_window) if layout.mode == "window" else (bottom, of_row)
    return te.compute((workload.batch, rows, steps, 1, layout.columns, DEPTH), value, name="pad")


def _within(index, before: int, size: int, total: int) -> list:
    """Conditions for `size` values behind `before` others, of `total`."""
    return ([index >= before] if before else []) + ([index < before + size] if before + size < total else [])


def _guarded(conditions: list, value, otherwise: int):
    return tirx.if_then_else(tirx.all(*conditions), value, tirx.const(otherwise, "int8")) if conditions else value


def schedule(sch: Schedule, workload: Conv2dWorkload, target: Target, tile: Tile | None = None) -> None:
    """Fuse the epilogue, stage the activations, tile pixels × channel blocks into registers, tensorize."""
    layout = plan(workload, tile)
    accumulator = sch.get_sblock("conv2d")
    stages = [sch.get_sblock(name) for name in (("pad", "line") if layout.mode in ("rows", "window") else ("pad",))]
    output = inline_epilogue(sch, accumulator)
    if layout.mode == "flat" or layout.groups > 1:
        sch.transform_block_layout(output, partial(_axes, workload, layout))
    if layout.mode == "flat":
        _resolve_pixels(sch, output)
    if layout.groups > 1:
        resolve_groups(sch, output, -2)
    schedule_root_blocks(sch, [accumulator, output, *stages], vector=64)
    strip = layout.tile.strip or _strip(workload, layout, target)
    by_strip = _staged_by_strip(workload, layout, strip, target)
    schedule_tile(
        sch,
        accumulator,
        output,
        layout.tile,
        pixel_axes=1 if layout.mode == "flat" else 2,
        grouped=layout.groups > 1,
        macs=workload.macs,
        strip=strip,
        stages=stages if by_strip else [],
    )
    for stage in stages:
        _schedule_stage(sch, workload, layout, stage, by_strip)


def _axes(workload: Conv2dWorkload, layout: Plan, n, y, x, c):
    """The output's axes as the kernel is scheduled over them: flat pixels, groups and the channels of a group."""
    pixels = (n, y * workload.out_width + x) if layout.mode == "flat" else (n, y, x)
    out_group = workload.out_channels // layout.groups
    return (*pixels, c // out_group, c % out_group) if layout.groups > 1 else (*pixels, c)


def _resolve_pixels(sch: Schedule, output: SBlockRV) -> None:
    """Read the accumulators at pixel p of the output's own axis, not at p // W · W + p % W and what TVM makes of its
    half, from which it could not tell which part of them a tile needs; see `resolve_groups`.
    """
    block = sch.get(output)
    pixel = block.iter_vars[1].var

    def place(image: Any, _pair: Any, first: Any, quad: Any, _pixel: Any, lane: Any) -> tuple[Any, ...]:
        return image, pixel // PIXELS, first, quad, pixel % PIXELS, lane

    def load_at_pixel(load: TensorLoad) -> Any:
        return load.source[place(*load.indices)] if load.source.name == "conv2d" else load

    def region_at_pixel(read: TensorRegion) -> TensorRegion:
        if read.source.name != "conv2d":
            return read
        indices = place(*(axis.min for axis in read.region))
        return tirx.BufferRegion(read.source, [Range.from_min_extent(index, 1) for index in indices])

    rules = [(TensorLoad, load_at_pixel), (TensorRegion, region_at_pixel)]
    resolved = tvm_ffi.structural_map(block, rules)
    sch.state.replace(sch.get_sref(output), resolved, {block: resolved})


def _strip(workload: Conv2dWorkload, layout: Plan, target: Target) -> int:
    """Tiles along the first pixel axis that pass by the weights together."""
    strip = strip_of(workload, layout, SMMLA, num_threads(target))
    return strip_for(workload.out_channels // layout.groups, tile_rows(layout), strip, layout.images)


def _staged_by_strip(workload: Conv2dWorkload, layout: Plan, strip: int, target: Target) -> bool:
    """Whether each strip copies its own activations: not if it is all of them, or few are to share."""
    serial = int(target.attrs.get("num-cores", 0)) == 1 or workload.macs < PARALLEL_MACS_TENSORIZED
    strips = tile_rows(layout) // strip
    return strips > 1 and (serial or layout.images * strips >= TASKS // 2)


def _schedule_stage(sch: Schedule, workload: Conv2dWorkload, layout: Plan, stage: SBlockRV, by_strip: bool) -> None:
    """Eight values at a time, a pixel's channels in order; lines as they are, padding aside."""
    is_line = sch.get(stage).name_hint == "line"
    if not is_line:
        axes = len(sch.get(stage).iter_vars)
        steps, *pixels, values = sch.get_loops(stage)[-axes:][1 if layout.mode == "flat" else 2 :]
        sch.reorder(*pixels, steps, values)
    if not by_strip:
        loops = sch.get_loops(stage)
        parallel_rows(sch, loops[:2], math.prod(map(partial(extent, sch), loops)))
    if is_line:
        sch.storage_align(stage, 0, 1, DEPTH, 0)  # distances that loads of eight bytes have room for
        copy_runs(sch, workload, layout, stage)
    elif layout.mode == "window":
        _copy_window(sch, _window(workload), sch.get_loops(stage)[-2])
    else:
        *_, pixel, steps, values = sch.get_loops(stage)
        beyond = layout.columns - workload.out_height * workload.out_width if layout.mode == "flat" else 0
        nests = [(steps, values)]
        if beyond and extent(sch, pixel) == layout.columns:  # no pixel but those behind the last asks for a limit
            parts = sch.loop_partition(pixel, [layout.columns - beyond, None])
            nests = [tuple(sch.get_loops(sch.get_child_blocks(part)[0])[-2:]) for part in parts]
        for steps, values in nests:
            copy_steps(sch, steps, values, workload.in_channels // DEPTH if layout.groups == 1 else 0)


def _copy_window(sch: Schedule, window: _Window, steps: LoopRV) -> None:
    """Eight values of heads at a time, of tails those that are neighbours; all at constant distances."""
    nests = sch.loop_partition(steps, [window.first, None]) if 0 < window.first < window.steps else [steps]
    for nest in nests:
        heads = window.first > 0 and nest is nests[0]
        values = sch.get_loops(sch.get_child_blocks(nest)[0])[-1]
        several, together = sch.split(values, [None, DEPTH if heads else window.part])
        sch.vectorize(together)
        sch.unroll(several)
        sch.unroll(nest)


def _accepts(workload: Conv2dWorkload, target: Target) -> bool:
    """Whether the CPU has smmla and the workload fills it: of a single pixel, or of half a block of channels, more of
    it would be wasted than it saves."""
    pixels = workload.out_height * workload.out_width
    fits = not workload.depthwise and workload.out_dtype == "int32" and pixels > 1
    fits = fits and SMMLA.available(target) and SMMLA.takes(workload.data_dtype, workload.weight_dtype)
    return fits and 2 * workload.out_channels > CHANNELS * _groups(workload)


IMPLEMENTATION = Implementation(
    name="conv2d_nhwc_smmla.arm_cpu",
    priority=30,
    accepts=_accepts,
    compute=compute,
    schedule=schedule,
    pack_weight=pack_weight,
    initial=initial,
    accumulator="conv2d",
    tiles=tiles,
    variants=lambda workload, tile: other_strips(tile, tile_rows(plan(workload, tile))),
)

register(Conv2dWorkload, IMPLEMENTATION)

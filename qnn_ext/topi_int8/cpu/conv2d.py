"""conv2d: NHWC activations, packed weights, dot-product instructions, epilogue fused into the register tile.

Weights are packed to (O/lanes, kh, kw, I/depth, lanes, depth), zero where the dimensions were padded, so padded
channels never count, whatever the activations hold there: of a group they are the next group's. Groups begin with a
block of their own, neighbours are merged where that costs less. Four ways to address the activations:

    flat     1×1, stride 1, no padding, and a tile that fits: the image is one row of pixels
    spatial  rows and columns of pixels, in-channels padded to the depth of the instruction
    rows     in-channels that are no multiple of the depth, and no dilation along the width: the kw·I neighbouring
             values of a window row are one run of memory, reduced as a whole
    window   the same where rows of the window, each padded to the depth, waste more than it costs to interleave them:
             then the whole window is one run. Weights are packed to (O/lanes, 1, 1, kw·kh·I/depth, lanes, depth)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from ..initial import in_lanes
from ..schedule_util import (
    PARALLEL_MACS_TENSORIZED,
    TASKS,
    extent,
    inline_epilogue,
    largest_divisor,
    num_threads,
    parallel_rows,
    resolve_groups,
    schedule_root_blocks,
    vectorize_inner,
)
from ..strategy import Implementation, cheapest_first
from ..workload import Conv2dWorkload
from .dot import DotInstruction
from .interleave import VECTOR, Interleaving
from .microkernel import (
    Domain,
    Tile,
    is_ragged,
    lane_of,
    legal_tiles,
    other_strips,
    panel_ahead,
    round_up,
    schedule_microkernel,
    strip_size,
    tile_cost,
)


@dataclass(frozen=True)
class Plan:
    """How a workload is laid out for an instruction.

    mode:         "flat", "spatial", "rows" or "window"
    groups:       groups after merging, see `_merged_groups`
    taps:         (kh, kw, run): the reduction axes; `run` values are contiguous and a multiple of the depth
    tile:         register tile
    images, rows, columns, blocks: the accumulator's shape, padded to multiples of the tile
    staged:       whether the activations are copied to a padded buffer first
    """

    mode: str
    groups: int
    taps: tuple[int, int, int]
    tile: Tile
    images: int
    rows: int
    columns: int
    blocks: int
    staged: bool


@lru_cache(maxsize=4096)
def plan(workload: Conv2dWorkload, instruction: DotInstruction, tile: Tile | None = None) -> Plan:
    """Mode and padded sizes for a register tile, the cheapest one unless given."""
    if tile is None:
        tile = next(iter(tiles(workload, instruction)))
    groups = _merged_groups(workload, instruction)
    mode, taps = _reduction(workload, instruction, groups)
    domain, lines = _domain(workload, instruction, groups), _lines(workload, instruction, groups)
    images, rows, columns = workload.batch, domain.rows, domain.columns
    if lines and tile.rows == 1 and lines.takes(tile):
        mode, rows, columns = "flat", 1, lines.columns
        images = 1 if workload.height == 1 else workload.batch
    rows, columns = round_up(rows, tile.rows), round_up(columns, tile.columns)
    bottom, right = reach(workload, rows, columns)
    beyond = mode != "flat" and (bottom > workload.height or right > workload.width)
    blocks = groups * round_up(domain.blocks, tile.blocks)
    return Plan(mode, groups, taps, tile, images, rows, columns, blocks, domain.copied or beyond)


@lru_cache(maxsize=4096)
def tiles(workload: Conv2dWorkload, instruction: DotInstruction) -> dict[Tile, float]:
    """The legal register tiles with their predicted cost, cheapest first."""
    return _tiles(workload, instruction, _merged_groups(workload, instruction))


@lru_cache(maxsize=4096)
def _tiles(workload: Conv2dWorkload, instruction: DotInstruction, groups: int) -> dict[Tile, float]:
    """The same for a number of merged groups."""
    costs: dict[Tile, float] = {}
    for domain in filter(None, (_lines(workload, instruction, groups), _domain(workload, instruction, groups))):
        for tile in legal_tiles(domain, instruction):
            costs.setdefault(tile, tile_cost(tile, domain, instruction))
    return cheapest_first(costs)


def _domain(workload: Conv2dWorkload, instruction: DotInstruction, groups: int) -> Domain:
    """What a tile covers: rows and columns of pixels, and the blocks of one of so many merged groups."""
    in_group, out_group = workload.in_channels // groups, workload.out_channels // groups
    copied = any(workload.padding) or in_group % instruction.span != 0 or workload.data_dtype != instruction.data_dtype
    blocks = round_up(out_group, instruction.lanes) // instruction.lanes
    steps = math.prod(_reduction(workload, instruction, groups)[1]) // instruction.depth
    return Domain(workload.out_height, workload.out_width, blocks, steps, copied, is_ragged(out_group, instruction))


def _lines(workload: Conv2dWorkload, instruction: DotInstruction, groups: int) -> Domain | None:
    """The same with an image as one row of pixels, where that is possible: mode "flat"."""
    pointwise = workload.kernel == (1, 1) and workload.strides == (1, 1) and not any(workload.padding)
    if not pointwise or _reduction(workload, instruction, groups)[0] == "rows":
        return None
    pixels = workload.width * (workload.batch if workload.height == 1 else workload.height)
    return replace(_domain(workload, instruction, groups), rows=1, columns=pixels, line=workload.width)


def _run(workload: Conv2dWorkload, instruction: DotInstruction, groups: int) -> int:
    """Neighbouring values that are reduced together, before padding."""
    in_group, width = workload.in_channels // groups, workload.kernel[1]
    return in_group if _reduction(workload, instruction, groups)[0] == "spatial" else width * in_group


def _reduction(workload: Conv2dWorkload, instruction: DotInstruction, groups: int) -> tuple[str, tuple[int, int, int]]:
    """Mode but for "flat", and the reduction's extents: taps of a row of the window, that is one run, or not."""
    in_group, (height, width) = workload.in_channels // groups, workload.kernel
    if groups == 1 and in_group % instruction.span and (workload.dilation[1] == 1 or width == 1):
        run = round_up(width * in_group, instruction.span)
        window = round_up(height * width * in_group, instruction.span)
        if _interleaves(workload, instruction, (height * run - window) // instruction.depth):
            return "window", (1, 1, window)
        return "rows", (height, 1, run)
    return "spatial", (height, width, round_up(in_group, instruction.span))


def _interleaves(workload: Conv2dWorkload, instruction: DotInstruction, saved: int) -> bool:
    """Whether interleaving the rows of the window costs less than the `saved` dot products per pixel and block.

    A vector of it costs a load and an insertion for each row and some for shuffling and storing it.
    """
    blocks, rows = round_up(workload.out_channels, instruction.lanes) // instruction.lanes, workload.kernel[0]
    vectors = workload.strides[1] * rows * workload.in_channels / instruction.vector_bytes
    bytewise = workload.data_dtype == instruction.data_dtype == "uint8"
    gains = bytewise and saved * blocks > vectors * (rows + 4)
    return gains and _interleaving(workload, instruction, workload.out_width).legal


def _interleaving(workload: Conv2dWorkload, instruction: DotInstruction, columns: int) -> Interleaving:
    """How the rows under a line of `columns` windows are interleaved."""
    rows, width, channels = *workload.kernel, workload.in_channels
    window = round_up(rows * width * channels, instruction.span)
    length = (columns - 1) * workload.strides[1] * rows * channels + window
    return Interleaving(length, rows, channels, workload.dilation[0])


@lru_cache(maxsize=4096)
def _merged_groups(workload: Conv2dWorkload, instruction: DotInstruction) -> int:
    """Groups after merging neighbours as it suits a dot-product instruction."""
    return merged_groups(workload, partial(_cost, workload, instruction))


def merged_groups(workload: Conv2dWorkload, cost: Callable[[int], float]) -> int:
    """Groups after merging neighbours into block-diagonal ones, as many as cost the least.

    A group of fewer output channels than lanes, or of a few more than some blocks, leaves lanes idle; merging fills
    them, with products by zero, and for free if the channels are few.
    """
    several = [groups for groups in range(2, workload.groups + 1) if workload.groups % groups == 0]
    legal = [1, *(groups for groups in several if workload.out_channels > groups)]
    return min(legal, key=lambda groups: (cost(groups), -groups))


def _cost(workload: Conv2dWorkload, instruction: DotInstruction, groups: int) -> float:
    """Predicted cycles per pixel with so many merged groups."""
    per_vector = next(iter(_tiles(workload, instruction, groups).values()))
    return per_vector * groups * _domain(workload, instruction, groups).blocks


def reach(workload: Conv2dWorkload, rows: int, columns: int) -> tuple[int, int]:
    """Height and width of padded input that rows × columns of output pixels read."""
    sizes = zip((rows, columns), workload.strides, workload.kernel, workload.dilation, strict=True)
    height, width = ((size - 1) * stride + (kernel - 1) * dilation + 1 for size, stride, kernel, dilation in sizes)
    return height, width


def pack_weight(
    workload: Conv2dWorkload, weight: np.ndarray, instruction: DotInstruction, tile: Tile | None = None
) -> np.ndarray:
    """OHWI weights to (O/lanes, kh, kw, I/depth, lanes, depth); zero in padding and between merged groups."""
    return packed(workload, plan(workload, instruction, tile), weight, instruction)


def packed(workload: Conv2dWorkload, layout: Plan, weight: np.ndarray, instruction: DotInstruction) -> np.ndarray:
    """The weights in the blocks of a plan."""
    lanes, depth = instruction.lanes, instruction.depth
    merge = workload.groups // layout.groups
    out_channels, kernel_height, kernel_width, in_group = weight.shape
    out_group = out_channels // workload.groups

    dense = np.zeros((out_channels, kernel_height, kernel_width, merge * in_group), instruction.weight_dtype)
    for group in range(workload.groups):
        rows = slice(group * out_group, (group + 1) * out_group)
        start = group % merge * in_group
        dense[rows, :, :, start : start + in_group] = weight[rows]

    taps_height, taps_width, run = layout.taps
    if layout.mode == "window":
        dense = dense.transpose(0, 2, 1, 3)
    dense = dense.reshape(out_channels, taps_height, taps_width, -1)
    dense = dense.reshape(layout.groups, -1, taps_height, taps_width, dense.shape[-1])
    group_lanes = layout.blocks // layout.groups * lanes
    padded = np.zeros((layout.groups, group_lanes, taps_height, taps_width, run), instruction.weight_dtype)
    padded[:, : dense.shape[1], ..., : dense.shape[-1]] = dense
    padded = padded.reshape(layout.blocks, lanes, taps_height, taps_width, run // depth, depth)
    return np.ascontiguousarray(padded.transpose(0, 2, 3, 4, 1, 5))


def initial(
    workload: Conv2dWorkload, bias: np.ndarray, instruction: DotInstruction, tile: Tile | None = None
) -> np.ndarray:
    """The bias as the accumulators' initial values."""
    layout = plan(workload, instruction, tile)
    return in_lanes(bias, layout.blocks, instruction.lanes, layout.groups)


def compute(
    workload: Conv2dWorkload,
    x: te.Tensor,
    w: te.Tensor,
    pad_value: int,
    instruction: DotInstruction,
    tile: Tile | None = None,
) -> te.Tensor:
    """The convolution's accumulator, (N, OH, OW, OC) int32."""
    layout = plan(workload, instruction, tile)
    taps_height, taps_width, run = layout.taps
    lanes, reduction = instruction.lanes, instruction.reduction(run)
    (stride_height, stride_width), (dilation_height, dilation_width) = workload.strides, workload.dilation
    in_group, out_group = (size // layout.groups for size in (workload.in_channels, workload.out_channels))
    group_blocks = layout.blocks // layout.groups

    kh = te.reduce_axis((0, taps_height), "kh")
    kw = te.reduce_axis((0, taps_width), "kw")
    data = _stage(workload, layout, x, pad_value, instruction)

    def channel(block):
        return (block // group_blocks * in_group if layout.groups > 1 else 0) + reduction.k

    def product(value, block, r, s, lane):
        return value.astype("int32") * w[block, r, s, reduction.step, lane, reduction.inner].astype("int32")

    def place(c):
        """Block and lane of an output channel."""
        first = c // out_group * group_blocks if layout.groups > 1 else 0
        c = c % out_group if layout.groups > 1 else c
        return first + c // lanes, lane_of(c, out_group, lanes)

    shape = (workload.batch, workload.out_height, workload.out_width, workload.out_channels)
    if layout.mode == "flat":

        def flat(image, p, block, lane):
            value = data[(*_unflatten(workload, image, p), channel(block))]
            return te.sum(product(value, block, 0, 0, lane), axis=reduction.axes)

        acc = te.compute((layout.images, layout.columns, layout.blocks, lanes), flat, name="conv2d")
        return te.compute(shape, lambda n, y, x, c: acc[(*_flatten(workload, n, y, x), *place(c))], name="logical")

    def spatial(n, y, x, block, lane):
        if layout.mode == "window":
            value = data[n, y, x * (stride_width * workload.kernel[0] * workload.in_channels) + reduction.k]
            return te.sum(product(value, block, 0, 0, lane), axis=reduction.axes)
        row = y * stride_height + kh * dilation_height
        if layout.mode == "rows":
            value = data[n, row, x * (stride_width * workload.in_channels) + reduction.k]
            return te.sum(product(value, block, kh, 0, lane), axis=[kh, *reduction.axes])
        value = data[n, row, x * stride_width + kw * dilation_width, channel(block)]
        return te.sum(product(value, block, kh, kw, lane), axis=[kh, kw, *reduction.axes])

    acc = te.compute((layout.images, layout.rows, layout.columns, layout.blocks, lanes), spatial, name="conv2d")
    return te.compute(shape, lambda n, y, x, c: acc[(n, y, x, *place(c))], name="logical")


def _flatten(workload: Conv2dWorkload, n, y, x):
    """(image, pixel) of a flat accumulator; images of a single row are all one."""
    return (y, n * workload.width + x) if workload.height == 1 else (n, y * workload.width + x)


def _axes(workload: Conv2dWorkload, layout: Plan, n, y, x, c):
    """The output's axes as the kernel is scheduled over them: flat pixels, groups and the channels of a group."""
    pixels = _flatten(workload, n, y, x) if layout.mode == "flat" else (n, y, x)
    out_group = workload.out_channels // layout.groups
    return (*pixels, c // out_group, c % out_group) if layout.groups > 1 else (*pixels, c)


def _unflatten(workload: Conv2dWorkload, image, p):
    """(n, y, x) of a pixel of a flat accumulator."""
    row, column = p // workload.width, p % workload.width
    return (row, image, column) if workload.height == 1 else (image, row, column)


def _stage(
    workload: Conv2dWorkload, layout: Plan, x: te.Tensor, pad_value: int, instruction: DotInstruction
) -> te.Tensor:
    """The activations as the kernel reads them: padded, widened to the instruction's dtype, or `x` itself."""
    if not layout.staged:
        return x
    dtype = instruction.data_dtype
    height, width, channels = workload.height, workload.width, workload.in_channels
    top, left = workload.padding[:2]
    run = layout.taps[2]
    padding = tirx.const(pad_value, dtype)

    def guarded(conditions, value):
        value = value.astype(dtype)
        return tirx.if_then_else(tirx.all(*conditions), value, padding) if conditions else value

    bottom, right = (height, width) if layout.mode == "flat" else reach(workload, layout.rows, layout.columns)

    def within(index, before, size, total):
        return ([index >= before] if before else []) + ([index < before + size] if before + size < total else [])

    windows = _interleaving(workload, instruction, layout.columns) if layout.mode == "window" else None
    if windows is not None or layout.mode == "rows":
        length = windows.width if windows else (layout.columns - 1) * workload.strides[1] * channels + run

        def rows(n, y, j):
            inside = within(y, top, height, bottom) + within(j, left * channels, width * channels, length)
            j = j - left * channels
            return guarded(inside, x[n, y - top, j // channels, j % channels])

        padded = te.compute((workload.batch, bottom, length), rows, name="pad")
        return _interleave(workload, layout, padded, windows) if windows else padded

    def spatial(n, y, column, c):
        inside = within(y, top, height, bottom) + within(column, left, width, right)
        inside += [c < channels] if deep > channels else []
        return guarded(inside, x[n, y - top, column - left, c])

    deep = channels - channels // layout.groups + run  # the last group's channels, and room behind for whole steps
    return te.compute((workload.batch, bottom, right, deep), spatial, name="pad")


def _interleave(workload: Conv2dWorkload, layout: Plan, padded: te.Tensor, windows: Interleaving) -> te.Tensor:
    """For each row of output pixels, the rows of its windows pixel by pixel."""
    stride, rows, channels = workload.strides[0], windows.rows, windows.channels

    def interleaved(n, y, j):
        row = y * stride + j // channels % rows * windows.step
        return padded[n, row, j // (rows * channels) * channels + j % channels]

    return te.compute((workload.batch, layout.rows, windows.length), interleaved, name="window")


def schedule(
    sch: Schedule, workload: Conv2dWorkload, target: Target, instruction: DotInstruction, tile: Tile | None = None
) -> None:
    """Fuse the epilogue, tile pixels × channel blocks into registers, tensorize, run tiles in parallel."""
    layout = plan(workload, instruction, tile)
    accumulator = sch.get_sblock("conv2d")
    output = inline_epilogue(sch, accumulator)
    if layout.mode == "flat" or layout.groups > 1:
        sch.transform_block_layout(output, partial(_axes, workload, layout))
    if layout.groups > 1:
        resolve_groups(sch, output, -2)
    strip = layout.tile.strip or strip_of(workload, layout, instruction, num_threads(target))
    by_strip = _staged_by_strip(workload, layout, strip, target)
    stages = [sch.get_sblock(name) for name in _stages(layout, by_strip)]
    schedule_root_blocks(sch, [accumulator, output, *stages], vector=64)
    schedule_microkernel(
        sch,
        accumulator,
        output,
        instruction,
        layout.tile,
        pixel_axes=1 if layout.mode == "flat" else 2,
        grouped=layout.groups > 1,
        macs=workload.macs,
        strip=strip,
        stages=stages if by_strip else [],
        prefetch=panel_ahead(
            layout.tile,
            tiles_by_panel(layout),
            weight_bytes(layout, instruction),
            layout.blocks,
            instruction.core,
        ),
    )
    for stage in stages:
        *lines, line = sch.get_loops(stage)
        if not by_strip:
            parallel_rows(sch, lines, math.prod(map(partial(extent, sch), (*lines, line))))
        if sch.get(stage).name_hint == "window":
            sch.storage_align(stage, 0, 1, VECTOR, 0)
            sch.tensorize(line, _interleaving(workload, instruction, layout.columns).tensor_intrin)
        else:
            copy_runs(sch, workload, layout, stage)


def _stages(layout: Plan, by_strip: bool) -> list[str]:
    """The blocks that stage activations, last one first, except one that is scheduled as any other block is."""
    if layout.mode == "window":
        return ["window", "pad"]
    return ["pad"] if layout.staged and (by_strip or layout.mode == "rows") else []


def tile_rows(layout: Plan) -> int:
    """Tiles along the first pixel axis."""
    return layout.columns // layout.tile.columns if layout.mode == "flat" else layout.rows // layout.tile.rows


def tiles_by_panel(layout: Plan) -> int:
    """Register tiles that pass by each panel of weights."""
    return layout.images * layout.rows * layout.columns // (layout.tile.rows * layout.tile.columns)


def weight_bytes(layout: Plan, instruction: DotInstruction) -> int:
    """Bytes of the packed weights."""
    return layout.blocks * instruction.vector_bytes * math.prod(layout.taps) // instruction.depth


def strips(workload: Conv2dWorkload, tile: Tile, instruction: DotInstruction) -> list[Tile]:
    """A tile with all its strips."""
    return other_strips(tile, tile_rows(plan(workload, instruction, tile)))


def strip_of(workload: Conv2dWorkload, layout: Plan, instruction: DotInstruction, threads: int) -> int:
    """Tiles along the first pixel axis that share staged activations and pass by the weights together.

    Strips are shared out between threads first, so one strip for all would share out channels: right only where the
    weights are larger than the activations, which other threads have written and will read.
    """
    weight_bytes = layout.blocks * instruction.lanes * math.prod(layout.taps)
    if layout.mode == "flat":
        size = strip_size(
            tile_rows(layout), layout.tile.columns * workload.in_channels, weight_bytes, core=instruction.core
        )
        pixels = workload.out_height * workload.out_width
        if weight_bytes > pixels * (workload.in_channels + workload.out_channels):
            return size
        runs = -(-threads // layout.images)
        shared = largest_divisor(tile_rows(layout), max(1, tile_rows(layout) // runs))
        return min(size, shared) if 2 * shared * runs > tile_rows(layout) else size
    stride, kernel, dilation = workload.strides[0], workload.kernel[0], workload.dilation[0]
    row_bytes = layout.tile.rows * stride * workload.width * workload.in_channels
    if layout.mode == "window":
        row_bytes += layout.tile.rows * _interleaving(workload, instruction, layout.columns).length
    overlap = max(0, (kernel - 1) * dilation + 1 - stride)
    least = max(1, -(-3 * overlap // (stride * layout.tile.rows))) if layout.staged else 1
    size = strip_size(tile_rows(layout), row_bytes, weight_bytes, least, instruction.core)
    # A count without a handy divisor: rather copy more lines twice than stage the whole image far away.
    return (
        largest_divisor(tile_rows(layout), least)
        if layout.staged and size * row_bytes > instruction.core.l2_bytes
        else size
    )


def _staged_by_strip(workload: Conv2dWorkload, layout: Plan, strip: int, target: Target) -> bool:
    """Whether each strip copies its own activations: not if it is all or no run of lines, or few are to share."""
    count = tile_rows(layout) // strip
    if not layout.staged or count == 1:
        return False
    pixels = strip * layout.tile.columns
    if layout.mode == "flat" and pixels % workload.width and workload.width % pixels:
        return False
    serial = int(target.attrs.get("num-cores", 0)) == 1 or workload.macs < PARALLEL_MACS_TENSORIZED
    return serial or layout.images * count >= TASKS // 2


def copy_runs(sch: Schedule, workload: Conv2dWorkload, layout: Plan, stage: SBlockRV) -> None:
    """Padding aside, so that what is copied of a row of mode "rows" is one run of memory; vectors of channels else."""
    *_, column = sch.get_loops(stage)
    if layout.mode in ("rows", "window"):
        left, inside = workload.padding[1] * workload.in_channels, workload.width * workload.in_channels
        parts = [left, min(inside, extent(sch, column) - left), extent(sch, column) - left - inside]
        parts = [part for part in parts if part > 0]
        if len(parts) > 1:
            sch.loop_partition(column, [*parts[:-1], None])
    else:
        vectorize_inner(sch, column, 64)


def _accepts(workload: Conv2dWorkload, target: Target, instruction: DotInstruction) -> bool:
    return (
        not workload.depthwise
        and workload.out_dtype == "int32"
        and instruction.available(target)
        and instruction.takes(workload.data_dtype, workload.weight_dtype, workload.pairable_weights)
        and instruction.fits(_run(workload, instruction, _merged_groups(workload, instruction)))
    )


def implementation(instruction: DotInstruction, architecture: str, priority: int) -> Implementation:
    """The kernel with one instruction, as the strategy registry takes it."""
    return Implementation(
        name=f"conv2d_nhwc_{instruction.name}.{architecture}",
        priority=priority,
        accepts=partial(_accepts, instruction=instruction),
        compute=partial(compute, instruction=instruction),
        schedule=partial(schedule, instruction=instruction),
        pack_weight=partial(pack_weight, instruction=instruction),
        initial=partial(initial, instruction=instruction),
        accumulator="conv2d",
        tiles=partial(tiles, instruction=instruction),
        variants=partial(strips, instruction=instruction),
    )

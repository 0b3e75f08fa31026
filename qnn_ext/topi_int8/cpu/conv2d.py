"""conv2d: NHWC activations, packed weights, dot-product instructions, epilogue fused into the register tile.

Weights are packed to (O/lanes, kh, kw, I/depth, lanes, depth), zero where the dimensions were padded, so padded
channels never contribute, whatever the activations hold there (within a group, the next group's channels). Each group
starts a new block; neighbouring groups are merged where that is cheaper, or their lanes read their own activations, see
`gathered`. The addressing mode decides how activations are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar

import numpy as np
import tvm_ffi
from tvm import te, tirx
from tvm.ir import Range, TensorLoad, TensorRegion
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from ...targets.backend import threads_of
from ...targets.features import sharing_of
from ..blocking import blocked_caches
from ..initial import in_lanes
from ..schedule_util import (
    TASKS,
    extent,
    inline_epilogue,
    inline_producers_of,
    largest_divisor,
    parallel_rows,
    resolve_groups,
    schedule_root_blocks,
)
from ..strategy import Implementation, cheapest_first
from ..workload import Conv2dWorkload, is_float, value_bytes
from .addressing import Addressing, Direct
from .addressing_modes import Flat, modes
from .dot import DotInstruction, implementation_with, suiting
from .gathered import GatheredDot, suited
from .microkernel import (
    Tile,
    lane_of,
    legal_tiles,
    other_strips,
    panel_ahead,
    round_up,
    schedule_microkernel,
    strip_size,
)

Mode = TypeVar("Mode", bound=Addressing)


@dataclass(frozen=True)
class Plan(Generic[Mode]):
    """How a workload is laid out for an instruction.

    mode:          how its activations are addressed
    tile:          register tile
    rows, columns, blocks: the accumulator's shape, padded to multiples of the tile
    staged:        whether the activations are copied to a padded buffer first
    """

    mode: Mode
    tile: Tile
    rows: int
    columns: int
    blocks: int
    staged: bool

    @property
    def group_blocks(self) -> int:
        """Number of blocks in each group."""
        return self.blocks // self.mode.groups

    @property
    def tile_rows(self) -> int:
        """Tiles along the first pixel axis."""
        return self.columns // self.tile.columns if self.mode.pixel_axes == 1 else self.rows // self.tile.rows

    @property
    def tiles_by_panel(self) -> int:
        """Number of register tiles that use each panel of weights."""
        return self.mode.images * self.rows * self.columns // (self.tile.rows * self.tile.columns)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights."""
        return (
            self.blocks * self.mode.instruction.vector_bytes * math.prod(self.mode.taps) // self.mode.instruction.depth
        )


@lru_cache(maxsize=4096)
def plan(workload: Conv2dWorkload, instruction: DotInstruction, tile: Tile | None = None) -> Plan[Direct]:
    """Mode and padded sizes for a register tile, by default the cheapest."""
    if tile is None:
        tile = next(iter(tiles(workload, instruction)))
    mode = next(mode for mode in _modes(workload, instruction) if mode.takes(tile))
    domain = mode.domain
    rows, columns = round_up(domain.rows, tile.rows), round_up(domain.columns, tile.columns)
    blocks = mode.groups * round_up(domain.blocks, tile.blocks)
    return Plan(mode, tile, rows, columns, blocks, mode.staged(rows, columns))


@lru_cache(maxsize=4096)
def tiles(workload: Conv2dWorkload, instruction: DotInstruction) -> dict[Tile, float]:
    """The legal register tiles with their predicted cost, cheapest first."""
    return _tiles(workload, instruction, _modes(workload, instruction)[0].groups)


@lru_cache(maxsize=4096)
def _tiles(workload: Conv2dWorkload, instruction: DotInstruction, groups: int) -> dict[Tile, float]:
    """The same for a given number of merged groups."""
    costs: dict[Tile, float] = {}
    for mode in modes(workload, instruction, groups):
        for tile in legal_tiles(mode.domain, instruction):
            costs.setdefault(tile, mode.cost(tile))
    return cheapest_first(costs)


@lru_cache(maxsize=4096)
def _modes(workload: Conv2dWorkload, instruction: DotInstruction) -> tuple[Direct, ...]:
    """The addressing modes, with groups merged as suits the instruction."""

    def cost(groups: int) -> float:
        """Predicted cycles per pixel."""
        per_vector = next(iter(_tiles(workload, instruction, groups).values()))
        return per_vector * groups * modes(workload, instruction, groups)[0].domain.blocks

    if isinstance(instruction, GatheredDot):
        return modes(workload, instruction, 1)
    return modes(workload, instruction, merged_groups(workload, cost))


def cycles_per_pixel(workload: Conv2dWorkload, instruction: DotInstruction) -> float:
    """Predicted cycles of the cheapest tile for all channels of an output pixel."""
    mode = _modes(workload, instruction)[0]
    return next(iter(tiles(workload, instruction).values())) * mode.groups * mode.domain.blocks


def merged_groups(workload: Conv2dWorkload, cost: Callable[[int], float]) -> int:
    """The number of groups after merging neighbours into block-diagonal ones, chosen for the least cost.

    A group with fewer output channels than lanes, or slightly more than whole blocks, leaves lanes idle; merging fills
    them, at the price of products by zero, which are free if the channels are few. Floats are not multiplied by zero,
    which could make a NaN of another group's infinity.
    """
    if is_float(workload):
        return workload.groups
    several = [groups for groups in range(2, workload.groups + 1) if workload.groups % groups == 0]
    legal = [1, *(groups for groups in several if workload.out_channels > groups)]
    return min(legal, key=lambda groups: (cost(groups), -groups))


def pack_weight(
    workload: Conv2dWorkload, weight: np.ndarray, instruction: DotInstruction, tile: Tile | None = None
) -> np.ndarray:
    """OHWI weights to (O/lanes, kh, kw, I/depth, lanes, depth); zero in padding and between merged groups."""
    return packed(plan(workload, instruction, tile), weight)


def packed(layout: Plan, weight: np.ndarray) -> np.ndarray:
    """The weights packed into the blocks of a plan."""
    mode, workload = layout.mode, layout.mode.workload
    instruction, groups = mode.instruction, mode.groups
    merge = mode.merged
    out_channels, kernel_height, kernel_width, in_group = weight.shape
    out_group = out_channels // workload.groups

    dense = np.zeros((out_channels, kernel_height, kernel_width, merge * in_group), instruction.weight_dtype)
    for group in range(workload.groups):
        rows = slice(group * out_group, (group + 1) * out_group)
        start = group % merge * in_group
        dense[rows, :, :, start : start + in_group] = weight[rows]

    taps, run = mode.taps[:2], mode.taps[2]
    dense = mode.ordered(dense)
    dense = dense.reshape(groups, -1, *dense.shape[1:])
    padded = np.zeros((groups, layout.group_blocks * instruction.lanes, *taps, run), instruction.weight_dtype)
    padded[:, : dense.shape[1], ..., : dense.shape[-1]] = dense
    padded = padded.reshape(layout.blocks, instruction.lanes, *taps, run // instruction.depth, instruction.depth)
    return np.ascontiguousarray(padded.transpose(0, 2, 3, 4, 1, 5))


def initial(
    workload: Conv2dWorkload, bias: np.ndarray, instruction: DotInstruction, tile: Tile | None = None
) -> np.ndarray:
    """The bias as the accumulators' initial values."""
    layout = plan(workload, instruction, tile)
    return in_lanes(bias, layout.blocks, instruction.lanes, layout.mode.groups)


def compute(
    workload: Conv2dWorkload,
    x: te.Tensor,
    w: te.Tensor,
    pad_value: int,
    instruction: DotInstruction,
    tile: Tile | None = None,
) -> te.Tensor:
    """The convolution's accumulator, (N, OH, OW, OC)."""
    layout = plan(workload, instruction, tile)
    mode, lanes, groups = layout.mode, instruction.lanes, layout.mode.groups
    reduction = instruction.reduction(mode.taps[2])
    loops = [te.reduce_axis((0, mode.taps[axis]), ("kh", "kw")[axis]) for axis in range(mode.tap_axes)]
    kh, kw = (*loops, 0, 0)[:2]
    data = mode.stage(x, layout.rows, layout.columns, pad_value) if layout.staged else x

    def products(*index):
        *pixel, block, lane = index
        channel = mode.channel(block, layout.group_blocks, lane, reduction.k)
        value = instruction.value(data[mode.tap(tuple(pixel), kh, kw, channel)])
        weight = instruction.value(w[block, kh, kw, reduction.step, lane, reduction.inner])
        return te.sum(value * weight, axis=[*loops, *reduction.axes])

    pixels = (layout.rows, layout.columns)[-mode.pixel_axes :]
    acc = te.compute((mode.images, *pixels, layout.blocks, lanes), products, name="conv2d")

    def logical(n, y, x, c):
        first = c // mode.out_group * layout.group_blocks if groups > 1 else 0
        c = c % mode.out_group if groups > 1 else c
        return acc[(*mode.pixel(n, y, x), first + c // lanes, lane_of(c, mode.out_group, lanes))]

    shape = (workload.batch, workload.out_height, workload.out_width, workload.out_channels)
    return te.compute(shape, logical, name="logical")


def schedule(
    sch: Schedule, workload: Conv2dWorkload, target: Target, instruction: DotInstruction, tile: Tile | None = None
) -> None:
    """Fuse the epilogue, tile pixels × channel blocks into registers, tensorize, run tiles in parallel."""
    layout = plan(workload, instruction, tile)
    mode, caches = layout.mode, blocked_caches(target)
    accumulator = sch.get_sblock("conv2d")
    output = fused_output(sch, mode)
    if layout.staged:
        inline_producers_of(sch, sch.get_sblock("pad"))
    strip = layout.tile.strip or strip_of(layout, target)
    cut = layout.staged and mode.cuts_at(strip * layout.tile.columns)
    by_strip = cut and staged_by_strip(layout, strip, target)
    copies = {sch.get_sblock(name): copy for name, copy in mode.copies(layout.columns, by_strip).items()}
    stages = list(copies)
    schedule_root_blocks(sch, [accumulator, output, *stages], target, vector=64)
    schedule_microkernel(
        sch,
        accumulator,
        output,
        instruction,
        layout.tile,
        pixel_axes=mode.pixel_axes,
        grouped=mode.groups > 1,
        macs=workload.macs,
        unrolled=mode.unrolled(layout.tile),
        strip=strip,
        stages=stages if by_strip else [],
        prefetch=panel_ahead(layout.tile, layout.tiles_by_panel, layout.weight_bytes, layout.blocks, caches),
    )
    for stage, copy in copies.items():
        *lines, line = sch.get_loops(stage)
        if not by_strip:
            work = math.prod(map(partial(extent, sch), (*lines, line)))
            parallel_rows(sch, lines, work, sharing_of(target).moved_elements)
        copy(sch, stage)


def fused_output(sch: Schedule, mode: Addressing) -> SBlockRV:
    """Fuse the epilogue into the last block, iterate that over the accumulator's axes, and return it."""
    accumulator = sch.get_sblock("conv2d")
    output = inline_epilogue(sch, accumulator)
    if mode.pixel_axes == 1 or mode.groups > 1:
        sch.transform_block_layout(output, mode.axes)
    if mode.groups > 1:
        resolve_groups(sch, output, -2)
    if isinstance(mode, Flat) and mode.resolved:
        resolve_pixels(sch, accumulator, output, lambda pixel, image, _, *rest: (image, pixel, *rest))
    return output


def resolve_pixels(
    sch: Schedule, accumulator: SBlockRV, output: SBlockRV, place: Callable[..., tuple[Any, ...]]
) -> None:
    """Read the accumulators at pixel p of the output's own axis, not at p // W · W + p % W and what TVM makes of that,
    from which it cannot tell which part of them a tile needs; see `resolve_groups`. place: from a pixel, and indices as
    they are, to indices.
    """
    block, sums = sch.get(output), sch.get(accumulator).writes[0].source
    pixel = block.iter_vars[1].var

    def load_at_pixel(load: TensorLoad) -> Any:
        return load.source[place(pixel, *load.indices)] if load.source.same_as(sums) else load

    def region_at_pixel(read: TensorRegion) -> TensorRegion:
        if not read.source.same_as(sums):
            return read
        indices = place(pixel, *(axis.min for axis in read.region))
        return tirx.BufferRegion(read.source, [Range.from_min_extent(index, 1) for index in indices])

    rules = [(TensorLoad, load_at_pixel), (TensorRegion, region_at_pixel)]
    resolved = tvm_ffi.structural_map(block, rules)
    sch.state.replace(sch.get_sref(output), resolved, {block: resolved})


def strips(workload: Conv2dWorkload, tile: Tile, instruction: DotInstruction) -> list[Tile]:
    """A tile with every strip size that it can have."""
    return other_strips(tile, plan(workload, instruction, tile).tile_rows)


def strip_of(layout: Plan, target: Target) -> int:
    """Number of tiles along the first pixel axis that share staged activations and go through the weights together."""
    size = (_strip_of_pixels if layout.mode.pixel_axes == 1 else _strip_of_rows)(layout, target)
    copied = layout.staged and is_float(layout.mode.workload) and size < layout.tile_rows
    return _copied_apart(layout, size) if copied else size


def _copied_apart(layout: Plan, size: int) -> int:
    """The size nearest to `size` of strips that can each copy what they read, or `size` if there is none.

    One copy of all floats, four times as large as of 8-bit integers, leaves the caches before it is read.
    """
    mode, columns, count = layout.mode, layout.tile.columns, layout.tile_rows
    sizes = [n for n in range(1, count) if count % n == 0 and mode.cuts_at(n * columns)]
    return min(sizes, key=lambda n: (max(n / size, size / n), -n), default=size)


def _strip_of_pixels(layout: Plan, target: Target) -> int:
    """The same for an image that is one row of pixels.

    Strips are shared out between threads first, so with one strip for all, channels would be shared out: right only if
    the weights are larger than the activations, which other threads have written and will read.
    """
    workload, instruction, count = layout.mode.workload, layout.mode.instruction, layout.tile_rows
    item = value_bytes(workload)
    weight_bytes = item * layout.blocks * instruction.lanes * math.prod(layout.mode.taps)
    tile_bytes = item * layout.tile.columns * workload.in_channels
    size = strip_size(count, tile_bytes, weight_bytes, blocked_caches(target))
    pixels = item * workload.out_height * workload.out_width
    if weight_bytes > pixels * (workload.in_channels + workload.out_channels):
        return size
    runs = -(-threads_of(target.attrs) // layout.mode.images)
    shared = largest_divisor(count, max(1, count // runs))
    return min(size, shared) if 2 * shared * runs > count else size


def _strip_of_rows(layout: Plan, target: Target) -> int:
    """The same for rows of tiles, which overlap in the input that they read."""
    mode, workload, tile, count = layout.mode, layout.mode.workload, layout.tile, layout.tile_rows
    caches = blocked_caches(target)
    item = value_bytes(workload)
    weight_bytes = item * layout.blocks * mode.instruction.lanes * math.prod(mode.taps)
    stride, kernel, dilation = workload.strides[0], workload.kernel[0], workload.dilation[0]
    row_bytes = item * tile.rows * stride * workload.width * workload.in_channels
    row_bytes += mode.extra_bytes(tile.rows, layout.columns)
    overlap = max(0, (kernel - 1) * dilation + 1 - stride)
    least = max(1, -(-3 * overlap // (stride * tile.rows))) if layout.staged else 1
    size = strip_size(count, row_bytes, weight_bytes, caches, least)
    # A count without a suitable divisor: copying more lines twice is better than staging the whole image far away.
    return largest_divisor(count, least) if layout.staged and size * row_bytes > caches.l2_bytes else size


def staged_by_strip(layout: Plan, strip: int, target: Target) -> bool:
    """Whether each strip copies its own activations: not if one strip is everything, or there is little to share
    out."""
    count = layout.tile_rows // strip
    serial = threads_of(target.attrs) == 1 or layout.mode.workload.macs < sharing_of(target).dot_macs
    return count > 1 and (serial or layout.mode.images * count >= TASKS // 2)


def _refuses(workload: Conv2dWorkload, target: Target, instruction: DotInstruction) -> str | None:
    refused = instruction.refuses(workload, target)
    if refused:
        return refused
    mode = _modes(workload, instruction)[0]
    if is_float(workload) and mode.groups > 1 and mode.in_group % instruction.span:
        return f"groups of {mode.in_group} channels are no whole steps of {instruction.span}"
    return instruction.pads(mode.run)


_suited = partial(suiting, suited=suited)
"""A function of this module with the instruction as it suits the workload's groups, see `gathered`."""


def implementation(instruction: DotInstruction, architecture: str, priority: int) -> Implementation:
    """The kernel with one instruction, as the strategy registry takes it."""
    return implementation_with(
        instruction,
        "conv2d_nhwc",
        architecture,
        priority,
        depthwise=False,
        accumulator="conv2d",
        refuses=_suited(_refuses),
        compute=_suited(compute),
        schedule=_suited(schedule),
        pack_weight=_suited(pack_weight),
        initial=_suited(initial),
        tiles=_suited(tiles),
        variants=_suited(strips),
    )

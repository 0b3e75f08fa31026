"""Depthwise conv2d by dot products over taps (VNNI): lanes are channels, and each lane multiplies four rows at once.

    acc[n, y, x, c] += Σ_t data[n, y·sh + (4g + t)·dh, x·sw + s·dw, c] · w[4g + t, s, c],   t < 4

The input is copied first, padded, to a buffer in which four rows of one column of one vector of channels are
neighbours. A register tile is `rows` × `columns` pixels. Its rows read the same groups of rows with their weights
shifted: with a 3×3 window, four input rows serve two output rows. Columns share the transposed vectors of their
windows. Weights of nine bits, of uint8 models, are the sum of two int8 weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from ...targets.backend import threads_of
from ...targets.features import sharing_of
from ..blocking import blocked_caches
from ..cpu.dot import DotInstruction, implementation_with
from ..cpu.microkernel import round_up
from ..refusal import lacking, other_dtypes
from ..schedule_util import extent, inline_epilogue, schedule_root_blocks
from ..strategy import cheapest_first, register
from ..workload import Conv2dWorkload
from .intrin import INSTRUCTIONS
from .tap_intrin import TAPS, tap_intrin, two_pass_intrin

STAGED_SHARE = 5 / 8
"""The share of the L1 cache that a task may stage: it shares the cache with the output."""

TURN = 2
"""Instructions that transpose four rows of a vector of channels: two shuffles, or one with VBMI, and a load."""

ENTRY = 4
"""Cycles to enter a tile."""

SLOWED = 2
"""How many times longer copies to and from the L2 cache take."""

LINE = 64
"""Bytes of a cache line."""

MOST_BANDS, MOST_VECTORS = 64, 4
"""The most tiles in height or width, and vectors of channels, that a task may have; bounds the search."""

FETCH = 2
"""Cycles to fetch a cache line from the L2 cache, in units of those to copy a vector."""

FOREIGN = 50
"""Cycles to fetch a cache line from another core's cache."""

DEEP = 4
"""From this many channels per pixel on, neighbouring convolutions share out channels rather than pixels: the weights of
a pointwise one are larger than the activations."""


@dataclass(frozen=True)
class TapTile:
    """Register tile: rows × columns of pixels, where a column is as many neighbours as fill a vector of channels.

    band, vectors: tiles in height and vectors of channels of one task, divisors of their totals; 0: chosen by a model
                   of the task's costs
    """

    rows: int
    columns: int
    band: int = 0
    vectors: int = 0


@dataclass(frozen=True)
class Plan:
    """Sizes of a depthwise convolution over taps.

    tile:          register tile
    rows, columns: of the tile; a column is `pixels` pixels
    groups:        groups of four input rows that a tile reads
    pixels:        neighbouring output pixels in one vector, more than one where a pixel has few channels
    blocks:        vectors of channels
    tiles:         tiles in height (per dilation phase) and in width
    passes:        2 where weights are sums of two int8 values
    """

    tile: TapTile
    groups: int
    pixels: int
    blocks: int
    tiles: tuple[int, int]
    passes: int

    @property
    def rows(self) -> int:
        return self.tile.rows

    @property
    def columns(self) -> int:
        return self.tile.columns


@lru_cache(maxsize=4096)
def plan(workload: Conv2dWorkload, instruction: DotInstruction, tile: TapTile | None = None) -> Plan:
    """Sizes for a register tile, by default the cheapest."""
    tile = tile or next(iter(tiles(workload, instruction)))
    lanes = instruction.lanes
    channels = workload.out_channels
    pixels = lanes // channels if lanes % channels == 0 and lanes // channels <= workload.out_width else 1
    blocks = round_up(channels, lanes) // lanes if pixels == 1 else 1
    height = -(-workload.out_height // workload.dilation[0])
    width = -(-workload.out_width // pixels)
    passes = 2 if workload.weight_dtype == "int16" else 1
    groups = -(-((tile.rows - 1) * workload.strides[0] + workload.kernel[0]) // TAPS)
    return Plan(tile, groups, pixels, blocks, (-(-height // tile.rows), -(-width // tile.columns)), passes)


@lru_cache(maxsize=4096)
def tiles(workload: Conv2dWorkload, instruction: DotInstruction) -> dict[TapTile, float]:
    """The legal register tiles with their predicted cost, cheapest first."""
    one = plan(workload, instruction, TapTile(1, 1))
    # With dilation the rows of a tile would be `dilation` apart, and TVM could not tell which accumulators it needs.
    costs = {
        tile: _cost(workload, plan(workload, instruction, tile))
        for rows in range(1, min(4 if workload.dilation[0] == 1 else 1, one.tiles[0]) + 1)
        for tile in (
            TapTile(rows, columns) for columns in range(1, min(instruction.registers // 2 // rows, one.tiles[1]) + 1)
        )
    }
    return cheapest_first(costs)


def tasks(workload: Conv2dWorkload, tile: TapTile, instruction: DotInstruction) -> list[TapTile]:
    """A tile with every task size that it can have."""
    layout = plan(workload, instruction, tile)
    return [
        replace(tile, band=band, vectors=vectors)
        for band in _divisors(layout.tiles[0], MOST_BANDS)
        for vectors in _divisors(layout.blocks, MOST_VECTORS)
    ]


def _divisors(size: int, most: int) -> list[int]:
    return [divisor for divisor in range(1, min(size, most) + 1) if size % divisor == 0]


def _cost(workload: Conv2dWorkload, layout: Plan) -> float:
    """Cycles of all tiles of one vector of channels."""
    return layout.tiles[0] * layout.tiles[1] * _tile_cost(workload, layout)


def _tile_cost(workload: Conv2dWorkload, layout: Plan) -> float:
    """Cycles of a tile on a core that starts one dot product, two vector instructions and two loads per cycle."""
    stride, dilation, kernel = workload.strides[1], workload.dilation[1], workload.kernel[1]
    columns = {x * layout.pixels * stride + s * dilation for x in range(layout.columns) for s in range(kernel)}
    dots = layout.passes * layout.groups * kernel * layout.rows * layout.columns
    weights = layout.passes * layout.groups * kernel * layout.rows
    transposed = layout.groups * len(columns)
    return max(dots, (dots + TURN * transposed) / 2 + weights / 2) + ENTRY


def pack_weight(
    workload: Conv2dWorkload, weight: np.ndarray, instruction: DotInstruction, tile: TapTile | None = None
) -> np.ndarray:
    """OHWI weights (O, kh, kw, 1) to (blocks, groups, kw, rows, passes, lanes, taps), shifted down row by row."""
    layout, lanes = plan(workload, instruction, tile), instruction.lanes
    taps = weight[..., 0].transpose(1, 2, 0).astype(np.int32)  # (kh, kw, O)
    kernel_height, kernel_width, channels = taps.shape
    shape = (layout.groups * TAPS, kernel_width, layout.rows, layout.blocks * lanes)
    shifted = np.zeros(shape, np.int32)
    taps = np.tile(taps, layout.pixels)
    for row in range(layout.rows):
        first = row * workload.strides[0]
        shifted[first : first + kernel_height, :, row, : channels * layout.pixels] = taps
    low = np.clip(shifted, -128, 127)
    passes = np.stack([low, shifted - low][: layout.passes]).astype(np.int8)
    passes = passes.reshape(layout.passes, layout.groups, TAPS, kernel_width, layout.rows, layout.blocks, lanes)
    return np.ascontiguousarray(passes.transpose(5, 1, 3, 4, 0, 6, 2))


def compute(
    workload: Conv2dWorkload,
    x: te.Tensor,
    w: te.Tensor,
    pad_value: int,
    instruction: DotInstruction,
    tile: TapTile | None = None,
) -> te.Tensor:
    """The accumulator, (N, OH, OW, OC) int32."""
    layout, lanes = plan(workload, instruction, tile), instruction.lanes
    phases, channels = workload.dilation[0], workload.out_channels
    data = _stage(workload, layout, x, pad_value, lanes)
    p, g, s, t = (
        te.reduce_axis((0, size), name)
        for size, name in ((layout.passes, "p"), (layout.groups, "g"), (workload.kernel[1], "s"), (TAPS, "t"))
    )

    def depthwise(n, phase, tile, block, row, column, lane):
        first = tile * (layout.rows * workload.strides[0]) + g * TAPS
        at = column * (layout.pixels * workload.strides[1]) + s * workload.dilation[1]
        value = data[n, phase, block, at, first + t, lane].astype("int32")
        return te.sum(value * w[block, g, s, row, p, lane, t].astype("int32"), axis=[p, g, s, t])

    width = layout.tiles[1]
    tiled = (workload.batch, phases, _room(layout), layout.blocks, layout.rows, width * layout.columns, lanes)
    acc = te.compute(tiled, depthwise, name="depthwise")

    def logical(n, y, column, c):
        row = y // phases
        block, lane = (c // lanes, c % lanes) if layout.pixels == 1 else (0, column % layout.pixels * channels + c)
        at = column // layout.pixels
        return acc[n, y % phases, row // layout.rows, block, row % layout.rows, at, lane]

    shape = (workload.batch, workload.out_height, workload.out_width, channels)
    return te.compute(shape, logical, name="logical")


def _room(layout: Plan) -> int:
    """Tiles in height, including those below the image that the last task may compute, so that no tile is
    conditional."""
    return 2 * layout.tiles[0]


def _stage(workload: Conv2dWorkload, layout: Plan, x: te.Tensor, pad_value: int, lanes: int) -> te.Tensor:
    """The padded input, (N, phases, blocks, columns, rows, lanes): every column of a vector of channels is
    contiguous."""
    top, left = workload.padding[:2]
    phases, channels = workload.dilation[0], workload.out_channels
    stride, dilation = workload.strides[1], workload.dilation[1]
    rows = (_room(layout) - 1) * layout.rows * workload.strides[0] + layout.groups * TAPS
    across = layout.tiles[1] * layout.columns * layout.pixels
    columns = (across - layout.pixels) * stride + (workload.kernel[1] - 1) * dilation + 1
    reach = columns + ((lanes - 1) // channels * stride if layout.pixels > 1 else 0)
    padding = tirx.const(pad_value, workload.data_dtype)

    def within(index, before, size, total):
        return ([index >= before] if before else []) + ([index < before + size] if before + size < total else [])

    def staged(n, phase, block, column, row, lane):
        row = row * phases + phase
        channel = block * lanes + lane
        inside = []
        if layout.pixels > 1:
            column, channel = column + lane // channels * stride, lane % channels
        elif layout.blocks * lanes > channels:
            inside = [channel < channels]
        inside += within(row, top, workload.height, rows * phases) + within(column, left, workload.width, reach)
        value = x[n, row - top, column - left, channel // workload.multiplier]
        return tirx.if_then_else(tirx.all(*inside), value, padding) if inside else value

    shape = (workload.batch, phases, layout.blocks, columns, rows, lanes)
    return te.compute(shape, staged, name="pad")


def schedule(
    sch: Schedule, workload: Conv2dWorkload, target: Target, instruction: DotInstruction, tile: TapTile | None = None
) -> None:
    """Tasks stage their input, then process the register tiles of one vector of channels after the other."""
    layout = plan(workload, instruction, tile)
    accumulator, pad = sch.get_sblock("depthwise"), sch.get_sblock("pad")
    output = inline_epilogue(sch, accumulator)
    schedule_root_blocks(sch, [accumulator, output, pad], target, vector=64)

    n, y, column, channel = sch.get_loops(output)
    parallel = workload.macs >= sharing_of(target).tap_macs
    staged = blocked_caches(target).l1_bytes * STAGED_SHARE
    task = _task(workload, layout, instruction.lanes, staged, threads_of(target.attrs) if parallel else 1)
    width = instruction.lanes if layout.pixels == 1 else workload.out_channels
    row_outer, band, row, phase = sch.split(y, [None, task[0], layout.rows, workload.dilation[0]])
    column_outer, column_tile, column = sch.split(column, [None, task[1], layout.columns * layout.pixels])
    block_outer, block, lane = sch.split(channel, [None, task[2], width])
    sch.reorder(n, row_outer, column_outer, block_outer, phase, block, band, column_tile, row, column, lane)
    outer = sch.fuse(n, row_outer, column_outer, block_outer)
    if parallel and extent(sch, outer) > 1:
        sch.parallel(outer)

    sch.compute_at(accumulator, column_tile, preserve_unit_loops=True)
    sch.compute_at(pad, phase, preserve_unit_loops=True)
    _schedule_stage(sch, pad, workload, layout)
    _tensorize(sch, accumulator, layout, layout.pixels * workload.strides[1], instruction)
    _vectorize_epilogue(sch, [row, column], lane, math.gcd(workload.out_channels, width))


def _schedule_stage(sch: Schedule, pad: SBlockRV, workload: Conv2dWorkload, layout: Plan) -> None:
    """Stage row by row, reading along memory; columns inside the image get a separate loop, without a condition."""
    block, column, row, lane = sch.get_loops(pad)[-4:]
    lanes = extent(sch, lane)
    vector = math.gcd(workload.out_channels, lanes)
    pixel, channel = sch.split(lane, [None, vector])
    sch.reorder(row, column, block, pixel, channel)
    sch.unroll(block)
    if vector >= 4:
        sch.vectorize(channel)
        sch.unroll(pixel)
    across, image = extent(sch, column), layout.tiles[1] * layout.columns * layout.pixels
    if across < (image - layout.pixels) * workload.strides[1] + 1:
        return  # with several tasks per row of the image, the task determines which columns are inside
    left, inside = workload.padding[1], workload.width - (layout.pixels - 1) * workload.strides[1]
    parts = [size for size in (left, min(inside, across - left)) if size > 0]
    if sum(parts) < across:
        sch.loop_partition(column, [*parts, None])
    elif len(parts) > 1:
        sch.loop_partition(column, [left, None])


def _task(workload: Conv2dWorkload, layout: Plan, lanes: int, most: float, threads: int) -> tuple[int, int, int]:
    """Tiles in height and width and vectors of channels of one task: its staged input should have at most `most` bytes.

    Neighbouring tasks read their shared edges and partly used cache lines twice. Several threads take equal runs of
    tasks, rows outermost; the last rows of tasks may lie below the image. A thread reads what others have written
    unless it takes the same rows, or for deep images the same channels, as in the preceding convolution.
    """
    step = layout.rows * workload.strides[0], layout.columns * layout.pixels * workload.strides[1]
    reach = layout.groups * TAPS, (workload.kernel[1] - 1) * workload.dilation[1] + 1
    line = max(1, LINE // lanes)
    compute = _tile_cost(workload, layout)
    deep = workload.in_channels > DEEP * workload.height * workload.width

    def cost(task):
        rows, columns = (
            (tiles - 1) * size + max(size, all_taps)
            for tiles, size, all_taps in zip(task[:2], step, reach, strict=True)
        )
        fits = rows * columns * lanes * task[2] <= most
        copies = rows * columns * (1 + FETCH / min(task[2], line)) * (1 if fits else SLOWED)
        bands = workload.batch * -(-layout.tiles[0] // task[0])
        share = -(-bands * (layout.tiles[1] // task[1]) * (layout.blocks // task[2]) // threads)
        written = _foreign_share(task[0], layout.tiles[0], workload.batch, threads)
        foreign = (1 - 1 / min(bands, threads) if deep else written) * FOREIGN * rows * columns / line
        return share * task[2] * (task[0] * task[1] * compute + copies + foreign)

    bands = min(layout.tiles[0], MOST_BANDS)
    heights = _divisors(layout.tiles[0], MOST_BANDS) if threads == 1 else range(1, bands + 1)
    heights = [layout.tile.band] if layout.tile.band else heights
    vectors = [layout.tile.vectors] if layout.tile.vectors else _divisors(layout.blocks, MOST_VECTORS)
    return min(product(heights, _divisors(layout.tiles[1], MOST_BANDS), vectors), key=cost)


@lru_cache(maxsize=4096)
def _foreign_share(rows: int, height: int, images: int, threads: int) -> float:
    """The share of a thread's input that other threads wrote, if threads take equal runs of bands of `rows` rows and
    each wrote an equal run of all rows."""
    bands, total = -(-height // rows), images * height
    foreign = 0.0
    for thread in range(threads):
        low, high = (images * bands * end / threads for end in (thread, thread + 1))
        own = total * thread / threads, total * (thread + 1) / threads
        for band in range(math.floor(low), math.ceil(high)):
            first = band // bands * height + band % bands * rows
            last = min(first + rows, (band // bands + 1) * height)
            inside = max(0.0, min(last, own[1]) - max(first, own[0]))
            foreign += (min(high, band + 1) - max(low, band)) * (last - first - inside)
    return foreign / total


def _tensorize(sch: Schedule, accumulator: SBlockRV, layout: Plan, step: int, instruction: DotInstruction) -> None:
    row, column, lane, p, g, s, taps = sch.get_loops(accumulator)[-7:]
    sch.reorder(g, s, row, p, column, lane, taps)
    initial = sch.decompose_reduction(accumulator, g)
    *initial_tile, vector = sch.get_loops(initial)[-3:]
    sch.vectorize(vector)
    for loop in (g, s, row, *initial_tile):
        sch.unroll(loop)
    if layout.passes > 1:
        sch.tensorize(p, two_pass_intrin(instruction, layout.columns, step))
        return
    sch.unroll(column)
    sch.tensorize(lane, tap_intrin(instruction))


def _vectorize_epilogue(sch: Schedule, pixels: list[LoopRV], lane: LoopRV, lanes: int) -> None:
    """Vectorize the epilogue. Vectors must not cross the last channel: a predicate per lane would make them scalar.

    Where there are none, a loop over pixels remains: LLVM's time grows with the square of the lanes in a row.
    """
    if lanes < 4:
        return
    for loop in pixels:
        sch.unroll(loop)
    outer, vector = sch.split(lane, [None, lanes])
    sch.reorder(outer, *pixels, vector)
    sch.vectorize(vector)


def _refuses(workload: Conv2dWorkload, target: Target, instruction: DotInstruction) -> str | None:
    weights = workload.weight_dtype if workload.nine_bit_weights else "int8"
    stride, dilation = workload.strides[0], workload.dilation[0]
    strided = None if 1 in (stride, dilation) else f"rows {dilation} apart at a stride of {stride}"
    return other_dtypes(workload, ("uint8",), (weights,)) or lacking(target, instruction.product) or strided


for _rank, _instruction in enumerate(item for item in reversed(INSTRUCTIONS) if item.depth == TAPS):
    register(
        Conv2dWorkload,
        implementation_with(
            _instruction,
            "depthwise_conv2d_nhwc",
            "x86",
            11 + _rank,
            depthwise=True,
            refuses=_refuses,
            compute=compute,
            schedule=schedule,
            pack_weight=pack_weight,
            tiles=tiles,
            variants=tasks,
        ),
    )

"""Depthwise conv2d by sdot over taps: lanes are channels, and each lane multiplies four rows at once.

    acc[n, y, x, c] = Σ_{g,s,t} data[n, y·sh + (4g + t)·dh, x·sw + s·dw, c] · w[4g + t, s, c],   t < 4

The input is padded, and the rows that a row of register tiles reads are transposed: four rows of a channel become
neighbours. All rows of a tile read the same groups of four, with shifted weights; with a 3×3 window, four input rows
serve two output rows. x86 transposes in registers instead, which would take ARM several instructions per vector.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from ...numerics.annotations import OPERAND, has
from ...targets.families import AARCH64, backends_with
from ...targets.features import sharing_of
from ..cpu import depthwise_conv2d
from ..cpu.depthwise_conv2d import padded, part_columns, reach, vectorize_epilogue
from ..cpu.microkernel import round_up
from ..refusal import lacking, other_dtypes
from ..schedule_util import extent, inline_epilogue, largest_divisor, schedule_root_blocks
from ..strategy import Implementation, cheapest_first, register
from ..workload import Conv2dWorkload
from .depthwise_conv2d import REGISTERS
from .tap_intrin import LANES, TAPS, tap_intrin, turn_intrin

SDOT = AARCH64.product("sdot")

CHANNELS = 8
"""Channels of a register tile. With 16 there are too many weights to hold in registers."""

QUADS = CHANNELS // LANES
MAX_ROWS = 4
ACCUMULATORS = 16
"""Registers for a tile's accumulators, out of 32: in larger tiles, LLVM was seen to spill them."""

LIVE = 24
"""Registers for a tile's accumulators and for four channels of a row of its activations, which LLVM loads early."""

HELD = 26
"""Registers for accumulators and for values that all tiles of a row read: weights, bias and scales. LLVM loads these
before the loop over tiles, and any that do not fit again for every tile; the other registers are for activations."""

# Instructions, counted in LLVM's code for Cortex-A76
LOOP, COPY = 6, 3
"""To go to the next tile: count, branch, addresses; to copy a vector of activations: load, store, address."""
TURN = 3
"""To store a transposed column (st4), and for the addresses of its loads and of the store."""
CHECKED = 2
"""For each pixel that may lie beyond the row's end, compare and branch, which LLVM makes two loops of."""
PER_CHANNEL = 2
"""Registers with a value for each of four channels, besides weights: bias and scale."""

UNROLLED_DOTS = 480
"""The most dot products of a tile that are unrolled; beyond that, groups of rows are a loop."""

UNROLLED_COLUMNS = 8
"""Columns that are transposed together."""

TASK_ROWS = 8
TASK_CHANNELS = 64


@dataclass(frozen=True)
class TapTile:
    """Register tile: rows × columns of pixels of CHANNELS channels."""

    rows: int
    columns: int


@dataclass(frozen=True)
class Plan:
    """Sizes of a depthwise convolution over taps.

    tile:     register tile
    groups:   groups of four input rows that a tile reads
    vector:   channels that are transposed together
    channels: output channels, a multiple of `vector`
    tiles:    tiles in height and in width
    """

    tile: TapTile
    groups: int
    vector: int
    channels: int
    tiles: tuple[int, int]

    def rows_read(self, workload: Conv2dWorkload) -> int:
        """Rows of each group that are read: with a single group, rows with only zero weights are skipped."""
        needed = (self.tile.rows - 1) * workload.strides[0] + workload.kernel[0]
        return needed if self.groups == 1 else TAPS

    def width(self, workload: Conv2dWorkload) -> int:
        """Input columns that all tiles of a row read."""
        return reach(self.tiles[1] * self.tile.columns, workload.strides[1], workload.kernel[1], workload.dilation[1])


@lru_cache(maxsize=4096)
def plan(workload: Conv2dWorkload, tile: TapTile | None = None) -> Plan:
    """Sizes for a register tile, the cheapest one unless given."""
    tile = tile or next(iter(tiles(workload)))
    vector = _vector(workload)
    groups = -(-((tile.rows - 1) * workload.strides[0] + workload.kernel[0]) // TAPS)
    size = -(-workload.out_height // tile.rows), -(-workload.out_width // tile.columns)
    return Plan(tile, groups, vector, round_up(workload.out_channels, vector), size)


def _vector(workload: Conv2dWorkload) -> int:
    """16, or 8 if the last 16 channels would be half empty."""
    return 8 if 1 <= workload.out_channels % 16 <= 8 else 16


@lru_cache(maxsize=4096)
def tiles(workload: Conv2dWorkload) -> dict[TapTile, float]:
    """The legal register tiles with their predicted cost, cheapest first."""
    # With dilation the rows of a tile would read different groups of four.
    most = MAX_ROWS if workload.dilation[0] == 1 else 1
    sizes = (
        TapTile(rows, columns)
        for rows in range(1, min(most, workload.out_height) + 1)
        for columns in range(1, min(workload.out_width, ACCUMULATORS // (rows * QUADS)) + 1)
        if columns == 1 or QUADS * rows * columns + _columns_read(workload, columns) <= LIVE
    )
    costs = {tile: cost(workload, plan(workload, tile)) for tile in sizes}
    return cheapest_first(costs)


def _columns_read(workload: Conv2dWorkload, columns: int) -> int:
    """Number of input columns that `columns` neighbouring output columns read."""
    (_, stride), (_, dilation) = workload.strides, workload.dilation
    return len({x * stride + s * dilation for x in range(columns) for s in range(workload.kernel[1])})


def cost(workload: Conv2dWorkload, layout: Plan) -> float:
    """Instructions for one image without its epilogue, whose constants also need registers."""
    tile = layout.tile
    steps, pixels = layout.groups * workload.kernel[1], tile.rows * tile.columns
    constants = QUADS * (steps * tile.rows + PER_CHANNEL)
    held = max(0, HELD - QUADS * pixels) if layout.tiles[1] > 1 else 0
    loads = max(0, constants - held) + QUADS * layout.groups * _columns_read(workload, tile.columns)
    each = QUADS * pixels * (steps + 1) + loads + pixels + LOOP  # accumulators are set to the bias, outputs are stored
    each += CHECKED * pixels if workload.out_width % tile.columns else 0
    turned = layout.groups * layout.width(workload) * (layout.rows_read(workload) + TURN)
    copied = tile.rows * workload.strides[0] * layout.width(workload) * COPY
    rows, vectors = workload.batch * layout.tiles[0], layout.channels // layout.vector
    return rows * vectors * (layout.tiles[1] * each * layout.vector / CHANNELS + turned + copied)


def other_cost(workload: Conv2dWorkload) -> float:
    """The same for the kernel for CPUs without sdot, which widens products in pairs, or activations."""
    layout = depthwise_conv2d.plan(workload, REGISTERS[AARCH64])
    taps = workload.kernel[0] * workload.kernel[1]
    columns = _columns_read(workload, layout.columns)
    loads = workload.kernel[0] * columns * (1 if layout.pairs else 2) / layout.columns + taps / layout.columns
    products = taps + 2 * -(-taps // 2) if layout.pairs else 2 * taps
    copied = workload.strides[0] * workload.strides[1] * COPY * CHANNELS / layout.lanes if layout.staged else 0
    pixels = workload.batch * workload.out_height * layout.width
    return pixels * layout.channels / CHANNELS * (products + loads + copied + 1 + LOOP / layout.columns)


def pack_weight(workload: Conv2dWorkload, weight: np.ndarray, tile: TapTile | None = None) -> np.ndarray:
    """OHWI weights (O, kh, kw, 1) to (channels / 4, groups, kw, rows, 4, taps), shifted down row by row."""
    layout = plan(workload, tile)
    rows = layout.tile.rows
    taps = weight[..., 0].transpose(1, 2, 0)  # (kh, kw, O)
    height, width, channels = taps.shape
    shifted = np.zeros((layout.groups * TAPS, width, rows, layout.channels), weight.dtype)
    for row in range(rows):
        first = row * workload.strides[0]
        shifted[first : first + height, :, row, :channels] = taps
    parts = shifted.reshape(layout.groups, TAPS, width, rows, layout.channels // LANES, LANES)
    return np.ascontiguousarray(parts.transpose(4, 0, 2, 3, 5, 1))


def initial(workload: Conv2dWorkload, bias: np.ndarray, tile: TapTile | None = None) -> np.ndarray:
    """The bias as the accumulators' initial value, zero in the channels that fill up the last vector."""
    filling = plan(workload, tile).channels - workload.out_channels
    return np.pad(bias.reshape(-1).astype(np.int32), (0, filling))


def compute(
    workload: Conv2dWorkload, x: te.Tensor, w: te.Tensor, pad_value: int, tile: TapTile | None = None
) -> te.Tensor:
    """The accumulator, (N, OH, OW, OC) int32."""
    layout = plan(workload, tile)
    rows, vector = layout.tile.rows, layout.vector
    (down, across), (phases, apart) = workload.strides, workload.dilation
    width = layout.width(workload)
    read = layout.rows_read(workload)
    height = (layout.tiles[0] - 1) * rows * down + ((layout.groups - 1) * TAPS + read - 1) * phases + 1
    data = padded(workload, x, pad_value, (height, width, layout.channels)) if _staged(workload, height, width) else x

    def turned(n, band, block, g, column, lane, t):
        t = tirx.min(t, read - 1) if read < TAPS else t
        return data[n, band * (rows * down) + (g * TAPS + t) * phases, column, block * vector + lane]

    blocks = layout.channels // vector
    shape = (workload.batch, layout.tiles[0], blocks, layout.groups, width, vector, TAPS)
    taps = te.compute(shape, turned, name="turned")
    g, s, t = (
        te.reduce_axis((0, size), name) for size, name in ((layout.groups, "g"), (workload.kernel[1], "s"), (TAPS, "t"))
    )

    def depthwise(n, band, row, column, c):
        value = taps[n, band, c // vector, g, column * across + s * apart, c % vector, t].astype("int32")
        return te.sum(value * w[c // LANES, g, s, row, c % LANES, t].astype("int32"), axis=[g, s, t])

    tiled = (workload.batch, layout.tiles[0], rows, layout.tiles[1] * layout.tile.columns, layout.channels)
    acc = te.compute(tiled, depthwise, name="depthwise")
    return te.compute(
        (workload.batch, workload.out_height, workload.out_width, workload.out_channels),
        lambda n, y, column, c: acc[n, y // rows, y % rows, column, c],
        name="logical",
    )


def _staged(workload: Conv2dWorkload, height: int, width: int) -> bool:
    """Whether the activations are copied first: padded, repeated by the multiplier, or filled up to whole tiles."""
    whole = workload.multiplier == 1 and workload.out_channels % _vector(workload) == 0
    return any(workload.padding) or not whole or height > workload.height or width > workload.width


def schedule(sch: Schedule, workload: Conv2dWorkload, target: Target, tile: TapTile | None = None) -> None:
    """Tasks of rows × channels: each pads its own input, then transposes and processes it one row of tiles at a
    time."""
    layout = plan(workload, tile)
    accumulator, turned = sch.get_sblock("depthwise"), sch.get_sblock("turned")
    output = inline_epilogue(sch, accumulator)
    pads = [block for block in sch.get_producers(turned) if has(sch, block, OPERAND)]
    schedule_root_blocks(sch, [accumulator, output, turned, *pads], target, vector=64)

    n, y, column, c = sch.get_loops(output)
    task_rows, task_vectors = _task(layout)
    row_outer, band, row = sch.split(y, [None, task_rows, layout.tile.rows])
    column_outer, column = sch.split(column, [None, layout.tile.columns])
    channel_outer, vector, part, lane = sch.split(c, [None, task_vectors, layout.vector // CHANNELS, CHANNELS])
    sch.reorder(n, row_outer, channel_outer, vector, band, part, column_outer, row, column, lane)
    task = sch.fuse(n, row_outer, channel_outer)
    if workload.macs >= sharing_of(target).depthwise_macs and extent(sch, task) > 1:
        sch.parallel(task)

    sch.compute_at(accumulator, column_outer, preserve_unit_loops=True)
    sch.compute_at(turned, band, preserve_unit_loops=True)
    for pad in pads:
        sch.compute_at(pad, task, preserve_unit_loops=True)
        part_columns(sch, pad, workload)
    _schedule_turned(sch, turned, layout, workload)
    _tensorize(sch, accumulator, layout, workload)
    sch.unroll(row)
    vectorize_epilogue(sch, column, lane, math.gcd(workload.out_channels, CHANNELS))


def _task(layout: Plan) -> tuple[int, int]:
    """Tiles in height and vectors of channels of one parallel task: its input should stay in the first cache levels."""
    bands, vectors = layout.tiles[0], layout.channels // layout.vector
    rows = largest_divisor(bands, max(1, TASK_ROWS // layout.tile.rows))
    return rows, largest_divisor(vectors, max(1, TASK_CHANNELS // layout.vector))


def _schedule_turned(sch: Schedule, turned: SBlockRV, layout: Plan, workload: Conv2dWorkload) -> None:
    column, lane, _ = sch.get_loops(turned)[-3:]
    _, several = sch.split(column, [None, largest_divisor(extent(sch, column), UNROLLED_COLUMNS)])
    sch.unroll(several)
    sch.tensorize(lane, turn_intrin(layout.vector, layout.rows_read(workload), workload.dilation[0]))


def _tensorize(sch: Schedule, accumulator: SBlockRV, layout: Plan, workload: Conv2dWorkload) -> None:
    row, column, channel, g, s, t = sch.get_loops(accumulator)[-6:]
    quad, lane = sch.split(channel, [None, LANES])
    sch.reorder(quad, g, s, row, column, lane, t)
    tile = layout.tile
    dots = layout.groups * workload.kernel[1] * tile.rows * tile.columns * QUADS
    initial_block = sch.decompose_reduction(accumulator, g)
    *pixels, vector = sch.get_loops(initial_block)[-3:]
    sch.vectorize(vector)
    for loop in (quad, s, row, column, *pixels, *([g] if dots <= UNROLLED_DOTS else [])):
        sch.unroll(loop)
    sch.tensorize(lane, tap_intrin())


def _refuses(workload: Conv2dWorkload, target: Target) -> str | None:
    refused = other_dtypes(workload, ("int8",), ("int8",)) or lacking(target, SDOT)
    if refused or next(iter(tiles(workload).values())) < other_cost(workload):
        return refused
    return "more instructions than smlal takes"


register(
    Conv2dWorkload,
    Implementation(
        name="depthwise_conv2d_nhwc_sdot.arm_cpu",
        priority=11,
        backends=backends_with(SDOT),
        depthwise=True,
        refuses=_refuses,
        compute=compute,
        schedule=schedule,
        pack_weight=pack_weight,
        initial=initial,
        accumulator="depthwise",
        tiles=tiles,
    ),
)

"""The register tile under all x86 kernels: some pixels × some blocks of output channels, tensorized.

    for tile: for k: for pixel in tile: for block in tile: C[pixel, block, :] += A[pixel, k] · B[block, k, :]

The tile's accumulators live in vector registers over the whole reduction, and the epilogue runs on them before they
reach memory. Convolution, dense and batch_matmul differ only in how A is addressed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from ..schedule_util import PARALLEL_MACS_TENSORIZED, extent, parallel_rows
from .intrin import DotInstruction


@dataclass(frozen=True)
class Tile:
    """Rows × columns of output pixels × blocks of output channels held in registers."""

    rows: int
    columns: int
    blocks: int


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `value`."""
    return -(-value // multiple) * multiple


def choose_tile(
    rows: int,
    columns: int,
    blocks: int,
    instruction: DotInstruction,
    copied: bool,
    line: int = 0,
    whole_blocks: bool = False,
) -> Tile:
    """The cheapest tile by `tile_cost` for an output of rows × columns pixels and `blocks` channel blocks of a group.

    With `line`, the columns are image lines of that many pixels one behind the other, and a tile must hold whole lines
    or divide one, or TVM cannot tell which part of the accumulator it needs; and it must divide the columns.
    `whole_blocks` asks for a tile that divides the blocks.
    """

    def fits(tile: Tile) -> bool:
        in_lines = columns % tile.columns == 0 and 0 in (line % tile.columns, tile.columns % line) if line else True
        return in_lines and not (whole_blocks and blocks % tile.blocks)

    tiles = filter(fits, _tiles(rows, columns, blocks, instruction))
    return min(tiles, key=lambda tile: tile_cost(tile, rows, columns, blocks, copied))


def tile_cost(tile: Tile, rows: int, columns: int, blocks: int, copied: bool) -> float:
    """Cycles per useful accumulator and step of k on a core with two dot products and two loads a cycle.

    Dot products, loads, the latency of a dependent chain, a cycle of loop overhead; all times the share of the padded
    domain that is thrown away. `copied` says that the input is staged anyway; otherwise a tile that does not divide
    costs a copy of the input as well.
    """
    pixels = tile.rows * tile.columns
    dots = pixels * tile.blocks
    cycles = max(dots / 2, (pixels + tile.blocks) / 2, 4.0) + 1
    domain = round_up(rows, tile.rows) * round_up(columns, tile.columns) * round_up(blocks, tile.blocks)
    waste = domain / (rows * columns * blocks)
    divides = rows % tile.rows == 0 and columns % tile.columns == 0
    copy = 1.0 if copied or divides else 1 + 1 / (8 * blocks)
    return cycles / dots * waste * copy


def _tiles(rows: int, columns: int, blocks: int, instruction: DotInstruction) -> Iterator[Tile]:
    """Every tile that fits the registers: accumulators, one weight per block, and temporaries for the activation."""
    temporaries = 1 if instruction.accumulates else 2
    for block in range(1, min(blocks, 8) + 1):
        most = (instruction.registers - temporaries - block) // block
        for column in range(min(columns, most), 0, -1):
            yield Tile(1, column, block)
        for row in range(2, min(rows, most // columns) + 1):
            yield Tile(row, columns, block)


def lane_of(channel: Any, channels: int, lanes: int) -> Any:
    """channel % lanes: where the epilogue reads a block of lanes.

    A single channel would always read lane 0; then compute_at drops the other lanes and tensorize refuses what is left.
    So its index is a zero that TVM does not see through (LLVM does): the number of bits set in an index, over 2¹⁶.
    """
    return channel % lanes if channels > 1 else tirx.popcount(channel) >> tirx.const(16, "int32")


def schedule_microkernel(
    sch: Schedule,
    accumulator: SBlockRV,
    output: SBlockRV,
    instruction: DotInstruction,
    tile: Tile,
    pixel_axes: int,
    macs: int,
    weights_outside: bool,
) -> None:
    """Tile `output`, the elementwise consumer of `accumulator`, and compute the accumulator tile by tile, tensorized.

    The output's axes are (batch..., pixels..., channel), where a batch of one may be missing, `pixel_axes` of them
    pixels: rows and columns, or columns alone. The accumulator's are (batch..., pixels..., block, lane, reduction...,
    depth), padded to multiples of the tile, so it needs no predicate, which tensorize would refuse; the output gets
    them where the tile does not divide. `weights_outside` walks all pixels for one panel of weights, for weights
    larger than the activations; else all weights for one row of pixels.
    """
    *outer, channel = sch.get_loops(output)
    batch, pixels = outer[:-pixel_axes], outer[-pixel_axes:]
    factors = (tile.rows, tile.columns)[-pixel_axes:]
    splits = [sch.split(loop, [None, factor]) for loop, factor in zip(pixels, factors, strict=True)]
    pixel_outer, pixel_inner = [list(loops) for loops in zip(*splits, strict=True)]
    panel_size = min(tile.blocks * instruction.lanes, max(extent(sch, channel), instruction.lanes))
    panel, channel = sch.split(channel, [None, panel_size])
    near = [panel, pixel_outer[0]] if weights_outside else [pixel_outer[0], panel]
    tiles = [*batch, *near, *pixel_outer[1:]]
    sch.reorder(*tiles, *pixel_inner, channel)

    # A serial loop inside each task matters: the tile's workspace is set up once per task.
    innermost = parallel_rows(sch, tiles, macs, PARALLEL_MACS_TENSORIZED)[-1]
    sch.compute_at(accumulator, innermost, preserve_unit_loops=True)
    _tensorize(sch, accumulator, instruction, pixel_axes)
    _vectorize_epilogue(sch, output, pixel_inner, channel, instruction.lanes)


def _tensorize(sch: Schedule, accumulator: SBlockRV, instruction: DotInstruction, pixel_axes: int) -> None:
    kinds = [iter_var.iter_type for iter_var in sch.get(accumulator).iter_vars]
    loops = sch.get_loops(accumulator)[-len(kinds) :]
    spatial = kinds.count(tirx.IterVar.DataPar)
    *tile, lane = loops[spatial - pixel_axes - 2 : spatial]
    *reduction, depth = loops[spatial:]
    sch.reorder(*reduction, *tile, lane, depth)
    initial = sch.decompose_reduction(accumulator, reduction[0])
    sch.tensorize(lane, instruction.tensor_intrin)
    *initial_tile, vector = sch.get_loops(initial)[-(len(tile) + 1) :]
    sch.vectorize(vector)
    for loop in (*tile, *initial_tile):
        sch.unroll(loop)


def _vectorize_epilogue(sch: Schedule, output: SBlockRV, pixels: list[LoopRV], channel: LoopRV, lanes: int) -> None:
    """Vectorise over channels. The loop over pixels stays a loop: it reads accumulators that were spilled once.

    No vector crosses the last channel. What is left is unrolled: LLVM would make a masked loop of it, and LLVM 22
    writes eight bytes where one is due when such a loop narrows int64 to int8 and one lane remains.
    """
    channels, panel = int(sch.get(output).iter_vars[-1].dom.extent), extent(sch, channel)
    width = math.gcd(channels, lanes)
    if width >= 4:
        outer, vector = sch.split(channel, [None, width])
        sch.reorder(outer, *pixels, vector)
        sch.vectorize(vector)
    elif panel == channels > lanes:
        full, rest = sch.loop_partition(channel, [channels // lanes * lanes, None])
        sch.vectorize(sch.split(full, [None, lanes])[1])
        sch.unroll(rest)
    elif panel > lanes:
        sch.unroll(sch.split(channel, [None, lanes])[1])
    else:
        sch.unroll(channel)

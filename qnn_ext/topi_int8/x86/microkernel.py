"""The register tile under all x86 kernels: some pixels × some blocks of output channels, tensorized.

    for tile: for k: for pixel in tile: for block in tile: C[pixel, block, :] += A[pixel, k] · B[block, k, :]

The tile's accumulators live in vector registers over the whole reduction, and the epilogue runs on them before they
reach memory. Convolution, dense and batch_matmul differ only in how A is addressed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from ..schedule_util import PARALLEL_MACS, extent, parallel_rows
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


def choose_tile(rows: int, columns: int, blocks: int, instruction: DotInstruction, copied: bool) -> Tile:
    """The cheapest tile for an output of rows × columns pixels and `blocks` channel blocks (of one group).

    Cost is counted in cycles per useful accumulator and step of k on a core with two dot products and two loads a
    cycle: dot products, loads, the latency of a dependent chain, a cycle of loop overhead; all times the share of the
    padded domain that is thrown away. `copied` says that the input is staged anyway; otherwise a tile that does not
    divide costs a copy of the input as well.
    """
    best, best_cost = Tile(1, 1, 1), math.inf
    for tile in _tiles(rows, columns, blocks, instruction):
        cost = _cost(tile, rows, columns, blocks, copied)
        if cost < best_cost - 1e-9:
            best, best_cost = tile, cost
    return best


def _tiles(rows: int, columns: int, blocks: int, instruction: DotInstruction):
    temporaries = 1 if instruction.accumulates else 2
    for block in range(1, min(blocks, 8) + 1):
        most = (instruction.registers - temporaries - block) // block
        for column in range(min(columns, most), 0, -1):
            yield Tile(1, column, block)
        for row in range(2, min(rows, most // columns) + 1):
            yield Tile(row, columns, block)


def _cost(tile: Tile, rows: int, columns: int, blocks: int, copied: bool) -> float:
    pixels = tile.rows * tile.columns
    dots = pixels * tile.blocks
    cycles = max(dots / 2, (pixels + tile.blocks) / 2, 4.0) + 1
    domain = round_up(rows, tile.rows) * round_up(columns, tile.columns) * round_up(blocks, tile.blocks)
    waste = domain / (rows * columns * blocks)
    divides = rows % tile.rows == 0 and columns % tile.columns == 0
    copy = 1.0 if copied or divides else 1 + 1 / (8 * blocks)
    return cycles / dots * waste * copy


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
    """Tile, tensorize and parallelise `accumulator` and compute `output`, its elementwise consumer, tile by tile.

    The accumulator's loops are (batch..., pixels..., block, lane, reduction...), `pixel_axes` of them pixels (rows and
    columns, or columns alone); their extents are multiples of the tile. `weights_outside` walks all pixels for one
    panel of weights, for weights larger than the activations; else all weights for one tile of pixels.
    """
    loops = sch.get_loops(accumulator)
    reduction_axes = sum(kind.iter_type == kind.CommReduce for kind in sch.get(accumulator).iter_vars)
    spatial = len(sch.get(accumulator).iter_vars) - reduction_axes
    pixels, (block, lane) = loops[spatial - 2 - pixel_axes : spatial - 2], loops[spatial - 2 : spatial]
    batch, (*reduction, depth) = loops[: spatial - 2 - pixel_axes], loops[spatial:]

    factors = (tile.rows, tile.columns)[-pixel_axes:]
    pixel_tiles = [sch.split(loop, [None, factor]) for loop, factor in zip(pixels, factors, strict=True)]
    block_outer, block_inner = sch.split(block, [None, tile.blocks])
    pixel_outer = [outer for outer, _ in pixel_tiles]
    pixel_inner = [inner for _, inner in pixel_tiles]
    if weights_outside:
        tiles = [*batch, block_outer, *pixel_outer]
    else:
        tiles = [*batch, pixel_outer[0], block_outer, *pixel_outer[1:]]
    sch.reorder(*tiles, *reduction, *pixel_inner, block_inner, lane, depth)

    # A serial loop inside each task matters: the tile's workspace is set up once per task.
    innermost = parallel_rows(sch, tiles, macs, PARALLEL_MACS)[-1]
    if sch.get(output).name_hint != sch.get(accumulator).name_hint:
        sch.reverse_compute_at(output, innermost, preserve_unit_loops=True)
    initial = sch.decompose_reduction(accumulator, reduction[0])
    sch.tensorize(lane, instruction.tensor_intrin)
    for loop in (*pixel_inner, block_inner):
        sch.unroll(loop)
    *unrolled, vector = sch.get_loops(initial)[-(pixel_axes + 2) :]
    sch.vectorize(vector)
    for loop in unrolled:
        sch.unroll(loop)
    _schedule_epilogue(sch, output, innermost, instruction.lanes)


def _schedule_epilogue(sch: Schedule, output: SBlockRV, innermost: LoopRV, lanes: int) -> None:
    """Vectorise the epilogue over channels. Its loop over pixels stays a loop: it reads registers spilled once."""
    depth = len(sch.get_loops(output)) - len(sch.get(output).iter_vars)
    pixels, channels = sch.get_loops(output)[depth:-1], sch.get_loops(output)[-1]
    size = int(sch.get(output).iter_vars[-1].dom.extent)
    width = math.gcd(size, lanes)
    if width < 4 or extent(sch, channels) % width:
        return
    outer, inner = sch.split(channels, [None, width])
    sch.reorder(outer, *pixels, inner)
    sch.vectorize(inner)

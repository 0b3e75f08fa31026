"""What the smmla kernels share: accumulators of pixel pairs, staged activations, and the choice of a tile.

Activations are staged as (…, K/8, pixel, 8): eight values each of neighbouring pixels are adjacent in memory, so that
one load brings both pixels of an instruction, and one instruction loads two pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from ..cpu.microkernel import (
    AROUND_TILE,
    LOOP_STEP,
    PER_PIXEL,
    Domain,
    Tile,
    lane_of,
    round_up,
    schedule_microkernel,
)
from ..schedule_util import TASKS, extent, largest_divisor
from ..strategy import cheapest_first
from .smmla import CHANNELS, DEPTH, LANES, PIXELS, QUADS, SMMLA

UNROLLED = 3
"""The most steps along k in one iteration of the loop."""

AROUND, ROOM, PRESSURE = 8.0, 12, 0.08
"""If there is only one iteration, LLVM keeps weights, initial values and scales in registers from tile to tile, or
loads them if there is no room: instructions around a tile; accumulators that leave room; instructions per accumulator
for each one beyond that. Fitted to tiles of 1×1 convolutions of 8, 16 and 24 channels."""

HALF_STORE = 0.5
"""Instructions for each pixel of a tile with an odd block, which is stored separately."""


class Steps:
    """The reduction over `run` values of a pixel: `turn` steps of eight in each iteration of the loop.

    axes: the te.reduce_axis, outermost first; step, k: which eight values, and which of these
    """

    def __init__(self, run: int) -> None:
        steps = run // DEPTH
        turn = largest_divisor(steps, UNROLLED)
        turns, within, self.k = (te.reduce_axis((0, size)) for size in (steps // turn, turn, DEPTH))
        self.step = turns * turn + within
        self.axes = [turns, within, self.k]


def accumulators(outer: Sequence[int], pixels: int, blocks: int, sums: Callable[..., Any], name: str) -> te.Tensor:
    """te.compute of int32 (*outer, pixels/2, blocks, quad, pixel, lane), each `sums(*outer, pixel, block, quad, lane)`.

    A pair of pixels × a quad's two channels is one register.
    """

    def element(*index):
        *place, pair, block, quad, pixel, lane = index
        return sums(*place, pair * PIXELS + pixel, block, quad, lane)

    return te.compute((*outer, pixels // PIXELS, blocks, QUADS, PIXELS, LANES), element, name=name)


def place_of(pixel: Any, pixels: int, block: Any, channel: Any, channels: int) -> tuple[Any, ...]:
    """(pair, block, quad, pixel, lane) of a pixel and a channel of a block, in accumulators of these extents."""
    position = lane_of(channel, channels, CHANNELS)
    return pixel // PIXELS, block, position // LANES, lane_of(pixel, pixels, PIXELS), position % LANES


def in_panels(packed: np.ndarray, blocks: int) -> np.ndarray:
    """Weights (O/8, …, K/8, 8, 8) as panels of a tile's blocks: (panels, …, K/8, block, quad, lane, 8)."""
    panels = packed.reshape(-1, blocks, *packed.shape[1:-2], QUADS, LANES, DEPTH)
    return np.ascontiguousarray(np.moveaxis(panels, 1, -4))


def initial_of(lanes: np.ndarray) -> np.ndarray:
    """Initial values (blocks, 8) for both pixels: (blocks, quad, pixel, lane)."""
    quads = lanes.reshape(len(lanes), QUADS, 1, LANES)
    return np.ascontiguousarray(np.broadcast_to(quads, (len(lanes), QUADS, PIXELS, LANES)))


def tiles_of(domain: Domain) -> dict[Tile, float]:
    """The legal tiles with their predicted cost, cheapest first: an even number of columns each."""
    most = SMMLA.registers // QUADS
    sizes = [
        Tile(rows, PIXELS * pairs, blocks)
        for blocks in range(1, min(domain.blocks, most) + 1)
        for pairs in range(1, min(round_up(domain.columns, PIXELS) // PIXELS, most // blocks) + 1)
        for rows in range(1, min(domain.rows, most // (blocks * pairs)) + 1)
    ]
    costs = {tile: _cost(tile, domain) for tile in sizes if _registers(tile) <= SMMLA.registers}
    return cheapest_first(costs)


def _registers(tile: Tile) -> int:
    """Registers of a tile: for block after block, its four weight registers multiply all pairs, which stay loaded."""
    pairs = tile.rows * tile.columns // PIXELS
    operands = 1 + QUADS if tile.blocks == 1 else pairs + (QUADS if pairs > 1 else 1)
    return QUADS * pairs * tile.blocks + operands


def _cost(tile: Tile, domain: Domain) -> float:
    """Predicted instructions per register of accumulators, with its share of wasted work."""
    pixels = tile.rows * tile.columns
    products = QUADS * pixels // PIXELS * tile.blocks
    # Each load fills two registers, of weights or of neighbouring pixel pairs.
    loads = QUADS // 2 * tile.blocks + tile.rows * -(-tile.columns // (2 * PIXELS))
    step = float(products + loads)
    if domain.steps <= UNROLLED:
        around = AROUND + PRESSURE * max(0, products - ROOM) * products
    else:
        step += LOOP_STEP / largest_divisor(domain.steps, UNROLLED)
        around = AROUND_TILE + pixels * PER_PIXEL
    around += HALF_STORE * pixels * (tile.blocks % 2)
    padded = round_up(domain.rows, tile.rows) * round_up(domain.columns, tile.columns)
    padded *= round_up(domain.blocks, tile.blocks)
    return (domain.steps * step + around) / products * padded / (domain.rows * domain.columns * domain.blocks)


def strip_for(channels: int, tiles: int, strip: int, images: int = 1) -> int:
    """The size of strips of the first pixel axis, `strip` unless channels end within a block.

    In that case only strips are shared out between threads, and the last panel of channels gets separate code.
    """
    return strip if channels % CHANNELS == 0 else min(strip, largest_divisor(tiles, max(1, tiles * images // TASKS)))


def copy_steps(sch: Schedule, step: LoopRV, values: LoopRV, whole: int) -> None:
    """Copy steps of eight values as vectors; `whole` steps do without the condition needed for a partial last one."""
    sch.vectorize(values)
    if 0 < whole < extent(sch, step):
        sch.loop_partition(step, [whole, None])


def schedule_tile(
    sch: Schedule, accumulator: SBlockRV, output: SBlockRV, tile: Tile, pixel_axes: int, **options: Any
) -> None:
    """`schedule_microkernel` with smmla, with the steps of an iteration along k unrolled."""
    name = sch.get(accumulator).name_hint
    schedule_microkernel(sch, accumulator, output, SMMLA, tile, pixel_axes, **options)
    within = sch.get_loops(sch.get_sblock(f"{name}_update_o"))[-2 - pixel_axes]  # pixels and blocks are inside
    sch.unroll(within)

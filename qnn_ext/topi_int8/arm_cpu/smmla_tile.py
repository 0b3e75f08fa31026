"""What the kernels with smmla share: accumulators of pairs of pixels, staged activations, and the choice of a tile.

Activations are staged as (…, K/8, pixel, 8): the eight values of neighbouring pixels are neighbours in memory, so that
both pixels of an instruction come with one load, and those of two pairs with one instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te

from ..cpu.microkernel import Domain, Tile, lane_of, round_up
from .smmla import CHANNELS, DEPTH, LANES, PIXELS, QUADS, PairInstruction

ISSUE = 4
"""Instructions a cycle, of which `UNITS` are smmla."""

UNITS = 2

LOOP = 3
"""Instructions of a step along k beside the loads and the products."""

TILE = 16.0
"""Cycles around a tile: entering the loop over k, initial values, addresses."""

RAGGED = 10.0
"""Cycles for each register of channels that are stored one by one."""


def accumulators(
    outer: Sequence[int], pixels: int, blocks: int, sums: Callable[..., Any], name: str, outer_axes: int | None = None
) -> te.Tensor:
    """te.compute of int32 (*outer, pixels/2, blocks, quad, pixel, lane), each `sums(*outer, pixel, block, quad, lane)`.

    A pair of pixels × a quad's two channels is one register.
    """

    def element(*index):
        *place, pair, block, quad, pixel, lane = index
        return sums(*place, pair * PIXELS + pixel, block, quad, lane)

    return te.compute((*outer, pixels // PIXELS, blocks, QUADS, PIXELS, LANES), element, name=name)


def place_of(pixel: Any, pixels: int, block: Any, channel: Any, channels: int) -> tuple[Any, ...]:
    """(pair, block, quad, pixel, lane) of a pixel and a channel of a block, for accumulators of so many of both."""
    position = lane_of(channel, channels, CHANNELS)
    return pixel // PIXELS, block, position // LANES, lane_of(pixel, pixels, PIXELS), position % LANES


def in_quads(packed: np.ndarray) -> np.ndarray:
    """Weights or biases (…, 8 channels, …) of `cpu.conv2d` as quads: (blocks, …, 8, 8) to (blocks, …, 4, 2, 8)."""
    return packed.reshape(*packed.shape[:-2], QUADS, LANES, DEPTH)


def initial_of(lanes: np.ndarray) -> np.ndarray:
    """Initial values (blocks, 8) for both pixels: (blocks, quad, pixel, lane)."""
    quads = lanes.reshape(len(lanes), QUADS, 1, LANES)
    return np.ascontiguousarray(np.broadcast_to(quads, (len(lanes), QUADS, PIXELS, LANES)))


def tiles_of(domain: Domain, instruction: PairInstruction) -> dict[Tile, float]:
    """The legal tiles with their predicted cost, cheapest first: an even number of columns each."""
    most = instruction.registers // QUADS
    sizes = [
        Tile(rows, PIXELS * pairs, blocks)
        for blocks in range(1, min(domain.blocks, most) + 1)
        for pairs in range(1, min(round_up(domain.columns, PIXELS) // PIXELS, most // blocks) + 1)
        for rows in range(1, min(domain.rows, most // (blocks * pairs)) + 1)
    ]
    legal = [tile for tile in sizes if _registers(tile) <= instruction.registers]
    costs = {tile: _cost(tile, domain, instruction) for tile in legal}
    return dict(sorted(costs.items(), key=lambda item: item[1]))


def _registers(tile: Tile) -> int:
    """Registers a step needs: the accumulators, all of one operand, one of the other."""
    pairs = tile.rows * tile.columns // PIXELS
    return QUADS * pairs * tile.blocks + min(pairs, QUADS * tile.blocks) + 1


def _cost(tile: Tile, domain: Domain, instruction: PairInstruction) -> float:
    """Predicted cycles per register of accumulators, with its share of what is wasted."""
    pairs = tile.rows * tile.columns // PIXELS
    products = QUADS * pairs * tile.blocks
    # Weights come two registers at a time, activations too where pairs are neighbours in memory, else half by half.
    activations = 2 * pairs if instruction.pitch else tile.rows * -(-tile.columns // (2 * PIXELS))
    loads = QUADS // 2 * tile.blocks + activations
    step = max(products / UNITS, (products + loads + LOOP) / ISSUE)
    cycles = domain.steps * step + TILE + (RAGGED * products if domain.ragged else 0.0)
    padded = round_up(domain.rows, tile.rows) * round_up(domain.columns, tile.columns)
    padded *= round_up(domain.blocks, tile.blocks)
    return cycles / products * padded / (domain.rows * domain.columns * domain.blocks)

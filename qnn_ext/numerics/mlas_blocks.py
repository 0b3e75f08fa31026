"""Products of int8 activations and block-wise quantized weights, added up in the order of ONNX Runtime's MLAS on CPUs
with AVX-512 VNNI: sixteen partial sums, each over some columns of every block, which follow from its instructions.

`topi_int8/generic/blockwise_lanes.py` has the same as a loop nest, equal bit for bit for finite values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from .reference import Array, fused_multiply_add

LANES, STEP, WORD = 16, 128, 4
"""Partial sums; columns that they take at once; successive columns that an instruction adds up."""
BLOCKS = (16, 32, 64, 128, 256)
"""The lengths of a block for which MLAS has kernels."""
TILE = 4
"""Rows of the weight whose results MLAS adds up side by side."""

Number = TypeVar("Number")


@dataclass(frozen=True)
class Lanes:
    """Which columns each partial sum takes, step by step.

    places: (steps, lanes, columns of a lane)
    owners: (steps, lanes): the blocks of these columns
    blocks, steps: how many blocks a step has, or how many steps a block
    """

    places: np.ndarray
    owners: np.ndarray
    blocks: int = 1
    steps: int = 1


@lru_cache(maxsize=256)
def lanes_of(depth: int, block: int) -> tuple[Lanes, Lanes]:
    """The steps of 128 columns and then, one block each, those of what is left of `depth` columns in whole blocks."""
    blocks = -(-depth // block)
    together, apart = max(1, STEP // block), max(1, block // STEP)
    whole = blocks // together
    places = STEP * np.arange(whole * apart)[:, None, None] + _pattern(block)
    rest = block * np.arange(whole * together, blocks)[:, None, None] + _pattern_of_one(block)
    return Lanes(places, places[..., 0] // block, together, apart), Lanes(rest, rest[..., 0] // block)


def _pattern(block: int) -> np.ndarray:
    """The columns of a step for each lane, as words: (lanes, 2 · WORD)."""
    lane, half = np.arange(LANES), STEP // WORD // 2
    quarter, place = 4 * (lane // 4), lane % 4
    if block >= STEP:
        first, apart = lane, LANES
    elif block == 64:
        first, apart = half * (place % 2) + quarter + place // 2, 2
    else:
        first, apart = half * (place // 2) + quarter + place % 2, 2
    words = first[:, None] + np.array([0, apart])
    return (WORD * words[..., None] + np.arange(WORD)).reshape(LANES, -1)


def _pattern_of_one(block: int) -> np.ndarray:
    """The columns of a block for each lane: sixteen lanes, eight for short blocks."""
    lanes = LANES if block == 64 else LANES // 2
    return np.arange(lanes * max(1, min(block, 64) // lanes)).reshape(lanes, -1)


def total(lanes: list[Any], block: int, bits: int, is_pair: bool, is_tile: bool) -> Any:
    """The sum of the partial sums of a result.

    is_pair: whether its row is one of a pair, as all but the last of an odd number are; is_tile: whether its column is
    one of four
    """
    by_fours = is_tile and (block < STEP // 2 or not is_pair or (block == STEP // 2 and bits == 8))
    if not by_fours:
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [low + high for low, high in zip(lanes[:half], lanes[half:], strict=True)]
        return lanes[0]
    fours = [((a + b) + c) + d for a, b, c, d in zip(*(lanes[place::4] for place in range(4)), strict=True)]
    while len(fours) > 1:
        half = len(fours) // 2
        fours = [low + high for low, high in zip(fours[:half], fours[half:], strict=True)]
    return fours[0]


def folded(lanes: list[Number], block: int, add: Callable[[Number, Number], Number]) -> list[Number]:
    """The partial sums behind the steps: those of short blocks, eight and eight, are added before what is left."""
    if block >= STEP // 2:
        return lanes
    half = LANES // 2
    return [add(low, high) for low, high in zip(lanes[:half], lanes[half:], strict=True)]


def blockwise_dense(
    data: Array, data_scale: Array, weight: Array, scale: Array, zero_point: Array, bias: Array, block: int, bits: int
) -> Array:
    """The product (M, N) of data (M, K) int8, weights (N, K) and zero points (N, G) of unsigned integers, as int32."""
    depth = data.shape[1]
    blocks = scale.shape[1]
    padding = ((0, 0), (0, blocks * block - depth))
    data, weight = np.pad(data.astype(np.int32), padding), np.pad(weight.astype(np.int32), padding)
    unit = data_scale[:, None, :] * scale[None]
    steps, tail = lanes_of(depth, block)
    lanes = [np.zeros((len(data), len(weight)), np.float32) for _ in range(LANES)]

    def updated(sums: list[Array], part: Lanes) -> list[Array]:
        for places, owners in zip(part.places, part.owners, strict=True):
            for lane, (columns, owner) in enumerate(zip(places, owners, strict=True)):
                dot = data[:, columns].astype(np.float64) @ weight[:, columns].T.astype(np.float64)
                sums[lane] = fused_multiply_add(dot.astype(np.float32), unit[..., owner], sums[lane])
        return sums

    with np.errstate(all="ignore"):
        lanes = updated(folded(updated(lanes, steps), block, np.add), tail)
        rows = np.arange(len(data)) < len(data) // 2 * 2
        columns = np.arange(len(weight)) < len(weight) // TILE * TILE
        product = np.zeros_like(lanes[0])
        for pair in (False, True):
            for tile in (False, True):
                value = total(lanes, block, bits, pair, tile)
                product = np.where((rows == pair)[:, None] & (columns == tile), value, product)
        sums = data.reshape(len(data), blocks, block).sum(axis=2).astype(np.float32) * data_scale
        zeros = -(scale * zero_point.astype(np.float32))
        term = np.zeros_like(product)
        for group in range(blocks):
            term = fused_multiply_add(sums[:, group, None], zeros[None, :, group], term)
        return term + (product + bias)

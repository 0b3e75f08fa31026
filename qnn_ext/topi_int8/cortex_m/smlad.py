"""Convolutions and dense layers with smlad, which adds two products of 16 bits: acc += x₀·w₀ + x₁·w₁.

    for tile of pixels: widen the values under their windows to columns of 16 bits
        for block of channels: the sums of both in general registers, then the epilogue

Columns lie pair by pair, (k/2, pixel, 2), so that one address serves all pixels. Weights stay bytes in flash, in words
of two values k of two channels o: o₀k₀ o₁k₀ o₀k₁ o₁k₁. sxtb16 widens every other byte of a word, here the values of
one channel, and after a rotation that costs nothing those of the other. For two channels and four pixels, a pair of
values takes 13 instructions: 16 products.

sxtb16 also widens the activations, a word at a time: (k₀, k₂) and (k₁, k₃), so weights are packed in that order.
Activations of int16 are copied as they are. Products of int16 and int8 are added in 32 bits where no sum can overflow:
smlald would take twice the registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from tvm import tirx

from ..cpu.llvm_functions import define_routine
from .nest import loop
from .registration import cheapest, register_tiles
from .tiles import MOST_NARROW, Code, Tiles, Workload, channels_of
from .window import Window, const

Expr = Any
DEPTH = 2
WORD = 4  # bytes
UNROLLED = 4  # pairs of values in a round of the loop

COSTS = {(4, 2): 13, (3, 2): 11, (2, 2): 8, (1, 8): 19, (1, 4): 10, (1, 2): 6}
"""Tiles of (pixels, channels) whose sums fit the registers -> instructions for a pair of values."""


@lru_cache(maxsize=4096)
def plan(workload: Workload) -> Tiles:
    """The tiles that take the fewest instructions."""
    window, channels = Window.of(workload), channels_of(workload)
    pixels, lanes = cheapest(COSTS, window.pixels, channels)
    values = -(-window.values // (UNROLLED // 2 * DEPTH)) * UNROLLED // 2 * DEPTH
    shape = (values // DEPTH, pixels, DEPTH)
    if workload.data_dtype == "int16":
        unit = DEPTH if window.channels % DEPTH == 0 else 1
        direct = pixels == 1 and unit == DEPTH and values == window.values <= MOST_NARROW and window.contiguous
        return Tiles(window, channels, pixels, lanes, values, unit, shape, "int16", direct=direct, wide=True)
    unit = WORD if window.channels % WORD == 0 else 1
    direct = pixels == 1 and unit == WORD and values == window.values and window.contiguous
    return Tiles(window, channels, pixels, lanes, values, unit, shape, "int16", direct=direct)


def pack_weight(workload: Workload, weight: np.ndarray) -> np.ndarray:
    """OHWI or (N, K) weights to (blocks, K/2, lanes/2, 2 values · 2 channels), zero after the last value."""
    tiles = plan(workload)
    padded = np.zeros((tiles.channels, tiles.values), np.int8)
    padded[:, : tiles.window.values] = weight.reshape(tiles.channels, -1)
    if tiles.unit == WORD:
        padded = padded.reshape(tiles.channels, -1, 2, 2).swapaxes(2, 3).reshape(tiles.channels, -1)
    blocks = padded[tiles.every_channel].reshape(tiles.blocks, tiles.lanes // 2, 2, -1, DEPTH)
    return np.ascontiguousarray(blocks.transpose(0, 3, 1, 4, 2)).reshape(tiles.blocks, -1, tiles.lanes // 2, WORD)


def _copied(
    tiles: Tiles, columns: Any, pixel: Expr, k: Expr, values: Any, run: int, straight: bool = False
) -> tirx.Stmt:
    j = tirx.Var("j", "int32")
    if tiles.unit == 1:
        store = tirx.BufferStore(columns, values(j, 1).astype("int16"), _place(k + j, pixel))
        return loop(j, run, [store], straight)
    if tiles.wide:
        pair = tirx.reinterpret("int32", values(j * DEPTH, DEPTH))
        return loop(j, run // DEPTH, [_pair(columns, k + j * DEPTH, pixel, pair)])
    word = tirx.reinterpret("int32", values(j * WORD, WORD))
    parts = (_call("llvm.arm.sxtb16", half) for half in (word, _rotated(word)))
    stores = [_pair(columns, k + j * WORD + DEPTH * half, pixel, part) for half, part in enumerate(parts)]
    return loop(j, run // WORD, stores)


def _filled(
    tiles: Tiles, columns: Any, pixel: Expr, k: Expr, value: int, run: int, straight: bool = False
) -> tirx.Stmt:
    j = tirx.Var("j", "int32")
    if tiles.unit == 1:
        return loop(j, run, [tirx.BufferStore(columns, tirx.const(value, "int16"), _place(k + j, pixel))], straight)
    pair = tirx.const((value & 0xFFFF) * 0x10001 - (1 << 32 if value < 0 else 0), "int32")
    return loop(j, run // DEPTH, [_pair(columns, k + j * DEPTH, pixel, pair)])


def _place(k: Expr, pixel: Expr) -> list[Expr]:
    return [tirx.floordiv(k, const(DEPTH)), pixel, tirx.floormod(k, const(DEPTH))]


def _pair(columns: Any, k: Expr, pixel: Expr, pair: Expr) -> tirx.Stmt:
    """Stores two values as one word."""
    place = [tirx.floordiv(k, const(DEPTH)), pixel, tirx.Ramp(const(0), const(1), DEPTH)]
    return tirx.BufferStore(columns, tirx.reinterpret("int16x2", pair), place)


def _sums(tiles: Tiles, first: Expr, weights: Any, block: Expr, total: Any, k: Expr, count: Expr) -> tirx.Stmt:
    in_place = tiles.direct and not tiles.wide  # bytes, which are widened where they are used
    routine = _DIRECT[tiles.lanes] if in_place else _ROUTINES[tiles.pixels, tiles.lanes]
    addresses = [total(0, 0), first, weights[block, tirx.floordiv(k, const(DEPTH)), const(0), const(0)]]
    return tirx.Evaluate(tirx.call_extern("void", routine, *map(tirx.address_of, addresses), count * tiles.lanes))


# ---- the loop over a window's values -----------------------------------------------------------------------------

_SUMS = [f"r{number}" for number in range(4, 12)]


def _pair_of_values(pixels: int, lanes: int) -> Iterator[str]:
    """The instructions for a pair of values. r1: address of columns, r2: of weights."""
    if pixels == 1:
        yield "ldr lr, [r1], #4"
        for half in range(0, lanes // 2, 2):
            words = ["r0", "r3"][: lanes // 2 - half]
            yield f"ldrd {', '.join(words)}, [r2], #8" if len(words) == 2 else f"ldr {words[0]}, [r2], #4"
            for index, word in enumerate(words):
                even, odd = _SUMS[2 * (half + index) :][:2]
                yield f"sxtb16 r12, {word}"
                yield f"sxtb16 {word}, {word}, ror #8"
                yield f"smlad {even}, lr, r12, {even}"
                yield f"smlad {odd}, lr, {word}, {odd}"
        return
    yield "ldr r12, [r2], #4"
    yield "sxtb16 r0, r12"
    yield "sxtb16 r12, r12, ror #8"
    for first in range(0, pixels, 2):
        values = ["lr", "r3"][: pixels - first]
        yield f"ldrd {', '.join(values)}, [r1], #8" if len(values) == 2 else f"ldr {values[0]}, [r1], #4"
        for index, value in enumerate(values):
            even, odd = _SUMS[2 * (first + index) :][:2]
            yield f"smlad {even}, {value}, r0, {even}"
            yield f"smlad {odd}, {value}, r12, {odd}"


def _two_pairs_in_place(lanes: int) -> Iterator[str]:
    """The instructions for two pairs of values of a single pixel, a word of bytes."""
    yield from ("ldr r3, [r1], #4", "sxtb16 lr, r3", "sxtb16 r3, r3, ror #8")
    for values in ("lr", "r3"):
        for half in range(lanes // 2):
            even, odd = _SUMS[2 * half :][:2]
            yield from ("ldr r0, [r2], #4", "sxtb16 r12, r0", "sxtb16 r0, r0, ror #8")
            yield f"smlad {even}, {values}, r12, {even}"
            yield f"smlad {odd}, {values}, r0, {odd}"


def _routine(pixels: int, lanes: int, direct: bool = False) -> str:
    """routine(int32 sums[pixels][lanes], columns, weights, bytes of weights): adds all products to the sums.

    Sums are in registers from r4 on; r6 and r7, which may hold the frame's address, are put back. A round takes four
    pairs of values; if only their half is whole, the first begins in the middle. direct: values are bytes, in place of
    columns.
    """
    sums = ", ".join(_SUMS[: pixels * lanes])
    pairs = [line for _ in range(UNROLLED // 2) for line in _pair_of_values(pixels, lanes)]
    half = list(_two_pairs_in_place(lanes)) if direct else pairs
    lines = [
        *(f"tst r3, #{UNROLLED * lanes}", "add.w r3, r2, r3", "push {r0, r3, r6, r7}", f"ldm r0, {{{sums}}}"),
        *("bne 2f", "1:", *half, "2:", *half, "ldr lr, [sp, #4]", "cmp r2, lr", "bne 1b"),
        *("ldr r0, [sp]", f"stm r0, {{{sums}}}", "pop {r0, r3, r6, r7}"),
    ]
    changed = [f"={{r{number}}}" for number in range(4)] + [str(number) for number in range(4)]
    lost = [f"~{{{name}}}" for name in ("r4", "r5", "r8", "r9", "r10", "r11", "r12", "lr", "cc", "memory")]
    return define_routine(
        f"smlad_{pixels}x{lanes}{'_direct' * direct}", lines, ",".join(changed + lost), ("ptr", "ptr", "ptr", "i32")
    )


def _call(name: str, *operands: Expr) -> Expr:
    return tirx.call_llvm_pure_intrin("int32", name, *operands)


def _rotated(word: Expr) -> Expr:
    return _call("llvm.fshr", word, word, tirx.const(8, "int32"))


_ROUTINES = {tile: _routine(*tile) for tile in COSTS}
_DIRECT = {lanes: _routine(1, lanes, direct=True) for pixels, lanes in COSTS if pixels == 1}

register_tiles("smlad", 10, plan, pack_weight, Code(_copied, _filled, _sums), wide=True)

"""Convolutions and dense layers with Helium's vmladav: sixteen products of bytes added to a general register.

    for tile of pixels: copy the values under their windows to columns
        for block of channels: the sums of both in general registers, then the epilogue, four channels at a time

Columns and weights lie in steps of sixteen values, (k/16, pixel, 16) and (blocks, k/16, channel, 16), so one
address serves all. vmladav adds to even registers only, of which there are eight: two pixels of four channels, for
which a step of 128 products takes 14 instructions.
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
from .tiles import Code, Tiles, Workload, channels_of
from .window import Window, const

Expr = Any
STEP = 16
LANES = 4  # channels of an epilogue's vector

COSTS = {(2, 4): 16, (1, 8): 19, (1, 4): 11}
"""Tiles of (pixels, channels) whose sums fit the registers -> instructions for a step."""


@lru_cache(maxsize=4096)
def plan(workload: Workload) -> Tiles:
    """The tiles that take the fewest instructions."""
    window, channels = Window.of(workload), channels_of(workload)
    pixels, lanes = cheapest(COSTS, window.pixels, channels)
    values = -(-window.values // STEP) * STEP
    unit = next(size for size in (STEP, 4, 1) if window.channels % size == 0)
    direct = pixels == 1 and values == window.values and window.contiguous
    return Tiles(window, channels, pixels, lanes, values, unit, (values // STEP, pixels, STEP), "int8", LANES, direct)


def pack_weight(workload: Workload, weight: np.ndarray) -> np.ndarray:
    """OHWI or (N, K) weights to (blocks, K/16, lanes, 16), zero after the last value."""
    tiles = plan(workload)
    padded = np.zeros((tiles.channels, tiles.values), np.int8)
    padded[:, : tiles.window.values] = weight.reshape(tiles.channels, -1)
    blocks = padded[tiles.every_channel].reshape(tiles.blocks, tiles.lanes, -1, STEP)
    return np.ascontiguousarray(blocks.swapaxes(1, 2))


def _copied(
    tiles: Tiles, columns: Any, pixel: Expr, k: Expr, values: Any, run: int, straight: bool = False
) -> tirx.Stmt:
    j, unit = tirx.Var("j", "int32"), tiles.unit
    value = values(j * unit, unit)
    if unit > 1:
        value = tirx.reinterpret("int32x4" if unit == STEP else "int32", value)
        value = tirx.reinterpret(f"int8x{unit}", value)
    return loop(j, run // unit, [tirx.BufferStore(columns, value, _place(k + j * unit, pixel, unit))], straight)


def _filled(
    tiles: Tiles, columns: Any, pixel: Expr, k: Expr, value: int, run: int, straight: bool = False
) -> tirx.Stmt:
    j = tirx.Var("j", "int32")
    store = tirx.BufferStore(columns, tirx.const(value, "int8"), _place(k + j, pixel, 1))
    return loop(j, run, [store], straight)


def _place(k: Expr, pixel: Expr, unit: int) -> list[Expr]:
    inside = tirx.floormod(k, const(STEP))
    return [tirx.floordiv(k, const(STEP)), pixel, tirx.Ramp(inside, const(1), unit) if unit > 1 else inside]


def _sums(tiles: Tiles, first: Expr, weights: Any, block: Expr, total: Any, k: Expr, count: Expr) -> tirx.Stmt:
    zero = const(0)
    addresses = [total(0, 0), first, weights[block, zero, zero, zero]]
    routine, steps = _ROUTINES[tiles.pixels, tiles.lanes], const(tiles.values // STEP)
    return tirx.Evaluate(tirx.call_extern("void", routine, *map(tirx.address_of, addresses), steps))


_SUMS = ["r0", "r2", "r4", "r6", "r8", "r10", "r12", "lr"]


def _step(pixels: int, lanes: int) -> Iterator[str]:
    """The instructions for sixteen values. r1: address of columns, r3: of weights."""
    for pixel in range(pixels):
        yield f"vldrb.8 q{pixel}, [r1], #{STEP}"
    for lane in range(lanes):
        register = f"q{pixels + lane % 2}"  # the next weights are loaded while those before are in use
        yield f"vldrb.8 {register}, [r3], #{STEP}"
        for pixel in range(pixels):
            yield f"vmladava.s8 {_SUMS[pixel * lanes + lane]}, q{pixel}, {register}"


def _routine(pixels: int, lanes: int) -> str:
    """routine(int32 sums[pixels][lanes], columns, weights, steps): adds all products to the sums.

    Sums are in even registers; r6 and r7, which may hold the frame's address, are put back.
    """
    sums = ", ".join(_SUMS[: pixels * lanes])
    lines = [
        *("push {r0, r6, r7}", "mov r5, r3", "mov r3, r2", f"ldm r0, {{{sums}}}", "1:", *_step(pixels, lanes)),
        *("subs r5, r5, #1", "bne 1b", "ldr r5, [sp]", f"stm r5, {{{sums}}}", "pop {r0, r6, r7}"),
    ]
    changed = [f"={{r{number}}}" for number in range(4)] + [str(number) for number in range(4)]
    names = ("r4", "r5", "r8", "r10", "r12", "lr", "q0", "q1", "q2", "q3", "cc", "memory")
    lost = [f"~{{{name}}}" for name in names]
    return define_routine(f"vmladav_{pixels}x{lanes}", lines, ",".join(changed + lost), ("ptr", "ptr", "ptr", "i32"))


_ROUTINES = {tile: _routine(*tile) for tile in COSTS}

register_tiles("vmladav", 11, plan, pack_weight, Code(_copied, _filled, _sums))

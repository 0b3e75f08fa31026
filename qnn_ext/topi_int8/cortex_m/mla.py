"""Convolutions and dense layers on cores without DSP instructions, a product at a time: mla, or muls and add.

    for tile of pixels: widen the values under their windows to columns of words
        for channel: the sums of all pixels in general registers, then the epilogue

ldm loads the values of five pixels as words, so that they need no widening where they are used, and a weight is loaded
once for all five: 7 instructions for 5 products where there is mla. Cores with the base Thumb instructions alone
multiply into one of the operands, here the pixel's value, which is not needed afterwards, and add to a high register:
13 instructions for 5 products. A single pixel is read as bytes, where it is if possible, and shared by five channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np
from tvm import tirx

from ..cpu.llvm_functions import define_routine
from .nest import loop
from .registration import cheapest, register_tiles
from .tiles import Code, Tiles, Workload, channels_of
from .window import Window, const

Expr = Any
Tile = tuple[int, int]
MOST = 5  # sums in registers
DEPTH = 4  # values in half a round of the loop over several pixels, and in a round of that over one
_SUMS = [f"r{number}" for number in range(8, 8 + MOST)]
_LOW = [f"r{number}" for number in range(3, 3 + MOST)]

MLA_COSTS: dict[Tile, float] = {
    **{(pixels, 1): 2 + pixels for pixels in range(2, MOST + 1)},
    **{(1, lanes): 1 + 2 * lanes for lanes in range(1, MOST + 1)},
}
MULS_COSTS: dict[Tile, float] = {
    **{(pixels, 1): 3 + 2 * pixels for pixels in range(2, MOST + 1)},
    **{(1, lanes): 1 + lanes / 4 + 3 * lanes for lanes in range(1, MOST + 1)},
}
"""Tiles of (pixels, channels) whose sums fit the registers -> instructions for a value of each pixel."""


@lru_cache(maxsize=4096)
def _plan(costs: tuple[tuple[Tile, float], ...], workload: Workload) -> Tiles:
    """The tiles that take the fewest instructions."""
    window, channels = Window.of(workload), channels_of(workload)
    pixels, lanes = cheapest(dict(costs), window.pixels, channels)
    values = -(-window.values // DEPTH) * DEPTH
    unit = DEPTH if window.channels % DEPTH == 0 else 1
    direct = pixels == 1 and values == window.values and window.contiguous
    dtype = "int8" if pixels == 1 else "int32"
    return Tiles(window, channels, pixels, lanes, values, unit, (values, pixels), dtype, direct=direct)


def _pack_weight(costs: tuple[tuple[Tile, float], ...], workload: Workload, weight: np.ndarray) -> np.ndarray:
    """OHWI or (N, K) weights to (blocks, K, lanes), zero after the last value."""
    tiles = _plan(costs, workload)
    padded = np.zeros((tiles.channels, tiles.values), np.int8)
    padded[:, : tiles.window.values] = weight.reshape(tiles.channels, -1)
    blocks = padded[tiles.every_channel].reshape(tiles.blocks, tiles.lanes, tiles.values)
    return np.ascontiguousarray(blocks.swapaxes(1, 2))


def _copied(
    routines: dict[Tile, str],
    tiles: Tiles,
    columns: Any,
    pixel: Expr,
    k: Expr,
    values: Any,
    run: int,
    straight: bool = False,
) -> tirx.Stmt:
    if tiles.unit == 1:
        j = tirx.Var("j", "int32")
        store = tirx.BufferStore(columns, values(j, 1).astype(tiles.dtype), [k + j, pixel])
        return loop(j, run, [store], straight)
    # with the address of the last element TVM sees that the whole buffer is used
    last = columns[const(tiles.values - 1), const(tiles.pixels - 1)]
    places = map(tirx.address_of, (columns[k, pixel], values(const(0), 1), last))
    return tirx.Evaluate(tirx.call_extern("void", routines[tiles.pixels, tiles.lanes], *places, const(run)))


def _filled(
    tiles: Tiles, columns: Any, pixel: Expr, k: Expr, value: int, run: int, straight: bool = False
) -> tirx.Stmt:
    j = tirx.Var("j", "int32")
    return loop(j, run, [tirx.BufferStore(columns, tirx.const(value, tiles.dtype), [k + j, pixel])], straight)


def _sums(
    routines: dict[Tile, str],
    tiles: Tiles,
    first: Expr,
    weights: Any,
    block: Expr,
    total: Any,
    k: Expr,
    count: Expr,
) -> tirx.Stmt:
    addresses = [total(0, 0), first, weights[block, k, const(0)]]
    routine = routines[tiles.pixels, tiles.lanes]
    return tirx.Evaluate(tirx.call_extern("void", routine, *map(tirx.address_of, addresses), count * tiles.lanes))


# ---- the loop over a window's values -----------------------------------------------------------------------------
# r1: address of columns, r2: of weights, lr: where they end; sums in r8 to r12, which base Thumb can add to and move.


def _pixels_with_mla(pixels: int) -> Iterator[str]:
    """The instructions for eight values of each pixel, in halves."""
    for _ in range(2 * DEPTH):
        yield f"ldm r1!, {{{', '.join(_LOW[:pixels])}}}"
        yield "ldrsb r0, [r2], #1"
        for value, total in zip(_LOW[:pixels], _SUMS, strict=False):
            yield f"mla {total}, {value}, r0, {total}"


def _pixels_with_muls(pixels: int) -> Iterator[str]:
    for index in range(2 * DEPTH):
        yield f"ldm r1!, {{{', '.join(_LOW[:pixels])}}}"
        yield f"ldrb r0, [r2, #{index}]"
        yield "sxtb r0, r0"
        for value, total in zip(_LOW[:pixels], _SUMS, strict=False):
            yield f"muls {value}, r0, {value}"
            yield f"add {total}, {value}"


def _channels_with_mla(lanes: int) -> Iterator[str]:
    """The instructions for four values of a single pixel. Weights are loaded before they are used."""
    weights = ["r0", *_LOW[1:]][:lanes]
    for _ in range(DEPTH):
        yield "ldrsb r3, [r1], #1"
        for weight in weights:
            yield f"ldrsb {weight}, [r2], #1"
        for weight, total in zip(weights, _SUMS, strict=False):
            yield f"mla {total}, r3, {weight}, {total}"


def _channels_with_muls(lanes: int) -> Iterator[str]:
    """The same; r4 to r7 are 0 to 3, as bytes are loaded with their sign only by two registers."""
    for index in range(DEPTH):
        yield f"ldrsb r3, [r1, r{4 + index}]"
        for lane, total in enumerate(_SUMS[:lanes]):
            place = (index * lanes + lane) % 4
            if place == 0 and index + lane:
                yield "adds r2, #4"
            yield f"ldrsb r0, [r2, r{4 + place}]"
            yield "muls r0, r3, r0"
            yield f"add {total}, r0"
    yield from ("adds r1, #4", "adds r2, #4")


def _routine(pixels: int, lanes: int, mla: bool) -> str:
    """routine(int32 sums[pixels][lanes], columns, weights, bytes of weights): adds all products to the sums.

    r6 and r7, which may hold the frame's address, are put back. A round over several pixels takes eight values; if only
    their half is whole, the first begins in the middle.
    """
    count = pixels * lanes
    low, pairs = ", ".join(_LOW[:count]), list(zip(_LOW, _SUMS, strict=True))[:count]
    if pixels > 1:
        code = list((_pixels_with_mla if mla else _pixels_with_muls)(pixels))
        half = len(code) // 2
        # bit 2 of the bytes, set for an odd number of halves, is the sign now
        back, on = ([], []) if mla else ([f"subs r2, #{DEPTH}"], [f"adds r2, #{2 * DEPTH}"])
        turns = ["bpl 1f", *back, "b 2f", "1:", *code[:half], "2:", *code[half:], *on]
    else:
        indices = [] if mla else [f"movs r{4 + index}, #{index}" for index in range(DEPTH)]
        turns = [*indices, "1:", *(_channels_with_mla if mla else _channels_with_muls)(lanes)]
    lines = [
        *("push {r0, r6, r7}", "mov r4, r3", "adds r3, r3, r2", "mov lr, r3", "lsls r4, r4, #29"),
        *(f"ldm r0!, {{{low}}}", *(f"mov {total}, {first}" for first, total in pairs)),
        *(*turns, "cmp r2, lr", "bne 1b", *(f"mov {first}, {total}" for first, total in pairs)),
        *("ldr r0, [sp]", f"stm r0!, {{{low}}}", "pop {r0, r6, r7}"),
    ]
    changed = [f"={{r{number}}}" for number in range(4)] + [str(number) for number in range(4)]
    lost = [f"~{{{name}}}" for name in ("r4", "r5", *_SUMS, "lr", "cc", "memory")]
    name = f"{'mla' if mla else 'muls'}_{pixels}x{lanes}"
    return define_routine(name, lines, ",".join(changed + lost), ("ptr", "ptr", "ptr", "i32"))


def _copy(pixels: int, mla: bool) -> str:
    """copy(columns, values, end, count): widens values of a pixel, a multiple of four, to every `pixels`-th word; those
    of a single pixel stay bytes."""
    store, step = ("str", 4 * pixels) if pixels > 1 else ("strb", 1)
    if mla:
        begin, end = [], []
        turn = ["ldrsb r2, [r1], #1", f"{store} r2, [r0], #{step}"] * DEPTH
    else:
        begin = ["push {r6, r7}", *(f"movs r{4 + index}, #{index}" for index in range(DEPTH))]
        turn = [
            line
            for index in range(DEPTH)
            for line in (f"ldrsb r2, [r1, r{4 + index}]", f"{store} r2, [r0, #{index * step}]")
        ]
        turn += [f"adds r1, #{DEPTH}", f"adds r0, #{DEPTH * step}"]
        end = ["pop {r6, r7}"]
    lines = [*begin, "1:", *turn, f"subs r3, #{DEPTH}", "bne 1b", *end]
    constraints = "={r0},={r1},={r2},={r3},0,1,2,3,~{r4},~{r5},~{cc},~{memory}"
    name = f"widen_{'mla' if mla else 'muls'}_{pixels}"
    return define_routine(name, lines, constraints, ("ptr", "ptr", "ptr", "i32"))


def _register(instruction: str, priority: int, costs: dict[Tile, float]) -> Callable[[Workload], Tiles]:
    """Register an instruction's implementations; returns its plan."""
    fixed = tuple(costs.items())
    plan, pack = partial(_plan, fixed), partial(_pack_weight, fixed)
    mla = instruction == "mla"
    sums = {tile: _routine(*tile, mla) for tile in costs}
    copies = {tile: _copy(tile[0], mla) for tile in costs}
    code = Code(partial(_copied, copies), _filled, partial(_sums, sums))
    register_tiles(instruction, priority, plan, pack, code)
    return plan


plan_mla = _register("mla", 9, MLA_COSTS)
plan_muls = _register("muls", 8, MULS_COSTS)

"""Depthwise conv2d on GPUs: a thread for up to four neighbouring channels of a few neighbouring pixels.

    acc[n, y, x, c] = Σ_{r,s} data[n, y·sh + r·dh, x·sw + s·dw, c // multiplier] · w[r, s, c]

Each output moves two bytes and has few products to hide their latency, so each thread reads every value it needs once,
as 32-bit words of four channels with padding decided per word, and keeps values, weights and accumulators in registers;
taps are unrolled. Windows of neighbouring threads overlap in the cache. Neighbouring threads have neighbouring
channels, so a warp reads and writes whole lines of memory.

Weights may be int16, as in uint8 models after subtracting their zero point. For these, nvcc combines two taps of a
channel in an IDP.2A, as it combines four taps of int8 weights in an IDP.4A; but arranging bytes for that takes more
instructions, so int8 weights would gain nothing, even without the sum of each window that they would additionally need.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from ...targets.families import CUDA
from ..refusal import other_dtypes
from ..schedule_util import inline_epilogue, largest_divisor
from ..strategy import Implementation, cheapest_first, register
from ..workload import Conv2dWorkload
from .dp4a import MULTIPROCESSORS, RESIDENT
from .generic import bind_blocks

WORD = 4  # bytes of a register
LANES = 4  # channels of a 32-bit word
THREADS = 256
WARP = 32
MAX_UNROLLED_TAPS = 49
REGISTERS = 128  # of a thread: with more, too few threads fit a multiprocessor
ADDRESSING = 16  # registers for addresses, indices and what a kernel is passed

# Instructions: estimates
LOAD = 8  # to load a word: its address, its place in the image, the condition for padding
WIDEN = 1  # to widen a byte of it
STORE, EPILOGUE = 8, 6  # to store a pixel's word; to requantize one of its values

ACCUMULATOR, DATA = "depthwise", "pad"


@dataclass(frozen=True)
class Tile:
    """Rows and columns of neighbouring outputs of a thread."""

    rows: int
    columns: int


TILES = [Tile(rows, columns) for rows in (1, 2, 4) for columns in (1, 2, 4, 7, 8)]


def lanes_of(workload: Conv2dWorkload) -> int:
    """Channels per thread: whole words, or a divisor of the number of channels."""
    return math.gcd(workload.out_channels, LANES)


def _padded(workload: Conv2dWorkload, tile: Tile) -> tuple[int, int]:
    """Rows and columns of the output, rounded up to whole tiles."""
    return (
        -(-workload.out_height // tile.rows) * tile.rows,
        -(-workload.out_width // tile.columns) * tile.columns,
    )


def _reach(outputs: int, workload: Conv2dWorkload, axis: int) -> int:
    """How many inputs `outputs` neighbouring outputs span."""
    return (outputs - 1) * workload.strides[axis] + (workload.kernel[axis] - 1) * workload.dilation[axis] + 1


@lru_cache(maxsize=4096)
def tiles(workload: Conv2dWorkload) -> dict[Tile, float]:
    """The tiles whose values fit the registers, with their predicted cost, cheapest first."""
    costs = {tile: tile_cost(tile, workload) for tile in TILES if _registers(tile, workload) <= REGISTERS}
    costs = costs or {Tile(1, 1): tile_cost(Tile(1, 1), workload)}
    return cheapest_first(costs)


def _rows_held(tile: Tile, workload: Conv2dWorkload) -> int:
    """Input rows that a thread holds at a time: all, if several output rows share them, else one."""
    return _reach(tile.rows, workload, 0) if tile.rows > 1 else 1


def _registers(tile: Tile, workload: Conv2dWorkload) -> int:
    values = _rows_held(tile, workload) * _reach(tile.columns, workload, 1)
    lanes = lanes_of(workload)
    weight = -(-lanes * np.dtype(workload.weight_dtype).itemsize // WORD)
    return values + tile.rows * tile.columns * lanes + math.prod(workload.kernel) * weight + ADDRESSING


def tile_cost(tile: Tile, workload: Conv2dWorkload) -> float:
    """Instructions of all threads: loads, products, the widening of bytes and the epilogue; idle ones count."""
    height, width = _padded(workload, tile)
    lanes = lanes_of(workload)
    threads = workload.batch * height // tile.rows * width // tile.columns * workload.out_channels // lanes
    rows = _reach(tile.rows, workload, 0) if tile.rows > 1 else workload.kernel[0]
    words = rows * _reach(tile.columns, workload, 1)
    pixels = tile.rows * tile.columns
    products = math.prod(workload.kernel) * pixels * lanes
    work = words * (LOAD + WIDEN * lanes) + products + pixels * (STORE + EPILOGUE * lanes)
    return work * max(threads, MULTIPROCESSORS * RESIDENT)


def best_tile(workload: Conv2dWorkload) -> Tile:
    """The tile of the lowest predicted cost."""
    return next(iter(tiles(workload)))


def pack_weight(workload: Conv2dWorkload, weight: np.ndarray, tile: Tile | None = None) -> np.ndarray:
    """OHWI weights (O, kh, kw, 1), int8, uint8 or int16, to (kh, kw, O) of the same dtype."""
    return np.ascontiguousarray(weight[..., 0].transpose(1, 2, 0))


def compute(
    workload: Conv2dWorkload, x: te.Tensor, w: te.Tensor, pad_value: int, tile: Tile | None = None
) -> te.Tensor:
    """The accumulator, (N, OH, OW, OC) int32."""
    height, width = _padded(workload, tile or best_tile(workload))
    kh = te.reduce_axis((0, workload.kernel[0]), "kh")
    kw = te.reduce_axis((0, workload.kernel[1]), "kw")
    data = _pad(workload, x, pad_value, height, width)

    def depthwise(n, y, column, c):
        row = y * workload.strides[0] + kh * workload.dilation[0]
        column = column * workload.strides[1] + kw * workload.dilation[1]
        channel = c // workload.multiplier if workload.multiplier > 1 else c
        return te.sum(data[n, row, column, channel].astype("int32") * w[kh, kw, c].astype("int32"), axis=[kh, kw])

    acc = te.compute((workload.batch, height, width, workload.out_channels), depthwise, name=ACCUMULATOR)
    shape = (workload.batch, workload.out_height, workload.out_width, workload.out_channels)
    return te.compute(shape, lambda *indices: acc[indices], name="logical")


def _pad(workload: Conv2dWorkload, x: te.Tensor, pad_value: int, out_height: int, out_width: int) -> te.Tensor:
    """The padded image, including what tiles beyond its end read; x itself if nothing has to be added."""
    top, left = workload.padding[:2]
    rows, columns = _reach(out_height, workload, 0), _reach(out_width, workload, 1)
    padding = tirx.const(pad_value, x.dtype)

    def within(index: Any, before: int, size: int, total: int) -> list[Any]:
        return ([index >= before] if before else []) + ([index < before + size] if before + size < total else [])

    def padded(n, y, column, c):
        inside = within(y, top, workload.height, rows) + within(column, left, workload.width, columns)
        value = x[n, y - top, column - left, c]
        return tirx.if_then_else(tirx.all(*inside), value, padding) if inside else value

    return te.compute((workload.batch, rows, columns, workload.in_channels), padded, name=DATA)


def schedule(sch: Schedule, workload: Conv2dWorkload, target: Target, tile: Tile | None = None) -> None:
    """Threads over channels and tiles of pixels, with everything they need in registers."""
    tile = tile or best_tile(workload)
    product = sch.get_sblock(ACCUMULATOR)
    output = inline_epilogue(sch, product)
    sch.set_scope(product, 0, "local")
    lanes = lanes_of(workload)
    words = workload.multiplier == 1
    data = sch.cache_read(product, 0, "local", [product]) if words else None
    weight = sch.cache_read(product, 1, "local", [product])
    sch.compute_inline(sch.get_sblock(DATA))

    # By the output's loops if tiles fill it, since then sums computed beside the product stay beside it
    whole = _padded(workload, tile) == (workload.out_height, workload.out_width)
    leading, following = (output, product) if whole else (product, output)
    n, y, x, c = sch.get_loops(leading)[:4]
    y, row = sch.split(y, [None, tile.rows])
    x, column = sch.split(x, [None, tile.columns])
    c, lane = sch.split(c, [None, lanes])
    sch.reorder(n, y, x, c, row, column, lane)
    sch.bind(n, "blockIdx.z")  # fused with y and x, TVM loses track of which tile a thread has
    thread = _bind(sch, sch.fuse(y, x), c)
    (sch.compute_at if whole else sch.reverse_compute_at)(following, thread, preserve_unit_loops=True)
    row, column, lane, kh, kw = sch.get_loops(product)[-5:]
    sch.reorder(kh, kw, row, column, lane)

    unrolled = math.prod(workload.kernel) <= MAX_UNROLLED_TAPS
    sch.compute_at(weight, thread if unrolled else kh, preserve_unit_loops=True)
    _load(sch, weight, lanes)
    if data is not None:
        sch.compute_at(data, thread if tile.rows > 1 and unrolled else kh, preserve_unit_loops=True)
        _load(sch, data, lanes)
    for loop in ((kh, kw) if unrolled else (kw,)) + (row, column, lane):
        sch.unroll(loop)
    *pixels, last = sch.get_loops(output)[-3:]
    for loop in pixels:
        sch.unroll(loop)
    if lanes > 1:
        sch.vectorize(last)
    initial = sch.decompose_reduction(product, kh)
    for loop in sch.get_loops(initial)[-3:]:
        sch.unroll(loop)
    bind_blocks(sch)


def _bind(sch: Schedule, pixels: LoopRV, channels: LoopRV) -> LoopRV:
    """Threads of a block: up to a warp of neighbouring channels, times a number of pixel tiles that divides them all.

    More channels if there is no such number. Whole blocks need no predicate on what threads load.
    """
    counts = [int(sch.get(loop).extent) for loop in (pixels, channels)]
    across = largest_divisor(counts[1], WARP)
    beside = largest_divisor(counts[0], THREADS // across)
    across = largest_divisor(counts[1], THREADS // beside)
    block_pixels, thread_pixels = sch.split(pixels, [None, beside])
    block_channels, thread_channels = sch.split(channels, [None, across])
    sch.reorder(block_pixels, block_channels, thread_pixels, thread_channels)
    for loop, thread in (
        (block_pixels, "blockIdx.x"),
        (block_channels, "blockIdx.y"),
        (thread_pixels, "threadIdx.y"),
        (thread_channels, "threadIdx.x"),
    ):
        sch.bind(loop, thread)
    return thread_channels


def _load(sch: Schedule, block: SBlockRV, lanes: int) -> None:
    """Load words of neighbouring channels, with all loops around them unrolled, so that they become registers."""
    loops = sch.get_loops(block)[-len(sch.get(block).iter_vars) :]
    for loop in loops[:-1]:
        sch.unroll(loop)
    if lanes > 1:
        sch.vectorize(loops[-1])


def _refuses(workload: Conv2dWorkload, target: Target) -> str | None:
    return other_dtypes(workload, ("int8", "uint8"), ("int8", "uint8", "int16"))


register(
    Conv2dWorkload,
    Implementation(
        name="depthwise_conv2d_nhwc.cuda",
        priority=20,
        backends=(CUDA,),
        depthwise=True,
        refuses=_refuses,
        compute=compute,
        schedule=schedule,
        pack_weight=pack_weight,
        accumulator=ACCUMULATOR,
        tiles=tiles,
    ),
)

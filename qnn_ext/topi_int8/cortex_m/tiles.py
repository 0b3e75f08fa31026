"""The tiles of a product on microcontrollers: pixels × channels whose sums are in general registers.

    for tile of pixels: the columns under their windows
        for block of channels: the sums of both, then the epilogue

What differs between instructions is in `Code`. Where tiles do not divide the pixels or the channels, the last one
starts earlier and computes some results again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from ..workload import Conv2dWorkload, DenseWorkload
from .nest import PAD, Nest, Order, loop, schedule_nest, start
from .window import Window, const

Expr = Any
Workload = Conv2dWorkload | DenseWorkload

MOST_NARROW = 508
"""Products of int16 and int8 whose sum fits 32 bits, in whole rounds of the instructions: at most 2^22 each."""

MOST_STRAIGHT = 128
"""Values of a window whose copy is written without loops, where they are no whole words: so their places are known."""


@dataclass(frozen=True)
class Tiles:
    """A workload in tiles.

    channels:      all output channels
    pixels, lanes: of a tile: windows, no more than there are, and channels
    values:        under a window, padded to whole steps of the instruction
    unit:          values that are copied together: a divisor of the channels, so that runs of memory are whole units
    shape, dtype:  of the columns of a tile
    vector:        channels that the epilogue takes together
    direct:        whether windows are read where they are, in memory of their own one after the other: no columns
    wide:          whether values are int16 and sums int64, for which the instruction adds some products in 32 bits
    """

    window: Window
    channels: int
    pixels: int
    lanes: int
    values: int
    unit: int
    shape: tuple[int, ...]
    dtype: str
    vector: int = 1
    direct: bool = False
    wide: bool = False

    @property
    def tiles(self) -> int:
        """Tiles of an image's pixels."""
        return -(-self.window.pixels // self.pixels)

    @property
    def blocks(self) -> int:
        """Blocks of channels."""
        return -(-self.channels // self.lanes)

    @property
    def every_channel(self) -> list[int]:
        """The channels of all blocks, in order; if there are fewer than a block takes, the last one again."""
        firsts = [min(block * self.lanes, max(0, self.channels - self.lanes)) for block in range(self.blocks)]
        return [min(first + lane, self.channels - 1) for first in firsts for lane in range(self.lanes)]


def channels_of(workload: Workload) -> int:
    """Output channels of a workload."""
    return workload.n if isinstance(workload, DenseWorkload) else workload.out_channels


@dataclass(frozen=True)
class Code:
    """What an instruction's module writes.

    copied: (tiles, columns, pixel, k, values, run, straight) -> copies `run` values to a column from place k on;
            values(j, count) are `count` of them from the j-th on; straight: without a loop
    filled: (tiles, columns, pixel, k, value, run, straight) -> fills a column from place k on
    sums:   (tiles, first, weights, block, total, k, count) -> adds the products of `count` values of a tile from the
            k-th on to total(pixel, lane); first: the k-th of its columns
    """

    copied: Callable[..., tirx.Stmt]
    filled: Callable[..., tirx.Stmt]
    sums: Callable[..., tirx.Stmt]


# ---- TE ----------------------------------------------------------------------------------------------------------


def compute_tiles(tiles: Tiles, workload: Workload, x: te.Tensor, w: te.Tensor, pad_value: int) -> te.Tensor:
    """The accumulator in the workload's shape.

    Its stages only say what is read, and where sums go: `schedule_tiles` writes the code of both.
    """
    columns = te.compute((1,), lambda _: x(*(0 for _ in x.shape)), name="columns", attrs={PAD: pad_value})
    k = te.reduce_axis((0, 1), "k")

    def product(c: Expr) -> Expr:
        weight = w(c // tiles.lanes, *(0 for _ in w.shape[1:]))
        return te.sum(columns[k].astype(workload.out_dtype) * weight.astype(workload.out_dtype), axis=k)

    if isinstance(workload, DenseWorkload):
        return te.compute((workload.m, workload.n), lambda m, c: product(c), name="sums")
    size = (workload.batch, workload.out_height, workload.out_width, workload.out_channels)
    return te.compute(size, lambda n, y, x, c: product(c), name="sums")


# ---- the nest ----------------------------------------------------------------------------------------------------


def schedule_tiles(sch: Schedule, tiles: Tiles, target: Target, code: Code) -> None:
    """The nest of a product, in place of its stages."""
    schedule_nest(sch, target, lambda nest: _Loops(tiles, nest, code).stmt(), order_of(tiles))


def order_of(tiles: Tiles) -> Order | None:
    """The order of an image's tiles. Each reads its windows before it writes anything."""
    window, size = tiles.window, tiles.pixels
    if window.images > 1:
        return None
    first = np.minimum(np.arange(tiles.tiles) * size, window.pixels - size)
    rows = np.maximum(first // window.across * window.strides[0] - window.padding[0], 0)
    columns = np.maximum(first % window.across * window.strides[1] - window.padding[1], 0)
    if window.height == 1 and window.pixels == window.width:  # a dense layer, whose rows are pixels
        rows, columns = np.zeros_like(first), first
    read = (rows * window.width + columns) * window.channels
    if window.kernel != (1, 1):  # the next row of windows may begin further to the left
        read = rows * window.width * window.channels
    written, begins = (first + size) * tiles.channels, first * tiles.channels
    if tiles.direct:  # a window is read until the last of its results is written: as if by a tile after its own
        written, read, begins = (
            np.append(written, written[-1:]),
            np.append(read[:1], read),
            np.append(begins, begins[-1:]),
        )
    return Order(written, read, begins)


class _Loops:
    """The loops over the tiles of a product."""

    def __init__(self, tiles: Tiles, nest: Nest, code: Code) -> None:
        self._tiles, self._nest, self._code = tiles, nest, code
        self._columns = None if tiles.direct else nest.buffer("columns", tiles.shape, tiles.dtype)
        self._total = nest.buffer("total", (tiles.pixels * tiles.lanes,), "int32")
        self._wide = nest.buffer("wide", (tiles.pixels * tiles.lanes,), "int64") if tiles.wide else None
        self._image, self._tile, self._block = (tirx.Var(name, "int32") for name in ("image", "tile", "block"))

    def stmt(self) -> tirx.Stmt:
        """All loops."""
        tiles = self._tiles
        inner = loop(self._block, tiles.blocks, [*self._begin(), *self._add(), *self._epilogue()])
        return loop(self._image, tiles.window.images, [loop(self._tile, tiles.tiles, [*self._copies(), inner])])

    # ---- columns -------------------------------------------------------------------------------------------------

    def _copies(self) -> list[tirx.Stmt]:
        """The columns of a tile: window by window, run by run."""
        return [] if self._tiles.direct else [self._copy()]

    def _copy(self) -> tirx.Stmt:
        window, pixel = self._tiles.window, tirx.Var("pixel", "int32")
        place = start(self._tile, self._tiles.pixels, window.pixels) + pixel
        stmt = self._rows(place, pixel, window.row)
        if window.row > window.channels and window.pads_columns:
            _, first = window.place(place, const(0), const(0))
            _, last = window.place(place, const(0), const(window.kernel[1] - 1))
            inside = tirx.all(first >= 0, last < window.width)
            stmt = tirx.IfThenElse(inside, stmt, self._rows(place, pixel, window.channels))
        missing = self._tiles.values - window.values
        filled = self._code.filled(self._tiles, self._columns, pixel, const(window.values), 0, missing)
        return loop(pixel, self._tiles.pixels, [stmt, filled] if missing else [stmt])

    def _rows(self, place: Expr, pixel: Expr, run: int) -> tirx.Stmt:
        """A window's column in runs of memory: whole rows of the window, or one value of each channel."""
        window, code, tiles = self._tiles.window, self._code, self._tiles
        whole = run == window.row
        straight = whole and tiles.unit == 1 and window.values <= MOST_STRAIGHT
        down, across = tirx.Var("down", "int32"), tirx.Var("across", "int32")
        row, column = window.place(place, down, across)
        of_row = window.kernel[1] * window.channels
        k = down * of_row + across * run
        stmt = code.copied(tiles, self._columns, pixel, k, self._reader(row, column, place), run, straight)
        conditions = [row >= 0, row < window.height] if window.pads_rows else []
        conditions += (
            [column >= 0, column < window.width]
            if window.pads_columns and (not whole or run == window.channels)
            else []
        )
        if conditions:
            filled = code.filled(tiles, self._columns, pixel, k, self._nest.pad, run, straight)
            stmt = tirx.IfThenElse(tirx.all(*conditions), stmt, filled)
        return loop(down, window.kernel[0], [loop(across, of_row // run, [stmt])], straight)

    def _reader(self, row: Expr, column: Expr, pixel: Expr) -> Callable[[Expr, int], Expr]:
        """`count` neighbouring values from the run's j-th on."""
        channels, data = self._tiles.window.channels, self._nest.data

        def read(j: Expr, count: int) -> Expr:
            c, beside = tirx.floormod(j, const(channels)), tirx.floordiv(j, const(channels))
            index = c if count == 1 else tirx.Ramp(c, const(1), count)
            return data[pixel, index] if len(data.shape) == 2 else data[self._image, row, column + beside, index]

        return read

    # ---- sums ----------------------------------------------------------------------------------------------------

    def _place(self, pixel: int, lane: Expr) -> Expr:
        return self._total[const(pixel * self._tiles.lanes) + lane]

    def _sum(self, pixel: int, lane: Expr) -> Expr:
        """A sum of all products."""
        return self._place(pixel, lane) if self._wide is None else self._wide[const(pixel * self._tiles.lanes) + lane]

    def _each(self, stmt: Callable[[int, Expr], tirx.Stmt]) -> Iterator[tirx.Stmt]:
        """stmt(pixel, lane) for every sum of the tile; for vectors of lanes where the channels allow it."""
        lanes, vector = min(self._tiles.lanes, self._tiles.channels), self._tiles.vector
        for pixel in range(self._tiles.pixels):
            if vector == 1 or lanes % vector:
                yield from (stmt(pixel, const(lane)) for lane in range(lanes))
                continue
            for first in range(0, lanes, vector):
                lane = tirx.Var("lane", "int32")
                yield tirx.For(lane, const(0), const(vector), tirx.ForKind.VECTORIZED, stmt(pixel, const(first) + lane))

    def _channel(self, lane: Expr) -> Expr:
        return start(self._block, self._tiles.lanes, max(self._tiles.lanes, self._tiles.channels)) + lane

    def _begin(self) -> Iterator[tirx.Stmt]:
        """The sums' initial values."""

        def stmt(pixel: int, lane: Expr) -> tirx.Stmt:
            place = self._sum(pixel, lane)
            value = tirx.const(0, "int64") if self._tiles.wide else self._nest.initial(self._channel(lane))
            return tirx.BufferStore(place.source, value, place.indices)

        return self._each(stmt)

    def _add(self) -> list[tirx.Stmt]:
        values, part = self._tiles.values, tirx.Var("part", "int32")
        if self._wide is None:
            return [*self._unused(), self._products(const(0), values)]
        whole, rest = divmod(values, MOST_NARROW)
        added = [loop(part, whole, self._narrow(part * MOST_NARROW, MOST_NARROW))] if whole else []
        return [*self._unused(), *added, *(self._narrow(const(whole * MOST_NARROW), rest) if rest else [])]

    def _unused(self) -> list[tirx.Stmt]:
        """Zeros in the sums of lanes beyond the channels. The code reads and writes them, and TVM makes a buffer no
        larger than what it sees in use."""
        lanes = range(min(self._tiles.lanes, self._tiles.channels), self._tiles.lanes)
        places = [self._place(pixel, const(lane)) for pixel in range(self._tiles.pixels) for lane in lanes]
        return [tirx.BufferStore(place.source, const(0), place.indices) for place in places]

    def _narrow(self, k: Expr, count: int) -> list[tirx.Stmt]:
        """Some products, added in 32 bits and then to the sums."""

        def zero(pixel: int, lane: Expr) -> tirx.Stmt:
            place = self._place(pixel, lane)
            return tirx.BufferStore(place.source, const(0), place.indices)

        def widened(pixel: int, lane: Expr) -> tirx.Stmt:
            total = self._sum(pixel, lane)
            return tirx.BufferStore(total.source, total + self._place(pixel, lane).astype("int64"), total.indices)

        return [*self._each(zero), self._products(k, count), *self._each(widened)]

    def _products(self, k: Expr, count: int) -> tirx.Stmt:
        columns = self._columns
        if columns is None:
            first = self._window()
        else:
            depth = self._tiles.shape[-1] if len(columns.shape) > 2 else 1
            first = columns[(tirx.floordiv(k, const(depth)), *(const(0) for _ in columns.shape[1:]))]
        return self._code.sums(self._tiles, first, self._nest.weights, self._block, self._place, k, const(count))

    def _window(self) -> Expr:
        """The first value of a tile's only window."""
        place, data = start(self._tile, 1, self._tiles.window.pixels), self._nest.data
        if len(data.shape) == 2:
            return data[place, const(0)]
        row, column = self._tiles.window.place(place, const(0), const(0))
        return data[self._image, row, column, const(0)]

    def _epilogue(self) -> Iterator[tirx.Stmt]:
        """The epilogue of every sum in the tile."""
        window = self._tiles.window
        across = const(window.across)

        def stmt(pixel: int, lane: Expr) -> tirx.Stmt:
            place = start(self._tile, self._tiles.pixels, window.pixels) + pixel
            spatial = [self._image, tirx.floordiv(place, across), tirx.floormod(place, across)]
            index = [place] if len(self._nest.data.shape) == 2 else spatial
            return self._nest.result([*index, self._channel(lane)], self._sum(pixel, lane))

        return self._each(stmt)

"""The tiles of a product on microcontrollers: pixels × channels whose sums are in general registers.

    for tile of pixels: the columns under their windows
        for block of channels: the sums of both, then the epilogue

TE says what columns and sums are, and how the epilogue goes on from there. No schedule leads to the code for the first
two, so `schedule_tiles` writes the whole nest; what differs between instructions is in `Code`. Where tiles do not
divide the pixels or the channels, the last one starts earlier and computes some results again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, te, tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.target import Target

from ...errors import TargetError
from ..schedule_util import APART, changed_block, inline_epilogue, schedule_root_blocks
from ..workload import Conv2dWorkload, DenseWorkload
from .window import Window, const

Expr = Any
Workload = Conv2dWorkload | DenseWorkload


@dataclass(frozen=True)
class Tiles:
    """A workload in tiles.

    channels:      all output channels
    pixels, lanes: of a tile: windows, no more than there are, and channels
    values:        under a window, padded to whole steps of the instruction
    shape, dtype:  of the columns of a tile
    """

    window: Window
    channels: int
    pixels: int
    lanes: int
    values: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def tiles(self) -> int:
        """Tiles of an image's pixels."""
        return -(-self.window.pixels // self.pixels)

    @property
    def blocks(self) -> int:
        """Blocks of channels."""
        return -(-self.channels // self.lanes)

    @property
    def words(self) -> bool:
        """Whether the values of a pixel are whole words, which can be copied as such."""
        return self.window.channels % 4 == 0

    def first_pixel(self, tile: Expr) -> Expr:
        """The first window of a tile."""
        return _start(tile, self.pixels, self.window.pixels)

    def first_channel(self, block: Expr) -> Expr:
        """The first channel of a block."""
        return _start(block, self.lanes, max(self.channels, self.lanes))

    def channels_of(self, block: int) -> Iterator[int]:
        """The channels of a block, some beyond the last one if there are fewer than a block takes."""
        first = min(block * self.lanes, max(0, self.channels - self.lanes))
        yield from range(first, first + self.lanes)

    @property
    def every_channel(self) -> list[int]:
        """The channels of all blocks, in order; those beyond the last one as the last one."""
        return [min(c, self.channels - 1) for block in range(self.blocks) for c in self.channels_of(block)]


def _start(index: Expr, size: int, total: int) -> Expr:
    return tirx.min(index * size, const(total - size)) if total % size else index * size


@dataclass(frozen=True)
class Code:
    """What an instruction's module writes.

    copied: (tiles, columns, pixel, k, values, run) -> copies `run` values to a column from place k on; values(j, count)
            are `count` of them from the j-th on
    filled: (tiles, columns, pixel, k, value, run) -> fills a column from place k on
    sums:   (tiles, columns, weights, block, total) -> adds the products of a tile to total(pixel, lane)
    """

    copied: Callable[..., tirx.Stmt]
    filled: Callable[..., tirx.Stmt]
    sums: Callable[..., tirx.Stmt]


# ---- TE ----------------------------------------------------------------------------------------------------------

PAD = "qnn_ext.pad"  # on the block of columns: the padding's value


def compute_tiles(tiles: Tiles, workload: Workload, x: te.Tensor, w: te.Tensor, pad_value: int) -> te.Tensor:
    """The accumulator in the workload's shape.

    Its stages only say what is read, and where sums go: `schedule_tiles` writes the code of both.
    """
    columns = te.compute((1,), lambda _: x(*(0 for _ in x.shape)), name="columns", attrs={PAD: pad_value})
    k = te.reduce_axis((0, 1), "k")

    def product(c: Expr) -> Expr:
        weight = w(c // tiles.lanes, *(0 for _ in w.shape[1:]))
        return te.sum(columns[k].astype("int32") * weight.astype("int32"), axis=k)

    if isinstance(workload, DenseWorkload):
        return te.compute((workload.m, workload.n), lambda m, c: product(c), name="sums")
    size = (workload.batch, workload.out_height, workload.out_width, workload.out_channels)
    return te.compute(size, lambda n, y, x, c: product(c), name="sums")


# ---- the nest ----------------------------------------------------------------------------------------------------


def schedule_tiles(sch: Schedule, tiles: Tiles, target: Target, code: Code) -> None:
    """The nest of a product, in place of its stages."""
    columns, sums = sch.get_sblock("columns"), sch.get_sblock("sums")
    output = inline_epilogue(sch, sums)
    if any(APART in sch.get(block).annotations for block in sch.get_consumers(output)):
        raise TargetError("its results are moved apart")
    schedule_root_blocks(sch, [columns, sums, output], target)
    nest = _Nest(tiles, sch.get(columns), sch.get(sums), sch.get(output), code).block()
    root = sch.get_sblock("root")
    node = sch.get(root)
    gone = {"columns", "sums"}
    parts = [part for part in _parts(node.body) if not _names(part) & (gone - {sch.get(output).name_hint})]
    last = sch.get(output).name_hint
    body = [nest if last in _names(part) else part for part in parts]
    buffers = [buffer for buffer in node.alloc_buffers if buffer.name not in gone]
    changed = changed_block(node, body=tirx.SeqStmt(body) if len(body) > 1 else body[0], alloc_buffers=buffers)
    sch.state.replace(sch.get_sref(root), changed, {node: changed})


def _parts(body: tirx.Stmt) -> list[tirx.Stmt]:
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _names(part: tirx.Stmt) -> set[str]:
    found: set[str] = set()
    tvm_ffi.structural_walk(part, (SBlock, lambda block: found.add(block.name_hint)))
    return found


class _Nest:
    """The loops over the tiles of a product."""

    def __init__(self, tiles: Tiles, columns: SBlock, sums: SBlock, output: SBlock, code: Code) -> None:
        self._tiles, self._code = tiles, code
        self._pad = int(columns.annotations[PAD])
        self._data = columns.reads[0].source
        self._weights = next(read.source for read in sums.reads if len(read.source.shape) > 1)
        self._initial = sums.init.value if isinstance(sums.init.value, ir.TensorLoad) else None
        self._sums, self._output = sums.writes[0].source, output
        self._fused = not output.writes[0].source.same_as(self._sums)
        self._columns = tirx.decl_buffer(tiles.shape, tiles.dtype, "columns", layout=None)
        self._total = tirx.decl_buffer((tiles.pixels * tiles.lanes,), "int32", "total", layout=None)
        self._image, self._tile, self._block = (tirx.Var(name, "int32") for name in ("image", "tile", "block"))

    def block(self) -> tirx.Stmt:
        """The nest as an opaque block."""
        tiles = self._tiles
        inner = _loop(self._block, tiles.blocks, [self._start(), self._add(), *self._epilogue()])
        nest = _loop(self._tile, tiles.tiles, [self._copy(), inner])
        nest = _loop(self._image, tiles.window.images, [nest])
        reads = [self._whole(buffer) for buffer in self._read()]
        writes = [self._whole(self._output.writes[0].source)]
        block = SBlock([], reads, writes, "tiles", nest, alloc_buffers=[self._columns, self._total])
        return SBlockRealize([], True, block)

    def _whole(self, buffer: Any) -> ir.TensorRegion:
        return ir.TensorRegion(buffer, [ir.Range(0, size) for size in buffer.shape], self._output.writes[0].ty)

    def _read(self) -> list[Any]:
        buffers = [self._data, self._weights]
        buffers += [self._initial.source] if self._initial is not None else []
        buffers += [region.source for region in self._output.reads if not region.source.same_as(self._sums)]
        found: list[Any] = []
        for buffer in buffers:
            if not any(buffer.same_as(other) for other in found):
                found.append(buffer)
        return found

    # ---- columns -------------------------------------------------------------------------------------------------

    def _copy(self) -> tirx.Stmt:
        """The columns of a tile: window by window, run by run."""
        window = self._tiles.window
        pixel = tirx.Var("pixel", "int32")
        place = self._tiles.first_pixel(self._tile) + pixel
        down, across = tirx.Var("down", "int32"), tirx.Var("across", "int32")
        taps = window.run // window.channels
        k = (down * (window.kernel[1] // taps) + across) * window.run
        row, column = window.place(place, down, across)
        copy = self._code.copied(self._tiles, self._columns, pixel, k, self._reader(row, column, place), window.run)
        if window.padded:
            filled = self._code.filled(self._tiles, self._columns, pixel, k, self._pad, window.run)
            inside = tirx.all(row >= 0, row < window.height, column >= 0, column < window.width)
            copy = tirx.IfThenElse(inside, copy, filled)
        body = _loop(down, window.kernel[0], [_loop(across, window.kernel[1] // taps, [copy])])
        missing = self._tiles.values - window.values
        statements = [body]
        if missing:
            statements.append(
                self._code.filled(self._tiles, self._columns, pixel, const(window.values), 0, missing)
            )
        return _loop(pixel, self._tiles.pixels, statements)

    def _reader(self, row: Expr, column: Expr, pixel: Expr) -> Callable[[Expr, int], Expr]:
        """`count` neighbouring values from the run's j-th on."""
        channels = self._tiles.window.channels

        def read(j: Expr, count: int) -> Expr:
            c, beside = tirx.floormod(j, const(channels)), tirx.floordiv(j, const(channels))
            index = c if count == 1 else tirx.Ramp(c, const(1), count)
            if len(self._data.shape) == 2:
                return self._data[pixel, index]
            return self._data[self._image, row, column + beside, index]

        return read

    # ---- sums ----------------------------------------------------------------------------------------------------

    def _place(self, pixel: int, lane: int) -> Expr:
        return self._total[const(pixel * self._tiles.lanes + lane)]

    def _each(self) -> Iterator[tuple[int, int]]:
        for pixel in range(self._tiles.pixels):
            for lane in range(self._tiles.lanes):
                yield pixel, lane

    def _channel(self, lane: int) -> Expr:
        return self._tiles.first_channel(self._block) + lane

    def _start(self) -> tirx.Stmt:
        """The sums' initial values."""
        stores = []
        for pixel, lane in self._each():
            place, zero = self._place(pixel, lane), tirx.const(0, "int32")
            channel = tirx.min(self._channel(lane), const(self._tiles.channels - 1)) if self._short else self._channel(lane)
            value = zero if self._initial is None else self._initial.source[channel]
            stores.append(tirx.BufferStore(place.source, value, place.indices))
        return tirx.SeqStmt(stores)

    @property
    def _short(self) -> bool:
        return self._tiles.channels < self._tiles.lanes

    def _add(self) -> tirx.Stmt:
        return self._code.sums(self._tiles, self._columns, self._weights, self._block, self._place)

    # ---- epilogue ------------------------------------------------------------------------------------------------

    def _epilogue(self) -> Iterator[tirx.Stmt]:
        """The epilogue of every sum in the tile."""
        for pixel, lane in self._each():
            store = self._result(pixel, lane)
            if lane < self._tiles.channels:
                yield store

    def _result(self, pixel: int, lane: int) -> tirx.Stmt:
        variables = [iter_var.var for iter_var in self._output.iter_vars]
        place = self._tiles.first_pixel(self._tile) + pixel
        across = const(self._tiles.window.across)
        spatial = [place] if len(variables) == 2 else [self._image, tirx.floordiv(place, across), tirx.floormod(place, across)]
        known = dict(zip(variables, [*spatial, self._channel(lane)], strict=True))
        total = self._place(pixel, lane)

        def variable(var: tirx.Var) -> Expr:
            return known.get(var, var)

        def load(node: ir.TensorLoad) -> Expr:
            return total if node.source.same_as(self._sums) else node

        body = self._output.body
        if not self._fused:
            return tirx.BufferStore(self._sums, total, [known[var] for var in variables])
        body = tvm_ffi.structural_map(body, (ir.TensorLoad, load))
        return tvm_ffi.structural_map(body, (tirx.Var, variable))


def _loop(var: tirx.Var, extent: int, body: list[tirx.Stmt]) -> tirx.Stmt:
    """A loop; of a single round, only its body."""
    stmt = tirx.SeqStmt(body) if len(body) > 1 else body[0]
    if extent > 1:
        return tirx.For(var, const(0), const(extent), tirx.ForKind.SERIAL, stmt)
    return tvm_ffi.structural_map(stmt, (tirx.Var, lambda other: const(0) if other.same_as(var) else other))

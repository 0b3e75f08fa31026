"""Depthwise convolutions on cores with DSP instructions or Helium: four channels of neighbouring pixels at a time.

    for row of pixels: the rows of input under it, padded, in lines of memory
        for two pixels, four channels: acc += x·w of all taps, then the epilogue

A word of activations or of weights, four channels, becomes two of 16 bits with sxtb16: (c₀, c₂) and (c₁, c₃). smlabb
and smlatt multiply their halves. Helium takes the four channels as a vector of int32. Lines move up from row to row, so
each row is copied once from the input, and may be overwritten by a row of results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from ...targets.families import CORTEX_M
from ...targets.features import offers
from ..cpu.depthwise_conv2d import reach
from ..cpu.llvm_functions import define_routine
from ..refusal import lacking, other_dtypes
from ..strategy import Implementation, register
from ..workload import Conv2dWorkload
from .nest import PAD, Nest, Order, loop, schedule_nest, start
from .window import const

Expr = Any

PRODUCT, HELIUM = CORTEX_M.product("smlad"), CORTEX_M.product("vmladav")
QUAD = 4
MOST_TAPS = 25
MOST_OFFSET = 4095


def pack_weight(workload: Conv2dWorkload, weight: np.ndarray, lanes: int = QUAD) -> np.ndarray:
    """OHWI weights (C, kh, kw, 1) to (C/lanes, kh·kw, lanes): the last channels overlap with those before."""
    channels = workload.out_channels
    taps = weight.reshape(channels, -1)
    firsts = [min(first, channels - lanes) for first in range(0, channels, lanes)]
    return np.ascontiguousarray(np.stack([taps[first : first + lanes].T for first in firsts]))


def initial(workload: Conv2dWorkload, bias: np.ndarray) -> np.ndarray:
    """The bias as the sums' initial values."""
    return bias.reshape(-1).astype(np.int32)


def compute(workload: Conv2dWorkload, x: te.Tensor, w: te.Tensor, pad_value: int, lanes: int = QUAD) -> te.Tensor:
    """The accumulator, (N, OH, OW, C). Its stages only say what is read; `schedule` writes their code."""
    lines = te.compute((1,), lambda _: x(0, 0, 0, 0), name="columns", attrs={PAD: pad_value})
    k = te.reduce_axis((0, 1), "k")
    size = (workload.batch, workload.out_height, workload.out_width, workload.out_channels)

    def product(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        return te.sum(lines[k].astype("int32") * w[c // lanes, 0, c % lanes].astype("int32"), axis=k)

    return te.compute(size, product, name="sums")


def schedule(sch: Schedule, workload: Conv2dWorkload, target: Target) -> None:
    """The nest over rows, pixels and channels."""
    schedule_rows(sch, workload, target, HeliumRows if offers(target, HELIUM) else DspRows)


def schedule_rows(sch: Schedule, workload: Conv2dWorkload, target: Target, rows: type[Rows]) -> None:
    """The nest with some core's products."""
    schedule_nest(sch, target, lambda nest: rows(workload, nest).stmt(), rows.order(workload))


class Rows(ABC):
    """The loops of a depthwise convolution.

    lanes: channels of a tile
    copy:  the routine that copies words
    """

    lanes = QUAD
    copy = ""

    def __init__(self, workload: Conv2dWorkload, nest: Nest) -> None:
        self._workload, self._nest = workload, nest
        self._height = reach(1, 1, workload.kernel[0], workload.dilation[0])
        self._width = max(
            reach(workload.out_width, workload.strides[1], workload.kernel[1], workload.dilation[1]),
            workload.padding[1] + workload.width,
        )
        self._pixels = self.pixels(workload)
        shape = (self._height, self._width, workload.in_channels)
        self._lines = nest.buffer("lines", shape, "int8")
        self._total = nest.buffer("total", (self._pixels * self.lanes,), "int32")
        self._n, self._y = (tirx.Var(name, "int32") for name in ("n", "y"))

    @classmethod
    @abstractmethod
    def pixels(cls, workload: Conv2dWorkload) -> int:
        """Pixels of a tile, no more than a row has: those whose sums fit the registers."""

    @classmethod
    def order(cls, workload: Conv2dWorkload) -> Order | None:
        """The order of tiles. The first of a row copies the rows of input that are needed for the first time, before it
        writes anything; the others copy none."""
        if workload.batch > 1:
            return None
        row, channels = np.arange(workload.out_height)[:, None], workload.out_channels
        height = reach(1, 1, workload.kernel[0], workload.dilation[0])
        new = row * workload.strides[0] - workload.padding[0] + max(0, height - workload.strides[0])
        new[0] = 0
        read = np.clip(new, 0, workload.height) * workload.width * workload.in_channels
        pixels = cls.pixels(workload)
        tile = np.minimum(np.arange(0, workload.out_width, pixels), workload.out_width - pixels)
        first = row * workload.out_width + tile
        unread = np.full_like(first, workload.height * workload.width * workload.in_channels)
        unread[:, :1] = read
        return Order((first + pixels).ravel() * channels, unread.ravel(), first.ravel() * channels)

    def stmt(self) -> tirx.Stmt:
        """All loops."""
        workload = self._workload
        tile, block = tirx.Var("tile", "int32"), tirx.Var("block", "int32")
        first = start(tile, self._pixels, workload.out_width)
        channel = start(block, self.lanes, workload.out_channels)
        body = [*self._begin(channel), *self._taps(first, channel, block), *self._epilogue(first, channel)]
        blocks = loop(block, -(-workload.out_channels // self.lanes), body)
        tiles = loop(tile, -(-workload.out_width // self._pixels), [blocks])
        rows = loop(self._y, workload.out_height, [*self._copy(), tiles])
        return loop(self._n, workload.batch, [rows])

    # ---- lines ---------------------------------------------------------------------------------------------------

    def _copy(self) -> Iterator[tirx.Stmt]:
        """Lines that stay move up, then the new rows follow; before the first row of pixels all of them."""
        kept = max(0, self._height - self._workload.strides[0])
        line = tirx.Var("line", "int32")
        if kept:
            beyond = self._moved(line + self._workload.strides[0], line)
            move = tirx.For(line, const(0), const(kept), tirx.ForKind.SERIAL, beyond)
            yield tirx.IfThenElse(self._y > 0, move, None)
        begin = tirx.Select(tirx.EQ(self._y, const(0)), const(0), const(kept)) if kept else const(0)
        new = tirx.Var("new", "int32")
        yield tirx.For(new, const(0), const(self._height) - begin, tirx.ForKind.SERIAL, self._row(begin + new))

    def _moved(self, source: Expr, target: Expr) -> tirx.Stmt:
        zero = const(0)
        return self._copied(
            target, 0, self._width, lambda x, c: self._lines[source, x, c], self._lines[source, zero, zero]
        )

    def _row(self, line: Expr) -> tirx.Stmt:
        """A row of input, with its padding, or a row of padding."""
        workload, data = self._workload, self._nest.data
        row = self._y * workload.strides[0] - workload.padding[0] + line
        left, right = workload.padding[1], self._width - workload.padding[1] - workload.width
        first = data[self._n, row, const(0), const(0)]
        copy = self._copied(line, left, workload.width, lambda x, c: data[self._n, row, x, c], first)
        parts = [*self._filled(line, 0, left), copy, *self._filled(line, left + workload.width, right)]
        copied = tirx.SeqStmt(parts) if len(parts) > 1 else parts[0]
        if not (workload.padding[0] or workload.padding[2]):
            return copied
        inside = tirx.all(row >= 0, row < workload.height)
        (padding,) = self._filled(line, 0, self._width)
        return tirx.IfThenElse(inside, copied, padding)

    def _copied(self, line: Expr, first: int, count: int, value: Callable[..., Expr], source: Expr) -> tirx.Stmt:
        """Copies `count` pixels, value(x, channel), to a line; whole words from the address of `source` on."""
        channels = self._workload.in_channels
        if channels % QUAD == 0:
            target = self._lines[line, const(first), const(0)]
            # with the address of the last element TVM sees that the whole buffer is used
            last = self._lines[const(self._height - 1), const(self._width - 1), const(channels - 1)]
            places = map(tirx.address_of, (target, source, last))
            return tirx.Evaluate(tirx.call_extern("void", self.copy, *places, const(count * channels)))
        return self._each(line, first, count, value)

    def _filled(self, line: Expr, first: int, count: int) -> list[tirx.Stmt]:
        padding = tirx.const(self._nest.pad, "int8")
        return [self._each(line, first, count, lambda x, c: padding)] if count > 0 else []

    def _each(self, line: Expr, first: int, count: int, value: Callable[..., Expr]) -> tirx.Stmt:
        """Stores value(x, channel) at `count` places of a line."""
        x, c = tirx.Var("x", "int32"), tirx.Var("c", "int32")
        store = tirx.BufferStore(self._lines, value(x, c), [line, x + first, c])
        return loop(x, count, [loop(c, self._workload.in_channels, [store])])

    # ---- products ------------------------------------------------------------------------------------------------

    def _begin(self, channel: Expr) -> Iterator[tirx.Stmt]:
        for pixel in range(self._pixels):
            for lane in range(self.lanes):
                value = self._nest.initial(channel + lane)
                yield tirx.BufferStore(self._total, value, [const(pixel * self.lanes + lane)])

    @abstractmethod
    def _taps(self, first: Expr, channel: Expr, block: Expr) -> Iterator[tirx.Stmt]:
        """Adds the products of all taps to the sums of a tile."""

    def _add(self, routine: str, first: Expr, channel: Expr, block: Expr) -> tirx.Stmt:
        """A call of routine(lines, weights, sums)."""
        addresses = [
            self._lines[const(0), first * self._workload.strides[1], channel],
            self._nest.weights[block, const(0), const(0)],
            self._total[const(0)],
        ]
        return tirx.Evaluate(tirx.call_extern("void", routine, *map(tirx.address_of, addresses)))

    def _between(self) -> tuple[int, int, int]:
        """Bytes in the lines from one row of taps to the next, from tap to tap, from pixel to pixel."""
        workload = self._workload
        (down, across), stride, channels = workload.dilation, workload.strides[1], workload.in_channels
        return down * self._width * channels, across * channels, stride * channels

    def _epilogue(self, first: Expr, channel: Expr) -> Iterator[tirx.Stmt]:
        for pixel in range(self._pixels):
            for lane in range(self.lanes):
                place = [self._n, self._y, first + pixel, channel + lane]
                yield self._nest.result(place, self._total[const(pixel * self.lanes + lane)])


COPY = define_routine(
    "copy_words",
    [
        *("subs r3, r3, #16", "blt 2f", "1:", "ldm r1!, {r2, r4, r5, r12}", "stm r0!, {r2, r4, r5, r12}"),
        *("subs r3, r3, #16", "bge 1b", "2:", "adds r3, r3, #16", "beq 4f", "3:", "ldr r2, [r1], #4"),
        *("str r2, [r0], #4", "subs r3, r3, #4", "bne 3b", "4:"),
    ],
    "={r0},={r1},={r2},={r3},0,1,2,3,~{r4},~{r5},~{r12},~{cc},~{memory}",
    ("ptr", "ptr", "ptr", "i32"),
)
"""copy(target, source, end, bytes): whole words."""


class DspRows(Rows):
    """With smlabb and smlatt."""

    copy = COPY

    @classmethod
    def pixels(cls, workload: Conv2dWorkload) -> int:
        """Two, whose sums take eight registers."""
        return min(2, workload.out_width)

    def _taps(self, first: Expr, channel: Expr, block: Expr) -> Iterator[tirx.Stmt]:
        routine = _routine(self._pixels, *self._workload.kernel, *self._between())
        yield self._add(routine, first, channel, block)


class HeliumRows(Rows):
    """With vectors of four channels."""

    copy = COPY

    @classmethod
    def pixels(cls, workload: Conv2dWorkload) -> int:
        """Four, with a register of sums each."""
        return min(4, workload.out_width)

    def _begin(self, channel: Expr) -> Iterator[tirx.Stmt]:
        for pixel in range(self._pixels):

            def stmt(lane: Expr, pixel: int = pixel) -> tirx.Stmt:
                return tirx.BufferStore(self._total, self._nest.initial(channel + lane), [pixel * QUAD + lane])

            yield self._vector(stmt)

    def _taps(self, first: Expr, channel: Expr, block: Expr) -> Iterator[tirx.Stmt]:
        (height, width), (down, across), stride = (
            self._workload.kernel,
            self._workload.dilation,
            self._workload.strides[1],
        )
        wide = f"int32x{QUAD}"
        for row in range(height):
            for tap in range(width):
                lanes = tirx.Ramp(const(0), const(1), QUAD)
                weight = self._nest.weights[block, const(row * width + tap), lanes].astype(wide)
                for pixel in range(self._pixels):
                    column = (first + pixel) * stride + tap * across
                    value = self._lines[const(row * down), column, tirx.Ramp(channel, const(1), QUAD)].astype(wide)
                    place = tirx.Ramp(const(pixel * QUAD), const(1), QUAD)
                    yield tirx.BufferStore(self._total, self._total[place] + value * weight, [place])

    def _epilogue(self, first: Expr, channel: Expr) -> Iterator[tirx.Stmt]:
        for pixel in range(self._pixels):

            def stmt(lane: Expr, pixel: int = pixel) -> tirx.Stmt:
                place = [self._n, self._y, first + pixel, channel + lane]
                return self._nest.result(place, self._total[pixel * QUAD + lane])

            yield self._vector(stmt)

    def _vector(self, stmt: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
        lane = tirx.Var("lane", "int32")
        return tirx.For(lane, const(0), const(QUAD), tirx.ForKind.VECTORIZED, stmt(lane))


@cache
def _routine(pixels: int, height: int, width: int, down: int, across: int, beside: int) -> str:
    """routine(lines, weights, int32 sums[pixels][4]): adds the products of all taps.

    down, across, beside: bytes from one row of taps to the next, from tap to tap, from pixel to pixel. Sums are in
    registers from r4 on; r6 and r7, which may hold the frame's address, are put back.
    """
    sums = [f"r{number}" for number in range(4, 4 + QUAD * pixels)]
    lines = ["push {r2, r6, r7}", f"ldm r2, {{{', '.join(sums)}}}"]
    for row in range(height):
        for tap in range(width):
            lines += ["ldr r12, [r1], #4", "sxtb16 r3, r12", "sxtb16 r12, r12, ror #8"]
            for pixel in range(pixels):
                c0, c1, c2, c3 = sums[QUAD * pixel :][:QUAD]
                lines += [f"ldr r2, [r0, #{tap * across + pixel * beside}]"]
                lines += ["sxtb16 lr, r2, ror #8", "sxtb16 r2, r2"]
                lines += [f"smlabb {c0}, r2, r3, {c0}", f"smlatt {c2}, r2, r3, {c2}"]
                lines += [f"smlabb {c1}, lr, r12, {c1}", f"smlatt {c3}, lr, r12, {c3}"]
        left = down if row + 1 < height else 0
        while left:
            lines.append(f"addw r0, r0, #{min(left, MOST_OFFSET)}")
            left -= min(left, MOST_OFFSET)
    lines += ["ldr r2, [sp]", f"stm r2, {{{', '.join(sums)}}}", "pop {r2, r6, r7}"]
    changed = [f"={{r{number}}}" for number in range(3)] + [str(number) for number in range(3)]
    names = ("r3", "r4", "r5", "r8", "r9", "r10", "r11", "r12", "lr", "cc", "memory")
    name = f"depthwise_{pixels}_{height}x{width}_{down}_{across}_{beside}"
    return define_routine(name, lines, ",".join(changed + [f"~{{{lost}}}" for lost in names]), ("ptr",) * 3)


def _refuses(workload: Conv2dWorkload, target: Target) -> str | None:
    """Why it does not take a workload."""
    refused = other_dtypes(workload, ("int8",), ("int8",)) or lacking(target, PRODUCT)
    if refused:
        return refused
    if workload.multiplier > 1:
        return f"{workload.multiplier} output channels per input channel"
    if workload.in_channels < QUAD:
        return f"{workload.in_channels} channels"
    if workload.kernel[0] * workload.kernel[1] > MOST_TAPS:
        return f"{workload.kernel[0] * workload.kernel[1]} taps"
    last = (workload.kernel[1] - 1) * workload.dilation[1] + workload.strides[1]
    return "channels too far apart" if last * workload.in_channels > MOST_OFFSET else None


register(
    Conv2dWorkload,
    Implementation(
        name="depthwise_conv2d_nhwc.cortex_m",
        priority=10,
        backends=(CORTEX_M,),
        compute=compute,
        schedule=schedule,
        depthwise=True,
        floats=False,
        refuses=_refuses,
        pack_weight=pack_weight,
        initial=initial,
        accumulator="sums",
    ),
)

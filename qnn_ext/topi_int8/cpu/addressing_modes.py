"""The addressing modes of conv2d, kinds of `addressing.Addressing`.

    Flat     1×1, stride 1, no padding, and a tile that fits: the image is one row of pixels
    Line     the windows of all pixels as one row, copied, for matrices: 1×1, or images of few columns
    Spatial  rows and columns of pixels, input channels padded to the depth of the instruction
    Rows     input channels that are no multiple of the depth, and no dilation along the width: the kw·I neighbouring
             values of a window row are one contiguous run of memory, reduced as a whole
    Window   the same, where padding each row of the window to the depth wastes more than interleaving the rows costs:
             then the whole window is one run
    Gathered groups of few channels: each lane reads those of its group, see `gathered`

Flat fits only some tiles; for the others, the first that the workload allows is taken: Line, Window, Rows, Spatial. A
kernel asks its mode for sizes, for the reduction, and for the copies of the activations that it needs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from ..workload import Conv2dWorkload, is_float
from .addressing import (
    Direct,
    ScheduleCopy,
    copy_pixels,
    copy_runs,
    guarded,
    interleaving,
    padded_lines,
    within,
)
from .dot import DotInstruction
from .gathered import GatheredDot
from .interleave import VECTOR, Interleaving
from .matrix import MatrixDot, in_words
from .microkernel import Domain, Tile, epilogue_cycles, padding, round_up

FILLED = 0.7
"""The least share of a matrix's rows that the pixels of an image's row should fill."""
COPIED_TAP, COPIED_BYTES = 2.0, 32
"""To copy a window: cycles for each tap, and bytes in each cycle."""

SHUFFLED_BESIDE = 2.5
"""Dot products and shuffles that start in a cycle on a core with two ports for either, one of them for both."""

UNROLLED_DOTS = 288
"""The most dot products of a tile of `Gathered` that are unrolled over the window's rows too."""


class Spatial(Direct):
    """Rows and columns of pixels, each with its channels, padded to the span."""

    tap_axes = 2

    @property
    def accepts(self) -> bool:
        return True

    @property
    def taps(self) -> tuple[int, int, int]:
        return (*self.workload.kernel, round_up(self.in_group, self.instruction.span))

    @property
    def run(self) -> int:
        return self.in_group

    def tap(self, pixel: tuple[Any, ...], kh: Any, kw: Any, channel: Any) -> tuple[Any, ...]:
        n, y, x = pixel
        strides, dilation = self.workload.strides, self.workload.dilation
        return n, y * strides[0] + kh * dilation[0], x * strides[1] + kw * dilation[1], channel

    def stage(self, x: te.Tensor, rows: int, columns: int, pad_value: int) -> te.Tensor:
        """(N, height, width, channels), padded after the last group's channels to whole steps."""
        workload, dtype = self.workload, self.instruction.data_dtype
        height, width, channels = workload.height, workload.width, workload.in_channels
        top, left = workload.padding[:2]
        bottom, right = self.reach(rows, columns)
        deep = channels - self.in_group + self.taps[2]

        def padded(n, y, column, c):
            inside = within(y, top, height, bottom) + within(column, left, width, right)
            inside += [c < channels] if deep > channels else []
            return guarded(inside, x[n, y - top, column - left, c].astype(dtype), pad_value, dtype)

        return te.compute((workload.batch, bottom, right, deep), padded, name="pad")

    def copies(self, columns: int, by_strip: bool) -> dict[str, ScheduleCopy]:
        return {"pad": copy_pixels} if by_strip else {}


class Flat(Spatial):
    """The image as one row of pixels; if images have a single row, all of them are one row."""

    tap_axes = 0
    pixel_axes = 1

    @property
    def accepts(self) -> bool:
        workload = self.workload
        pointwise = workload.kernel == (1, 1) and workload.strides == (1, 1) and not any(workload.padding)
        return pointwise and not Rows(workload, self.instruction, self.groups).accepts

    @property
    def domain(self) -> Domain:
        square, workload = super().domain, self.workload
        pixels = workload.out_width * (workload.batch if workload.out_height == 1 else workload.out_height)
        sizes = (square.blocks, square.steps, square.copied, square.ragged)
        return Domain(1, pixels, *sizes, line=0 if self.resolved else workload.width)

    @property
    def resolved(self) -> bool:
        """Whether TVM is told which pixels of the accumulator a tile needs, see `conv2d.resolve_pixels`."""
        return isinstance(self.instruction, MatrixDot)

    @property
    def images(self) -> int:
        return 1 if self.workload.out_height == 1 else self.workload.batch

    def takes(self, tile: Tile) -> bool:
        domain = self.domain
        return tile.rows == 1 and domain.takes(tile) and domain.columns % tile.columns == 0

    def pixel(self, n: Any, y: Any, x: Any) -> tuple[Any, ...]:
        width = self.workload.out_width
        return (y, n * width + x) if self.workload.out_height == 1 else (n, y * width + x)

    def reach(self, rows: int, columns: int) -> tuple[int, int]:
        return self.workload.height, self.workload.width

    def tap(self, pixel: tuple[Any, ...], kh: Any, kw: Any, channel: Any) -> tuple[Any, ...]:
        image, p = pixel
        row, column = p // self.workload.width, p % self.workload.width
        n, y = (row, image) if self.workload.height == 1 else (image, row)
        return n, y, column, channel

    def cuts_at(self, pixels: int) -> bool:
        return pixels % self.workload.width == 0 or self.workload.width % pixels == 0


class Line(Flat):
    """The windows of all pixels, copied one after another, and the last one again to fill the last tile: for matrices,
    whose rows are at equal distances."""

    tap_axes = 2

    @property
    def accepts(self) -> bool:
        """For matrices, where each pixel has one value a channel to copy, or the width of the image would leave many of
        their rows empty."""
        workload = self.workload
        if not isinstance(self.instruction, MatrixDot) or Rows(workload, self.instruction, self.groups).accepts:
            return False
        pointwise = workload.kernel == (1, 1) and not any(workload.padding)
        rows, width = self.instruction.rows, workload.out_width
        return pointwise or width < FILLED * round_up(width, rows)

    @property
    def domain(self) -> Domain:
        return replace(super().domain, copied=True)

    def takes(self, tile: Tile) -> bool:
        return tile.rows == 1

    def cost(self, tile: Tile) -> float:
        """That of the products, and of copying a pixel's window, shared by its blocks of channels."""
        height, width, deep = self.taps
        copied = height * width * (COPIED_TAP + deep / COPIED_BYTES)
        return super().cost(tile) + copied / (self.groups * self.domain.blocks)

    def tap(self, pixel: tuple[Any, ...], kh: Any, kw: Any, channel: Any) -> tuple[Any, ...]:
        return (*pixel, kh, kw, channel)

    def stage(self, x: te.Tensor, rows: int, columns: int, pad_value: int) -> te.Tensor:
        """(images, pixels, kh, kw, channels), with channels padded to whole steps."""
        workload, dtype, last = self.workload, self.instruction.data_dtype, self.domain.columns - 1
        width, channels = workload.out_width, workload.in_channels
        (top, left), strides, dilation = workload.padding[:2], workload.strides, workload.dilation
        bottom, right = self.reach(rows, columns)
        deep = channels - self.in_group + self.taps[2]

        def copied(image, p, kh, kw, c):
            p = tirx.min(p, last) if columns > last + 1 else p
            n, y = (p // width, image) if workload.out_height == 1 else (image, p // width)
            row, column = y * strides[0] + kh * dilation[0], p % width * strides[1] + kw * dilation[1]
            inside = within(row, top, workload.height, bottom) + within(column, left, workload.width, right)
            inside += [c < channels] if deep > channels else []
            return guarded(inside, x[n, row - top, column - left, c].astype(dtype), pad_value, dtype)

        return te.compute((self.images, columns, *workload.kernel, deep), copied, name="pad")

    def reach(self, rows: int, columns: int) -> tuple[int, int]:
        return super(Flat, self).reach(self.workload.out_height, self.workload.out_width)

    def cuts_at(self, pixels: int) -> bool:
        return True


class Rows(Direct):
    """A row of the window is one run of memory: the channels of one pixel after those of the other."""

    tap_axes = 1

    @property
    def accepts(self) -> bool:
        workload = self.workload
        gapless = workload.dilation[1] == 1 or workload.kernel[1] == 1
        whole = self.run % self.instruction.span == 0 or not is_float(workload)  # else the next pixel's, times zero
        if workload.kernel == (1, 1) and isinstance(self.instruction, MatrixDot):
            return False  # `Line` copies better
        return self.groups == 1 and bool(self.in_group % self.instruction.span) and gapless and whole

    @property
    def taps(self) -> tuple[int, int, int]:
        return self.workload.kernel[0], 1, round_up(self.run, self.instruction.span)

    @property
    def run(self) -> int:
        return self.workload.kernel[1] * self.pixel_size

    @property
    def pixel_size(self) -> int:
        """The channels; in matrices, zeros are behind those of floats."""
        matrices = isinstance(self.instruction, MatrixDot)
        return in_words(self.workload, super().pixel_size, self.instruction.depth) if matrices else super().pixel_size

    def ordered(self, weight: np.ndarray) -> np.ndarray:
        return super().ordered(np.pad(weight, [(0, 0)] * 3 + [(0, self.pixel_size - self.workload.in_channels)]))

    def tap(self, pixel: tuple[Any, ...], kh: Any, kw: Any, channel: Any) -> tuple[Any, ...]:
        n, y, x = pixel
        workload = self.workload
        row = y * workload.strides[0] + kh * workload.dilation[0]
        return n, row, x * (workload.strides[1] * self.pixel_size) + channel

    def stage(self, x: te.Tensor, rows: int, columns: int, pad_value: int) -> te.Tensor:
        length = (columns - 1) * self.workload.strides[1] * self.pixel_size + self.taps[2]
        return padded_lines(self, x, self.reach(rows, columns)[0], length, pad_value, "pad")

    def copies(self, columns: int, by_strip: bool) -> dict[str, ScheduleCopy]:
        return {"pad": self.copy_line}

    def copy_line(self, sch: Schedule, stage: SBlockRV) -> None:
        """Schedule a padded line with its padding apart, so that the copied part is one run of memory."""
        copy_runs(sch, self, stage)


class Window(Rows):
    """All values under a window are one run of memory: its rows are interleaved, pixel by pixel.

    Weights are in the order of the run, (kw, kh, I).
    """

    tap_axes = 0

    @property
    def accepts(self) -> bool:
        """Whether interleaving the rows of the window costs less than the dot products that it saves.

        Each interleaved vector costs a load and an insertion per row, and some instructions to shuffle and store it.
        """
        workload, instruction = self.workload, self.instruction
        if not super().accepts:
            return False
        saved = (math.prod(super().taps) - math.prod(self.taps)) // instruction.depth
        blocks, rows = round_up(workload.out_channels, instruction.lanes) // instruction.lanes, workload.kernel[0]
        vectors = workload.strides[1] * rows * workload.in_channels / instruction.vector_bytes
        bytewise = workload.data_dtype == instruction.data_dtype == "uint8"
        gains = bytewise and saved * blocks > vectors * (rows + 4)
        return gains and self._interleaving(workload.out_width).legal

    @property
    def taps(self) -> tuple[int, int, int]:
        return 1, 1, round_up(self.workload.kernel[0] * self.run, self.instruction.span)

    def tap(self, pixel: tuple[Any, ...], kh: Any, kw: Any, channel: Any) -> tuple[Any, ...]:
        n, y, x = pixel
        return n, y, x * (self.workload.strides[1] * self.workload.kernel[0] * self.workload.in_channels) + channel

    def ordered(self, weight: np.ndarray) -> np.ndarray:
        return super().ordered(weight.transpose(0, 2, 1, 3))

    def stage(self, x: te.Tensor, rows: int, columns: int, pad_value: int) -> te.Tensor:
        """For each row of output pixels, the rows of its windows interleaved pixel by pixel."""
        windows, stride = self._interleaving(columns), self.workload.strides[0]
        count, channels = windows.rows, windows.channels
        lines = padded_lines(self, x, self.reach(rows, columns)[0], windows.width, pad_value, "pad")

        def interleaved(n, y, j):
            row = y * stride + j // channels % count * windows.step
            return lines[n, row, j // (count * channels) * channels + j % channels]

        return te.compute((self.workload.batch, rows, windows.length), interleaved, name="window")

    def copies(self, columns: int, by_strip: bool) -> dict[str, ScheduleCopy]:
        def interleave(sch: Schedule, stage: SBlockRV) -> None:
            sch.storage_align(stage, 0, 1, VECTOR, 0)
            sch.tensorize(sch.get_loops(stage)[-1], self._interleaving(columns).tensor_intrin)

        return {"window": interleave, "pad": self.copy_line}

    def extra_bytes(self, rows: int, columns: int) -> int:
        return rows * self._interleaving(columns).length

    def _interleaving(self, columns: int) -> Interleaving:
        """How the rows under a line of `columns` windows are interleaved."""
        return interleaving(self.workload, columns, self.instruction.span)


class Gathered(Direct):
    """Groups of few channels: a block of output channels reads the values of its own groups, each lane its group's.

    Lines of the padded image are runs of memory, as the values of a block may end in the next pixel's. The window is
    unrolled, so that columns that several pixels of a tile read are gathered once.
    """

    tap_axes = 2

    @property
    def accepts(self) -> bool:
        return True

    @property
    def merged(self) -> int:
        return 1

    @property
    def taps(self) -> tuple[int, int, int]:
        return (*self.workload.kernel, self.run)

    @property
    def run(self) -> int:
        return self.instruction.span

    @property
    def domain(self) -> Domain:
        return replace(super().domain, copied=True)

    def channel(self, block: Any, group_blocks: int, lane: Any, k: Any) -> Any:
        return block * self.instruction.activations + self.instruction.source(lane, k)

    def tap(self, pixel: tuple[Any, ...], kh: Any, kw: Any, channel: Any) -> tuple[Any, ...]:
        n, y, x = pixel
        (down, across), dilation = self.workload.strides, self.workload.dilation
        channels = self.workload.in_channels
        return n, y * down + kh * dilation[0], x * (across * channels) + kw * (dilation[1] * channels) + channel

    def stage(self, x: te.Tensor, rows: int, columns: int, pad_value: int) -> te.Tensor:
        bottom, right = self.reach(rows, columns)
        length = (right - 1) * self.workload.in_channels + self.domain.blocks * self.instruction.activations
        return padded_lines(self, x, bottom, length, pad_value, "pad")

    def copies(self, columns: int, by_strip: bool) -> dict[str, ScheduleCopy]:
        return {"pad": lambda sch, stage: copy_runs(sch, self, stage)}

    def cost(self, tile: Tile) -> float:
        """Cycles, as `microkernel` counts them, of a core with three ports for dot products and shuffles."""
        (_, stride), (_, dilation), (height, width) = (
            self.workload.strides,
            self.workload.dilation,
            self.workload.kernel,
        )
        columns = {x * stride + s * dilation for x in range(tile.columns) for s in range(width)}
        domain, shuffles = self.domain, self.instruction.chain * height * len(columns) / tile.columns
        products = max(domain.steps / 2, (domain.steps + shuffles) / SHUFFLED_BESIDE)
        return (products + epilogue_cycles(tile, domain)) * padding(tile, domain)

    def unrolled(self, tile: Tile) -> int:
        dots = tile.rows * tile.columns * tile.blocks * math.prod(self.taps) // self.instruction.depth
        return 3 if dots <= UNROLLED_DOTS else 2


@lru_cache(maxsize=4096)
def modes(workload: Conv2dWorkload, instruction: DotInstruction, groups: int) -> tuple[Direct, ...]:
    """The modes for `groups` merged groups; the first that takes a tile is used, and the last takes every tile."""
    if isinstance(instruction, GatheredDot):
        return (Gathered(workload, instruction, groups),)
    kinds = (kind(workload, instruction, groups) for kind in (Window, Rows, Spatial))
    lines = (kind(workload, instruction, groups) for kind in (Flat, Line))
    return *(mode for mode in lines if mode.accepts), next(mode for mode in kinds if mode.accepts)

"""Addressing modes of conv2d: how the activations lie in memory, and where each tap of the window reads its values.

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
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from ..schedule_util import extent, vectorize_inner
from ..workload import Conv2dWorkload, is_float
from .dot import DotInstruction
from .gathered import GatheredDot
from .interleave import VECTOR, Interleaving
from .matrix import MatrixDot, in_words
from .microkernel import Domain, Tile, epilogue_cycles, is_ragged, padding, round_up, tile_cost

ScheduleCopy = Callable[[Schedule, SBlockRV], None]


@dataclass(frozen=True)
class Addressing(ABC):
    """How a convolution's activations are laid out for an instruction.

    groups:     groups after merging neighbours, see `conv2d.merged_groups`

    tap_axes:   how many of the window's axes are loops around the run, rows first
    pixel_axes: axes of pixels in the accumulator: rows and columns, or all pixels as one
    """

    workload: Conv2dWorkload
    instruction: DotInstruction
    groups: int

    tap_axes: ClassVar[int]
    pixel_axes: ClassVar[int] = 2

    @property
    def in_group(self) -> int:
        """Input channels of a group."""
        return self.workload.in_channels // self.groups

    @property
    def out_group(self) -> int:
        """Output channels of a group."""
        return self.workload.out_channels // self.groups

    @property
    @abstractmethod
    def accepts(self) -> bool:
        """Whether the workload can be addressed this way, and benefits from it."""

    @property
    @abstractmethod
    def taps(self) -> tuple[int, int, int]:
        """(kh, kw, run): extents of the reduction. `run` values are contiguous and a multiple of the span."""

    @property
    @abstractmethod
    def domain(self) -> Domain:
        """What a tile has to cover."""

    @property
    def images(self) -> int:
        """Number of images in the accumulator."""
        return self.workload.batch

    @property
    def pixel_size(self) -> int:
        """Values from one pixel to the next of a line that is one run of memory."""
        return self.workload.in_channels

    @property
    def merged(self) -> int:
        """How many of the workload's groups are one block-diagonal group."""
        return self.workload.groups // self.groups

    def takes(self, tile: Tile) -> bool:
        """Whether a legal tile can be used."""
        return True

    def cost(self, tile: Tile) -> float:
        """Predicted cost of a legal tile per vector of accumulators."""
        return tile_cost(tile, self.domain, self.instruction)

    def unrolled(self, tile: Tile) -> int:
        """How many of the innermost loops over the reduction are unrolled explicitly."""
        return 0

    def pixel(self, n: Any, y: Any, x: Any) -> tuple[Any, ...]:
        """An output pixel's position in the accumulator: the image, and `pixel_axes` indices."""
        return n, y, x

    def axes(self, n: Any, y: Any, x: Any, c: Any) -> tuple[Any, ...]:
        """The output's axes as the kernel iterates over them: pixels, groups and the channels of a group."""
        channel = (c // self.out_group, c % self.out_group) if self.groups > 1 else (c,)
        return (*self.pixel(n, y, x), *channel)

    def reach(self, rows: int, columns: int) -> tuple[int, int]:
        """Height and width of padded input that rows × columns of output pixels read."""
        workload = self.workload
        sizes = zip((rows, columns), workload.strides, workload.kernel, workload.dilation, strict=True)
        height, width = ((size - 1) * stride + (kernel - 1) * dilation + 1 for size, stride, kernel, dilation in sizes)
        return height, width

    def ordered(self, weight: np.ndarray) -> np.ndarray:
        """Weights (O, kh, kw, I) as (O, *taps), with runs not yet padded."""
        return weight.reshape(len(weight), *self.taps[:2], -1)

    def extra_bytes(self, rows: int, columns: int) -> int:
        """Bytes staged for rows × columns of output pixels, besides the rows of input that they read."""
        return 0


class Direct(Addressing):
    """Modes for instructions that broadcast neighbouring values of one pixel.

    Activations are read in place, unless they have to be padded.
    """

    @property
    @abstractmethod
    def run(self) -> int:
        """Neighbouring values that are reduced together, before padding."""

    @property
    def domain(self) -> Domain:
        workload, lanes = self.workload, self.instruction.lanes
        widened = workload.data_dtype != self.instruction.data_dtype
        copied = any(workload.padding) or self.in_group % self.instruction.span != 0 or widened
        blocks = round_up(self.out_group, lanes) // lanes
        steps = math.prod(self.taps) // self.instruction.depth
        ragged = is_ragged(self.out_group, self.instruction)
        return Domain(workload.out_height, workload.out_width, blocks, steps, copied, ragged)

    def staged(self, rows: int, columns: int) -> bool:
        """Whether the activations for rows × columns of output pixels are first copied to a padded buffer."""
        bottom, right = self.reach(rows, columns)
        return self.domain.copied or bottom > self.workload.height or right > self.workload.width

    def channel(self, block: Any, group_blocks: int, lane: Any, k: Any) -> Any:
        """Where the run of a lane's values begins, after all preceding groups, plus k."""
        return (block // group_blocks * self.in_group if self.groups > 1 else 0) + k

    @abstractmethod
    def tap(self, pixel: tuple[Any, ...], kh: Any, kw: Any, channel: Any) -> tuple[Any, ...]:
        """The index of a tap's value in the activations. `channel` counts along the run, after all preceding groups."""

    @abstractmethod
    def stage(self, x: te.Tensor, rows: int, columns: int, pad_value: int) -> te.Tensor:
        """The activations as `tap` reads them for rows × columns of output pixels: padded, in the instruction's
        dtype."""

    @abstractmethod
    def copies(self, columns: int, by_strip: bool) -> dict[str, ScheduleCopy]:
        """The blocks of `stage`, last one first, each with the function that schedules a row of it.

        Blocks scheduled like any other block of the function are left out. by_strip: each strip of tiles has its own
        """

    def cuts_at(self, pixels: int) -> bool:
        """Whether `pixels` pixels of the first axis read a part of the input that can be copied by itself."""
        return True


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


FILLED = 0.7
"""The least share of a matrix's rows that the pixels of an image's row should fill."""
COPIED_TAP, COPIED_BYTES = 2.0, 32
"""To copy a window: cycles for each tap, and bytes in each cycle."""

SHUFFLED_BESIDE = 2.5
"""Dot products and shuffles that start in a cycle on a core with two ports for either, one of them for both."""

UNROLLED_DOTS = 288
"""The most dot products of a tile of `Gathered` that are unrolled over the window's rows too."""


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


def interleaving(workload: Conv2dWorkload, columns: int, span: int) -> Interleaving:
    """How the rows under a line of `columns` windows, each padded to the span, are interleaved."""
    rows, width, channels = *workload.kernel, workload.in_channels
    window = round_up(rows * width * channels, span)
    length = (columns - 1) * workload.strides[1] * rows * channels + window
    return Interleaving(length, rows, channels, workload.dilation[0])


def padded_lines(mode: Addressing, x: te.Tensor, bottom: int, length: int, pad_value: int, name: str) -> te.Tensor:
    """(N, bottom, length): the rows of the padded input, each one run of memory."""
    workload, dtype, size = mode.workload, mode.instruction.data_dtype, mode.pixel_size
    height, width, channels = workload.height, workload.width, workload.in_channels
    top, left = workload.padding[:2]

    def line(n, y, j):
        inside = within(y, top, height, bottom) + within(j, left * size, width * size, length)
        inside += [j % size < channels] if size > channels else []
        j = j - left * size
        return guarded(inside, x[n, y - top, j // size, j % size].astype(dtype), pad_value, dtype)

    return te.compute((workload.batch, bottom, length), line, name=name)


def within(index: Any, before: int, size: int, total: int) -> list[Any]:
    """The conditions that `index` is among the `size` values after the first `before` of `total`, without trivial
    ones."""
    return ([index >= before] if before else []) + ([index < before + size] if before + size < total else [])


def guarded(conditions: list[Any], value: Any, otherwise: int, dtype: str) -> Any:
    """`value` where all conditions hold, and the constant `otherwise` elsewhere."""
    return tirx.if_then_else(tirx.all(*conditions), value, tirx.const(otherwise, dtype)) if conditions else value


def copy_pixels(sch: Schedule, stage: SBlockRV) -> None:
    """Schedule a row of a copy as vectors of channels."""
    vectorize_inner(sch, sch.get_loops(stage)[-1], 64)


def copy_runs(sch: Schedule, mode: Addressing, stage: SBlockRV) -> None:
    """Schedule a padded line with its padding apart, so that the part copied from the input is one run of memory, or
    pixels one by one if zeros are behind the channels of each."""
    *_, column = sch.get_loops(stage)
    workload, size = mode.workload, mode.pixel_size
    if size > workload.in_channels:
        column, value = sch.split(column, [None, size])
        sch.unroll(value)
        size = 1
    left, inside = workload.padding[1] * size, workload.width * size
    parts = [left, min(inside, extent(sch, column) - left), extent(sch, column) - left - inside]
    parts = [part for part in parts if part > 0]
    if len(parts) > 1:
        sch.loop_partition(column, [*parts[:-1], None])

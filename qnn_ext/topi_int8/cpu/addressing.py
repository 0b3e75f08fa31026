"""Addressing of conv2d: how the activations lie in memory, and where each tap of the window reads its values.

A kernel asks its mode, one of `addressing_modes`, for sizes, for the reduction, and for the copies of the activations
that it needs. Those copies are here too.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from ..schedule_util import extent, vectorize_inner
from ..workload import Conv2dWorkload
from .dot import DotInstruction
from .interleave import Interleaving
from .microkernel import Domain, Tile, is_ragged, round_up, tile_cost

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

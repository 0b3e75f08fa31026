"""Addressing modes of conv2d with smmla. Activations are always staged, padded, with eight values of each of several
neighbouring pixels side by side.

    Flat     1×1 without padding, any stride: (N, G·I/8, pixels, 8), the image's pixels as one row
    Window   (N, output rows, K/8, 1, columns, 8): all rows of the window, if padding each wastes more than copying the
             window for each output row: first the whole eights of each row, then the rows' remainders
    Rows     (N, rows, run/8, 1, columns, 8): runs of a row of the window, if they waste less than padding each pixel
    Spatial  (N, rows, G·I/8, phase, columns / stride, 8): windows that begin `stride` columns apart are side by side

The first that a workload allows is taken.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from ..cpu.addressing import Addressing, copy_runs, guarded, interleaving, padded_lines, within
from ..cpu.microkernel import Domain, round_up
from ..schedule_util import extent, parallel_rows
from ..workload import Conv2dWorkload
from .smmla import CHANNELS, DEPTH, PIXELS, QUADS, SMMLA
from .smmla_tile import copy_steps

ScheduleCopy = Callable[[Schedule, SBlockRV, bool], None]

COPY = 4
"""Instructions to copy some values of a pixel to their place in a step."""


class Staged(Addressing):
    """Addressing modes for smmla."""

    tap_axes = 2

    @property
    def domain(self) -> Domain:
        steps = math.prod(self.taps) // DEPTH
        return Domain(*self._pixels, -(-self.out_group // CHANNELS), steps, copied=True, ragged=False)

    @property
    def _pixels(self) -> tuple[int, int]:
        """Rows and columns of output pixels."""
        return self.workload.out_height, self.workload.out_width

    @abstractmethod
    def stage(self, x: te.Tensor, rows: int, columns: int, pad_value: int) -> te.Tensor:
        """The activations as `tap` reads them for rows × columns of output pixels."""

    def tap(self, pixel: tuple[Any, ...], kh: Any, kw: Any, step: Any, k: Any) -> tuple[Any, ...]:
        """The index of value `k` of a step of eight in the staged activations."""
        (n, y, x), workload = pixel, self.workload
        start, stride = kw * workload.dilation[1], workload.strides[1]
        return n, y * workload.strides[0] + kh * workload.dilation[0], step, start % stride, x + start // stride, k

    def copies(self, columns: int) -> dict[str, ScheduleCopy]:
        """The blocks of `stage`, last one first, each with the function that schedules it, in parallel or serially."""
        return {"pad": self._copy_steps}

    def _channel(self, step: Any, k: Any) -> tuple[Any, list[Any]]:
        """The channel of a staged value, and the conditions under which there is one."""
        steps = self.taps[2] // DEPTH
        if self.in_group == self.taps[2]:
            return step * DEPTH + k, []
        place = step % steps * DEPTH + k
        return step // steps * self.in_group + place, [place < self.in_group]

    def _copy_steps(self, sch: Schedule, stage: SBlockRV, in_parallel: bool) -> None:
        """Eight values at a time, all steps of a pixel one after the other."""
        _in_order_of_pixels(sch, stage, self.pixel_axes, in_parallel)
        *_, steps, values = sch.get_loops(stage)
        copy_steps(sch, steps, values, self._whole_steps)

    @property
    def _whole_steps(self) -> int:
        """Steps of eight channels at the beginning of a pixel."""
        return self.workload.in_channels // DEPTH if self.groups == 1 else 0


class Flat(Staged):
    """(N, G·I/8, pixels, 8); after the last pixel, that one is repeated."""

    tap_axes = 0
    pixel_axes = 1

    @property
    def accepts(self) -> bool:
        return self.workload.kernel == (1, 1) and not any(self.workload.padding)

    @property
    def taps(self) -> tuple[int, int, int]:
        return 1, 1, round_up(self.in_group, DEPTH)

    @property
    def _pixels(self) -> tuple[int, int]:
        return 1, self.workload.out_height * self.workload.out_width

    def pixel(self, n: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return n, y * self.workload.out_width + x

    def tap(self, pixel: tuple[Any, ...], kh: Any, kw: Any, step: Any, k: Any) -> tuple[Any, ...]:
        image, p = pixel
        return image, step, p, k

    def stage(self, x: te.Tensor, rows: int, columns: int, pad_value: int) -> te.Tensor:
        (stride_height, stride_width), width = self.workload.strides, self.workload.out_width
        _, pixels = self._pixels

        def value(n, ko, p, ki):
            channel, inside = self._channel(ko, ki)
            p = tirx.min(p, pixels - 1) if columns > pixels else p
            return guarded(inside, x[n, p // width * stride_height, p % width * stride_width, channel], 0, "int8")

        shape = (self.workload.batch, self.groups * self.taps[2] // DEPTH, columns, DEPTH)
        return te.compute(shape, value, name="pad")

    def copies(self, columns: int) -> dict[str, ScheduleCopy]:
        _, pixels = self._pixels

        def copy(sch: Schedule, stage: SBlockRV, in_parallel: bool) -> None:
            _in_order_of_pixels(sch, stage, self.pixel_axes, in_parallel)
            *_, pixel, steps, values = sch.get_loops(stage)
            nests = [(steps, values)]
            if columns > pixels and extent(sch, pixel) == columns:  # only pixels after the last one need a limit
                parts = sch.loop_partition(pixel, [pixels, None])
                nests = [tuple(sch.get_loops(sch.get_child_blocks(part)[0])[-2:]) for part in parts]
            for steps, values in nests:
                copy_steps(sch, steps, values, self._whole_steps)

        return {"pad": copy}


class Spatial(Staged):
    """(N, rows, G·I/8, phase, columns / stride, 8)."""

    @property
    def accepts(self) -> bool:
        return True

    @property
    def taps(self) -> tuple[int, int, int]:
        return (*self.workload.kernel, round_up(self.in_group, DEPTH))

    def stage(self, x: te.Tensor, rows: int, columns: int, pad_value: int) -> te.Tensor:
        workload, stride = self.workload, self.workload.strides[1]
        top, left = workload.padding[:2]
        bottom, right = self.reach(rows, columns)
        columns = -(-right // stride)

        def value(n, y, ko, phase, column, ki):
            channel, conditions = self._channel(ko, ki)
            column = column * stride + phase
            inside = within(y, top, workload.height, bottom)
            inside += within(column, left, workload.width, columns * stride)
            return guarded(inside + conditions, x[n, y - top, column - left, channel], pad_value, "int8")

        shape = (workload.batch, bottom, self.groups * self.taps[2] // DEPTH, stride, columns, DEPTH)
        return te.compute(shape, value, name="pad")


class Rows(Staged):
    """(N, rows, run/8, 1, columns, 8): a row of each window, from padded lines of pixels."""

    @property
    def accepts(self) -> bool:
        by_pixel = self.workload.kernel[1] * round_up(self.in_group, DEPTH)
        return self.groups == 1 and self.workload.dilation[1] == 1 and round_up(self.run, DEPTH) < by_pixel

    @property
    def run(self) -> int:
        """Number of values in a row of the window."""
        return self.workload.kernel[1] * self.workload.in_channels

    @property
    def taps(self) -> tuple[int, int, int]:
        return self.workload.kernel[0], 1, round_up(self.run, DEPTH)

    @property
    def pitch(self) -> int:
        """Number of values between the starts of neighbouring windows."""
        return self.workload.strides[1] * self.workload.in_channels

    def stage(self, x: te.Tensor, rows: int, columns: int, pad_value: int) -> te.Tensor:
        bottom = self.reach(rows, columns)[0]
        lines = self._lines(x, bottom, (columns - 1) * self.pitch + self.taps[2], pad_value)

        def value(n, y, ko, _phase, column, ki):
            return lines[n, y, column * self.pitch + ko * DEPTH + ki]

        shape = (self.workload.batch, bottom, self.taps[2] // DEPTH, 1, columns, DEPTH)
        return te.compute(shape, value, name="pad")

    def _lines(self, x: te.Tensor, bottom: int, length: int, pad_value: int) -> te.Tensor:
        return padded_lines(self, x, bottom, length, pad_value, "line")

    def copies(self, columns: int) -> dict[str, ScheduleCopy]:
        return {"pad": self._copy_steps, "line": self._copy_line}

    def _copy_line(self, sch: Schedule, stage: SBlockRV, in_parallel: bool) -> None:
        """Copy lines unchanged, padding apart, spaced such that loads of eight bytes stay in bounds."""
        _in_parallel(sch, stage, in_parallel)
        sch.storage_align(stage, 0, 1, DEPTH, 0)
        copy_runs(sch, self, stage)


class Window(Rows):
    """(N, output rows, K/8, 1, columns, 8): all rows of the window for each row of output pixels.

    Of the 8·heads + tail values of each row, the heads of all rows come first, then the rows' last `tail` values. Rows
    are taken modulo their number, so that TVM sees that there are no others.
    """

    @property
    def accepts(self) -> bool:
        """Whether it takes fewer instructions than Rows: per output pixel, those for products in the steps that it
        saves, less those for more copies.

        Rows copies each row once; Window copies its rows for each row of output pixels.
        """
        if self.workload.groups > 1 or not super().accepts or not self.tail:
            return False
        blocks = -(-self.workload.out_channels // CHANNELS)
        saved = self.rows * (self.heads + 1) - self.steps
        parts = self.first_of_tails + self.rows * self.tail // self.part
        copies = parts - self.workload.strides[0] * (self.heads + 1)
        return saved * blocks * QUADS / PIXELS > COPY * copies

    @property
    def rows(self) -> int:
        """Number of rows of the window."""
        return self.workload.kernel[0]

    @property
    def heads(self) -> int:
        """Number of whole eights in a row."""
        return self.run // DEPTH

    @property
    def tail(self) -> int:
        """Number of values of a row after its whole eights."""
        return self.run % DEPTH

    @property
    def first_of_tails(self) -> int:
        """Number of steps before the first step of tails."""
        return self.rows * self.heads

    @property
    def steps(self) -> int:
        """Steps along k."""
        return self.first_of_tails + -(-self.rows * self.tail // DEPTH)

    @property
    def part(self) -> int:
        """Number of values of a step of tails that are always neighbours."""
        return math.gcd(self.tail, DEPTH)

    @property
    def taps(self) -> tuple[int, int, int]:
        return 1, 1, self.steps * DEPTH

    def tap(self, pixel: tuple[Any, ...], kh: Any, kw: Any, step: Any, k: Any) -> tuple[Any, ...]:
        n, _, *place = super().tap(pixel, kh, kw, step, k)
        return n, pixel[1], *place

    def ordered(self, weight: np.ndarray) -> np.ndarray:
        values = weight.reshape(len(weight), self.rows, -1)
        cut = self.heads * DEPTH
        parts = [values[..., :cut].reshape(len(weight), -1), values[..., cut:].reshape(len(weight), -1)]
        return np.concatenate(parts, axis=1)[:, None, None]

    def stage(self, x: te.Tensor, rows: int, columns: int, pad_value: int) -> te.Tensor:
        workload = self.workload
        lines = self._lines(x, self.reach(rows, columns)[0], (columns - 1) * self.pitch + self.run, pad_value)

        def value(n, y, ko, _phase, column, ki):
            def at(row, place):
                return lines[n, y * workload.strides[0] + row * workload.dilation[0], column * self.pitch + place]

            *place, inside = self._in_tails(ko, ki)
            tail = guarded([inside], at(*place), 0, "int8")
            if not self.first_of_tails:
                return tail
            return tirx.if_then_else(ko < self.first_of_tails, at(*self._in_heads(ko, ki)), tail)

        return te.compute((workload.batch, rows, self.steps, 1, columns, DEPTH), value, name="pad")

    def _in_heads(self, step: Any, k: Any) -> tuple[Any, Any]:
        """The row of a value in a step of heads, and its index in the row."""
        return step // self.heads % self.rows, step % self.heads * DEPTH + k

    def _in_tails(self, step: Any, k: Any) -> tuple[Any, Any, Any]:
        """The same for a step of tails, and whether there is such a value."""
        index = (step - self.first_of_tails) * DEPTH + k
        row, place = index // self.tail % self.rows, self.heads * DEPTH + index % self.tail
        return row, place, index < self.rows * self.tail

    def _copy_steps(self, sch: Schedule, stage: SBlockRV, in_parallel: bool) -> None:
        """Copy heads eight values at a time and tails as many as are neighbours; all at constant distances."""
        _in_order_of_pixels(sch, stage, self.pixel_axes, in_parallel)
        steps, first = sch.get_loops(stage)[-2], self.first_of_tails
        nests = sch.loop_partition(steps, [first, None]) if 0 < first < self.steps else [steps]
        for nest in nests:
            heads = first > 0 and nest is nests[0]
            values = sch.get_loops(sch.get_child_blocks(nest)[0])[-1]
            several, together = sch.split(values, [None, DEPTH if heads else self.part])
            sch.vectorize(together)
            sch.unroll(several)
            sch.unroll(nest)

    def extra_bytes(self, rows: int, columns: int) -> int:
        return rows * interleaving(self.workload, columns, DEPTH).length


@lru_cache(maxsize=4096)
def mode_of(workload: Conv2dWorkload, groups: int) -> Staged:
    """The mode for `groups` merged groups."""
    kinds = (kind(workload, SMMLA, groups) for kind in (Flat, Window, Rows, Spatial))
    return next(mode for mode in kinds if mode.accepts)


def _in_order_of_pixels(sch: Schedule, stage: SBlockRV, pixel_axes: int, in_parallel: bool) -> None:
    """Order the loops of a copy (…, step, pixels, 8) by what it reads: a pixel's steps together."""
    axes = len(sch.get(stage).iter_vars)
    steps, *pixels, values = sch.get_loops(stage)[-axes:][pixel_axes:]
    sch.reorder(*pixels, steps, values)
    _in_parallel(sch, stage, in_parallel)


def _in_parallel(sch: Schedule, stage: SBlockRV, in_parallel: bool) -> None:
    if in_parallel:
        loops = sch.get_loops(stage)
        work = math.prod(extent(sch, loop) for loop in loops)
        parallel_rows(sch, loops[:2], work, SMMLA.backend.sharing.moved_elements)

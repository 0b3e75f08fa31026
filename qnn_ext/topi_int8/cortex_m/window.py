"""The columns of a matrix product: for each pixel of a tile, the values under its window, one after the other.

A dense layer is a convolution of windows of one pixel. Columns are copied tile by tile, so that they take little
memory; what is outside of the image is filled with the padding's value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ..workload import Conv2dWorkload, DenseWorkload

Expr = Any


def const(value: int) -> tirx.IntImm:
    """An index."""
    return tirx.IntImm("int32", value)


@dataclass(frozen=True)
class Window:
    """Where the windows of a workload read.

    images:  independent images
    pixels:  windows of each image, rows by rows of `across`
    height, width, channels: of an image
    kernel, strides, dilation, padding: of the convolution; padding before rows and columns
    pads_rows, pads_columns: whether windows may reach beyond the image
    """

    images: int
    pixels: int
    across: int
    height: int
    width: int
    channels: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    pads_rows: bool
    pads_columns: bool

    @classmethod
    def of(cls, workload: Conv2dWorkload | DenseWorkload) -> Window:
        """The windows of a workload."""
        if isinstance(workload, DenseWorkload):
            return cls(
                1, workload.m, workload.m, 1, workload.m, workload.k, (1, 1), (1, 1), (1, 1), (0, 0), False, False
            )
        height, width, before = workload.out_height, workload.out_width, workload.padding[:2]
        return cls(
            workload.batch,
            height * width,
            width,
            workload.height,
            workload.width,
            workload.in_channels,
            workload.kernel,
            workload.strides,
            workload.dilation,
            before,
            bool(workload.padding[0] or workload.padding[2]),
            bool(workload.padding[1] or workload.padding[3]),
        )

    @property
    def values(self) -> int:
        """Values under a window."""
        return self.kernel[0] * self.kernel[1] * self.channels

    @property
    def row(self) -> int:
        """Values of a row of the window, if it has no gaps: neighbours in memory, but for padding. Otherwise the values
        of a pixel."""
        gapless = self.dilation[1] == 1 or self.kernel[1] == 1
        return self.kernel[1] * self.channels if gapless else self.channels

    @property
    def contiguous(self) -> bool:
        """Whether the values under each window are neighbours in memory."""
        if self.pads_rows or self.pads_columns:
            return False
        return self.kernel == (1, 1) or (self.row == self.width * self.channels and self.dilation[0] == 1)

    def place(self, pixel: Expr, down: Expr, across: Expr) -> tuple[Expr, Expr]:
        """Row and column of the value that a window reads at one of its taps."""
        y, x = tirx.floordiv(pixel, const(self.across)), tirx.floormod(pixel, const(self.across))
        row = y * self.strides[0] - self.padding[0] + down * self.dilation[0]
        return row, x * self.strides[1] - self.padding[1] + across * self.dilation[1]

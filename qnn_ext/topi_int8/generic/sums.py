"""TE computes of the zero-point terms: window_sum and row_sum. Kernels compute them alongside the product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx


def window_sum(
    x: te.Tensor,
    *,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, ...],
    dilation: tuple[int, int],
    groups: int,
    pad_value: int,
) -> te.Tensor:
    """sum[n, y, x, g] of op.accumulate.window_sum: first over the channels of each pixel, then over the window."""
    batch, height, width, channels = (int(dim) for dim in x.shape)
    top, left, bottom, right = padding
    in_group = channels // groups
    channel = te.reduce_axis((0, in_group), "channel")
    whole_window = kernel == (1, 1) and tuple(strides) == (1, 1) and not any(padding)
    if in_group > 1 or whole_window:
        pixels = te.compute(
            (batch, height, width, groups),
            lambda n, h, w, g: te.sum(x[n, h, w, g * in_group + channel].astype("int32"), axis=channel),
            name="channel_sum",
        )
        if whole_window:
            return pixels
        pixel: Callable[..., Any] = pixels
    else:

        def pixel(n, h, w, g):
            return x(n, h, w, g).astype("int32")

    def padded(n, h, w, g):
        inside = tirx.all(h >= top, h < top + height, w >= left, w < left + width)
        outside = tirx.const(pad_value * in_group, "int32")
        return tirx.if_then_else(inside, pixel(n, h - top, w - left, g), outside)

    frame = pixel
    if any(padding):
        frame = te.compute((batch, height + top + bottom, width + left + right, groups), padded, name="window_pad")
    r, s = te.reduce_axis((0, kernel[0]), "r"), te.reduce_axis((0, kernel[1]), "s")
    out_height = (height + top + bottom - (kernel[0] - 1) * dilation[0] - 1) // strides[0] + 1
    out_width = (width + left + right - (kernel[1] - 1) * dilation[1] - 1) // strides[1] + 1

    def summed(n, y, col, g):
        row, column = y * strides[0] + r * dilation[0], col * strides[1] + s * dilation[1]
        return te.sum(frame(n, row, column, g), axis=[r, s])

    return te.compute((batch, out_height, out_width, groups), summed, name="window_sum")


def row_sum(x: te.Tensor) -> te.Tensor:
    """sum[…, 0] over the last axis, as int32."""
    k = te.reduce_axis((0, int(x.shape[-1])), "k")
    shape = (*(int(dim) for dim in x.shape[:-1]), 1)
    return te.compute(shape, lambda *i: te.sum(x(*i[:-1], k).astype("int32"), axis=k), name="window_sum")

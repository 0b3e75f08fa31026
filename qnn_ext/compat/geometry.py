"""Windows and layouts as Relay's calls give them, in the form of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ..errors import ShapeError
from ..op.base import shape_of


def pair(value: Any) -> tuple[int, int]:
    """One number for both directions, or two."""
    values = tuple(int(item) for item in value) if hasattr(value, "__iter__") else (int(value),)
    if len(values) not in (1, 2):
        raise ShapeError(f"a window takes 1 or 2 numbers, found {values}")
    return (values[0], values[-1])


def window_padding(value: Any) -> tuple[int, int, int, int]:
    """(top, left, bottom, right) from 1 number, from 2, (vertical, horizontal), or from all 4."""
    values = tuple(int(item) for item in value) if hasattr(value, "__iter__") else (int(value),)
    if len(values) == 4:
        return values  # type: ignore[return-value]
    if len(values) not in (1, 2):
        raise ShapeError(f"padding takes 1, 2 or 4 numbers, found {values}")
    return (values[0], values[-1], values[0], values[-1])


def output_channels_first(
    kernel: Any, layout: str, groups: int, in_channels: int, emit: Callable[[Any], Any]
) -> tuple[Any, str, int]:
    """A kernel in a layout of ours, that layout, and the multiplier of a depthwise kernel, which has O = C·M there.

    Relay wrote depthwise kernels as (C, M, H, W) in OIHW and as (H, W, C, M) in HWOI. Both become (C·M, 1, H, W).
    """
    shape = shape_of(kernel)
    if len(shape) != 4 or groups == 1 or groups != in_channels or layout not in ("OIHW", "HWOI"):
        return kernel, layout, 1
    channels, multiplier = (shape[0], shape[1]) if layout == "OIHW" else (shape[2], shape[3])
    if channels != groups or multiplier == 1:
        return kernel, layout, 1
    if layout == "HWOI":
        kernel = emit(relax.op.permute_dims(kernel, [2, 3, 0, 1]))
    height, width = shape_of(kernel)[2:]
    return emit(relax.op.reshape(kernel, (channels * multiplier, 1, height, width))), "OIHW", multiplier

"""Where bilinear interpolation reads: two neighbours and a fraction for each output position along an axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

FRACTION_BITS = {"fixed": 10, "xnnpack": 11}  # of a weight in fixed point, by arithmetic


@dataclass(frozen=True)
class Taps:
    """For each output position along an axis: v = x[lower] · (1 − fraction) + x[upper] · fraction.

    lower, upper: int32, in 0 … size − 1
    fraction:     int32 in units of 2⁻¹⁰ ("fixed") or 2⁻¹¹ ("xnnpack", of integers), or float32. It may be outside
                  0 … 1 at the edges, where lower and upper are the same element
    """

    lower: np.ndarray
    upper: np.ndarray
    fraction: np.ndarray


def bilinear_taps(
    size: int, out_size: int, align_corners: bool, half_pixel_centers: bool, arithmetic: str, floats: bool = False
) -> Taps:
    """The taps along one axis. Source: TFLite's reference ComputeInterpolationValues; for "xnnpack", XNNPACK's
    xnn_indirection_init_resize_bilinear2d_hwc_q11, and that of f32 for floats."""
    corners = align_corners and out_size > 1
    numerator, denominator = (size - 1, out_size - 1) if corners else (size, out_size)
    scale: Any
    position: np.ndarray
    if arithmetic == "fixed":
        bits = FRACTION_BITS[arithmetic]
        one = 1 << bits
        scale = (one * numerator + denominator // 2) // denominator
        position = np.arange(out_size, dtype=np.int64) * scale
        if half_pixel_centers:
            position += scale // 2 - one // 2
        floor, ceiling = position >> bits, (position + one - 1) >> bits
        lower = np.clip(floor, 0, size - 1)
        fraction = (position - lower * one).astype(np.int32)
    elif arithmetic == "xnnpack":
        scale = np.float32(numerator) / np.float32(denominator)
        position = np.arange(out_size, dtype=np.float32) * scale
        if half_pixel_centers:
            position = np.maximum(position + (np.float32(0.5) * scale - np.float32(0.5)), np.float32(0))
        position = np.minimum(position, np.float32(size - 1))
        lower = position.astype(np.int64)
        ceiling = lower + 1
        fraction = position - lower.astype(np.float32)
        if not floats:
            fraction = np.rint(fraction * np.float32(1 << FRACTION_BITS[arithmetic])).astype(np.int32)
    else:
        scale = np.float32(numerator) / np.float32(denominator)
        index = np.arange(out_size, dtype=np.float32)
        half = np.float32(0.5)
        position = (index + half) * scale - half if half_pixel_centers else index * scale
        floor, ceiling = np.floor(position).astype(np.int64), np.ceil(position).astype(np.int64)
        lower = np.clip(floor, 0, size - 1)
        fraction = position - lower.astype(np.float32)
    upper = np.clip(ceiling, 0, size - 1)
    return Taps(lower.astype(np.int32), upper.astype(np.int32), fraction)

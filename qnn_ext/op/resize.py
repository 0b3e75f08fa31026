"""qnn.resize_bilinear: images resized in fixed point or in float32, as TFLite computes it."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import reference
from ..numerics.taps import FRACTION_BITS, Taps, bilinear_taps
from .base import Shape, TensorInfo, check_dtype, check_rank, define, export_to_script
from .traits import Kind, Traits

ARITHMETICS = ("fixed", "float32", "xnnpack")


def _infer(
    data: TensorInfo, *, size: tuple[int, ...], align_corners: bool, half_pixel_centers: bool, arithmetic: str
) -> tuple[Shape, str]:
    check_dtype(data, "int8", "uint8", "int16", "float32")
    check_rank(data, 4)
    if len(size) != 2 or min(size) < 1 or 0 in data.shape[1:3]:
        raise ShapeError(f"cannot resize {data.shape} to {tuple(size)}")
    if align_corners and half_pixel_centers:
        raise ShapeError("align_corners and half_pixel_centers cannot both be set")
    if arithmetic not in ARITHMETICS or (arithmetic == "fixed" and data.dtype == "float32"):
        raise ShapeError(
            f"arithmetic must be float32, xnnpack or, for integers, fixed, found {arithmetic} for {data.dtype}"
        )
    return (data.shape[0], *size, data.shape[3]), data.dtype


def _reference(
    data: np.ndarray, *, size: tuple[int, int], align_corners: bool, half_pixel_centers: bool, arithmetic: str
) -> np.ndarray:
    rows, columns = (
        bilinear_taps(n, out, align_corners, half_pixel_centers, arithmetic, data.dtype == np.float32)
        for n, out in zip(data.shape[1:3], size, strict=True)
    )
    if data.dtype == np.float32 and arithmetic == "xnnpack":
        return _between(_between(data, columns, 2), rows, 1)
    bits = FRACTION_BITS.get(arithmetic)
    wide = data.astype(np.float32 if bits is None else np.int64)
    one: Any = np.float32(1) if bits is None else 1 << bits
    down: Any
    right: Any
    down, right = rows.fraction.reshape(-1, 1, 1), columns.fraction.reshape(-1, 1)
    upper_rows, lower_rows = wide[:, rows.lower], wide[:, rows.upper]
    total = upper_rows[:, :, columns.lower] * (one - down) * (one - right)
    total = total + lower_rows[:, :, columns.lower] * down * (one - right)
    total = total + upper_rows[:, :, columns.upper] * (one - down) * right
    total = total + lower_rows[:, :, columns.upper] * down * right
    if bits is not None:
        half, unit = 1 << (2 * bits - 1), 1 << (2 * bits)
        up = arithmetic == "xnnpack"
        total = (total + half) // unit if up else np.sign(total) * ((np.abs(total) + half) // unit)
    elif data.dtype != np.float32:
        total = reference.round_half_away(total)
    return total.astype(data.dtype)


def _between(data: np.ndarray, taps: Taps, axis: int) -> np.ndarray:
    """lower + (upper − lower) · fraction along an axis, each operation rounded."""
    lower, upper = (np.take(data, index, axis) for index in (taps.lower, taps.upper))
    return lower + (upper - lower) * taps.fraction.reshape(-1, *[1] * (data.ndim - axis - 1))


RESIZE_BILINEAR = define("resize_bilinear", "data", _infer, _reference, Traits(Kind.OTHER), "bilinear interpolation")


def resize_bilinear(
    data: relax.Expr,
    size: tuple[int, int],
    align_corners: bool = False,
    half_pixel_centers: bool = False,
    arithmetic: str = "fixed",
) -> relax.Call:
    """Bilinear interpolation of an image; output row y lies at y · height / size[0], or with

        align_corners       at y · (height − 1) / (size[0] − 1)
        half_pixel_centers  at (y + ½) · height / size[0] − ½

    and likewise for columns. Scales and zero points pass through unchanged.

    data:  NHWC, int8, uint8, int16 or float32; size: (rows, columns) of the result
    arithmetic: "fixed": positions in units of 2⁻¹⁰, integer products, rounded to the nearest with midpoints away from 0
                "xnnpack": positions in float32; of integers, weights in units of 2⁻¹¹, integer products, midpoints up;
                of floats, a + (b − a) · weight along rows, then along columns, every operation rounded separately
                "float32": Σ (x · vertical) · horizontal over (upper left, lower left, upper right, lower right) in this
                order, every operation rounded separately (no fused multiply-add); then, for integers, rounded to the
                nearest, midpoints away from 0

    Raises ShapeError. Source: TFLite reference_ops::ResizeBilinear ("float32": float and uint8) and
    ResizeBilinearInteger ("fixed": int8 and int16); XNNPACK's s8_ibilinear, u8_ibilinear and f32_ibilinear.
    """
    return RESIZE_BILINEAR.call(
        data,
        size=tuple(size),
        align_corners=bool(align_corners),
        half_pixel_centers=bool(half_pixel_centers),
        arithmetic=arithmetic,
    )


export_to_script(resize_bilinear=resize_bilinear)

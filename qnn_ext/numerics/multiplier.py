"""Real multipliers in the form a rounding rule works with: a float32, or a 31-bit fixed-point pair."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class FixedPoint:
    """The real number `multiplier / 2³¹ · 2^shift`, with 2³⁰ ≤ multiplier < 2³¹, or 0.

    multiplier, shift: int32 arrays of one shape, () or (C,).
    """

    multiplier: np.ndarray
    shift: np.ndarray

    @property
    def largest(self) -> float:
        """The largest of the numbers."""
        return float(np.ldexp(self.multiplier.astype(np.float64), self.shift - 31).max(initial=0.0))


MOST_SHIFT = {"int32": 31, "int64": 14}  # int64 data is multiplied by 15 bits, of which one must remain for rounding


def fixed_point(real: np.ndarray | float, dtype: str = "int32", rounding: str = "") -> FixedPoint:
    """`real` ≥ 0 as fixed point for data of `dtype`, rounded to the nearest 31-bit fraction, midpoints up.

    The rule of TFLite's QuantizeMultiplier and of Relay's GetFixedPointMultiplierShift: a fraction that rounds to 2³¹
    is halved and its shift raised; everything below 2⁻³¹ becomes 0. From 2³¹ on (for int64 data, from 2¹⁴ on) the shift
    would be by more bits than there are, which is undefined in C. With the roundings TFLITE and TFLITE_UPWARD, int32
    is shifted by the lower five bits of the shift, as instructions of x86 and 64-bit ARM do, and so LiteRT. Otherwise
    the multiplier is the largest there is.
    """
    real = np.asarray(real, dtype=np.float64)
    fraction, shift = np.frexp(real)
    multiplier = np.floor(fraction * 2.0**31 + 0.5).astype(np.int64)
    carry = multiplier == 1 << 31
    multiplier = np.where(carry, multiplier // 2, multiplier)
    shift = np.where(carry, shift + 1, shift)
    vanishes = shift < -31
    multiplier = np.where(vanishes, 0, multiplier)
    shift = np.where(vanishes, 0, shift)
    most = MOST_SHIFT[dtype]
    if rounding in ("TFLITE", "TFLITE_UPWARD") and dtype == "int32":
        shift = np.where(shift > most, shift & most, shift)
    beyond = shift > most
    multiplier = np.where(beyond, (1 << 31) - 1, multiplier)
    return FixedPoint(multiplier.astype(np.int32), np.minimum(shift, most).astype(np.int32))


def float_multiplier(in_scale: np.ndarray, out_scale: np.ndarray, dtype: str = "float32") -> np.ndarray:
    """in_scale / out_scale in the precision of the scales, then rounded to `dtype`.

    float32 scales are divided in float32, as in XNNPACK and PyTorch; a float64 scale makes the quotient float64.
    """
    return np.asarray(np.asarray(in_scale) / np.asarray(out_scale)).astype(dtype)


def power_of_two(scale: np.ndarray | float) -> int | None:
    """The exponent if LiteRT takes the scale for a power of two (CheckedLog2: log₂ within 10⁻³ of an integer, all in
    float32), None otherwise."""
    exponent = np.float32(np.log(np.float64(np.float32(scale)))) * (np.float32(1) / np.float32(np.log(2)))
    nearest = np.rint(exponent)
    return int(nearest) if abs(exponent - nearest) < np.float32(1e-3) else None


def mean_multiplier(in_scale: float, out_scale: float, count: int) -> FixedPoint:
    """TFLite's multiplier for MEAN: that of s_in / s_out, with 1 / count folded in by a truncating division."""
    scale = fixed_point(float(in_scale) / float(out_scale))
    shift = min(count.bit_length() - 1, 32, 31 + int(scale.shift))
    return FixedPoint(
        np.asarray((int(scale.multiplier) << shift) // count, np.int32), np.asarray(scale.shift - shift, np.int32)
    )

"""Constants of TFLite's integer ADD, SUB and MUL, computed from the scales before the arithmetic starts."""

from __future__ import annotations

import numpy as np

from ..errors import ShapeError
from .multiplier import FixedPoint, fixed_point, power_of_two

# Left shift of both inputs of ADD and SUB, by their width: 255 << 20 and 65535 << 15 still fit into int32.
ADD_LEFT_SHIFT = {8: 20, 16: 15}


def add_multipliers(
    lhs_scale: np.ndarray, rhs_scale: np.ndarray, out_scale: np.ndarray, left_shift: int
) -> tuple[FixedPoint, FixedPoint, FixedPoint]:
    """Multipliers for lhs, rhs and their sum: s_l / t, s_r / t and t / (2^left_shift · s_o), t = 2·max(s_l, s_r).

    The factor 2 keeps the sum within the shifted inputs' range. In float64 from float32 scales, as in TFLite's Prepare.
    """
    lhs, rhs, out = (np.asarray(scale, np.float64) for scale in (lhs_scale, rhs_scale, out_scale))
    twice_max = 2 * np.maximum(lhs, rhs)
    reals = lhs / twice_max, rhs / twice_max, twice_max / (out * 2.0**left_shift)
    left, right, total = (fixed_point(real, rounding="TFLITE") for real in reals)
    return left, right, total


def without_shift(multiplier: FixedPoint, left_shift: int) -> tuple[FixedPoint, np.ndarray]:
    """A multiplier of `add_multipliers` in two parts, as LiteRT's optimized kernel for 16 bits takes it: a factor below
    1, and the exponent of a shift before it, so that only the product with the factor is rounded."""
    return FixedPoint(multiplier.multiplier, np.zeros_like(multiplier.shift)), left_shift + multiplier.shift


def _quotients(lhs_scale: np.ndarray, rhs_scale: np.ndarray, out_scale: np.ndarray) -> list[np.float32]:
    return [np.float32(scale.reshape(())) / np.float32(out_scale.reshape(())) for scale in (lhs_scale, rhs_scale)]


def xnnpack_adds(lhs_scale: np.ndarray, rhs_scale: np.ndarray, out_scale: np.ndarray) -> bool:
    """Whether XNNPACK has an 8-bit addition for these scalar scales: 2⁻¹⁰ ≤ s/s_o < 2⁸ for both."""
    return all(2.0**-10 <= quotient < 2.0**8 for quotient in _quotients(lhs_scale, rhs_scale, out_scale))


def xnnpack_multipliers(lhs_scale: np.ndarray, rhs_scale: np.ndarray, out_scale: np.ndarray) -> tuple[int, int, int]:
    """Multipliers m_l, m_r and the right shift of XNNPACK's 8-bit addition: m = rint(s/s_o · 2^shift).

    The larger one is in 2²⁰ … 2²¹, so that (lhs − z_l)·m_l + (rhs − z_r)·m_r fits into int32.

    Raises ShapeError for scales for which XNNPACK has no kernel.
    """
    quotients = _quotients(lhs_scale, rhs_scale, out_scale)
    if not xnnpack_adds(lhs_scale, rhs_scale, out_scale):
        raise ShapeError(f"input scale / output scale must be from 2⁻¹⁰ to 2⁸, found {quotients}; use rounding TFLITE")
    shift = 20 - (int(np.frexp(max(quotients))[1]) - 1)
    left, right = (int(np.rint(quotient * np.float32(2.0**shift))) for quotient in quotients)
    return left, right, shift


def mul_multiplier(lhs_scale: np.ndarray, rhs_scale: np.ndarray, out_scale: np.ndarray) -> FixedPoint:
    """s_l · s_r / s_o, computed in float32 as TFLite does."""
    lhs, rhs, out = (np.asarray(scale, np.float32) for scale in (lhs_scale, rhs_scale, out_scale))
    return fixed_point((lhs * rhs / out).astype(np.float64), rounding="TFLITE")


def power_of_two_shifts(lhs_scale: float, rhs_scale: float, out_scale: float) -> tuple[int, int] | None:
    """Right shifts of lhs and rhs if all scales are powers of two, None otherwise. (TFLite's pot_scale_int16.)

    Raises ShapeError if both operands would need a shift, or one a left shift: TFLite rejects these too.
    """
    exponents = []
    for scale in (lhs_scale, rhs_scale, out_scale):
        exponent = power_of_two(scale)
        if exponent is None:
            return None
        exponents.append(exponent)
    shifts = exponents[2] - exponents[0], exponents[2] - exponents[1]
    if min(shifts) != 0:
        raise ShapeError(
            f"power-of-two scales {lhs_scale}, {rhs_scale} -> {out_scale}: one operand must have the result's scale "
            "and the other a smaller or equal one; pass pot_scale=False"
        )
    return shifts

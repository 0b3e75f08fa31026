"""The rounding rules on NumPy arrays: the oracle's arithmetic. `tir.py` has the same rules in TIR."""

from __future__ import annotations

import numpy as np

from ..qparams import dtype_range
from .multiplier import FixedPoint

Array = np.ndarray


def domain(dtype: str) -> Array:
    """Every value of an 8- or 16-bit dtype in ascending order, the order of a lookup table."""
    low, high = dtype_range(dtype)
    return np.arange(low, high + 1).astype(dtype)


# ---- rounding of real numbers ------------------------------------------------------------------------------------


def round_half_even(x: Array) -> Array:
    """Nearest integer, midpoints to the even one."""
    return np.rint(x)


def round_half_away(x: Array) -> Array:
    """Nearest integer, midpoints away from zero: C's round(). x − trunc(x) is exact, so midpoints are recognized."""
    whole = np.trunc(x)
    with np.errstate(invalid="ignore"):  # ∞ − ∞
        return whole + np.where(np.abs(x - whole) >= 0.5, np.copysign(np.ones_like(x), x), np.zeros_like(x))


def round_half_up(x: Array) -> Array:
    """⌊x + ½⌋ computed in x's dtype: Relay's UPWARD in floating point."""
    return np.floor(x + np.asarray(0.5, x.dtype))


def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """a·b + c for float32 arrays, rounded once.

    The product of two float32 numbers is exact in float64. The sum is rounded to odd there: if it is inexact and came
    out even, it moves to the neighbour on the side of the error. Rounding that to float32 gives the same as rounding
    the exact sum, because float64 has more than 24 + 2 bits (Boldo and Melquiond, "Emulation of FMA", 2008).
    """
    with np.errstate(all="ignore"):
        product, addend = np.asarray(a, np.float64) * np.asarray(b, np.float64), np.asarray(c, np.float64)
        total = np.asarray(product + addend)
        kept = total - product
        error = (product - (total - kept)) + (addend - kept)  # two-sum: total + error is the exact sum
        even = (total.view(np.int64) & 1) == 0
        odd = np.nextafter(total, np.copysign(np.inf, error))
        inexact = np.isfinite(total) & (error != 0)
        return np.where(inexact & even, odd, total).astype(np.float32)


# ---- fixed point -------------------------------------------------------------------------------------------------


def saturating_rounding_doubling_high_mul(x: Array, multiplier: Array) -> Array:
    """⌊x·multiplier / 2³¹ + ½⌋ as int64 (gemmlowp). Only −2³¹ · −2³¹ would saturate, and multipliers are ≥ 0."""
    return (x.astype(np.int64) * multiplier.astype(np.int64) + (1 << 30)) >> 31


def rounding_divide_by_pot(x: Array | np.integer, exponent: Array | np.integer) -> Array:
    """x / 2^exponent, midpoints away from zero (gemmlowp RoundingDivideByPOT)."""
    x = x.astype(np.int64)
    exponent = np.asarray(exponent, np.int64)
    mask = (np.int64(1) << exponent) - 1
    threshold = (mask >> 1) + (x < 0)
    return (x >> exponent) + ((x & mask) > threshold)


def shift_by(x: Array, exponent: Array) -> Array:
    """x · 2^exponent in x's dtype, towards −∞."""
    return np.where(exponent >= 0, x << np.maximum(exponent, 0), x >> np.maximum(-exponent, 0)).astype(x.dtype)


def multiply_tflite(x: Array, fp: FixedPoint) -> Array:
    """TFLite's MultiplyByQuantizedMultiplier: int32 x double-rounds, int64 x (16-bit models) rounds once.

    int32: RoundingDivideByPOT(SaturatingRoundingDoublingHighMul(x · 2^left, m), right)
    int64: (x · m₁₅ + ½) >> (15 − shift) with the multiplier rounded to 15 bits
    """
    multiplier, shift = fp.multiplier.astype(np.int64), fp.shift.astype(np.int64)
    if x.dtype == np.int64:
        reduced = np.where(multiplier < 0x7FFF0000, (multiplier + (1 << 15)) >> 16, 0x7FFF)
        total = 15 - shift
        return (x * reduced + (np.int64(1) << (total - 1))) >> total
    return rounding_divide_by_pot(*_high_product(x, fp))


def multiply_tflite_upward(x: Array, fp: FixedPoint) -> Array:
    """The same for int32 x with midpoints up in both roundings, as in Ruy, the matrix product of LiteRT's optimized
    kernels: ⌊h / 2^right + ½⌋ with h = SaturatingRoundingDoublingHighMul(x · 2^left, m)."""
    high, right = _high_product(x, fp)
    return (high + ((np.int64(1) << right) >> 1)) >> right


def _high_product(x: Array, fp: FixedPoint) -> tuple[Array, Array]:
    """SaturatingRoundingDoublingHighMul(x · 2^left, m), where x · 2^left wraps, and the right shift that remains."""
    shift = fp.shift.astype(np.int64)
    shifted = (x.astype(np.int64) << np.maximum(shift, 0)).astype(np.int32)
    return saturating_rounding_doubling_high_mul(shifted, fp.multiplier), np.maximum(-shift, 0)


def multiply_upward(x: Array, fp: FixedPoint) -> Array:
    """⌊x · m · 2^(shift−31) + ½⌋ in int64: midpoints towards +∞ (Relay's fixed_point_multiply).

    If that is beyond 32 bits, so is the result, which need not be exact.
    """
    product, total = _product(x, fp)
    return (product + (np.int64(1) << (total - 1))) >> total


def multiply_tonearest(x: Array, fp: FixedPoint) -> Array:
    """The same with midpoints away from zero (Relay's TONEAREST)."""
    product, total = _product(x, fp)
    half = np.int64(1) << (total - 1)
    return (product + np.where(product >= 0, half, half - 1)) >> total


def _product(x: Array, fp: FixedPoint) -> tuple[Array, Array]:
    """x · 2^left · m, and the number of bits to shift out.

    x · 2^left is kept within ±2³², so that int64 suffices: m has 31 bits, and is at least 2³⁰ if left > 0.
    """
    shift = fp.shift.astype(np.int64)
    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    most = np.int64(1) << (32 - left)
    return (np.clip(x.astype(np.int64), -most, most) << left) * fp.multiplier.astype(np.int64), 31 + right


FIXED = {
    "TFLITE": multiply_tflite,
    "TFLITE_UPWARD": multiply_tflite_upward,
    "UPWARD": multiply_upward,
    "TONEAREST": multiply_tonearest,
}


# ---- requantize --------------------------------------------------------------------------------------------------


def saturate(x: Array, dtype: str) -> Array:
    """Clip integers to the range of `dtype` and cast."""
    low, high = dtype_range(dtype)
    return np.clip(x, low, high).astype(dtype)


def float_to_int(x: Array, zero_point: Array | np.integer, dtype: str) -> Array:
    """saturate(x + zero_point) for rounded floats x of any size; NaN counts as −∞."""
    bound = np.asarray(2.0**31, x.dtype)
    clipped = np.clip(np.where(np.isnan(x), -bound, x), -bound, bound).astype(np.int64)
    return saturate(clipped + np.asarray(zero_point, np.int64), dtype)


def requantize_float(x: Array, multiplier: Array, zero_point: Array, dtype: str) -> Array:
    """TONEAREST_EVEN: saturate(rint(f32(x) · m) + zp)."""
    return float_to_int(np.rint(x.astype(np.float32) * multiplier.astype(np.float32)), zero_point, dtype)


def requantize_float_relay(x: Array, multiplier: Array, zero_point: Array, dtype: str, rounding: str) -> Array:
    """Relay's float variant adds the zero point before rounding, in the multiplier's precision; TFLite's, after."""
    if rounding == "TFLITE":
        return float_to_int(round_half_away(x.astype(multiplier.dtype) * multiplier), zero_point, dtype)
    real = x.astype(multiplier.dtype) * multiplier + np.asarray(zero_point).astype(multiplier.dtype)
    rounded = round_half_up(real) if rounding == "UPWARD" else round_half_away(real)
    return float_to_int(rounded, np.int64(0), dtype)


def requantize_fixed(x: Array, fp: FixedPoint, zero_point: Array, dtype: str, rounding: str) -> Array:
    """A rounding of `FIXED` in integers: saturate(multiply(x) + zp)."""
    return saturate(FIXED[rounding](x, fp) + np.asarray(zero_point, np.int64), dtype)


# ---- between dtypes ----------------------------------------------------------------------------------------------


def truncate(x: Array, dtype: str) -> Array:
    """Floats converted to the integers `dtype`: rounded towards zero, saturated; NaN becomes 0."""
    x = np.asarray(x, np.float32 if x.dtype.itemsize < 4 else x.dtype)
    low, high = dtype_range(dtype)
    above, below = x >= float(high) + 1, x < float(low)  # exact: low and high + 1 are powers of two, or zero
    inside = np.where(above | below | np.isnan(x), np.zeros_like(x), x).astype(dtype)
    limits = np.asarray([low, high], dtype)
    return np.where(above, limits[1], np.where(below, limits[0], inside))

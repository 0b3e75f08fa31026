"""Fixed-point functions of gemmlowp that TFLite's integer kernels are built from, on int64 arrays of int32 values.

A number in format Qm.n (m integer bits, n = 31 − m) is raw / 2^n. Products of Qa and Qb are Q(a + b). All functions
exactly reproduce gemmlowp's fixedpoint.h and the helpers in TFLite's kernels/internal/common.h.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import reference

Array = Any  # int64 arrays, scalars among them

INT32_MAX = (1 << 31) - 1
INT32_MIN = -(1 << 31)
ONE = INT32_MAX  # the value closest to 1.0 in Q0


def multiply(x: Array, y: Array) -> Array:
    """SaturatingRoundingDoublingHighMul: ⌊x·y / 2³¹ + ½⌋, where only −2³¹ · −2³¹ saturates."""
    product = (np.asarray(x, np.int64) * np.asarray(y, np.int64) + (1 << 30)) >> 31
    return np.minimum(product, INT32_MAX)


def rescale(x: Array, exponent: int) -> Array:
    """x · 2^exponent: left shifts saturate, right shifts round midpoints away from zero."""
    if exponent <= 0:
        return reference.rounding_divide_by_pot(x, np.int64(-exponent))
    return np.clip(x << exponent, INT32_MIN, INT32_MAX)


def half_sum(x: Array, y: Array) -> Array:
    """(x + y) / 2, midpoints away from zero."""
    return reference.rounding_divide_by_pot(np.asarray(x + y), np.int64(1))


def leading_zeros(x: Array) -> Array:
    """Zero bits above the highest set bit of non-negative int32 values; 32 for 0."""
    return 32 - np.frexp(np.asarray(x, np.float64))[1].astype(np.int64)


def exp_on_negative_values(x: Array, integer_bits: int = 5) -> Array:
    """e^x in Q0 for x ≤ 0 in Q(integer_bits), at most 5.

    x = −¼·k − r: a polynomial for r within (0, ¼], then one constant factor for every set bit of k.
    """
    fraction_bits = 31 - integer_bits
    quarter = 1 << (fraction_bits - 2)
    remainder = (x & (quarter - 1)) - quarter
    result = _exp_minus_quarter_to_zero(rescale(remainder, integer_bits))
    quarters = remainder - x
    factors = ((-2, 1672461947), (-1, 1302514674), (0, 790015084), (1, 290630308), (2, 39332535), (3, 720401), (4, 242))
    for exponent, factor in factors:  # factor = e^(−2^exponent) in Q0
        if exponent < integer_bits:
            result = np.where(quarters & (1 << (fraction_bits + exponent)), multiply(result, factor), result)
    return np.where(x == 0, ONE, result)


def _exp_minus_quarter_to_zero(x: Array) -> Array:
    """e^x in Q0 for −¼ ≤ x < 0 in Q0: Taylor polynomial of degree 4 around −⅛."""
    exp_minus_eighth, third = 1895147668, 715827883
    t = x + (1 << 28)
    t2 = multiply(t, t)
    t3, t4 = multiply(t2, t), multiply(t2, t2)
    tail = rescale(multiply(rescale(t4, -2) + t3, third) + t2, -1)  # t⁴/24 + t³/6 + t²/2
    return exp_minus_eighth + multiply(exp_minus_eighth, t + tail)


def reciprocal_of_one_plus(x: Array) -> Array:
    """1 / (1 + x) in Q0 for 0 ≤ x < 1 in Q0: three Newton steps on half the denominator, in Q2."""
    half_denominator = half_sum(x, ONE)
    y = 1515870810 + multiply(half_denominator, -1010580540)  # 48/17 − 32/17 · d
    for _ in range(3):
        error = (1 << 29) - multiply(half_denominator, y)
        y = y + rescale(multiply(y, error), 2)
    return rescale(y, 1)


def reciprocal(x: Array, integer_bits: int) -> tuple[Array, Array]:
    """TFLite's GetReciprocal of x ≥ 1 in Q(integer_bits): (r, bits) with 1/x = r / 2³¹ · 2^−bits."""
    headroom = leading_zeros(x)
    shifted = ((x << headroom) & 0xFFFFFFFF) - (1 << 31)
    return reciprocal_of_one_plus(shifted), integer_bits - headroom


def inverse_sqrt(x: int) -> tuple[int, int]:
    """TFLite's GetInvSqrtQuantizedMultiplierExp for an integer x ≥ 1: (m, shift) with 1/√x = m / 2³¹ · 2^shift."""
    if x <= 1:
        return INT32_MAX, 0
    right_shift = 11
    while x >= 1 << 29:
        x //= 4
        right_shift += 1
    pairs = (int(leading_zeros(np.int64(x))) - 1) // 2 - 1
    right_shift -= pairs
    value = np.int64(x << (2 * pairs) >> 1)  # in Q3, scaled into [½, 2)
    half = rescale(value, -1)
    root = np.int64(1 << 28)
    for _ in range(5):
        cube = rescale(multiply(multiply(root, root), root), 6)
        root = rescale(multiply((1 << 28) + (1 << 27), root) - multiply(half, cube), 3)
    result = int(multiply(root, 1518500250))  # · √½
    if right_shift < 0:
        return result << -right_shift, 0
    return result, -right_shift


def log(x: Array, integer_bits: int, out_integer_bits: int) -> Array:
    """TFLite's log_x_for_x_greater_than_or_equal_to_1: ln x in Q(out_integer_bits) for x ≥ 1 in Q(integer_bits).

    x = 2^k · r with r around 2^−¼; the rational approximation of ln r is computed in Q0, the sum with one bit of
    headroom.
    """
    accumulator_bits = out_integer_bits + 1
    ln_2, root_half, fourth_root_half, quarter = 1488522236, 1518500250, 1805811301, 536870912
    alpha_n, alpha_d, alpha_i, alpha_f = 117049297, 127690142, 1057819769, 638450708
    shifted_quarter = rescale(np.int64(quarter), -accumulator_bits)
    unit = 31 - accumulator_bits

    headroom = leading_zeros(x) - 1
    r_a = rescale(multiply(x << headroom, root_half), 1)
    k_a = rescale(integer_bits - headroom - 1, unit) + shifted_quarter
    headroom = leading_zeros(multiply(x, root_half)) - 1
    r_b = np.minimum(x << headroom, INT32_MAX)
    k_b = rescale(integer_bits - headroom, unit) - shifted_quarter
    r, k = np.minimum(r_a, r_b), np.maximum(k_a, k_b)

    p = half_sum(r, fourth_root_half)
    q = 2 * (r - fourth_root_half)
    q2 = multiply(q, q)
    numerator = multiply(q, r) + multiply(multiply(q, q2), alpha_n)
    denominator_minus_one = multiply(p, alpha_i + q + multiply(alpha_d, q2)) + multiply(alpha_f, q)
    quotient = multiply(rescale(numerator, -accumulator_bits), reciprocal_of_one_plus(denominator_minus_one))
    return rescale(multiply(k, ln_2) + quotient, 1)

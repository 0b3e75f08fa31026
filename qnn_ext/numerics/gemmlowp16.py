"""gemmlowp's logistic and tanh for int16, the activation functions of TFLite's integer LSTM.

A number in format Qm.n (m integer bits, n = 15 − m) is raw / 2^n; results are in Q0.15. The polynomials and constants
are those of gemmlowp's 32-bit functions, with every constant and every product rounded to 16 bits.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from . import reference

Array = np.ndarray

INT16_MAX, INT16_MIN = 32767, -32768
ONE = INT16_MAX  # the value closest to 1.0 in Q0.15
TWO_INTEGER_BITS_ONE = 1 << 13  # 1.0 in Q2.13


@cache
def logistic_table() -> Array:
    """1 / (1 + e^−x) for every int16 x in Q3.12."""
    x = reference.domain("int16").astype(np.int64)
    positive = _one_over_one_plus(_exp_on_negative_values(-np.abs(x), 3))
    result = np.where(x > 0, positive, ONE - positive)
    return np.where(x == 0, 1 << 14, result).astype(np.int16)


@cache
def tanh_table(integer_bits: int) -> Array:
    """tanh x for every int16 x in Q(integer_bits), for 0 to 6 integer bits."""
    x = reference.domain("int16").astype(np.int64)
    exponential = _exp_on_negative_values(-np.abs(x), integer_bits + 1)  # e^(−2|x|): the format doubles the value
    magnitude = _one_minus_x_over_one_plus(exponential)
    return np.where(x == 0, 0, np.sign(x) * magnitude).astype(np.int16)


def _constant(int32_value: int) -> int:
    """One of gemmlowp's 32-bit constants in 16 bits."""
    return int(reference.rounding_divide_by_pot(np.int64(int32_value), np.int64(16)))


def _multiply(x: Array, y: Array | int) -> Array:
    """⌊x·y / 2¹⁵ + ½⌋; only −2¹⁵ · −2¹⁵ saturates."""
    return np.minimum((x * y + (1 << 14)) >> 15, INT16_MAX)


def _rescale(x: Array, exponent: int) -> Array:
    """x · 2^exponent: left shifts saturate, right shifts round midpoints away from zero."""
    if exponent <= 0:
        return reference.rounding_divide_by_pot(x, np.int64(-exponent))
    return np.clip(x << exponent, INT16_MIN, INT16_MAX)


def _exp_on_negative_values(x: Array, integer_bits: int) -> Array:
    """e^x in Q0 for x ≤ 0: a polynomial for x modulo ¼, and one factor for every set bit of the multiple of ¼."""
    fraction_bits = 15 - integer_bits
    quarter = 1 << (fraction_bits - 2)
    remainder = (x & (quarter - 1)) - quarter
    result = _exp_minus_quarter_to_zero(_rescale(remainder, integer_bits))
    quarters = remainder - x
    factors = ((-2, 1672461947), (-1, 1302514674), (0, 790015084), (1, 290630308), (2, 39332535), (3, 720401), (4, 242))
    for exponent, factor in factors:  # factor = e^(−2^exponent) in Q0.31
        if exponent < integer_bits:
            present = (quarters & (1 << (fraction_bits + exponent))) != 0
            result = np.where(present, _multiply(result, _constant(factor)), result)
    if integer_bits > 5:
        result = np.where(x < _constant(-(1 << (36 - integer_bits))), 0, result)  # below −32
    return np.where(x == 0, ONE, result)


def _exp_minus_quarter_to_zero(x: Array) -> Array:
    """e^x in Q0 for −¼ ≤ x < 0 in Q0: Taylor polynomial of degree 4 around −⅛."""
    exp_minus_eighth, third = _constant(1895147668), _constant(715827883)
    t = x + (1 << 12)
    t2 = _multiply(t, t)
    t3, t4 = _multiply(t2, t), _multiply(t2, t2)
    tail = _rescale(_multiply(_rescale(t4, -2) + t3, third) + t2, -1)  # t⁴/24 + t³/6 + t²/2
    return np.minimum(exp_minus_eighth + _multiply(t + tail, exp_minus_eighth), INT16_MAX)


def _reciprocal_of_half_denominator(x: Array) -> Array:
    """2 / (1 + x) in Q2 for 0 ≤ x < 1 in Q0: three Newton steps."""
    half_denominator = reference.rounding_divide_by_pot(x + ONE, np.int64(1))
    y = _constant(1515870810) + _multiply(half_denominator, _constant(-1010580540))  # 48/17 − 32/17 · d
    for _ in range(3):
        error = TWO_INTEGER_BITS_ONE - _multiply(half_denominator, y)
        y = y + _rescale(_multiply(y, error), 2)
    return y


def _one_over_one_plus(x: Array) -> Array:
    return _rescale(_reciprocal_of_half_denominator(x), 1)


def _one_minus_x_over_one_plus(x: Array) -> Array:
    return _rescale(_reciprocal_of_half_denominator(x) - TWO_INTEGER_BITS_ONE, 2)

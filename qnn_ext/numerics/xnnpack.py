"""Functions of float32 as XNNPACK computes them on CPUs with AVX-512, and so LiteRT there.

As those of `elementary`, they are written over an `Arithmetic`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .elementary import Arithmetic, Value

_LOG2_E = float.fromhex("0x1.715476p+0")
_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62E430p-1"), float.fromhex("-0x1.05C610p-29")
# e^r for |r| ≤ ln(2) / 2, the lowest power first
_EXP = tuple(
    map(float.fromhex, ("0x1p+0", "0x1.FFFFF6p-1", "0x1.FFFDC6p-2", "0x1.555A80p-3", "0x1.573A1Ap-5", "0x1.0F9F9Cp-7"))
)
_LOWEST = -126 * math.log(2.0)
_STEPS = 32  # of a power of two between two neighbours of a table
_ROUNDING = 1.5 * 2.0**23 / _STEPS  # added and subtracted again, it leaves a multiple of 1 / 32
# 2^(k / 32), the lowest power first; for some k the float below the nearest one: the bits of the number say for which
_POWER = (
    1.0,
    0.6931469440460205,
    0.24023045599460602,
    0.055480629205703735,
    0.009684186428785324,
    0.0012391331838443875,
    0.00021865784947294742,
)
_RAISED = 0x800008
# e^r = 1 + r·(c₁ + r / 2) for |r| ≤ ln(2) / 64
_SMALL_EXP = float.fromhex("0x1.0000F6p+0")
# 2^r = 1 + r·P(r) / Q(r) for |r| ≤ ½
_EXP2 = (
    (0.6931471824645996, 0.04807804152369499, 0.005537563469260931),
    (1.0, -0.27721086144447327, 0.023987604305148125),
)
# ln(1 + y) = y·P(y) / Q(y) for √½ − 1 ≤ y < √2 − 1; the factors of x are inverse to each other in float32
_LOG = ((1.0, 1.0, 1.824996918440e-01), (1.0, 1.5, 0.599170029163, 0.049584995955))
_UP, _DOWN = 1.4142134190, 0.70710688829
# sin(x) = x·P(x²) / Q(x²) for |x| ≤ π / 2
_SIN = ((1.0, -1.3314664364e-01, 3.2340581529e-03), (1.0, 3.3519912511e-02, 4.8770775902e-04))
_PI, _TWICE_PI = 3.1415927, (6.28125, 1.9353072e-3)
_HALF_PI = (1.5707964, -4.371138828673793e-08)
# (e^r − 1 − r) / r² for |r| ≤ ln(2) / 2
_ELU = tuple(map(float.fromhex, ("0x1.FFFFFEp-2", "0x1.5554B0p-3", "0x1.555716p-5", "0x1.12278Ep-7", "0x1.6B7338p-10")))
_ELU_LOWEST = float.fromhex("-0x1.154246p+4")  # e^x − 1 of less is −1 in float32
_BIASED_ROUNDING = float.fromhex("0x1.8000FEp23")  # the sum with it is an integer; midpoints go to the odd one
# x·P(x²) / Q(x²), and the limit of |x|
_TANH = (
    (1.0, 1.3412411511e-01, 3.5330520477e-03, 2.1235626264e-05, 1.4248920266e-08),
    (1.0, 4.6745735407e-01, 2.6018999517e-02, 3.3472978976e-04, 8.1365948290e-07),
    7.9807181358,
)
# erf(x / √2), and tanh(√(2 / π) · (x + 0.044715·x³))
_ERF = (
    (7.9788452387e-01, 6.6972173750e-02, 9.3065137044e-03, 3.2973114867e-04, 1.2609783880e-05, 4.5835321316e-08),
    (1.0, 2.5060352683e-01, 2.8431978077e-02, 1.8622842617e-03, 7.2267655923e-05, 1.1988805682e-06),
    5.1638283730,
)
_TANH_OF_CUBIC = (
    (7.9788458347e-01, 6.0803253204e-02, 7.2898347862e-03, 2.6887017884e-04, 1.4302649106e-05, 4.9544411240e-08),
    (1.0, 2.4369759858e-01, 2.4381054565e-02, 1.3060354395e-03, 7.6477612311e-05, 1.3433452750e-06),
    4.84974098,
)


def _odd_ratio(x: Value, form: tuple[Sequence[float], Sequence[float], float], on: Arithmetic) -> Value:
    """x·P(x²) / Q(x²) for |x| up to a limit, beyond which it is ±1; NaN for NaN."""
    numerator, denominator, limit = form

    return on.within(x, -limit, limit, lambda x: _ratio_of_square(x, numerator, denominator, on))


def _ratio_of_square(x: Value, numerator: Sequence[float], denominator: Sequence[float], on: Arithmetic) -> Value:
    """x·P(x²) / Q(x²)."""
    return on.shared(
        on.fence(x * x), lambda square: x * on.polynomial(square, numerator) / on.polynomial(square, denominator)
    )


def xnnpack_tanh(x: Value, on: Arithmetic) -> Value:
    """The hyperbolic tangent of x."""
    return _odd_ratio(x, _TANH, on)


def xnnpack_gelu(x: Value, on: Arithmetic) -> Value:
    """½·x · (erf(x / √2) + 1)."""
    return _gated(x, _ERF, on)


def xnnpack_gelu_tanh(x: Value, on: Arithmetic) -> Value:
    """½·x · (tanh(√(2 / π) · (x + 0.044715·x³)) + 1)."""
    return _gated(x, _TANH_OF_CUBIC, on)


def _gated(x: Value, form: tuple[Sequence[float], Sequence[float], float], on: Arithmetic) -> Value:
    return on.shared(x, lambda x: on.const(0.5) * x * (_odd_ratio(x, form, on) + on.const(1.0)))


def exp_of_negative(x: Value, on: Arithmetic) -> Value:
    """e^x for x ≤ 0, and 0 for −∞, which XNNPACK makes NaN."""

    def of_parts(x: Value, n: Value) -> Value:
        rest = on.fma(n, on.const(-_LN2_LOW), on.fma(n, on.const(-_LN2_HIGH), x))
        return on.scale(on.shared(rest, lambda r: on.polynomial(r, _EXP)), n)

    def of_size(x: Value) -> Value:
        inside = on.maximum(x, on.const(_LOWEST))
        power = on.shared(inside, lambda x: on.shared(on.rint(x * on.const(_LOG2_E)), lambda n: of_parts(x, n)))
        return on.select(x, on.const(_LOWEST), on.const(0.0), flushed(power, on))

    return on.shared(x, of_size)


def flushed(x: Value, on: Arithmetic) -> Value:
    """x ≥ 0, and 0 for what is less than the smallest normal number: LiteRT has the CPU flush such results."""
    return on.shared(x, lambda x: on.select(x, on.const(2.0**-126), on.const(0.0), x))


def xnnpack_sigmoid(x: Value, on: Arithmetic) -> Value:
    """1 / (1 + e^−x); 0 where e^x is less than the smallest normal number, 2⁻¹²⁶; NaN for NaN."""
    one, zero, lowest = on.const(1.0), on.const(0.0), on.const(_LOWEST)

    def of_size(x: Value, below: Value) -> Value:
        """From −|x|."""
        return on.shared(
            on.maximum(below, lowest),
            lambda near: on.shared(_exp_by_table(near, on), lambda power: by_sign(x, below, power / (power + one))),
        )

    def by_sign(x: Value, below: Value, ratio: Value) -> Value:
        low = on.select(below, lowest, zero, ratio)
        return on.select(x, zero, low, on.select(on.const(-1.0), x, one - low, x))

    return on.shared(x, lambda x: on.shared(zero - on.absolute(x), lambda below: of_size(x, below)))


def xnnpack_exp(x: Value, on: Arithmetic) -> Value:
    """e^x; 0 if it is less than the smallest normal number, 2⁻¹²⁶; ∞ from 2^127.5 on; NaN for NaN."""

    def of_power(power: Value) -> Value:
        return on.shared(on.rint(power), lambda n: of_parts(power, n))

    def of_parts(power: Value, n: Value) -> Value:
        result = on.scale(on.shared(power - n, lambda r: _rational(r, _EXP2, on) + on.const(1.0)), n)
        return on.select(
            power,
            on.const(-126.0),
            on.const(0.0),
            on.select(on.const(127.0), n, on.const(math.inf), result),
        )

    return on.within(x, -88.0, 89.0, lambda x: on.shared(on.fence(x * on.const(_LOG2_E)), of_power))


def _rational(x: Value, form: tuple[Sequence[float], Sequence[float]], on: Arithmetic) -> Value:
    """x·P(x) / Q(x)."""
    numerator, denominator = form
    return x * on.polynomial(x, numerator) / on.polynomial(x, denominator)


def xnnpack_log(x: Value, on: Arithmetic) -> Value:
    """ln x; −∞ for what is less than the smallest normal number, ∞ from 2.4·10³⁸ on; NaN for negative numbers and
    NaN."""
    smallest, largest = on.const(2.0**-126), on.const(float(np.finfo(np.float32).max))

    def of_size(x: Value) -> Value:
        return on.shared(on.exponent(x) - on.const(1.0), lambda n: of_parts(x, n))

    def of_parts(x: Value, n: Value) -> Value:
        near_one = on.fence(on.scale(x, on.const(0.0) - n) * on.const(_DOWN)) - on.const(1.0)
        return on.fma(n, on.const(math.log(2.0)), on.shared(near_one, lambda y: _rational(y, _LOG, on)))

    def with_ends(x: Value, normal: Value) -> Value:
        finite = on.select(x, smallest, on.const(-math.inf), normal)
        positive = on.select(largest, x * on.const(_UP), on.const(math.inf), finite)
        nan = on.const(math.nan)
        return on.select(x, on.const(0.0), nan, on.select(on.const(-1.0), x, positive, nan))

    scaled = on.shared(x, lambda x: on.shared(on.maximum(x, smallest) * on.const(_UP), of_size))
    return on.shared(x, lambda x: with_ends(x, scaled))


def xnnpack_sin(x: Value, on: Arithmetic) -> Value:
    """The sine of x."""
    return on.shared(_around_zero(x, on), lambda x: _sine(x, on))


def xnnpack_cos(x: Value, on: Arithmetic) -> Value:
    """The cosine of x: the sine of π / 2 − x."""
    first, second = map(on.const, _HALF_PI)
    return on.shared(on.fence(first - _around_zero(x, on)) + second, lambda x: _sine(x, on))


def _around_zero(x: Value, on: Arithmetic) -> Value:
    """x − 2π·n with |·| ≤ π, about."""

    def less(x: Value, n: Value) -> Value:
        for part in _TWICE_PI:
            x = on.fma(n, on.const(-part), x)
        return x

    return on.shared(x, lambda x: on.shared(on.rint(x * on.const(0.15915494)), lambda n: less(x, n)))


def _sine(x: Value, on: Arithmetic) -> Value:
    """sin(x) for −π ≤ x ≤ 3π / 2, about."""
    pi = on.const(_PI)

    def mirrored(x: Value) -> Value:
        return on.shared(x, lambda x: on.minimum(x, pi - x))

    inside = on.shared(mirrored(x), lambda x: on.maximum(x, on.const(-_PI) - x))
    return on.shared(mirrored(inside), lambda x: _ratio_of_square(x, *_SIN, on))


def xnnpack_elu(x: Value, on: Arithmetic) -> Value:
    """x for x ≥ 0, else e^x − 1; NaN for NaN."""
    one, rounding = on.const(1.0), on.const(_BIASED_ROUNDING)

    def below(x: Value) -> Value:
        return on.shared(on.fence(on.fma(x, on.const(_LOG2_E), rounding)) - rounding, lambda n: of_parts(x, n))

    def of_parts(x: Value, n: Value) -> Value:
        rest = on.fma(n, on.const(-_LN2_HIGH), x)
        return on.shared(rest, lambda r: on.shared(on.scale(one, n), lambda power: near_one(r, power)))

    def near_one(r: Value, power: Value) -> Value:
        slope = on.fence(on.polynomial(r, _ELU) * r)
        return on.shared(on.fence(r * power), lambda step: on.fma(slope, step, step) + (power - one))

    negative = on.shared(on.minimum(on.maximum(x, on.const(_ELU_LOWEST)), on.const(0.0)), below)
    return on.shared(x, lambda x: on.select(x, on.const(0.0), negative, x))


def _exp_by_table(x: Value, on: Arithmetic) -> Value:
    """e^x for x ≤ 0 where it is a normal number: from x = (n + k / 32) · ln 2 + r."""
    rounding = on.const(_ROUNDING)

    def of_parts(steps: Value) -> Value:
        rest = on.fma(steps, on.const(-_LN2_LOW), on.fma(steps, on.const(-_LN2_HIGH), x))
        whole = on.rint(steps - on.const(0.5 - 0.5 / _STEPS))  # rounded down
        return on.shared(whole, lambda n: on.scale(on.shared(rest, lambda r: near_power(r, steps - n)), n))

    def near_power(r: Value, part: Value) -> Value:
        return on.shared(
            _power(part, on),
            lambda power: on.fma(r * power, on.fma(r, on.const(0.5), on.const(_SMALL_EXP)), power),
        )

    return on.shared(on.fence(on.fma(x, on.const(_LOG2_E), rounding)) - rounding, of_parts)


def _power(part: Value, on: Arithmetic) -> Value:
    """2^part for part = 0, 1 / 32, … 31 / 32, rounded to the nearest float32."""

    def corrected(part: Value) -> Value:
        return on.raised(on.polynomial(part, _POWER), part * on.const(float(_STEPS)), _RAISED)

    return on.shared(part, corrected)


FUNCTIONS = (
    *(xnnpack_sigmoid, xnnpack_tanh, xnnpack_gelu, xnnpack_gelu_tanh),
    *(xnnpack_exp, xnnpack_log, xnnpack_sin, xnnpack_cos, xnnpack_elu),
)

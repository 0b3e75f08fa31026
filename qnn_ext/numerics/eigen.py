"""Functions of float32 as Eigen computes them with vectors of 16 bytes, and so ONNX Runtime where it has no kernel of
its own: without fused multiply-adds. Sine and cosine are those of numbers below `LARGEST`.

As those of `elementary`, they are written over an `Arithmetic`. Only where an exponential is less than the smallest
normal number, it is 0 here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .elementary import Arithmetic, Value, guarded_exp

LARGEST = {"sin": 25966.0, "cos": 18838.0}
_TWO_OVER_PI = 0.636619746685028076171875
_HALF_PI = (1.5703125, 4.83989715576171875e-4, -1.62865035235881805419921875e-7, -5.5644315544167710640977e-11)
# cos(r) = P(r²) and sin(r) = r + r·r²·Q(r²) for |r| ≤ π/4, the lowest power first
_COS = (1.0, -0.5, 0.041666619479656219482421875, -0.00138865201734006404876708984375, 2.437226612528320401907e-5)
_SIN = (-0.16666662029822982555, 0.00833268736556168517, -0.00019592341140837028)


def sin(x: Value, on: Arithmetic) -> Value:
    """The sine of x."""
    signed = on.shared(on.absolute(x), lambda size: _by_quarter(size, 0.0, on, LARGEST["sin"]))
    return on.shared(x, lambda x: signed * on.sign_of(on.const(1.0), x))


def cos(x: Value, on: Arithmetic) -> Value:
    """The cosine of x."""
    return on.shared(on.absolute(x), lambda size: _by_quarter(size, 1.0, on, LARGEST["cos"]))


def _by_quarter(size: Value, first: float, on: Arithmetic, largest: float) -> Value:
    """sin(size + first · π/2), from size = r + n · π/2 with |r| ≤ π/4: ± sin(r) for even n + first, else ± cos(r)."""

    def of_quarter(x: Value, n: Value) -> Value:
        for part in _HALF_PI:
            x = _plus(on, n, on.const(-part), x)
        return on.shared(x, lambda r: on.shared(on.fence(r * r), lambda square: of_rest(r, square, n)))

    def of_rest(r: Value, square: Value, n: Value) -> Value:
        cosine = on.unfused_polynomial(square, _COS)
        sine = _plus(on, on.fence(on.unfused_polynomial(square, _SIN) * square), r, r)
        return on.shared(n + on.const(first), lambda quarter: signed(quarter, sine, cosine))

    def signed(quarter: Value, sine: Value, cosine: Value) -> Value:
        return on.shared(
            _half(quarter, on),
            lambda half: (
                on.select(quarter - (half + half), on.const(0.5), sine, cosine)
                * (on.const(1.0) - on.const(2.0) * (half - on.const(2.0) * _half(half, on)))
            ),
        )

    def of_size(x: Value) -> Value:
        return on.shared(on.rint(on.fence(x * on.const(_TWO_OVER_PI))), lambda n: of_quarter(x, n))

    return on.shared(on.minimum(size, on.const(largest)), of_size)


def _half(n: Value, on: Arithmetic) -> Value:
    """⌊n / 2⌋ of an integer."""
    return on.rint(n * on.const(0.5) - on.const(0.25))


def _plus(on: Arithmetic, a: Value, b: Value, c: Value) -> Value:
    """a · b + c, rounded twice."""
    return on.fence(a * b) + c


# ---- exponentials and logarithms ---------------------------------------------------------------------------------

_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
# e^r = 1 + r + r²·(E(r²) + r·O(r²)) for |r| ≤ ln(2) / 2
_EXP_EVEN = (0.49999988079071044921875, 4.166965186595916748046875e-2, 1.37449637986719608306884765625e-3)
_EXP_ODD = (0.16666518151760101318359375, 8.36894474923610687255859375e-3)
# ln(1 + r) = r·P(r) / Q(r) for √½ ≤ 1 + r < √2
_LOG_NUMERATOR = (1.0000000190281136, 1.0000000190281063, 0.18256296349849254)
_LOG_DENOMINATOR = (1.0, 1.4999999999999927, 0.59923249590823520, 0.049616247954120038)
_SMALLEST_NORMAL = 2.0**-126
_RAISED = 24  # the exponent by which smaller numbers are raised


def _exp_of_normal(x: Value, on: Arithmetic) -> Value:
    """e^x, for x where that is a normal number."""

    def scaled(n: Value) -> Value:
        rest = _plus(on, n, on.const(-_LN2_LOW), _plus(on, n, on.const(-_LN2_HIGH), x))
        return on.scale(on.shared(rest, lambda r: on.shared(on.fence(r * r), lambda square: near_one(r, square))), n)

    def near_one(r: Value, square: Value) -> Value:
        inner = _plus(on, r, on.unfused_polynomial(square, _EXP_ODD), on.unfused_polynomial(square, _EXP_EVEN))
        return _plus(on, square, inner, r + on.const(1.0))

    steps = _plus(on, x, on.const(1 / math.log(2.0)), on.const(0.5))
    return on.shared(_floor(steps, on), scaled)


def _floor(x: Value, on: Arithmetic) -> Value:
    def lowered(x: Value) -> Value:
        return on.shared(on.rint(x), lambda near: on.select(x, near, near - on.const(1.0), near))

    return on.shared(x, lowered)


def vector_exp(x: Value, on: Arithmetic) -> Value:
    """e^x; 0 if it is less than the smallest normal number, 2⁻¹²⁶; NaN for NaN."""
    return guarded_exp(x, on, _exp_of_normal)


def log(x: Value, on: Arithmetic) -> Value:
    """The natural logarithm of x."""

    def raised(x: Value) -> Value:
        normal, zero = on.const(_SMALLEST_NORMAL), on.const(0.0)
        times = on.select(x, normal, on.const(2.0**_RAISED), on.const(1.0))
        lowered = on.select(x, normal, on.const(_RAISED), zero)
        positive = on.shared(on.maximum(x * times, normal), lambda y: _log_of_normal(y, lowered, on))
        finite = on.select(zero, x, positive, on.select(x, zero, on.const(math.nan), on.const(-math.inf)))
        return on.select(x, on.const(math.inf), finite, x)

    return on.shared(x, raised)


def _log_of_normal(x: Value, lowered: Value, on: Arithmetic) -> Value:
    """The same of a positive normal number, less `lowered` times ln 2."""

    def of_parts(mantissa: Value, n: Value) -> Value:
        half, one = on.const(0.5**0.5), on.const(1.0)

        def joined(m: Value) -> Value:
            rest = on.select(m, half, (m - one) + m, m - one)
            exponent = on.select(m, half, n - one, n)
            return _plus(on, exponent, on.const(math.log(2.0)), on.shared(rest, ratio))

        return on.shared(mantissa, joined)

    def ratio(r: Value) -> Value:
        return on.fence(r * on.unfused_polynomial(r, _LOG_NUMERATOR)) / on.unfused_polynomial(r, _LOG_DENOMINATOR)

    return on.shared(on.exponent(x), lambda n: of_parts(on.scale(x, on.const(0.0) - n), n - lowered))


def softplus(x: Value, on: Arithmetic) -> Value:
    """ln(1 + e^x) = max(x, 0) + ln(1 + e^(−|x|))."""

    def of_power(power: Value) -> Value:
        return on.shared(power + on.const(1.0), lambda total: of_total(power, total))

    def of_total(power: Value, total: Value) -> Value:
        """ln(1 + p), by Kahan's correction of the logarithm of the rounded sum, which is at most 2."""
        logarithm = _log_of_normal(total, on.const(0.0), on)
        corrected = power * (logarithm / (total - on.const(1.0)))
        return on.select(on.const(1.0), total, corrected, power)

    def whole(x: Value) -> Value:
        return on.maximum(x, on.const(0.0)) + of_size(x)

    def of_size(x: Value) -> Value:
        return on.shared(vector_exp(on.const(0.0) - on.absolute(x), on), of_power)

    return on.shared(x, whole)


# ---- powers ------------------------------------------------------------------------------------------------------

# log₂(1 + t) = t·(c₀ + t·(c₁ + t·P(t))) for √½ ≤ 1 + t < √2
_LOG2 = (1.4426950417421103, -0.72134751588268664)
_LOG2_REST = (
    *(0.48089790344238281, -0.36067414283752441, 0.28857553005218506, -0.24046677350997925, 0.20505344867706299),
    *(-0.17892272770404816, 0.17200836539268494, -0.16896486282348633, 0.09701082855463028),
)
_LARGEST_REPEATED = 3  # the exponent up to which powers are products
_HALVES = 252.0  # the largest sum of exponents of two normal numbers here


class _Pairs:
    """Numbers as sums of two floats, the second below the last bit of the first. Each operation hands its result to the
    function `then`, as each of its values is to be computed once."""

    def __init__(self, on: Arithmetic) -> None:
        self._on = on

    def constant(self, value: float) -> tuple[Value, Value]:
        high = float(np.float32(value))
        return self._on.const(high), self._on.const(value - high)

    def product(self, a: Value, b: Value, then: Callable[[Value, Value], Value]) -> Value:
        """a · b, exactly."""
        on = self._on

        def with_rest(high: Value) -> Value:
            return on.shared(on.fma(a, b, on.const(0.0) - high), lambda low: then(high, low))

        return on.shared(on.fence(a * b), with_rest)

    def sum(self, a: Value, b: Value, then: Callable[[Value, Value], Value]) -> Value:
        """a + b, exactly for |a| ≥ |b|."""
        shared = self._on.shared
        return shared(a + b, lambda high: shared(b - (high - a), lambda low: then(high, low)))

    def times(self, pair: tuple[Value, Value], b: Value, then: Callable[[Value, Value], Value]) -> Value:
        """pair · b."""
        rest = self._on.fence(pair[1] * b)
        return self.product(
            pair[0],
            b,
            lambda high, low: self.sum(high, rest, lambda high, below: self.sum(high, below + low, then)),
        )

    def plus(self, a: tuple[Value, Value], b: tuple[Value, Value], then: Callable[[Value, Value], Value]) -> Value:
        """a + b for |a| ≥ |b|."""
        return self.sum(a[0], b[0], lambda high, low: self.sum(high, (b[1] + low) + a[1], then))


def inverse_power(x: Value, exponent: float, on: Arithmetic) -> Value:
    """x to the power of −exponent, a positive number; NaN for negative x."""
    if exponent.is_integer() and exponent <= _LARGEST_REPEATED:
        return on.shared(on.const(1.0) / x, lambda y: _repeated_product(y, int(exponent), on))
    normal, zero, infinity = on.const(_SMALLEST_NORMAL), on.const(0.0), on.const(math.inf)

    def of_positive(x: Value) -> Value:
        times = on.select(x, normal, on.const(2.0**_RAISED), on.const(1.0))
        lowered = on.select(x, normal, on.const(_RAISED), zero)
        inside = on.minimum(on.maximum(x * times, normal), on.const(float(np.finfo(np.float32).max)))
        return on.shared(inside, lambda y: _power_of_normal(y, lowered, -exponent, on))

    def guarded(x: Value) -> Value:
        below = on.select(on.const(-(2.0**-149)), x, infinity, on.const(math.nan))
        return on.select(zero, x, on.select(x, infinity, of_positive(x), zero), below)

    return on.shared(x, guarded)


def _repeated_product(x: Value, exponent: int, on: Arithmetic) -> Value:
    if exponent == 1:
        return x
    square = on.fence(x * x)
    return square if exponent == 2 else on.fence(x * square)


def _power_of_normal(x: Value, lowered: Value, exponent: float, on: Arithmetic) -> Value:
    """2^(exponent · (log₂ x − lowered)) of a positive normal number."""
    pairs, y = _Pairs(on), on.const(exponent)

    def of_parts(mantissa: Value, n: Value) -> Value:
        half, one = on.const(0.5**0.5), on.const(1.0)
        rest = on.select(mantissa, half, mantissa + mantissa, mantissa) - one
        steps = on.select(mantissa, half, n - one, n)
        return on.shared(rest, lambda t: on.shared(steps, lambda n: of_logarithm(t, n)))

    def of_logarithm(t: Value, n: Value) -> Value:
        first, second = map(pairs.constant, _LOG2)

        def product(a: Value, b: Value) -> Value:
            return pairs.times((a, b), t, lambda a, b: pairs.plus(first, (a, b), whole))

        def whole(a: Value, b: Value) -> Value:
            return pairs.times((a, b), t, lambda a, b: pairs.times((a, b), y, lambda a, b: with_steps(n, a, b)))

        def begun(rest: Value) -> Value:
            return pairs.product(t, rest, lambda a, b: pairs.plus(second, (a, b), product))

        return on.shared(on.unfused_polynomial(t, _LOG2_REST), begun)

    def with_steps(n: Value, a: Value, b: Value) -> Value:
        return pairs.product(n, y, lambda c, d: pairs.plus((c, d), (a, b), two_to))

    def two_to(a: Value, b: Value) -> Value:
        def split(n: Value, rest: Value) -> Value:
            return on.shared(on.rint(rest), lambda more: scaled(n + more, rest - more))

        return on.shared(on.rint(a), lambda n: on.shared((a - n) + b, lambda rest: split(n, rest)))

    def scaled(n: Value, rest: Value) -> Value:
        def near_one(high: Value, low: Value) -> Value:
            return on.fence(_exp_of_normal(high, on) * (on.const(1.0) + low))

        unit = pairs.product(on.const(math.log(2.0)), rest, near_one)
        limited = on.maximum(on.minimum(n, on.const(_HALVES)), on.const(-_HALVES))
        return on.shared(limited, lambda n: on.shared(on.rint(n * on.const(0.5)), lambda half: twice(unit, half, n)))

    def twice(unit: Value, half: Value, n: Value) -> Value:
        """unit · 2ⁿ, of which a factor alone may be no normal number."""
        return on.scale(unit, half) * on.scale(on.const(1.0), n - half)

    return on.shared(on.exponent(x), lambda n: of_parts(on.scale(x, on.const(0.0) - n), n - lowered))


FUNCTIONS = (sin, cos, vector_exp, log, softplus)

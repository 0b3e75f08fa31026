"""Functions of float32 as LiteRT's own recurrent layers compute them, without fused multiply-adds: Eigen's hyperbolic
tangent, and its sigmoids of vectors of four elements and of those that are left, which takes the C library's
exponential, glibc's.

As those of `elementary`, they are written over an `Arithmetic`. Only where that exponential is less than the smallest
normal number, it is 0 here.
"""

from __future__ import annotations

import math

from .elementary import Arithmetic, Value

# tanh(x) = (x + x³·P(x²)) / Q(x²) up to a limit, beyond which it is ±1; the lowest power first
_TANH = (1.340216100e-1, 3.520756727e-3, 2.102733560e-5, 1.394553628e-8)
_TANH_BELOW = (1.0, 4.673548340e-1, 2.597254514e-2, 3.326951409e-4, 8.015776984e-7)
_TANH_LIMIT = 7.90738964080810547
# e^x = 2^(k / 32)·E(r), r = 32·x / ln(2) − k with |r| ≤ ½, in float64; E is glibc's, with its error
_STEPS = 32
_EXP = tuple(
    float.fromhex(coefficient) / _STEPS**power
    for power, coefficient in enumerate(
        ("0x1p+0", "0x1.62e42ff0c52d6p-1", "0x1.ebfce50fac4f3p-3", "0x1.c6af84b912394p-5")
    )
)
_POWER = tuple(math.log(2.0) ** n / math.factorial(n) for n in range(14))  # 2^f for |f| ≤ ½, to 10⁻¹⁷
_EXP_LOWEST = -126 * math.log(2.0)
_ONE = 16.6355324  # where the sigmoids become 1
# e^r = 1 + r + r²·(E(r²) + r·O(r²)) for |r| ≤ ln(2) / 2
_EVEN = (0.49999141693115234375, 4.1898667812347412109375e-2)
_ODD = (0.16666877269744873046875, 8.33471305668354034423828125e-3)
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_VECTOR_LOWEST = -104.0  # below, the sigmoid of vectors is 0


def litert_tanh(x: Value, on: Arithmetic) -> Value:
    """The hyperbolic tangent of x."""

    def of_square(x: Value, square: Value) -> Value:
        cubic = on.fence(on.fence(square * x) * on.unfused_polynomial(square, _TANH))
        return (cubic + x) / on.unfused_polynomial(square, _TANH_BELOW)

    def of(x: Value) -> Value:
        return on.shared(on.fence(x * x), lambda square: of_square(x, square))

    return on.within(x, -_TANH_LIMIT, _TANH_LIMIT, of)


def litert_logistic(x: Value, on: Arithmetic) -> Value:
    """e^x / (1 + e^x)."""

    def of_parts(steps: Value, k: Value) -> Value:
        power = on.shared(
            k * on.wide(1 / _STEPS), lambda t: on.shared(on.rint(t), lambda n: scaled(steps - k, t - n, n))
        )
        return on.shared(power, lambda e: e / (on.const(1.0) + e))

    def scaled(rest: Value, part: Value, n: Value) -> Value:
        value = on.fence(on.unfused_polynomial(rest, _EXP, on.wide) * on.unfused_polynomial(part, _POWER, on.wide))
        return on.scale(value.astype("float32"), n.astype("float32"))

    def of(x: Value) -> Value:
        steps = on.fence(x.astype("float64") * on.wide(_STEPS / math.log(2.0)))
        return on.shared(steps, lambda steps: on.shared(on.rint(steps), lambda k: of_parts(steps, k)))

    def above(x: Value) -> Value:
        return on.select(x, on.const(_EXP_LOWEST), on.const(0.0), on.within(x, _EXP_LOWEST, _ONE, of))

    return on.shared(x, above)


def litert_vector_logistic(x: Value, on: Arithmetic) -> Value:
    """e^x / (1 + e^x), from the square of e^(x / 2)."""

    def of_parts(half: Value, m: Value) -> Value:
        rest = on.fence(m * on.const(-_LN2_LOW)) + (on.fence(m * on.const(-_LN2_HIGH)) + half)
        near_one = on.shared(rest, lambda r: on.shared(on.fence(r * r), lambda square: power(r, square)))
        return on.shared(on.scale(near_one, m), lambda root: on.shared(on.fence(root * root), ratio))

    def power(r: Value, square: Value) -> Value:
        inner = on.fence(r * on.unfused_polynomial(square, _ODD)) + on.unfused_polynomial(square, _EVEN)
        return on.fence(square * inner) + (r + on.const(1.0))

    def ratio(e: Value) -> Value:
        return e / (on.const(1.0) + e)

    def of(x: Value) -> Value:
        return on.shared(x * on.const(0.5), lambda half: on.shared(_steps(half, on), lambda m: of_parts(half, m)))

    lowest = on.const(_VECTOR_LOWEST)
    return on.shared(x, lambda x: on.select(x, lowest, on.const(0.0), on.within(x, _VECTOR_LOWEST, _ONE, of)))


def _steps(x: Value, on: Arithmetic) -> Value:
    """The integer nearest to x / ln 2, the larger one of two."""

    def lowered(x: Value) -> Value:
        return on.shared(on.rint(x), lambda near: on.select(x, near, near - on.const(1.0), near))

    return on.shared(on.fence(x * on.const(1 / math.log(2.0))) + on.const(0.5), lowered)


FUNCTIONS = (litert_tanh, litert_logistic, litert_vector_logistic)

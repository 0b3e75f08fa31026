"""Sine and cosine of float32 as Eigen computes them with vectors of 16 bytes, and so ONNX Runtime: without fused
multiply-adds, for |x| below `LARGEST`.

As those of `elementary`, they are written over an `Arithmetic`. The absolute error is below 2⁻²³.
"""

from __future__ import annotations

from collections.abc import Sequence

from .elementary import Arithmetic, Value

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
    """sin(size + first · π/2), from size = r + n · π/2 with |r| ≤ π/4: ± sin(r) where n + first is even, else ± cos(r)."""

    def of_quarter(x: Value, n: Value) -> Value:
        for part in _HALF_PI:
            x = _plus(on, n, on.const(-part), x)
        return on.shared(x, lambda r: on.shared(on.fence(r * r), lambda square: of_rest(r, square, n)))

    def of_rest(r: Value, square: Value, n: Value) -> Value:
        cosine = _polynomial(on, square, _COS)
        sine = _plus(on, on.fence(_polynomial(on, square, _SIN) * square), r, r)
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


def _polynomial(on: Arithmetic, x: Value, coefficients: Sequence[float]) -> Value:
    result = on.const(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = _plus(on, result, x, on.const(coefficient))
    return result

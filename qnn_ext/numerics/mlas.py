"""Functions of float32 as ONNX Runtime's MLAS computes them on CPUs with fused multiply-add: with its coefficients and
steps, and so its bits. Only where an exponential is less than the smallest normal number, it is 0 here.

As those of `elementary`, they are written over an `Arithmetic`. Errors are below 2 ulp, that of `gru_tanh` below 5 ulp,
those of `logistic` and `gru_logistic` below 2⁻²³.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .elementary import Arithmetic, Value, guarded_exp

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93145752e-1, 1.42860677e-6
_ROUNDING = 1.5 * 2.0**23  # a sum with it has no bits behind the point
# e^r for |r| ≤ ln(2) / 2, the lowest power first
_EXP = (
    *(1.0, 1.0, float.fromhex("0x1.fffff6p-2"), float.fromhex("0x1.555450p-3")),
    *(float.fromhex("0x1.555b5ap-5"), float.fromhex("0x1.125edcp-7"), float.fromhex("0x1.694000p-10")),
)

# erf(x) = x + x·P(x²) for |x| ≤ 0.921875; 1 − e^(−x − x·Q(x)) above, with an e^r of its own; 1 in float32 from 3.925 on
_ERF_SMALL = (1.28379151e-1, -3.76124859e-1, 1.12818025e-1, -2.67667342e-2, 4.99339588e-3, -5.99104969e-4)
_ERF_LARGE = (
    *(1.28717512e-1, 6.34846687e-1, 1.06777847e-1, -2.42545605e-2),
    *(3.88393435e-3, -3.83208680e-4, 1.72948930e-5),
)
_ERF_EXP = (1.0, 1.0, 4.99999851e-1, 1.66664466e-1, 4.16689515e-2, 8.37550033e-3, 1.38319808e-3)
_ERF_MIDDLE, _ERF_END = 0.921875, 3.925

# tanh(x) = x·P(x²) / Q(x²) for |x| ≤ 9
_TANH_NUMERATOR = (
    *(4.89352455891786e-03, 6.37261928875436e-04, 1.48572235717979e-05, 5.12229709037114e-08),
    *(-8.60467152213735e-11, 2.00018790482477e-13, -2.76076847742355e-16),
)
_TANH_DENOMINATOR = (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06)
_TANH_END, _GRU_TANH_END = 9.0, 10.0

# logistic(x) = ½ + x·P(x²) / Q(x²) for |x| ≤ 18
_LOGISTIC_NUMERATOR = (
    *(2.48287947061529e-01, 8.51377133304701e-03, 6.08574864600143e-05),
    *(1.15627324459942e-07, 4.37031012579801e-11),
)
_LOGISTIC_DENOMINATOR = (
    *(9.93151921023180e-01, 1.16817656904453e-01, 1.70198817374094e-03),
    *(6.29106785017040e-06, 5.76102136993427e-09, 6.10247389755681e-13),
)
_LOGISTIC_END = 18.0


def _exp_of_normal(x: Value, on: Arithmetic, coefficients: Sequence[float] = _EXP) -> Value:
    """e^x, for x where that is a normal number."""

    def scaled(n: Value) -> Value:
        rest = on.fma(n, on.const(-_LN2_LOW), on.fma(n, on.const(-_LN2_HIGH), x))
        return on.scale(on.shared(rest, lambda r: on.polynomial(r, coefficients)), n)

    return on.shared(on.fma(x, on.const(_LOG2_E), on.const(_ROUNDING)) - on.const(_ROUNDING), scaled)


def exp(x: Value, on: Arithmetic) -> Value:
    """e^x; 0 if it is less than the smallest normal number, 2⁻¹²⁶; NaN for NaN."""
    return guarded_exp(x, on, _exp_of_normal)


def erf(x: Value, on: Arithmetic) -> Value:
    """2/√π · ∫₀ˣ e^(−t²) dt."""

    def signed(x: Value) -> Value:
        small = on.fma(on.shared(x * x, lambda square: on.polynomial(square, _ERF_SMALL)), x, x)
        return on.shared(on.minimum(on.absolute(x), on.const(_ERF_END)), lambda size: joined(x, size, small))

    def joined(x: Value, size: Value, small: Value) -> Value:
        exponent = on.const(0.0) - on.fma(on.polynomial(size, _ERF_LARGE), size, size)
        power = on.shared(exponent, lambda y: _exp_of_normal(y, on, _ERF_EXP))
        large = on.sign_of(on.const(1.0) - power, x)
        return on.select(on.const(_ERF_MIDDLE), on.absolute(x), large, small)

    return on.shared(x, signed)


def tanh(x: Value, on: Arithmetic) -> Value:
    """(e^x − e^(−x)) / (e^x + e^(−x))."""

    def quotient(x: Value) -> Value:
        return on.shared(x * x, lambda square: _ratio(x, square, _TANH_NUMERATOR, _TANH_DENOMINATOR, on))

    return on.within(x, -_TANH_END, _TANH_END, quotient)


def _ratio(x: Value, square: Value, above: Sequence[float], below: Sequence[float], on: Arithmetic) -> Value:
    return on.polynomial(square, above) * x / on.polynomial(square, below)


def logistic(x: Value, on: Arithmetic) -> Value:
    """1 / (1 + e^(−x)) to 2⁻²³, as x·P(x²) / Q(x²) + ½; small results are more precise from `elementary.sigmoid`."""

    def raised(x: Value) -> Value:
        quotient = on.shared(x * x, lambda square: _ratio(x, square, _LOGISTIC_NUMERATOR, _LOGISTIC_DENOMINATOR, on))
        return on.minimum(on.maximum(quotient + on.const(0.5), on.const(0.0)), on.const(1.0))

    return on.within(x, -_LOGISTIC_END, _LOGISTIC_END, raised)


def gru_tanh(x: Value, on: Arithmetic) -> Value:
    """As `tanh`, with each product rounded: in ONNX Runtime's GRU."""
    return on.within(x, -_GRU_TANH_END, _GRU_TANH_END, lambda x: _plain_tanh(x, on))


def gru_logistic(x: Value, on: Arithmetic) -> Value:
    """½ · (1 + tanh(x / 2)), in the same way."""

    def raised(x: Value) -> Value:
        return on.const(0.5) * (on.const(1.0) + on.shared(on.const(0.5) * x, lambda half: _plain_tanh(half, on)))

    return on.within(x, -2 * _GRU_TANH_END, 2 * _GRU_TANH_END, raised)


def _plain_tanh(x: Value, on: Arithmetic) -> Value:
    """x·P(x²) / Q(x²) without fused multiply-adds."""

    def quotient(square: Value) -> Value:
        below = on.unfused_polynomial(square, _TANH_DENOMINATOR)
        return on.fence(x * on.unfused_polynomial(square, _TANH_NUMERATOR)) / below

    return on.shared(on.fence(x * x), quotient)


def gelu(x: Value, on: Arithmetic) -> Value:
    """½·x · (erf(x / √2) + 1)."""

    def product(x: Value) -> Value:
        return on.fence(on.const(0.5) * x * (erf(on.fence(x * on.const(0.5**0.5)), on) + on.const(1.0)))

    return on.shared(x, product)


def gelu_tanh(x: Value, on: Arithmetic) -> Value:
    """½·x · (tanh(x · (√(2/π)·0.044715·x·x + √(2/π))) + 1), multiplied from left to right."""
    slope = math.sqrt(2.0 / math.pi)

    def product(x: Value) -> Value:
        inner = x * (on.fence(on.const(0.044715 * slope) * x * x) + on.const(slope))
        return on.fence(on.const(0.5) * x * (tanh(inner, on) + on.const(1.0)))

    return on.shared(x, product)


FUNCTIONS = (exp, erf, tanh, logistic, gelu, gelu_tanh, gru_tanh, gru_logistic)

_PRODUCTS = 256  # of a block where the second matrix is constant, and stored in MLAS's order
LINE = 128
"""Columns, and products, of a block otherwise; always of products if the first matrix is to be transposed."""
_SHORTEST_LINE = 16


def block_of_products(rows: int, terms: int, columns: int, packed: bool) -> int:
    """How many of the `terms` products of a matrix product's element are added before they are added to those before.

    packed: whether the second matrix is a constant

    Blocks become longer where the second matrix has fewer columns. Products by a vector have other sums, and are not
    divided here.
    """
    if packed:
        return _PRODUCTS
    if rows == 1 or columns == 1:
        return terms
    length, width = LINE, LINE
    while columns < terms and width > _SHORTEST_LINE and width // 2 >= columns:
        length, width = 2 * length, width // 2
    return length

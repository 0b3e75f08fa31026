"""Elementary functions of float32 as polynomials: exp, erf, tanh, sigmoid and the activations built from them.

Each is written once over an `Arithmetic`, of which there are two: NumPy arrays (the oracle) and TIR expressions (vector
code). Both round every operation in the same way, so results are equal bit for bit, on every CPU. Errors are below
2 ulp (those of a C library, below 1). The polynomials are minimax fits of the relative error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from . import reference, tir

Value = Any  # a float32 array or PrimExpr, depending on the arithmetic


@dataclass(frozen=True)
class Arithmetic:
    """The operations that float32 functions use besides + − · /.

    const:     a float32 number
    wide:      a float64 number
    fma:       a·b + c, rounded once
    fence:     a value that no compiler contracts with the next operation
    shared:    (x, body) -> body(x), with x computed only once
    rint:      the nearest integer, midpoints to the even one
    scale:     (x, n) -> x·2ⁿ by adding the float n, an integer, to the exponent: both normal numbers
    raised:    (x, k, bits) -> the positive x, or the next larger float if the bit k, a float, of the integer is set
    exponent:  of a positive normal number x = m·2ⁿ with ½ ≤ m < 1: n, a float
    select:    (a < b, x, y) -> x where a < b, else y
    sign_of:   (x, y) -> |x| with the sign of y
    """

    const: Callable[[float], Value]
    wide: Callable[[float], Value]
    fma: Callable[[Value, Value, Value], Value]
    fence: Callable[[Value], Value]
    shared: Callable[[Value, Callable[[Value], Value]], Value]
    rint: Callable[[Value], Value]
    scale: Callable[[Value, Value], Value]
    raised: Callable[[Value, Value, int], Value]
    exponent: Callable[[Value], Value]
    select: Callable[[Value, Value, Value, Value], Value]
    sign_of: Callable[[Value, Value], Value]
    minimum: Callable[[Value, Value], Value]
    maximum: Callable[[Value, Value], Value]
    absolute: Callable[[Value], Value]

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Σ cᵢ·xⁱ by Horner's rule."""
        result = self.const(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            result = self.fma(result, x, self.const(coefficient))
        return result

    def unfused_polynomial(
        self, x: Value, coefficients: Sequence[float], number: Callable[[float], Value] | None = None
    ) -> Value:
        """The same with each product rounded. number: makes coefficients, `const` by default"""
        number = number or self.const
        result = number(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            result = self.fence(result * x) + number(coefficient)
        return result

    def within(self, x: Value, low: float, high: float, of: Callable[[Value], Value]) -> Value:
        """of(x), x limited to low … high; NaN for NaN. Nested selections of bounds would cost LLVM seconds."""

        def limited(x: Value) -> Value:
            inside = self.minimum(self.maximum(x, self.const(low)), self.const(high))
            return self.shared(self.shared(inside, of), lambda y: but_nan(x, y))

        def but_nan(x: Value, y: Value) -> Value:
            return self.select(x, self.const(0.0), y, self.select(self.const(-1.0), x, y, x))

        return self.shared(x, limited)


# ---- the functions -----------------------------------------------------------------------------------------------

_LN2_HIGH = 0.693359375  # nine bits, so that its multiples are exact
_LN2_LOW = math.log(2.0) - _LN2_HIGH
# e^r = 1 + r + r²·P(r) for |r| ≤ ln(2) / 2
_EXP = (0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.00836874544620514, 0.0013814540579915047)
_EXP_LOWEST, _EXP_HIGHEST = -126 * math.log(2.0), 128 * math.log(2.0)

# erf(x) = x + x·P(x²) for |x| ≤ 0.8; 1 − e^(−Q(x)) above; 1 in float32 from 4 on
_ERF_SMALL = (
    *(0.12837916612625122, -0.3761260211467743, 0.11283113062381744),
    *(-0.026820803061127663, 0.005085125099867582, -0.0006535201100632548),
)
_ERF_LARGE = (
    *(5.6839042372303084e-05, 1.1282713413238525, 0.6361420154571533, 0.10487645864486694),
    *(-0.022697411477565765, 0.003164899768307805, -0.00020870036678388715),
)
_ERF_MIDDLE, _ERF_END = 0.8, 4.0

# tanh(x) = x + x·x²·P(x²) for |x| ≤ 0.625; 1 − 2 / (e^(2x) + 1) above; 1 in float32 from 9.1 on
_TANH_SMALL = (
    *(-0.3333328068256378, 0.13331441581249237, -0.05373970419168472),
    *(0.020639052614569664, -0.0057049463503062725),
)
_TANH_MIDDLE, _TANH_END = 0.625, 9.1

_LOG_TERMS = 9  # of ln(m) = 2·Σ f^(2i + 1) / (2i + 1), f = (m − 1) / (m + 1), for √½ ≤ m ≤ √2: to 2⁻⁴⁷


def _exp_of_normal(x: Value, on: Arithmetic) -> Value:
    """e^x, for x where that is a normal number."""

    def scaled(n: Value) -> Value:
        rest = on.fma(n, on.const(-_LN2_LOW), on.fma(n, on.const(-_LN2_HIGH), x))
        return on.scale(on.shared(rest, near_one), n)

    def near_one(r: Value) -> Value:
        return on.fma(r * r, on.polynomial(r, _EXP), r) + on.const(1.0)

    return on.shared(on.rint(x * on.const(1.0 / math.log(2.0))), scaled)


def exp(x: Value, on: Arithmetic) -> Value:
    """e^x; 0 if it is less than the smallest normal number, 2⁻¹²⁶; NaN for NaN."""
    return guarded_exp(x, on, _exp_of_normal)


def guarded_exp(x: Value, on: Arithmetic, of_normal: Callable[[Value, Arithmetic], Value]) -> Value:
    """`exp` by a function that computes it where it is a normal number."""
    lowest, highest = on.const(_EXP_LOWEST), on.const(_EXP_HIGHEST)

    def guarded(x: Value) -> Value:
        inside = on.shared(on.minimum(on.maximum(x, lowest), highest), lambda x: of_normal(x, on))
        finite = on.select(x, lowest, on.const(0.0), inside)
        return on.select(x, highest, finite, x + on.const(math.inf))

    return on.shared(x, guarded)


def log(x: Value, on: Arithmetic) -> Value:
    """ln x of positive normal numbers, from float64: the float32 nearest to it but for one in a million. NaN for NaN, ∞
    for ∞."""

    def of(x: Value) -> Value:
        return on.select(x, on.const(math.inf), on.shared(on.exponent(x), lambda n: of_parts(on.scale(x, -n), n)), x)

    def of_parts(m: Value, n: Value) -> Value:
        half = on.const(math.sqrt(0.5))
        power = on.select(m, half, n - on.const(1.0), n).astype("float64")
        mantissa = on.select(m, half, m + m, m).astype("float64")
        fraction = (mantissa - on.wide(1.0)) / (mantissa + on.wide(1.0))
        return on.shared(fraction, lambda f: total(f, power))

    def total(f: Value, power: Value) -> Value:
        series = on.shared(on.fence(f * f), lambda square: arctanh(f, square))
        return (on.fence(power * on.wide(math.log(2.0))) + series).astype("float32")

    def arctanh(f: Value, square: Value) -> Value:
        result = on.wide(1.0 / (2 * _LOG_TERMS - 1))
        for term in range(_LOG_TERMS - 2, -1, -1):
            result = on.fence(result * square) + on.wide(1.0 / (2 * term + 1))
        return on.fence((f + f) * result)

    return on.shared(x, of)


def _below(number: float, on: Arithmetic) -> Value:
    """The float just below a positive number: x > it means x ≥ number, but is false for NaN, which the branch for small
    x propagates."""
    return on.const(float(np.nextafter(np.float32(number), np.float32(0))))


def erf(x: Value, on: Arithmetic) -> Value:
    """2/√π · ∫₀ˣ e^(−t²) dt."""

    def signed(x: Value) -> Value:
        small = on.fma(on.shared(x * x, lambda square: on.polynomial(square, _ERF_SMALL)), x, x)
        return on.shared(on.minimum(on.absolute(x), on.const(_ERF_END)), lambda size: joined(x, size, small))

    def joined(x: Value, size: Value, small: Value) -> Value:
        exponent = on.shared(on.const(0.0) - on.polynomial(size, _ERF_LARGE), lambda y: _exp_of_normal(y, on))
        large = on.sign_of(on.const(1.0) - exponent, x)
        return on.select(_below(_ERF_MIDDLE, on), on.absolute(x), large, small)

    return on.shared(x, signed)


def tanh(x: Value, on: Arithmetic) -> Value:
    """(e^x − e^(−x)) / (e^x + e^(−x))."""

    def signed(x: Value) -> Value:
        small = on.shared(x * x, lambda square: on.fma(on.polynomial(square, _TANH_SMALL) * square, x, x))
        return on.shared(on.minimum(on.absolute(x), on.const(_TANH_END)), lambda size: joined(x, size, small))

    def joined(x: Value, size: Value, small: Value) -> Value:
        power = on.shared(size + size, lambda y: _exp_of_normal(y, on))
        large = on.sign_of(on.const(1.0) - on.const(2.0) / (power + on.const(1.0)), x)
        return on.select(_below(_TANH_MIDDLE, on), on.absolute(x), large, small)

    return on.shared(x, signed)


def sigmoid(x: Value, on: Arithmetic) -> Value:
    """1 / (1 + e^(−x))."""
    return on.const(1.0) / (on.const(1.0) + exp(on.const(0.0) - x, on))


def silu(x: Value, on: Arithmetic) -> Value:
    """x · sigmoid(x)."""
    return on.shared(x, lambda x: on.fence(x * sigmoid(x, on)))


def gelu(x: Value, on: Arithmetic) -> Value:
    """x · (½ + ½·erf(x / √2))."""
    half = on.const(0.5)

    def product(x: Value) -> Value:
        return on.fence(x * on.fma(erf(on.fence(x * on.const(0.5**0.5)), on), half, half))

    return on.shared(x, product)


def gelu_tanh(x: Value, on: Arithmetic) -> Value:
    """½·x · (1 + tanh(√(2/π)·x · (1 + 0.044715·x·x))), multiplied from left to right."""

    def product(x: Value) -> Value:
        cubic = on.fma(on.const(0.044715) * x, x, on.const(1.0))
        inner = on.const(math.sqrt(2.0 / math.pi)) * x * cubic
        return on.fence(on.const(0.5) * x * (on.const(1.0) + tanh(inner, on)))

    return on.shared(x, product)


# ---- the two arithmetics -----------------------------------------------------------------------------------------

_MANTISSA_BITS, _HALF_EXPONENT = 23, 126


def _numpy_scale(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    bits = np.asarray(x, np.float32).view(np.int32) + (np.asarray(n).astype(np.int32) << np.int32(_MANTISSA_BITS))
    return bits.view(np.float32)


def _numpy_raised(x: np.ndarray, k: np.ndarray, bits: int) -> np.ndarray:
    step = np.uint32(bits) >> np.asarray(k).astype(np.uint32) & np.uint32(1)
    return (np.asarray(x, np.float32).view(np.int32) + step.astype(np.int32)).view(np.float32)


def _numpy_exponent(x: np.ndarray) -> np.ndarray:
    bits = np.asarray(x, np.float32).view(np.int32) >> np.int32(_MANTISSA_BITS)
    return (bits - np.int32(_HALF_EXPONENT)).astype(np.float32)


NUMPY = Arithmetic(
    const=np.float32,
    wide=np.float64,
    fma=reference.fused_multiply_add,
    fence=lambda x: x,
    shared=lambda x, body: body(x),
    rint=np.rint,
    scale=_numpy_scale,
    raised=_numpy_raised,
    exponent=_numpy_exponent,
    select=lambda a, b, x, y: np.where(a < b, x, y),
    sign_of=np.copysign,
    minimum=np.minimum,
    maximum=np.maximum,
    absolute=np.abs,
)


def _tir_scale(x: Value, n: Value) -> Value:
    bits = tirx.reinterpret("int32", x) + (n.astype("int32") << tirx.const(_MANTISSA_BITS, "int32"))
    return tirx.reinterpret("float32", bits)


def _tir_raised(x: Value, k: Value, bits: int) -> Value:
    step = tirx.const(bits, "uint32") >> k.astype("uint32") & tirx.const(1, "uint32")
    return tirx.reinterpret("float32", tirx.reinterpret("int32", x) + step.astype("int32"))


def _tir_exponent(x: Value) -> Value:
    bits = tirx.reinterpret("int32", x) >> tirx.const(_MANTISSA_BITS, "int32")
    return (bits - tirx.const(_HALF_EXPONENT, "int32")).astype("float32")


def _tir_sign_of(x: Value, y: Value) -> Value:
    return tirx.call_llvm_pure_intrin("float32", "llvm.copysign", x, y)


TIR = Arithmetic(
    const=lambda value: tirx.const(float(np.float32(value)), "float32"),
    wide=lambda value: tirx.const(float(value), "float64"),
    fma=tir.fused_multiply_add,
    fence=tir.fence,
    shared=tir.shared,
    rint=tirx.nearbyint,
    scale=_tir_scale,
    raised=_tir_raised,
    exponent=_tir_exponent,
    select=lambda a, b, x, y: tirx.Select(a < b, x, y),
    sign_of=_tir_sign_of,
    minimum=tirx.min,
    maximum=tirx.max,
    absolute=tirx.abs,
)


def on_arrays(function: Callable[[Value, Arithmetic], Value], x: np.ndarray) -> np.ndarray:
    """function(x) for a float32 array."""
    with np.errstate(all="ignore"):
        return np.asarray(function(np.asarray(x, np.float32), NUMPY), np.float32)

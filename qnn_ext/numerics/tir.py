"""The rounding rules as TIR expressions, equal bit for bit to `reference.py`.

Arguments are PrimExpr; per-channel multipliers are loads from constant tensors, scalars are that or immediates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import te, tirx

from ..qparams import dtype_range
from .held import held
from .saturate import saturated
from .wrapping import low_bits

Expr = Any  # a TIR PrimExpr or a Python number


def dtype_of(x: Expr) -> str:
    """The dtype name of a PrimExpr or of an element of a te.Tensor, which have it in different places."""
    return str(x.dtype if isinstance(x, te.TensorSlice) else x.ty.dtype)


def fence(x: Expr) -> Expr:
    """x, rounded to its dtype at this point; anything other than a product has to be finite.

    TVM's LLVM backend contracts a·b + c into a fused multiply-add wherever the CPU has one, which rounds once instead
    of twice and breaks bit-exactness. A maximum with the lowest finite number changes no finite x and keeps the two
    apart. LLVM sees through a maximum with −∞; llvm.arithmetic.fence makes loops around it scalar; and LLVM 22 crashes
    on some loops with llvm.canonicalize. Code generation replaces it by a form that also preserves infinities and NaN.
    """
    if isinstance(x, tirx.Let):
        return tirx.Let(x.var, x.value, fence(x.body))
    dtype = dtype_of(x)
    return tirx.max(x, tirx.const(float(np.finfo(dtype).min), dtype))


_LOWEST = {dtype: float(np.finfo(dtype).min) for dtype in ("float32", "float64")}


def fenced_product(node: tirx.Max) -> tirx.Mul | None:
    """The float32 or float64 product, possibly of vectors, that `node` fences; None for any other maximum."""
    return node.a if is_fence(node) and isinstance(node.a, tirx.Mul) else None


def is_fence(node: tirx.Max) -> bool:
    """Whether a maximum is a fence, with or without a product in it."""
    low = node.b.value if isinstance(node.b, tirx.Broadcast) else node.b
    return isinstance(low, tirx.FloatImm) and float(low.value) == _LOWEST.get(str(node.ty.dtype).split("x")[0])


def without_fence(node: tirx.Max) -> Expr:
    """The product inside a fence, for CPUs without a fused multiply-add; any other maximum unchanged."""
    product = fenced_product(node)
    return node if product is None else product


def shared(x: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """body(x) with x computed only once, however often the body reads it.

    If x were repeated, every operator of an epilogue would double the expression, and TVM simplifies all of it.
    """
    if isinstance(x, (tirx.Var, tirx.IntImm, tirx.FloatImm)):
        return body(x)
    dtype = dtype_of(x)
    var = tirx.Var("shared", dtype)
    return tirx.Let(var, held(x, dtype) if dtype.startswith(("int", "uint")) else x, body(var))


def fused_multiply_add(a: Expr, b: Expr, c: Expr) -> Expr:
    """a·b + c of float32 or vectors of it, rounded once; a library call on CPUs without the instruction."""
    return tirx.call_llvm_pure_intrin(dtype_of(c), "llvm.fma", a, b, c)


def round_half_even(x: Expr) -> Expr:
    """Nearest integer, midpoints to the even one."""
    return tirx.nearbyint(x)


def round_half_away(x: Expr) -> Expr:
    """Nearest integer, midpoints away from zero: ⌊|x| + h⌋ with the sign of x, where h is the float just below ½.

    With ½ itself, the largest float below ½ would become 1, because their sum is not a float. If |x| + h is not a
    float, it is rounded in the direction that ⌊·⌋ undoes.
    """
    dtype = dtype_of(x)
    half = tirx.const(float(np.nextafter(np.dtype(dtype).type(0.5), np.dtype(dtype).type(0))), dtype)
    return shared(x, lambda x: tirx.trunc(x + tirx.call_llvm_pure_intrin(dtype, "llvm.copysign", half, x)))


def round_half_up(x: Expr) -> Expr:
    """⌊x + ½⌋ in x's dtype."""
    return tirx.floor(x + tirx.const(0.5, dtype_of(x)))


def saturating_rounding_doubling_high_mul(x: Expr, multiplier: Expr) -> Expr:
    """⌊x·multiplier / 2³¹ + ½⌋ as int64."""
    return (_i64(x) * _i64(multiplier) + _const64(1 << 30)) >> _const64(31)


def rounding_divide_by_pot(x: Expr, exponent: Expr, sign_of: Expr | None = None) -> Expr:
    """x / 2^exponent, midpoints away from zero; int64.

    (x + half − 1) >> exponent for negative x, (x + half) >> exponent for others, where half = ⌊2^exponent / 2⌋; with
    exponent 0 nothing may be subtracted, hence max(sign, −half). The reference's form, which masks the remainder,
    repeats x four times: nested, as in ADD, that keeps TVM's simplifier busy for minutes.

    sign_of: any value that is negative if x is, and not negative if x is positive
    """
    sign = _negative(x if sign_of is None else sign_of)
    x, exponent = _i64(x), _i64(exponent)
    half = (_const64(1) << exponent) >> _const64(1)
    return (x + half + tirx.max(sign, -half)) >> exponent


def _negative(x: Expr) -> Expr:
    """−1 for negative x, else 0; int64. Not x >> 63: in an index, say of a table, TVM narrows x to 32 bits."""
    if dtype_of(x) == "int32":
        return _i64(x >> tirx.const(31, "int32"))
    return tirx.min(tirx.max(x, _const64(-1)), _const64(0))


def multiply_tflite(x: Expr, multiplier: Expr, shift: Expr, upwards: bool = True) -> Expr:
    """TFLite's MultiplyByQuantizedMultiplier as int64: int32 x double-rounds, int64 x rounds once.

    upwards: whether shifts may be positive; if not, there is no left shift
    """
    one = _const64(1)
    if dtype_of(x) == "int64":
        multiplier, shift = _i64(multiplier), _exponent(shift)
        reduced = tirx.Select(
            multiplier < _const64(0x7FFF0000), (multiplier + _const64(1 << 15)) >> _const64(16), _const64(0x7FFF)
        )
        total = _const64(15) - shift
        return (x * reduced + (one << (total - one))) >> total
    left, right = _split_shift(_exponent(shift))

    def rounded_twice(shifted: Expr) -> Expr:
        high = saturating_rounding_doubling_high_mul(shifted, multiplier)
        # multipliers are not negative, so `shifted` has the sign of `high`; if high is 0 the quotient is 0 in any case
        return rounding_divide_by_pot(high, right, sign_of=shifted)

    return shared(_shifted_up(x, left, upwards), rounded_twice)


def multiply_tflite_upward(x: Expr, multiplier: Expr, shift: Expr, upwards: bool = True) -> Expr:
    """The same for int32 x with midpoints up in both roundings, as int64."""
    left, right = _split_shift(_exponent(shift))
    high = saturating_rounding_doubling_high_mul(_shifted_up(x, left, upwards), multiplier)
    return (high + ((_const64(1) << right) >> _const64(1))) >> right


def _shifted_up(x: Expr, left: Expr, upwards: bool) -> Expr:
    """The lower 32 bits of x · 2^left."""
    return low_bits(_i64(x) << left, "int32") if upwards and not _is_zero(left) else x


def multiply_upward(x: Expr, multiplier: Expr, shift: Expr, upwards: bool = True) -> Expr:
    """⌊x · m · 2^(shift−31) + ½⌋ in int64; if that is beyond 32 bits, so is the result, which need not be exact."""
    product, total = _product(x, multiplier, shift, upwards)
    return (product + (_const64(1) << (total - _const64(1)))) >> total


def multiply_tonearest(x: Expr, multiplier: Expr, shift: Expr, upwards: bool = True) -> Expr:
    """The same with midpoints away from zero."""
    product, total = _product(x, multiplier, shift, upwards)
    half = _const64(1) << (total - _const64(1))

    def rounded(product: Expr) -> Expr:
        return (product + tirx.Select(product >= _const64(0), half, half - _const64(1))) >> total

    return shared(product, rounded)


def _product(x: Expr, multiplier: Expr, shift: Expr, upwards: bool) -> tuple[Expr, Expr]:
    left, right = _split_shift(_exponent(shift))
    x, total = _i64(x), _const64(31) + right
    if upwards and not _is_zero(left):
        most = _const64(1) << (_const64(32) - left)
        x = tirx.max(tirx.min(x, most), -most) << left
    return x * _i64(multiplier), total


def _is_zero(x: Expr) -> bool:
    return isinstance(x, tirx.IntImm) and int(x) == 0


def _split_shift(shift: Expr) -> tuple[Expr, Expr]:
    zero = _const64(0)
    return tirx.max(shift, zero), tirx.max(-shift, zero)


def _exponent(shift: Expr) -> Expr:
    """A shift as int64 that provably fits into 32 bits: TVM 0.27 simplifies (1 << e) >> 1 to 0 for int64 loads e."""
    return _i64(shift.astype("int32")) if dtype_of(shift) == "int64" else _i64(shift)


def _i64(x: Expr) -> Expr:
    return x.astype("int64")


def _const64(value: int) -> Expr:
    return tirx.const(value, "int64")


FIXED = {
    "TFLITE": multiply_tflite,
    "TFLITE_UPWARD": multiply_tflite_upward,
    "UPWARD": multiply_upward,
    "TONEAREST": multiply_tonearest,
}


# ---- requantize --------------------------------------------------------------------------------------------------


def saturate(x: Expr, dtype: str) -> Expr:
    """Clip integers to the range of `dtype` and cast."""
    low, high = dtype_range(dtype)
    return tirx.max(tirx.min(x, tirx.const(high, dtype_of(x))), tirx.const(low, dtype_of(x))).astype(dtype)


def saturating_add(x: Expr, zero_point: Expr, dtype: str) -> Expr:
    """saturate(x + zero_point) for int32 x with |x| < 2³⁰."""
    zero_point = zero_point.astype("int32")
    if dtype not in ("int8", "uint8"):
        return saturate(x + zero_point, dtype)
    if isinstance(zero_point, tirx.IntImm):
        return saturated(x, int(zero_point), dtype)
    return saturated(x + zero_point, 0, dtype)


def round_to_int(x: Expr, zero_point: Expr, dtype: str, limit: float = math.inf) -> Expr:
    """saturate(rint(x) + zero_point) for floats x; NaN counts as −∞.

    limit: a bound of |x|, if known; it can save clipping x before it becomes an int32
    """
    if dtype not in ("int8", "uint8", "int16", "uint16"):
        return float_to_int(tirx.nearbyint(x), zero_point, dtype)
    return saturating_add(round_to_int32(x if limit < 2.0**30 else _bounded(x, 2.0**18)), zero_point, dtype)


def round_to_int32(x: Expr) -> Expr:
    """rint(x) for |x| < 2³¹, midpoints to even: a single instruction, unlike rounding and then converting."""
    return tirx.call_llvm_pure_intrin("int32", "llvm.lrint", x)


def _bounded(x: Expr, bound: float) -> Expr:
    return clipped(x, tirx.const(bound, dtype_of(x)))


def clipped(x: Expr, limit: Expr) -> Expr:
    """x clipped to ±limit; NaN becomes −limit. Each comparison is one instruction of x86, a maximum or a minimum."""
    lowest = -limit
    above = shared(x, lambda x: tirx.Select(x > lowest, x, lowest))
    return shared(above, lambda x: tirx.Select(x < limit, x, limit))


def is_number(x: Expr) -> Expr:
    """Whether x is not NaN. TVM makes scalar code of tirx.isnan, and leaves out a comparison of x with itself."""
    return x >= tirx.const(-math.inf, dtype_of(x))


def float_to_int(x: Expr, zero_point: Expr, dtype: str) -> Expr:
    """saturate(x + zero_point) for rounded floats x of any size; NaN counts as −∞.

    Narrow outputs are clipped in floating point, so that int32 cannot overflow: ±2¹⁸ leaves room for any zero point.
    """
    narrow = dtype in ("int8", "uint8", "int16", "uint16")
    wide, bound = ("int32", 2.0**18) if narrow else ("int64", 2.0**31)
    clipped = _bounded(x, bound).astype(wide)
    return saturating_add(clipped, zero_point, dtype) if narrow else saturate(clipped + zero_point.astype(wide), dtype)


def requantize_float(x: Expr, multiplier: Expr, zero_point: Expr, dtype: str, limit: float = math.inf) -> Expr:
    """TONEAREST_EVEN: saturate(rint(f32(x) · m) + zp). x is an integer, m finite, so no NaN can occur.

    limit: a bound of |x · m|, if known
    """
    real = x.astype("float32") * multiplier
    if dtype not in ("int8", "uint8", "int16", "uint16"):
        return float_to_int(tirx.nearbyint(real), zero_point, dtype)
    if limit >= 2.0**30:
        bound = tirx.const(2.0**18, "float32")
        real = tirx.max(tirx.min(real, bound), -bound)
    return saturating_add(round_to_int32(real), zero_point, dtype)


def requantize_float_relay(x: Expr, multiplier: Expr, zero_point: Expr, dtype: str, rounding: str) -> Expr:
    """Relay's float variant adds the zero point before rounding; TFLite's, after."""
    if rounding == "TFLITE":
        return float_to_int(round_half_away(fence(x.astype(dtype_of(multiplier)) * multiplier)), zero_point, dtype)
    real = fence(x.astype(dtype_of(multiplier)) * multiplier) + zero_point.astype(dtype_of(multiplier))
    rounded = round_half_up(real) if rounding == "UPWARD" else round_half_away(real)
    return float_to_int(rounded, tirx.const(0, "int32"), dtype)


def requantize_fixed(
    x: Expr,
    multiplier: Expr,
    shift: Expr,
    zero_point: Expr,
    dtype: str,
    rounding: str,
    upwards: bool = True,
    narrow: bool = False,
) -> Expr:
    """A rounding of `FIXED` in integers: saturate(multiply(x) + zp).

    narrow: whether |multiply(x)| is known to be below 2³⁰
    """
    multiply = FIXED[rounding]
    if narrow:
        return saturating_add(multiply(x, multiplier, shift, upwards).astype("int32"), zero_point, dtype)
    return saturate(multiply(x, multiplier, shift, upwards) + _i64(zero_point), dtype)


# ---- between dtypes ----------------------------------------------------------------------------------------------


def truncate(x: Expr, dtype: str) -> Expr:
    """Floats converted to the integers `dtype`: rounded towards zero, saturated; NaN becomes 0.

    The conversion of values out of range is undefined in C and LLVM and differs between kinds of CPUs.
    """
    if dtype_of(x) in ("float16", "bfloat16"):
        x = x.astype("float32")  # 65535 is not a float16
    low, high = dtype_range(dtype)
    wide = dtype_of(x)
    below = float(np.nextafter(np.dtype(wide).type(float(high) + 1), np.dtype(wide).type(0)))

    def saturated_cast(x: Expr) -> Expr:
        inside = tirx.max(tirx.min(x, tirx.const(min(below, float(high)), wide)), tirx.const(float(low), wide))
        saturated = tirx.Select(x > tirx.const(below, wide), tirx.const(high, dtype), inside.astype(dtype))
        return tirx.Select(is_number(x), saturated, tirx.const(0, dtype))

    return shared(x, saturated_cast)

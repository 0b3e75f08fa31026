"""DIV: quantized (in TFLite's fixed point), float, int32."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .... import op as qnn
from ....numerics import fixed_point, reference
from ....numerics.gemmlowp import leading_zeros, reciprocal
from ....numerics.reference import domain
from ....qparams import QParams, dtype_range
from ...run_time import checked_divisor
from ..integers import (
    Wide,
    activate,
    quantized_or_plain,
    require_dtype,
    result_qparams,
    same_dtype,
    scalar,
    tensor_qparams,
)
from ..node import Node
from ..registry import converter
from .arithmetic import integer_division

# x / y = x · 2^headroom · (1/y) · 2^−(headroom + reciprocal shift): the quotient is first computed with all 31 bits,
# then multiplied by s_x / (s_y·s_o) and shifted back. TFLite does not guard that last shift: beyond 31 bits, for
# dividends near zero, and below 0 it is undefined in C++, and on x86 the count wraps: 1 / 60 may come out as the
# largest integer. Both numerics reproduce x86.


@converter("DIV", max_version=2)
def convert_div(node: Node) -> relax.Expr:
    """x / y. Of integers, quantized or not, y must not be zero: LiteRT, too, stops with an error."""
    dtype = same_dtype(node, 0, 1)
    if not quantized_or_plain(node, 0, 1):
        require_dtype(node, dtype, "float32", "int32")
        if dtype == "float32":
            return activate(node, relax.op.divide(node.input(0), node.input(1)))
        return activate(node, integer_division(node, _truncating_divide))
    lhs, rhs, output = tensor_qparams(node, 0), tensor_qparams(node, 1), result_qparams(node)
    divide = _divide_int16 if dtype == "int16" else _divide_by_table
    checked = checked_divisor(node.emit, node.input(1), node.label, int(rhs.zero_point))
    return node.activate(divide(node, checked, lhs, rhs, output))


def _truncating_divide(lhs: relax.Expr, rhs: relax.Expr) -> relax.Expr:
    return relax.op.divide(lhs, rhs)


def _multiplier(lhs: QParams, rhs: QParams, output: QParams) -> tuple[int, int]:
    """s_x / (s_y·s_o), computed in float32 as TFLite does, as (multiplier, shift)."""
    ratio = lhs.scale.astype(np.float32) / (rhs.scale.astype(np.float32) * output.scale.astype(np.float32))
    factor = fixed_point(ratio)
    return int(factor.multiplier), int(factor.shift)


# ---- 8 bits: all 65536 quotients -----------------------------------------------------------------------------------


def _divide_by_table(node: Node, divisor: relax.Expr, lhs: QParams, rhs: QParams, output: QParams) -> relax.Expr:
    """One lookup at 256·x + y, both counted from the dtype's minimum."""
    low = dtype_range(lhs.dtype)[0]
    rows = node.emit(relax.op.subtract(node.emit(relax.op.astype(node.input(0), "int32")), scalar(low)))
    columns = node.emit(relax.op.subtract(node.emit(relax.op.astype(divisor, "int32")), scalar(low)))
    index = node.emit(relax.op.add(node.emit(relax.op.multiply(rows, scalar(256))), columns))
    x, y = np.meshgrid(domain(lhs.dtype), domain(rhs.dtype), indexing="ij")
    quotients = divide_array(x.reshape(-1), y.reshape(-1), lhs, rhs, output)
    return qnn.table(node.emit(relax.op.astype(index, "uint16")), quotients)


def divide_array(x: np.ndarray, y: np.ndarray, lhs: QParams, rhs: QParams, output: QParams) -> np.ndarray:
    """TFLite's DivElementwise without activation, on x86; division by zero, which is refused elsewhere, divides by
    one."""
    multiplier, out_shift = _multiplier(lhs, rhs, output)
    dividend = x.astype(np.int64) - int(lhs.zero_point)
    divisor = y.astype(np.int64) - int(rhs.zero_point)
    dividend = np.where(divisor < 0, -dividend, dividend)
    inverse, inverse_shift = reciprocal(np.maximum(np.abs(divisor), 1), 31)
    headroom = _headroom(dividend)
    quotient = reference.saturating_rounding_doubling_high_mul(dividend << headroom, inverse)
    scaled = reference.saturating_rounding_doubling_high_mul(quotient, np.asarray(multiplier, np.int64))
    result = _shift_right(scaled, headroom + inverse_shift - out_shift) + int(output.zero_point)
    return reference.saturate(result, output.dtype)


def _headroom(x: np.ndarray) -> np.ndarray:
    """By how many bits an int32 can be shifted left without overflow (CountLeadingSignBits)."""
    return leading_zeros(np.where(x < 0, ~x, x)) - 1


def _shift_right(x: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """x / 2^exponent, rounded. Where the count wraps, at 32 and below 0, all bits of the remainder mask are set, so
    every x ≥ 0 is rounded up."""
    right = reference.rounding_divide_by_pot(x, np.clip(exponent, 0, 62))
    return np.where((exponent < 0) | (exponent > 31), (x >> (exponent & 31)) + (x >= 0), right)


# ---- 16 bits: tables for whatever depends on one operand, the rest in int64 --------------------------------------


def _divide_int16(node: Node, y: relax.Expr, lhs: QParams, rhs: QParams, output: QParams) -> relax.Expr:
    multiplier, out_shift = _multiplier(lhs, rhs, output)
    dividends, divisors = (domain("int16").astype(np.int64) - int(q.zero_point) for q in (lhs, rhs))
    inverse, inverse_shift = reciprocal(np.maximum(np.abs(divisors), 1), 31)
    x, zero = node.input(0), int(rhs.zero_point)
    negative = node.emit(relax.op.less(y, scalar(zero, "int16")))
    shifted, headroom = (
        Wide(node, node.emit(relax.op.where(negative, _lookup(node, x, f(-dividends)), _lookup(node, x, f(dividends)))))
        for f in (lambda d: d << _headroom(d), _headroom)
    )
    quotient = shifted.high_multiply(Wide(node, _lookup(node, y, inverse)))
    scaled = quotient.high_multiply(quotient.constant(multiplier))
    exponent = headroom + Wide(node, _lookup(node, y, inverse_shift - out_shift))
    result = scaled.divide_by_pot(exponent.at_least(0).at_most(62))
    wrapped = (scaled >> (exponent & 31)) + scaled.not_below(0)
    result = exponent.not_below(0).choose(result, wrapped)
    result = exponent.not_below(32).choose(wrapped, result)
    low, high = dtype_range("int16")
    result = (result + int(output.zero_point)).at_least(low).at_most(high)
    return relax.op.astype(result.expr, "int16")


def _lookup(node: Node, data: relax.Expr, values: np.ndarray) -> relax.Expr:
    return node.emit(qnn.table(data, values.astype(np.int64)))

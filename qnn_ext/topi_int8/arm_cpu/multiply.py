"""TFLite's fixed-point multiplication with the instructions that it was modelled on.

sshl            x · 2^up, if any shift is to the left
sqrdmulh        ⌊x · multiplier / 2³¹ + ½⌋; its only sum beyond int32 has two factors of −2³¹, and multipliers are ≥ 0
and, ssra       one less if that is negative and shifted right: srshl rounds midpoints up, TFLite away from zero
srshl           ⌊x · 2^down + ½⌋
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ...numerics.multiply import in_64_bits
from .vectors import LANES, call_llvm, joined, lanes_of, registers

Expr = Any
_NAMES = {
    True: ("llvm.aarch64.neon.sqrdmulh", "llvm.aarch64.neon.srshl"),
    False: ("llvm.arm.neon.vqrdmulh", "llvm.arm.neon.vrshifts"),
}


def multiply(call: Expr, wide: bool) -> Expr:
    """The operator for vectors of whole registers and for single values; `wide`: whether the CPU is a 64-bit one."""
    lanes = lanes_of(call)
    if lanes == 1:
        return in_64_bits(call)
    names = [tirx.Var(name, arg.ty) for name, arg in zip(("x", "multiplier", "up", "down"), call.args[:4], strict=True)]
    shifts = [_is_zero(arg) for arg in call.args[2:4]]
    parts = zip(*(registers(name, lanes) for name in names), strict=True)
    result = joined([_register(part, shifts, wide) for part in parts], lanes)
    for name, value in zip(reversed(names), reversed(list(call.args[:4])), strict=True):
        result = tirx.Let(name, value, result)
    return result


def _register(part: tuple[Expr, ...], zero: list[bool], wide: bool) -> Expr:
    x, multiplier, up, down = part
    dtype = f"int32x{LANES}"
    high_mul, round_shift = _NAMES[wide]
    shifted = x if zero[0] else x << up
    high = call_llvm(dtype, high_mul, shifted, multiplier)
    if zero[1]:
        return high
    var = tirx.Var("high", high.ty)
    away = var + ((var & down) >> tirx.const(31, dtype))
    return tirx.Let(var, high, call_llvm(dtype, round_shift, away, down))


def _is_zero(shift: Expr) -> bool:
    value = shift.value if isinstance(shift, tirx.Broadcast) else shift
    return isinstance(value, tirx.IntImm) and int(value) == 0

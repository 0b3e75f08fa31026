"""The steps of microcontrollers around TVM's pipeline: vectors as the core has them, and TFLite's multiplication.

Only Helium has vectors, of 16 bytes. Longer ones, and all on other cores, become loops: LLVM would unroll them into
more values than there are registers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from ...numerics.multiply import FITS, ROUNDS, facts_of, is_multiply
from ...targets.families import CORTEX_M
from ...targets.features import offers, registers_of
from ..arm_cpu.vectors import call_llvm, lanes_of
from ..cpu.lets import stored
from ..cpu.steps import Steps, register_steps

Expr = Any


LANES = 4  # int32 in a register of Helium


def _in_registers(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with every vectorized loop as one over whole registers, if the core has any, or as a plain one."""
    helium = registers_of(function.attrs["target"]).bytes > 4

    def split(node: tirx.For) -> tirx.For:
        if node.kind != tirx.ForKind.VECTORIZED or not isinstance(node.extent, tirx.IntImm):
            return node
        size = int(node.extent)
        if not helium or size % LANES:
            return _loop(node.loop_var, node.extent, node.body)
        if size == LANES:
            return node
        dtype = str(node.loop_var.ty.dtype)
        outer, inner = (tirx.Var(f"{node.loop_var.name}_{part}", dtype) for part in ("o", "i"))
        place = outer * tirx.const(LANES, dtype) + inner
        body = tvm_ffi.structural_map(node.body, (tirx.Var, lambda var: place if var.same_as(node.loop_var) else var))
        lanes = tirx.For(inner, tirx.const(0, dtype), tirx.const(LANES, dtype), tirx.ForKind.VECTORIZED, body)
        return _loop(outer, tirx.const(size // LANES, dtype), lanes)

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.For, split)))


def _loop(var: tirx.Var, extent: Expr, body: tirx.Stmt) -> tirx.For:
    return tirx.For(var, tirx.const(0, str(var.ty.dtype)), extent, tirx.ForKind.SERIAL, body)


def _multiplied_in_vectors(call: Expr) -> Expr:
    """TFLite's multiplication of a register of values with Helium's instructions, as `arm_cpu.multiply` with NEON's."""
    x, multiplier, up, down, _ = call.args
    dtype = f"int32x{LANES}"
    shifted = x if _is_zero(up) else x << up
    high = call_llvm(dtype, "llvm.arm.mve.vqrdmulh", shifted, multiplier)
    if _is_zero(down):
        return high
    var = tirx.Var("high", high.ty)
    away = var + ((var & down) >> tirx.const(31, dtype))
    flags = [tirx.const(flag, "int32") for flag in (0, 1, 0)]  # it does not saturate, rounds, and is signed
    return tirx.Let(var, high, call_llvm(dtype, "llvm.arm.mve.vshl.vector", away, down, *flags))


def _multiplied(call: Expr, wide: bool) -> Expr:
    """TFLite's multiplication of single values: a product of 64 bits, all else in 32; other operators are unchanged.

        ⌊x · 2^up · multiplier / 2³¹ + ½⌋, then ⌊that / 2^−down + ½⌋ with midpoints away from zero

    If 2x fits, the first is ⌊2x · multiplier / 2³² + ½⌋, the upper half of a product: smmulr on cores with DSP.
    wide: whether the core has products of 64 bits
    """
    if not is_multiply(call):
        return call
    if lanes_of(call) == LANES:
        return _multiplied_in_vectors(call)
    x, multiplier, up, down, _ = call.args
    facts = facts_of(call)
    fits = bool(facts & FITS)
    bits, doubled = (32, 1) if fits else (31, 0)
    shift = doubled if _is_zero(up) else up + doubled
    shifted = x << shift if fits or not _is_zero(up) else x
    high = (_upper_half if wide else _upper_half_by_parts)(shifted, multiplier, bits)
    if _is_zero(down):
        return high
    var = tirx.Var("high", high.ty)
    right = -down
    half = (tirx.const(1, "int32") << right) >> tirx.const(1, "int32")
    sign = var >> tirx.const(31, "int32")
    if not facts & ROUNDS:  # where nothing is shifted, half is 0, and nothing may be subtracted
        sign = tirx.max(sign, -half)
    return tirx.Let(var, high, (var + sign + half) >> right)


def _upper_half(x: Expr, multiplier: Expr, bits: int) -> Expr:
    """⌊x · multiplier / 2^bits + ½⌋ as int32, for 31 or 32 bits."""
    product = x.astype("int64") * multiplier.astype("int64") + tirx.const(1 << (bits - 1), "int64")
    return (product >> tirx.const(bits, "int64")).astype("int32")


def _upper_half_by_parts(x: Expr, multiplier: Expr, bits: int) -> Expr:
    """The same for a multiplier ≥ 0 by products of 16 bits each, which a function for 64 bits computes, too, and more:

        x = x₁·2¹⁶ + x₀, m = m₁·2¹⁶ + m₀, t = x₁·m₀ + ⌊x₀·m₀ / 2¹⁶⌋, u = x₀·m₁ + t mod 2¹⁶
        x·m = (x₁·m₁ + ⌊t / 2¹⁶⌋)·2³² + u·2¹⁶ + …

    x₀, m₀ and x₀·m₀ are unsigned, and so is u with its half.
    """
    unsigned, half = "uint32", tirx.const(16, "int32")

    def low(value: Expr) -> Expr:
        return value & tirx.const(0xFFFF, "int32")

    def logical(value: Expr, count: int) -> Expr:
        return (value >> tirx.const(count, unsigned)).astype("int32")

    value, factor, carried = (tirx.Var(name, x.ty) for name in ("value", "factor", "carried"))
    lowest = low(value).astype(unsigned) * low(factor).astype(unsigned)
    middle = (low(value) * (factor >> half) + low(carried)).astype(unsigned) + tirx.const(1 << (bits - 17), unsigned)
    upper = (value >> half) * (factor >> half) + (carried >> half)
    total = upper * tirx.const(1 << (32 - bits), "int32") + logical(middle, bits - 16)
    total = tirx.Let(carried, (value >> half) * low(factor) + logical(lowest, 16), total)
    return tirx.Let(value, x, tirx.Let(factor, multiplier, total))


def _is_zero(shift: Expr) -> bool:
    value = shift.value if isinstance(shift, tirx.Broadcast) else shift
    return isinstance(value, tirx.IntImm) and int(value) == 0


def _narrow(body: tirx.Stmt, target: Target) -> tirx.Stmt:
    wide = offers(target, CORTEX_M.product("mla"))  # smull came with it
    return tvm_ffi.structural_map(body, (tvm.ir.Call, partial(_multiplied, wide=wide)))


def _finish(body: tirx.Stmt, target: Target) -> tirx.Stmt:
    return stored(body)


register_steps(CORTEX_M, Steps(begin=_in_registers, narrow=_narrow, finish=_finish))

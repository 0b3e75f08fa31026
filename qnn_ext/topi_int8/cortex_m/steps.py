"""The steps of microcontrollers around TVM's pipeline: vectors as the core has them, and TFLite's multiplication.

Only Helium has vectors, of 16 bytes. Elsewhere loops stay loops: LLVM would unroll every vector into scalars, more of
them than there are registers.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from ...numerics.multiply import FITS, ROUNDS, facts_of, is_multiply
from ...targets.families import CORTEX_M
from ..cpu.chains import by_step
from ..cpu.lets import stored
from ..cpu.steps import Steps, register_steps

Expr = Any


def _without_vectors(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with every vectorized loop as a plain one."""

    def loop(node: tirx.For) -> tirx.For:
        if node.kind != tirx.ForKind.VECTORIZED:
            return node
        return tirx.For(node.loop_var, node.min, node.extent, tirx.ForKind.SERIAL, node.body, None, node.annotations)

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.For, loop)))


def _multiplied(call: Expr) -> Expr:
    """TFLite's multiplication of single values: a product of 64 bits, all else in 32; other operators are unchanged.

        ⌊x · 2^up · multiplier / 2³¹ + ½⌋, then ⌊that / 2^−down + ½⌋ with midpoints away from zero

    If 2x fits, the first is ⌊2x · multiplier / 2³² + ½⌋, the upper half of a product: smmulr on cores with DSP.
    """
    if not is_multiply(call):
        return call
    x, multiplier, up, down, _ = call.args
    facts = facts_of(call)
    fits = bool(facts & FITS)
    bits, doubled = (32, 1) if fits else (31, 0)
    shift = doubled if _is_zero(up) else up + doubled
    shifted = x << shift if fits or not _is_zero(up) else x
    product = shifted.astype("int64") * multiplier.astype("int64") + tirx.const(1 << (bits - 1), "int64")
    high = (product >> tirx.const(bits, "int64")).astype("int32")
    if _is_zero(down):
        return high
    var = tirx.Var("high", high.ty)
    right = -down
    half = (tirx.const(1, "int32") << right) >> tirx.const(1, "int32")
    sign = var >> tirx.const(31, "int32")
    if not facts & ROUNDS:  # where nothing is shifted, half is 0, and nothing may be subtracted
        sign = tirx.max(sign, -half)
    return tirx.Let(var, high, (var + sign + half) >> right)


def _is_zero(shift: Expr) -> bool:
    return isinstance(shift, tirx.IntImm) and int(shift) == 0


def _order(body: tirx.Stmt) -> tirx.Stmt:
    return tvm_ffi.structural_map(body, (tirx.SeqStmt, by_step))


def _narrow(body: tirx.Stmt, target: Target) -> tirx.Stmt:
    return tvm_ffi.structural_map(body, (tvm.ir.Call, _multiplied))


def _finish(body: tirx.Stmt, target: Target) -> tirx.Stmt:
    return stored(body)


register_steps(CORTEX_M, Steps(begin=_without_vectors, order=_order, narrow=_narrow, finish=_finish))

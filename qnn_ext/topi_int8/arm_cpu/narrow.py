"""Saturating narrowing, and rounding of float vectors, on ARM, where LLVM uses several instructions or library calls.

aarch64   fcvtns         four floats to int32, midpoints to even
          sqxtn, sqadd, sqxtn or sqxtun   to int16; the zero point, exact wherever that lies in 8 bits; to 8 bits
armv7     has vqmovn and vqadd, but no conversion that rounds: x + 1.5·2²³ has the rounded x in its lowest bits
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from ...numerics.multiply import is_multiply
from ...numerics.saturate import in_lanes, is_saturate, rounded_operand, widened, zero_point
from ...targets.families import AARCH64
from ...targets.features import backend_of, contracts, has_feature
from .multiply import multiply
from .vectors import LANES, call_llvm, joined, lanes_of, registers

Expr = Any
FLOAT32 = "float32"

_ROUNDER = 3 << 22
_ROUNDER_BITS = int(np.float32(_ROUNDER).view(np.int32))
_INTEGERS_FROM = 1 << 23  # floats of this size and above have no fraction

_WORDS = {True: "llvm.aarch64.neon.sqxtn", False: "llvm.arm.neon.vqmovns"}
_BYTES = {
    (True, "int8"): "llvm.aarch64.neon.sqxtn",
    (True, "uint8"): "llvm.aarch64.neon.sqxtun",
    (False, "int8"): "llvm.arm.neon.vqmovns",
    (False, "uint8"): "llvm.arm.neon.vqmovnsu",
}


def finish_for_arm(body: tirx.Stmt, target: Target) -> tirx.Stmt:
    """A kernel with its saturating narrowing and its rounding of float32 as ARM instructions."""
    wide = backend_of(target) is AARCH64
    body = tvm_ffi.structural_map(body, (tvm.ir.Call, partial(_integers, wide=wide, fenced=contracts(target))))
    if wide or has_feature(target, "fp-armv8"):
        return tvm_ffi.structural_map(body, (tvm.ir.Call, _converted)) if wide else body
    return tvm_ffi.structural_map(body, (tvm.ir.Call, _without_calls))


def _integers(call: Expr, wide: bool, fenced: bool) -> Expr:
    """The operators of saturating narrowing and of TFLite's multiplication as instructions; others are unchanged."""
    if is_multiply(call):
        return multiply(call, wide)
    if not is_saturate(call):
        return call
    narrow = narrow_saturated(call, wide, fenced)
    return widened(call).astype(call.ty.dtype) if narrow is None else narrow


def narrow_saturated(call: Expr, wide: bool, fenced: bool) -> Expr | None:
    """The operator of saturating narrowing for vectors of whole registers; None for others.

    wide:   whether the CPU is a 64-bit one
    fenced: whether products would be contracted with additions that follow
    """
    dtype, lanes = str(call.ty.dtype).partition("x")[0], lanes_of(call)
    if lanes % LANES or dtype not in ("int8", "uint8"):
        return None
    x, real = call.args[0], rounded_operand(call.args[0])
    if real is None:
        value, integers = x, lambda part: part
    elif wide:
        value, integers = real, _nearest
    else:
        value, integers = real, partial(_nearest_in_range, fenced=fenced and isinstance(real, tirx.Mul))
    var = tirx.Var("wide", value.ty)
    words = [_words(integers(part), wide) for part in registers(var, lanes)]
    if len(words) % 2:
        words.append(words[-1])
    shifted = [_shifted(joined(words[i : i + 2], 8), zero_point(call)) for i in range(0, len(words), 2)]
    narrow = [call_llvm(f"{dtype}x8", _BYTES[wide, dtype], word) for word in shifted]
    return tirx.Let(var, value, joined(narrow, lanes))


def _converted(call: Expr) -> Expr:
    """lrint of float32 vectors as fcvtns; other operators are unchanged."""
    real = rounded_operand(call)
    if real is None or lanes_of(call) % LANES:
        return call
    var = tirx.Var("real", real.ty)
    return tirx.Let(var, real, joined([_nearest(part) for part in registers(var, lanes_of(call))], lanes_of(call)))


def _without_calls(call: Expr) -> Expr:
    """lrint and nearbyint of float32 without calls of the C library; other operators are unchanged."""
    real = rounded_operand(call)
    if real is not None:
        return rounded(real).astype(call.ty.dtype)
    is_rint = getattr(call.op, "name", "") == "tirx.nearbyint" and str(call.ty.dtype).startswith(FLOAT32)
    return rounded(call.args[0]) if is_rint else call


def rounded(x: Expr) -> Expr:
    """The nearest integer to float32 x, midpoints to even, as a float: |x| + 2²³ has no fraction left.

    Larger x, infinities and NaN are unchanged, and so is the sign of 0.
    """
    dtype = str(x.ty.dtype)
    var = tirx.Var("real", x.ty)
    size = tirx.Var("size", x.ty)
    bound = tirx.const(float(_INTEGERS_FROM), dtype)
    whole = call_llvm(dtype, "llvm.copysign", (size + bound) - bound, var)
    return tirx.Let(var, x, tirx.Let(size, call_llvm(dtype, "llvm.fabs", var), tirx.Select(size < bound, whole, var)))


def _nearest(part: Expr) -> Expr:
    return call_llvm("int32x4", "llvm.aarch64.neon.fcvtns", part)


def _nearest_in_range(part: Expr, fenced: bool) -> Expr:
    """rint(x) for |x| < 2²²; beyond that, a value of the same sign that is at least as large, since it will be clipped.

    The sums' bits, read as integers, have the same order as the sums; those of negative sums are negative. A product is
    fenced by a maximum if it would be contracted with the sum.
    """
    if fenced:
        part = call_llvm(
            "float32x4", "llvm.arm.neon.vmaxs", part, tirx.const(float(np.finfo(np.float32).min), "float32x4")
        )
    bits = tirx.reinterpret("int32x4", part + tirx.const(float(_ROUNDER), "float32x4"))
    return call_llvm("int32x4", "llvm.ssub.sat", bits, tirx.const(_ROUNDER_BITS, "int32x4"))


def _words(part: Expr, wide: bool) -> Expr:
    return call_llvm("int16x4", _WORDS[wide], part)


def _shifted(words: Expr, shift: Expr) -> Expr:
    if isinstance(shift, tirx.IntImm) and int(shift) == 0:
        return words
    return call_llvm("int16x8", "llvm.sadd.sat", words, in_lanes(shift.astype("int16"), words))

"""Saturating narrowing of int32 vectors with AVX-512's pack instructions, two or four registers at a time.

    vpackssdw   two registers of int32 to one of int16
    vpaddsw     the zero point, saturating; the sum is exact wherever it lies in the 8-bit range
    vpackuswb   two registers of int16 to one of uint8; vpacksswb for int8
    vpermd      packs work within 128-bit lanes; this moves four bytes at a time to their final positions

That is 7 instructions for 64 values, where LLVM needs 4 × (addition, maximum, vpmovusdb of two operations, store).
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ...numerics.saturate import in_lanes, zero_point

Expr = Any
REGISTER = 16


def pack_saturated(call: Expr) -> Expr | None:
    """The operator for 32 or 64 lanes of uint8 or int8 as instructions of AVX512BW; None for other vectors."""
    dtype, _, lanes = str(call.ty.dtype).partition("x")
    if lanes not in ("32", "64") or dtype not in ("uint8", "int8"):
        return None
    x = call.args[0]
    value = tirx.Var("wide", x.ty)
    quarters = [_register(value, part) for part in range(int(lanes) // REGISTER)]
    words = [_shifted(_pack_words(*quarters[i : i + 2]), zero_point(call)) for i in range(0, len(quarters), 2)]
    pack = "llvm.x86.avx512.packuswb.512" if dtype == "uint8" else "llvm.x86.avx512.packsswb.512"
    packed = tirx.call_llvm_pure_intrin(f"{dtype}x64", pack, words[0], words[-1])
    order = [16 * lane + 4 * part + byte for part in range(len(quarters)) for lane in range(4) for byte in range(4)]
    return tirx.Let(value, x, _shuffle(packed, order))


def _register(value: Expr, part: int) -> Expr:
    return _shuffle(value, range(REGISTER * part, REGISTER * (part + 1)))


def _shuffle(value: Expr, order: Any) -> Expr:
    return tirx.Shuffle([value], [tirx.const(index, "int32") for index in order])


def _pack_words(low: Expr, high: Expr) -> Expr:
    return tirx.call_llvm_pure_intrin("int16x32", "llvm.x86.avx512.packssdw.512", low, high)


def _shifted(words: Expr, zero_point: Expr) -> Expr:
    if isinstance(zero_point, tirx.IntImm) and int(zero_point) == 0:
        return words
    return tirx.call_llvm_pure_intrin("int16x32", "llvm.sadd.sat", words, in_lanes(zero_point.astype("int16"), words))

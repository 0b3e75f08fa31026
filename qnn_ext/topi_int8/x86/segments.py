"""Lookups of vectors in tables of 16 float32, which are a register of AVX-512 and two of AVX2.

vpermps  picks a lane of a register, or of half the table, by the low four (three) bits of the index
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.target import Target

from ...numerics.piecewise import SEGMENTS
from ...targets.features import has_feature
from ..generic.block import has_size

Expr = Any
HALF = SEGMENTS // 2


def looked_up(load: TensorLoad, target: Target) -> Expr:
    """table[i] for a vector of i from 0 to 15 as such instructions; other loads are unchanged."""
    count = str(load.ty.dtype).partition("x")[2]
    table = load.source  # its elements may be vectors, where a tensor of 16 rows is kept
    if str(table.dtype) != "float32" or not has_size(table, SEGMENTS):
        return load
    index, lanes = load.indices[0], int(count or 1)
    wide = has_feature(target, "avx512f")
    register = SEGMENTS if wide and lanes % SEGMENTS == 0 else HALF
    if isinstance(index, tirx.Ramp | tirx.Broadcast) or lanes % register:
        return load
    pick = _of_one if register == SEGMENTS else _of_two
    var = tirx.Var("segments", index.ty)
    parts = [
        pick(load.source, var if lanes == register else _shuffle([var], range(first, first + register)))
        for first in range(0, lanes, register)
    ]
    return tirx.Let(var, index, parts[0] if len(parts) == 1 else _shuffle(parts, range(lanes)))


def _of_one(table: tirx.Buffer, index: Expr) -> Expr:
    entries = tirx.BufferLoad(table, [tirx.Ramp(0, 1, SEGMENTS)])
    return tirx.call_llvm_pure_intrin(f"float32x{SEGMENTS}", "llvm.x86.avx512.permvar.sf.512", entries, index)


def _of_two(table: tirx.Buffer, index: Expr) -> Expr:
    # No `let` of the index: where an expression has the same lookup several times, TVM's code generator refuses it as
    # bound to another range. LLVM computes it once all the same.
    halves = (tirx.BufferLoad(table, [tirx.Ramp(first, 1, HALF)]) for first in (0, HALF))
    low, high = (tirx.call_llvm_pure_intrin(f"float32x{HALF}", "llvm.x86.avx2.permps", half, index) for half in halves)
    return tirx.Select(index < tirx.const(HALF, f"int32x{HALF}"), low, high)


def _shuffle(values: list[Expr], order: Any) -> Expr:
    return tirx.Shuffle(values, [tirx.const(lane, "int32") for lane in order])

"""Lookups in tables of 256 bytes, 64 lanes at a time, with AVX512-VBMI: the table is in four registers.

vpermi2b  looks up the low seven bits of the index in two registers, once for each half of the table
vpmovb2m, vpblendmb  select the half by the highest bit
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad

from ..cpu.lookup import byte_lookup

Expr = Any
BYTES = 64


def looked_up(load: TensorLoad) -> Expr:
    """table[q − lowest q] for a vector of 8-bit q as such instructions; other loads are unchanged."""
    found = byte_lookup(load)
    if found is None or found.lanes not in (4, 8, 16, 32, 64):
        return load
    value = tirx.Var("index", found.index.ty)
    return tirx.Let(value, found.index, _all_lanes(found.table, found.dtype, value, found.lanes, found.signed))


def _all_lanes(table: tirx.Buffer, dtype: str, index: Expr, lanes: int, signed: bool) -> Expr:
    signs = tirx.reinterpret(f"int8x{lanes}", index)
    if lanes < BYTES:
        signs = _shuffle([signs] * (BYTES // lanes), range(BYTES))
    low, high = (_half(table, dtype, signs, half) for half in range(2))
    negative = signs < tirx.const(0, f"int8x{BYTES}")
    found = tirx.Select(negative, low, high) if signed else tirx.Select(negative, high, low)
    return _shuffle([found], range(lanes)) if lanes < BYTES else found


def _half(table: tirx.Buffer, dtype: str, index: Expr, half: int) -> Expr:
    one, two = (tirx.BufferLoad(table, [tirx.Ramp((2 * half + part) * BYTES, 1, BYTES)]) for part in range(2))
    return tirx.call_llvm_pure_intrin(f"{dtype}x{BYTES}", "llvm.x86.avx512.vpermi2var.qi.512", one, index, two)


def _shuffle(values: list[Expr], order: Any) -> Expr:
    return tirx.Shuffle(values, [tirx.const(lane, "int32") for lane in order])

"""Tables of 256 bytes read 64 lanes at a time with AVX512-VBMI: the table lies in four registers.

vpermi2b  two registers of table by the low seven bits of the index, once for each half of the table
vpmovb2m, vpblendmb  the half that the highest bit asks for
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad

from ...qparams import dtype_range

Expr = Any
BYTES = 64
ENTRIES = 256


def looked_up(load: TensorLoad) -> Expr:
    """table[q − lowest q] for a vector of 8-bit q as such instructions; any other load as it is."""
    table = load.source
    dtype, _, lanes = str(load.ty.dtype).partition("x")
    is_table = dtype in ("int8", "uint8") and [str(size) for size in table.shape] == [str(ENTRIES)]
    index = _byte_index(load.indices[0]) if is_table and lanes in ("16", "32", "64") else None
    if index is None:
        return load
    value = tirx.Var("index", index.ty)
    found = _all_lanes(table, dtype, value, int(lanes), signed=str(index.ty.dtype).startswith("int"))
    return tirx.Let(value, index, found)


def _byte_index(index: Expr) -> Expr | None:
    """The 8-bit q of an index q − lowest q in 32 bits."""
    offset = 0
    if isinstance(index, tirx.Add | tirx.Sub):
        constant = index.b.value if isinstance(index.b, tirx.Broadcast) else index.b
        if not isinstance(constant, tirx.IntImm):
            return None
        offset = int(constant) if isinstance(index, tirx.Add) else -int(constant)
        index = index.a
    if not isinstance(index, tirx.Cast):
        return None
    dtype = str(index.value.ty.dtype).split("x")[0]
    return index.value if dtype in ("int8", "uint8") and offset == -dtype_range(dtype)[0] else None


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

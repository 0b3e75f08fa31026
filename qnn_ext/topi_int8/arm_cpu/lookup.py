"""Lookups in tables of 256 bytes, 16 lanes at a time, on 64-bit ARM: the table is in sixteen registers.

tbl   looks up an index in the 64 bytes of four registers, 0 if it is out of range
tbx   the same, but keeps the old value if out of range: used three times, with indices 64 lower each time
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad

from ..cpu.lookup import ENTRIES, Lookup, byte_lookup
from .vectors import call_llvm, joined, shuffle

Expr = Any
BYTES = 16  # of a register
QUARTER = 4 * BYTES


def looked_up(load: TensorLoad) -> Expr:
    """table[q − lowest q] for a vector of 8-bit q as such instructions; other loads are unchanged."""
    found = byte_lookup(load)
    if found is None or found.lanes % 8:
        return load
    lanes = min(found.lanes, BYTES) if found.lanes % BYTES == 0 else 8
    value = tirx.Var("index", found.index.ty)
    parts = [
        value if found.lanes == lanes else shuffle([value], range(first, first + lanes))
        for first in range(0, found.lanes, lanes)
    ]
    return tirx.Let(value, found.index, joined([_register(found, part, lanes) for part in parts], found.lanes))


def _register(found: Lookup, q: Expr, lanes: int) -> Expr:
    unsigned, entry = f"uint8x{lanes}", f"{found.dtype}x{lanes}"
    index = tirx.reinterpret(unsigned, q)
    if found.signed:
        index = index ^ tirx.const(0x80, unsigned)
    var = tirx.Var("place", index.ty)
    result = None
    for first in range(0, ENTRIES, QUARTER):
        registers = [
            tirx.BufferLoad(found.table, [tirx.Ramp(first + part * BYTES, 1, BYTES)])
            for part in range(QUARTER // BYTES)
        ]
        place = tirx.reinterpret(entry, var - tirx.const(first, unsigned) if first else var)
        if result is None:
            result = call_llvm(entry, "llvm.aarch64.neon.tbl4", *registers, place)
        else:
            result = call_llvm(entry, "llvm.aarch64.neon.tbx4", result, *registers, place)
    return tirx.Let(var, index, result)

"""Lookups of vectors of 8-bit values in tables of 256 bytes, which some CPUs do in registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad

from ...qparams import dtype_range
from ..generic.block import has_size

Expr = Any
ENTRIES = 256


@dataclass(frozen=True)
class Lookup:
    """table[q − lowest q] for a vector of 8-bit q, the `index`; `dtype`: of the table's entries."""

    table: tirx.Buffer
    dtype: str
    index: Expr
    lanes: int

    @property
    def signed(self) -> bool:
        """Whether q is int8."""
        return str(self.index.ty.dtype).startswith("int")


def byte_lookup(load: TensorLoad) -> Lookup | None:
    """The lookup that a load performs; None for other loads and for single values."""
    table = load.source
    dtype, _, lanes = str(load.ty.dtype).partition("x")
    is_table = dtype in ("int8", "uint8") and has_size(table, ENTRIES)
    index = _byte_index(load.indices[0]) if is_table and lanes else None
    return None if index is None else Lookup(table, dtype, index, int(lanes))


def _byte_index(index: Expr) -> Expr | None:
    """The 8-bit q in a 32-bit index q − lowest q."""
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

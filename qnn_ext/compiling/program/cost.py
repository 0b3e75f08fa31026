"""A rough estimate of how long flat loops take, to decide which are worth parallelizing."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from ...numerics.annotations import TRIPS, annotation_of
from ...numerics.operator import is_call

VECTOR_NODES, SCALAR_NODES = 200.0, 100.0
"""Expression nodes that a core executes per nanosecond, measured over kernels of both kinds. Most nodes belong to
indices, which cost nothing; and LLVM vectorizes many scalar loops."""

VECTOR_BYTES = 32
"""Results up to this size take one instruction per node."""

MATRIX = 4.0
"""Nanoseconds of an instruction on a matrix of 1 KiB: a load, a store or a product of AMX."""

UNKNOWN = 16
"""Assumed iterations of a loop whose extent is not constant and that no annotation bounds."""


def nanoseconds(stmt: tirx.Stmt) -> float:
    """Estimated time of a statement on one core."""
    if isinstance(stmt, tirx.For):
        known = stmt.extent if isinstance(stmt.extent, tirx.IntImm) else annotation_of(stmt, TRIPS)
        extent = UNKNOWN if known is None else int(known)
        return extent * nanoseconds(stmt.body)
    if isinstance(stmt, tirx.SeqStmt):
        return sum(map(nanoseconds, stmt.seq))
    if isinstance(stmt, tirx.BufferStore):
        return _expression(stmt.value)
    if isinstance(stmt, tirx.Evaluate):
        return MATRIX if is_call(stmt.value, "tirx.call_llvm_intrin") else 0.0
    if isinstance(stmt, tirx.IfThenElse):
        return max(nanoseconds(stmt.then_case), nanoseconds(stmt.else_case) if stmt.else_case is not None else 0.0)
    if isinstance(stmt, s_tir.SBlockRealize):
        return nanoseconds(stmt.block.body)
    return nanoseconds(stmt.body) if hasattr(stmt, "body") else 0.0


def _expression(value: Any) -> float:
    nodes: list[Any] = []
    tvm_ffi.structural_walk(value, (ir.Expr, nodes.append))
    count = len(nodes)
    dtype = tvm_ffi.dtype(str(value.ty.dtype))
    if dtype.lanes == 1:
        return count / SCALAR_NODES
    return count / VECTOR_NODES * max(1.0, dtype.itemsize / VECTOR_BYTES)

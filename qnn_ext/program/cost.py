"""A rough estimate of how long flat loops take, to decide what is worth sharing between threads."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx

NODES_PER_NS = 6.0
"""Nodes of an expression on full vectors that a core works off: a load, a product and a store take about a cycle."""

VECTOR_BYTES = 32
"""Results up to this size take one instruction a node."""

SCALARS = 8
"""How many neighbouring results of a scalar loop LLVM makes one vector of, on average."""

UNKNOWN = 16
"""Iterations of a loop whose extent is not a constant."""


def nanoseconds(stmt: tirx.Stmt) -> float:
    """Estimated time of a statement on one core."""
    return _nodes(stmt) / NODES_PER_NS


def _nodes(stmt: Any) -> float:
    if isinstance(stmt, tirx.For):
        extent = int(stmt.extent) if isinstance(stmt.extent, tirx.IntImm) else UNKNOWN
        return extent * _nodes(stmt.body)
    if isinstance(stmt, tirx.SeqStmt):
        return sum(map(_nodes, stmt.seq))
    if isinstance(stmt, tirx.BufferStore):
        return _expression(stmt.value)
    if isinstance(stmt, tirx.IfThenElse):
        return max(_nodes(stmt.then_case), _nodes(stmt.else_case) if stmt.else_case is not None else 0.0)
    return _nodes(stmt.body) if hasattr(stmt, "body") else 1.0


def _expression(value: Any) -> float:
    count = 0

    def visit(_: Any) -> None:
        nonlocal count
        count += 1

    tvm_ffi.structural_walk(value, (ir.Expr, visit))
    dtype = tvm_ffi.dtype(str(value.ty.dtype))
    return count / SCALARS if dtype.lanes == 1 else count * max(1.0, dtype.itemsize / VECTOR_BYTES)

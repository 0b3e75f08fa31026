"""Statements of TIR in parts and put together, for passes on kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx


def statements_of(stmt: tirx.Stmt) -> list[tirx.Stmt]:
    """Those of a sequence, or the statement itself."""
    return list(stmt.seq) if isinstance(stmt, tirx.SeqStmt) else [stmt]


def sequence_of(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """The statements as one; TVM refuses a sequence of a single statement."""
    flat = [stmt for statement in statements for stmt in statements_of(statement)]
    return tirx.SeqStmt(flat) if len(flat) > 1 else flat[0]


def with_body(loop: tirx.For, body: tirx.Stmt, annotations: Mapping[str, Any] | None = None) -> tirx.For:
    """The loop with another body, and other annotations if they are given."""
    annotations = loop.annotations if annotations is None else annotations
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, annotations)


def on_stack(buffer: tirx.Var, annotations: Mapping[str, Any] | None = None) -> tirx.AllocBuffer:
    """The allocation of a buffer on the stack, whatever its size."""
    return tirx.AllocBuffer(buffer, {**(annotations or {}), "disable_lower_builtin": tirx.const(True, "bool")})

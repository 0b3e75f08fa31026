"""The values of an expression's `let`s in buffers of their own.

Before LLVM gets a `let`, TVM's analyzers put the values of other `let`s for their variables and analyze the result, so
that the time grows exponentially with the number of values that depend on one another; and they stop with an internal
error where a value has other bounds inside a `Select` than outside. They do not follow loads, and LLVM keeps these
buffers in registers. Both branches of a `Select` are computed in any case; an `if_then_else` keeps what is inside.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...numerics.operator import is_call
from .statements import on_stack

Expr = Any


def stored(body: tirx.Stmt) -> tirx.Stmt:
    """The statement with the values of its `let`s in buffers of their own, stored one after another."""
    return tvm_ffi.structural_map(body, (tirx.BufferStore, _in_steps))


def _in_steps(store: tirx.BufferStore) -> tirx.Stmt:
    """The store behind those of the values of its `let`s; unchanged if it has at most one."""
    conditional = _conditional(store.value)
    lets = [let for let in _lets(store.value) if let.var not in conditional]
    if len(lets) < 2:
        return store
    values: dict[Any, Expr] = {}
    for let in lets:
        if not tvm_ffi.structural_equal(values.setdefault(let.var, let.value), let.value):
            return store  # one variable for two values

    def body_of(let: tirx.Let) -> Expr:
        return let.body if let.var in values else let

    flat = {var: tvm_ffi.structural_map(value, (tirx.Let, body_of)) for var, value in values.items()}
    result = tvm_ffi.structural_map(store.value, (tirx.Let, body_of))
    known: dict[Any, Expr] = {}  # what is read instead of each variable

    def read(var: tirx.Var) -> Expr:
        return known.get(var, var)

    statements: list[tirx.Stmt] = []
    for var in _in_order(flat):
        value = tvm_ffi.structural_map(flat[var], (tirx.Var, read))
        if _is_constant(value):
            known[var] = value
            continue
        scalar, _, lanes = str(var.ty.dtype).partition("x")
        buffer = tirx.decl_buffer((int(lanes or 1),), scalar, var.name, layout=None)
        first = tirx.const(0, "int32")
        index = tirx.Ramp(first, tirx.const(1, "int32"), int(lanes)) if lanes else first
        known[var] = buffer[index]
        statements.append(on_stack(buffer))
        statements.append(tirx.BufferStore(buffer, value, [index]))
    result = tvm_ffi.structural_map(result, (tirx.Var, read))
    statements.append(tirx.BufferStore(store.buffer, result, store.indices))
    return tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]


def _is_constant(value: Expr) -> bool:
    return isinstance(value.value if isinstance(value, tirx.Broadcast) else value, (tirx.IntImm, tirx.FloatImm))


def _in_order(values: dict[Any, Expr]) -> list[Any]:
    """The variables, each after those in its value."""
    order: dict[Any, None] = {}
    pending = [(var, False) for var in reversed(values)]
    while pending:
        var, ready = pending.pop()
        if ready:
            order[var] = None
        elif var not in order:
            pending.append((var, True))
            pending += [(read, False) for read in _variables(values[var]) if read in values and read not in order]
    return list(order)


def _conditional(value: Expr) -> set[Any]:
    """The variables of `let`s inside an `if_then_else`."""
    found: set[Any] = set()

    def visit(call: Expr) -> None:
        if is_call(call, "prim.if_then_else"):
            found.update(let.var for let in _lets(call))

    tvm_ffi.structural_walk(value, (tvm.ir.Call, visit))
    return found


def _lets(value: Expr) -> list[tirx.Let]:
    found: list[tirx.Let] = []
    tvm_ffi.structural_walk(value, (tirx.Let, lambda let: found.append(let)))
    return found


def _variables(value: Expr) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (tirx.Var, lambda var: found.append(var)))
    return found

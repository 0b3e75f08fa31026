"""Threads for everything that is no TE compute: nests with a parallel outermost loop; the rest runs on a single thread.

Examples are non-maximum suppression, cumulative sums and scatters. A parallel iteration becomes a thread; its
allocations become that thread's local memory.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize

from ..schedule_util import changed_block

THREADS = 64

Stmt = Any


def bind_nests(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with threads for each part of its root block that has none yet."""
    realize = func.body
    if not isinstance(realize, SBlockRealize):
        return func
    root = realize.block
    parts = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    bound = [part if is_bound(part) else _threaded(part) for part in parts]
    body = bound[0] if len(bound) == 1 else tirx.SeqStmt(bound)
    return func.with_body(SBlockRealize(realize.iter_values, realize.predicate, changed_block(root, body=body)))


def is_bound(statement: Stmt) -> bool:
    """Whether there is a thread-bound loop in a statement."""
    found: list[tirx.For] = []
    tvm_ffi.structural_walk(statement, (tirx.For, lambda loop: found.append(loop)))
    return any(int(loop.kind) == int(tirx.ForKind.THREAD_BINDING) for loop in found)


def _threaded(statement: Stmt) -> Stmt:
    if isinstance(statement, SBlockRealize) and not statement.block.iter_vars:
        body = _threaded(statement.block.body)
        return SBlockRealize(statement.iter_values, statement.predicate, changed_block(statement.block, body=body))
    if isinstance(statement, tirx.SeqStmt) and not any(isinstance(part, tirx.AllocBuffer) for part in statement.seq):
        return tirx.SeqStmt([_threaded(part) for part in statement.seq])
    if isinstance(statement, tirx.For) and int(statement.kind) == int(tirx.ForKind.PARALLEL):
        return _thread_each(statement)
    return _bound_loop("threadIdx.x", 1, lambda _: _own_memory(statement))


def _thread_each(loop: tirx.For) -> Stmt:
    """Iteration b · THREADS + t on thread t of block b."""
    count = int(loop.extent)

    def in_block(block: tirx.Var) -> Stmt:
        return _bound_loop("threadIdx.x", THREADS, lambda thread: iteration(block * THREADS + thread))

    def iteration(index: Any) -> Stmt:
        value = loop.min + index
        body = tvm_ffi.structural_map(
            _own_memory(loop.body), (tirx.Var, lambda var: value if var.same_as(loop.loop_var) else var)
        )
        return body if count % THREADS == 0 else tirx.IfThenElse(index < count, body, None)

    return _bound_loop("blockIdx.x", -(-count // THREADS), in_block)


def _bound_loop(tag: str, extent: int, body: Any) -> tirx.For:
    var = tirx.Var(tag.replace(".", "_"), "int32")
    thread = tirx.IterVar(None, tirx.Var(tag, "int32"), tirx.IterVar.ThreadIndex, tag)
    return tirx.For(var, 0, extent, tirx.ForKind.THREAD_BINDING, body(var), thread)


def _own_memory(statement: Stmt) -> Stmt:
    """A thread's allocations, placed in its local memory."""
    local: dict[tirx.Buffer, tirx.Buffer] = {}

    def allocate(node: tirx.AllocBuffer) -> None:
        old = node.buffer
        if old.scope() == "global":
            local[old] = tirx.decl_buffer(old.shape, old.dtype, old.name, scope="local")

    tvm_ffi.structural_walk(statement, (tirx.AllocBuffer, allocate))
    if not local:
        return statement
    return tvm_ffi.structural_map(statement, (tirx.Buffer, lambda buffer: local.get(buffer, buffer)))

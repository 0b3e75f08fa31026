"""Code for one thread: parallel loops become serial, as a parallel launch costs microseconds even with one thread."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import IRModule, tirx

from ..numerics.annotations import SETUP, annotation_of


def serialize(mod: IRModule) -> IRModule:
    """`mod` with every parallel loop of its PrimFuncs made serial."""
    functions = {
        var: func.with_body(serial_body(func.body)) if isinstance(func, tirx.PrimFunc) else func
        for var, func in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def serial_body(body: tirx.Stmt) -> tirx.Stmt:
    """A statement with every parallel loop in it made serial."""

    def loop(node: tirx.For) -> tirx.Stmt:
        return in_a_row(node, node.min, node.extent) if node.kind == tirx.ForKind.PARALLEL else node

    return tvm_ffi.structural_map(body, (tirx.For, loop))


def in_a_row(loop: tirx.For, first: Any, count: Any) -> tirx.Stmt:
    """`count` iterations of a parallel loop, from `first` on, one after another."""
    annotations = {key: value for key, value in loop.annotations.items() if key != SETUP}
    setup = int(annotation_of(loop, SETUP) or 0)
    before, body, after = [], loop.body, []
    if setup:
        *statements, undo = loop.body.seq
        before, after = statements[:setup], [undo]
        rest = statements[setup:]
        body = tirx.SeqStmt(rest) if len(rest) > 1 else rest[0]
    serial = tirx.For(loop.loop_var, first, count, tirx.ForKind.SERIAL, body, None, annotations)
    return tirx.SeqStmt([*before, serial, *after]) if setup else serial

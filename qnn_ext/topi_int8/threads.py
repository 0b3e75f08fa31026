"""Code for one thread: parallel loops become serial, as a parallel launch costs microseconds even with one thread."""

from __future__ import annotations

import tvm_ffi
from tvm import IRModule, tirx


def serialize(mod: IRModule) -> IRModule:
    """`mod` with every parallel loop of its PrimFuncs made serial."""
    functions = {
        var: func.with_body(serial_body(func.body)) if isinstance(func, tirx.PrimFunc) else func
        for var, func in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def serial_body(body: tirx.Stmt) -> tirx.Stmt:
    """A statement with every parallel loop in it made serial."""

    def loop(node: tirx.For) -> tirx.For:
        if node.kind != tirx.ForKind.PARALLEL:
            return node
        return tirx.For(node.loop_var, node.min, node.extent, tirx.ForKind.SERIAL, node.body, None, node.annotations)

    return tvm_ffi.structural_map(body, (tirx.For, loop))

"""One thread: parallel loops become serial ones, for a parallel launch costs microseconds even with a single thread."""

from __future__ import annotations

import tvm_ffi
from tvm import IRModule, tirx


def serialize(mod: IRModule) -> IRModule:
    """`mod` with every parallel loop of its PrimFuncs made serial."""
    functions = {
        var: func.with_body(_serial(func.body)) if isinstance(func, tirx.PrimFunc) else func
        for var, func in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _serial(body: tirx.Stmt) -> tirx.Stmt:
    def loop(node: tirx.For) -> tirx.For:
        if node.kind != tirx.ForKind.PARALLEL:
            return node
        return tirx.For(node.loop_var, node.min, node.extent, tirx.ForKind.SERIAL, node.body, None, node.annotations)

    return tvm_ffi.structural_map(body, (tirx.For, loop))

"""Workspaces of kernels become tensors of the graph, so that their memory is planned with all the rest.

A GPU kernel of several launches keeps the data they exchange in a buffer. By default TVM takes it from a pool at every
call and grows the pool by reallocating it, after which a CUDA graph would still use the old address.
"""

from __future__ import annotations

from typing import Any

from tvm import IRModule, relax, tirx
from tvm.s_tir import SBlockRealize

from ..topi_int8.schedule_util import changed_block
from .rewrite import Rebuild, op_name


def lift_workspaces(mod: IRModule) -> IRModule:
    """`mod` with every PrimFunc's buffers in global memory as additional results of its calls, which nothing reads."""
    new = Rebuild(mod["main"])
    kernels: dict[Any, tuple[Any, list[tirx.Buffer]]] = {}  # old variable -> new one, its workspaces
    for var, function in mod.functions_items():
        if isinstance(function, tirx.PrimFunc):
            buffers = _workspaces(function)
            kernels[var] = new.builder.add_func(_with_parameters(function, buffers), str(var.name_hint)), buffers
    with new.main():
        for binding in new.bindings:
            value = new.substituted(binding.value)
            if op_name(value) == "call_tir":
                value = _emit_call(new.builder, value, *kernels[value.args[0]], binding.var.name)
            new.bind(binding.var, value)
    return new.module()


def _workspaces(function: tirx.PrimFunc) -> list[tirx.Buffer]:
    if not isinstance(function.body, SBlockRealize):
        return []
    return [buffer for buffer in function.body.block.alloc_buffers if buffer.scope() in ("", "global")]


def _with_parameters(function: tirx.PrimFunc, buffers: list[tirx.Buffer]) -> tirx.PrimFunc:
    """`function` with these buffers of its root block as its last parameters."""
    realize, block = function.body, function.body.block
    kept = [buffer for buffer in block.alloc_buffers if not any(buffer.same_as(taken) for taken in buffers)]
    body = SBlockRealize(realize.iter_values, realize.predicate, changed_block(block, alloc_buffers=kept))
    return tirx.PrimFunc([*function.params, *buffers], body, function.ret_type, function.attrs)


def _emit_call(
    builder: relax.BlockBuilder, call: relax.Call, kernel: Any, buffers: list[tirx.Buffer], name: str
) -> Any:
    """The call with workspaces as additional results; returns the original result."""
    own = call.ty_args[0]
    results = list(own.fields) if isinstance(own, relax.TupleType) else [own]
    if not buffers:
        return builder.emit(relax.call_tir(kernel, call.args[1], out_ty=results), name_hint=name)
    extra = [relax.TensorType([int(size) for size in buffer.shape], str(buffer.dtype)) for buffer in buffers]
    every = builder.emit(relax.call_tir(kernel, call.args[1], out_ty=[*results, *extra]), name_hint=name)
    fields = [builder.emit(relax.TupleGetItem(every, index), name_hint=name) for index in range(len(results))]
    return builder.emit(relax.Tuple(fields)) if isinstance(own, relax.TupleType) else fields[0]

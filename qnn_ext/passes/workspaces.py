"""Workspaces of kernels become tensors of the graph, which plans their memory with that of all others.

A GPU kernel made of several launches keeps what they exchange in a buffer. Left to itself, TVM takes that from a pool
at every call, grows it by allocating anew, and a CUDA graph would go on with the old address.
"""

from __future__ import annotations

from typing import Any

from tvm import IRModule, relax, tirx
from tvm.s_tir import SBlock, SBlockRealize

from .rewrite import bindings_of, emit_named, op_name, plain_attrs, substitute


def lift_workspaces(mod: IRModule) -> IRModule:
    """`mod` with the buffers in global memory of every PrimFunc as further results of its calls, which nobody reads."""
    main, builder = mod["main"], relax.BlockBuilder()
    kernels: dict[Any, tuple[Any, list[tirx.Buffer]]] = {}  # old variable -> new one, its workspaces
    for var, function in mod.functions_items():
        if isinstance(function, tirx.PrimFunc):
            buffers = _workspaces(function)
            kernels[var] = builder.add_func(_with_parameters(function, buffers), str(var.name_hint)), buffers
    environment: dict[Any, Any] = {}
    with builder.function("main", list(main.params), attrs=plain_attrs(main)):
        with builder.dataflow():
            for binding in bindings_of(main):
                value = substitute(binding.value, environment)
                name = binding.var.name
                if op_name(value) == "call_tir":
                    environment[binding.var] = _emit_call(builder, value, *kernels[value.args[0]], name)
                else:
                    environment[binding.var] = emit_named(builder, value, name)
            result = builder.emit_output(substitute(main.body.body, environment))
        builder.emit_func_output(result)
    return builder.get()


def _workspaces(function: tirx.PrimFunc) -> list[tirx.Buffer]:
    if not isinstance(function.body, SBlockRealize):
        return []
    return [buffer for buffer in function.body.block.alloc_buffers if buffer.scope() in ("", "global")]


def _with_parameters(function: tirx.PrimFunc, buffers: list[tirx.Buffer]) -> tirx.PrimFunc:
    """`function` with these of its root block's buffers as last parameters."""
    realize, block = function.body, function.body.block
    kept = [buffer for buffer in block.alloc_buffers if not any(buffer.same_as(taken) for taken in buffers)]
    root = SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        block.body,
        block.init,
        kept,
        block.match_buffers,
        block.annotations,
    )
    body = SBlockRealize(realize.iter_values, realize.predicate, root)
    return tirx.PrimFunc([*function.params, *buffers], body, function.ret_type, function.attrs)


def _emit_call(
    builder: relax.BlockBuilder, call: relax.Call, kernel: Any, buffers: list[tirx.Buffer], name: str
) -> Any:
    """The call with workspaces as further results; what it yielded before."""
    own = call.ty_args[0]
    if not buffers:
        return builder.emit(relax.call_tir(kernel, call.args[1], out_ty=own), name_hint=name)
    results = list(own.fields) if isinstance(own, relax.TupleType) else [own]
    extra = [relax.TensorType([int(size) for size in buffer.shape], str(buffer.dtype)) for buffer in buffers]
    every = builder.emit(relax.call_tir(kernel, call.args[1], out_ty=[*results, *extra]), name_hint=name)
    fields = [builder.emit(relax.TupleGetItem(every, index), name_hint=name) for index in range(len(results))]
    return builder.emit(relax.Tuple(fields)) if isinstance(own, relax.TupleType) else fields[0]

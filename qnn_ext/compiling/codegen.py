"""Code generation: TVM's pipelines, surrounded by the passes on TIR that the target's backend has registered."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.backend.cuda import pipeline as cuda_pipeline
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.target import Target

from ..numerics.miscompiled import without_cancellation, without_truth_values, without_unread
from ..op.base import shape_of
from ..passes.empties import is_empty
from ..running import gpu_runtime
from ..targets import gpus as gpu
from ..targets.backend import threads_of
from ..targets.features import backend_of, generating
from ..topi_int8.lowering import lowering_of
from .workers import exposed, hidden, use_workers

PIPELINE = "qnn_ext"


def generate_code(mod: tvm.IRModule, target: Target) -> Any:
    """The executable of a lowered module: `tvm.compile` with the backend's passes added."""
    if backend_of(target).grid:
        return generate_gpu_code(mod, target)
    if threads_of(target.attrs) > 1:
        mod = tvm.IRModule({**dict(mod.functions_items()), **use_workers(target)}, attrs=mod.attrs)
    return tvm.compile(mod, target=generating(target), tir_pipeline=PIPELINE)


def generate_gpu_code(mod: tvm.IRModule, target: Target, cuda_graph: bool = False) -> Any:
    """The same for a GPU; with `cuda_graph`, all kernels except the first and the last are launched as one graph."""
    if gpu.can_run({**target.attrs, "kind": target.kind.name}):
        gpu_runtime.load()  # so that what is compiled can run right away
    context = tvm.transform.PassContext.current()
    if cuda_graph:
        context = with_option("relax.backend.use_cuda_graph", True)
    passes = [*cuda_pipeline.dataflow_lower_passes(target), *cuda_pipeline.finalize_passes(target)]
    with context, gpu_runtime.compiling(str(target.attrs["arch"])):
        return tvm.compile(mod, target, relax_pipeline=tvm.transform.Sequential(passes), tir_pipeline=PIPELINE)


def allocated(mod: tvm.IRModule) -> tvm.IRModule:
    """A lowered module whose `main` allocates tensors without elements: TVM's virtual machine cannot load such
    constants."""
    return tvm.IRModule(
        {**dict(mod.functions_items()), mod.get_global_var("main"): _Allocation().visit_expr(mod["main"])}
    )


@relax.expr_functor.mutator
class _Allocation(relax.PyExprMutator):
    def visit_generic_const_(self, value: tvm.ir.GenericConst) -> relax.Expr:
        if not is_empty(value):
            return value
        shape, dtype = relax.ShapeExpr(shape_of(value)), str(value.ty.dtype)
        return self.builder_.emit(relax.op.builtin.alloc_tensor(shape, dtype, 0))


def with_option(name: str, value: Any) -> tvm.transform.PassContext:
    """The current pass context, with one of TVM's options set."""
    context = tvm.transform.PassContext.current()
    config = {**context.config, name: value}
    return tvm.transform.PassContext(context.opt_level, config=config, instruments=context.instruments)


def _pipeline() -> tuple[tvm.transform.Pass, Any, Any]:
    """TVM's pipeline for scheduled TIR between the backend's passes."""
    pipeline, finalize_host, finalize_device = default_s_tir_pipeline()
    first = tirx.transform.prim_func_pass(_begin, opt_level=0, name="qnn_ext.begin")
    last = tirx.transform.prim_func_pass(_finish, opt_level=0, name="qnn_ext.finish")
    unique = tirx.transform.ConvertSSA()  # schedules copy blocks with the variables of their `let`s
    return tvm.ir.transform.Sequential([unique, first, pipeline, last]), finalize_host, finalize_device


tirx.register_tir_pipeline(PIPELINE, _pipeline)


def _begin(function: tirx.PrimFunc, mod: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    begun = lowering_of(function.attrs["target"]).begin(function)
    return hidden(begun.with_body(without_truth_values(without_cancellation(without_unread(begun.body)))))


def _finish(function: tirx.PrimFunc, mod: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    target = function.attrs["target"]
    return exposed(function.with_body(lowering_of(target).finish(function.body, target)))

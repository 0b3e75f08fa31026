"""The last passes on TIR, between TVM's pipeline and code generation, when loops are vectorized and the CPU is known.

Saturating narrowing becomes pack instructions, and small buffers, mainly a kernel's accumulators, move to the stack,
from where LLVM promotes them to registers.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.relax.backend.cuda import pipeline as cuda_pipeline
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.target import Target

from ..numerics.extremes import propagate_nan
from ..numerics.miscompiled import integer_zero, without_masks
from ..numerics.saturate import as_float, is_saturate, narrowed, widened
from ..numerics.tir import fenced_product, without_fence
from ..running import gpu_runtime
from ..targets import gpus as gpu
from ..targets.backend import threads_of
from ..targets.features import backend_of, contracts, has_any
from ..topi_int8.cpu.prefetch import prefetching
from ..topi_int8.cpu.steps import steps_of
from ..topi_int8.cpu.weave import weave
from ..topi_int8.cuda.copies import asynchronous
from ..topi_int8.cuda.fragments import in_registers
from ..topi_int8.cuda.lowering import lower_for_cuda

PIPELINE = "qnn_ext"

STACK_BYTES = 4096
"""Buffers up to this size live on the stack. TVM's own limit of 1 KiB is less than the accumulators of 28 AVX-512
registers take; larger buffers are allocated by a runtime call and cannot be promoted to registers."""

Expr = Any


def generate_code(mod: tvm.IRModule, target: Target) -> Any:
    """The executable of a lowered module: `tvm.compile` with these passes added."""
    if backend_of(target).grid:
        return generate_gpu_code(mod, target)
    return tvm.compile(mod, target=target, tir_pipeline=PIPELINE)


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


def with_option(name: str, value: Any) -> tvm.transform.PassContext:
    """The current pass context, with one of TVM's options set."""
    context = tvm.transform.PassContext.current()
    config = {**context.config, name: value}
    return tvm.transform.PassContext(context.opt_level, config=config, instruments=context.instruments)


def _pipeline() -> tuple[tvm.transform.Pass, Any, Any]:
    """TVM's pipeline for scheduled TIR, followed by these passes."""
    pipeline, finalize_host, finalize_device = default_s_tir_pipeline()
    first = tirx.transform.prim_func_pass(_begin, opt_level=0, name="qnn_ext.begin")
    last = tirx.transform.prim_func_pass(_finish, opt_level=0, name="qnn_ext.finish")
    return tvm.ir.transform.Sequential([first, pipeline, last]), finalize_host, finalize_device


tirx.register_tir_pipeline(PIPELINE, _pipeline)


def _begin(function: tirx.PrimFunc, mod: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    return in_registers(function) if backend_of(function.attrs["target"]).grid else function


def _finish(function: tirx.PrimFunc, mod: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    target = function.attrs["target"]
    backend, steps = backend_of(target), steps_of(target)
    if backend.grid:
        return function.with_body(propagate_nan(lower_for_cuda(asynchronous(function.body)), comparing=True))
    body = tvm_ffi.structural_map(function.body, (tirx.For, prefetching))
    body = without_masks(body)
    body = weave(body, serial=threads_of(target.attrs) == 1)
    body = steps.order(body)
    if has_any(target, backend.lookups):
        body = tvm_ffi.structural_map(body, (TensorLoad, steps.look_up))
    body = tvm_ffi.structural_map(body, (tirx.Max, _rounded_product if contracts(target) else without_fence))
    if backend.stays_float and contracts(target):
        body = tvm_ffi.structural_map(body, (tirx.Cast, _floated))
    body = tvm_ffi.structural_map(body, (tirx.Cast, _widened))
    body = steps.narrow(body, target)
    body = tvm_ffi.structural_map(body, [(tvm.ir.Call, _plain), (tirx.AllocBuffer, _on_stack)])
    return function.with_body(propagate_nan(steps.finish(body, target)))


def _rounded_product(node: tirx.Max) -> Expr:
    """A fenced product as fma(a, b, 0), which rounds once and cannot be contracted: one instruction on x86, two on ARM.

    If the product is −0, this is +0; neither a comparison nor a sum with a nonzero number tells them apart.
    """
    product = fenced_product(node)
    return node if product is None else _product(product.a, product.b)


def _product(a: Expr, b: Expr) -> Expr:
    dtype = str(a.ty.dtype)
    return tirx.call_llvm_pure_intrin(dtype, "llvm.fma", a, b, tirx.const(0.0, dtype))


def _floated(cast: tirx.Cast) -> Expr:
    """A saturated value, possibly minus a zero point, that becomes a float again is computed in float throughout."""
    if not str(cast.ty.dtype).startswith("float32"):
        return cast
    value, offset = cast.value, 0
    if isinstance(value, (tirx.Sub, tirx.Add)):
        constant = value.b.value if isinstance(value.b, tirx.Broadcast) else value.b
        if not isinstance(constant, tirx.IntImm):
            return cast
        value, offset = value.a, int(constant) if isinstance(value, tirx.Sub) else -int(constant)
    if isinstance(value, tirx.Cast) and str(value.ty.dtype).startswith("int32"):
        value = value.value
    floated = as_float(value, offset, _product) if is_saturate(value) else None
    return cast if floated is None else floated


def _plain(call: Expr) -> Expr:
    return narrowed(call) if is_saturate(call) else integer_zero(call)


def _widened(cast: tirx.Cast) -> Expr:
    """A saturated value that is widened again stays in 32 bits."""
    wide = str(cast.ty.dtype)
    return widened(cast.value).astype(wide) if is_saturate(cast.value) else cast


def _on_stack(node: tirx.AllocBuffer) -> tirx.AllocBuffer:
    buffer = node.buffer
    if buffer.scope() not in ("global", "local") or not all(isinstance(size, tirx.IntImm) for size in buffer.shape):
        return node
    dtype = tvm.DataType(str(buffer.dtype))
    if prod(int(size) for size in buffer.shape) * dtype.bits * dtype.lanes > STACK_BYTES * 8:
        return node
    return tirx.AllocBuffer(buffer, {**node.annotations, "disable_lower_builtin": tirx.const(True, "bool")})

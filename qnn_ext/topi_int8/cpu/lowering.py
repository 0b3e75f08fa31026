"""The last pass on the TIR of CPU kernels: the steps common to all CPUs, and between them those of a family.

Saturating narrowing becomes pack instructions, and small buffers, mainly a kernel's accumulators, move to the stack,
from where LLVM promotes them to registers.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.target import Target

from ...numerics.extremes import propagate_nan
from ...numerics.miscompiled import integer_zero, without_masks
from ...numerics.saturate import as_float, is_saturate, is_small, narrowed, scalar, widened
from ...numerics.tir import fenced_product, without_fence
from ...targets.backend import threads_of
from ...targets.families import CPU_BACKENDS
from ...targets.features import backend_of, contracts, has_any
from ..lowering import Lowering, register_lowering
from .llvm_functions import importing
from .prefetch import prefetching
from .statements import on_stack
from .steps import steps_of
from .weave import weave

Expr = Any


def lower_for_cpu(body: tirx.Stmt, target: Target) -> tirx.Stmt:
    """The body of a kernel as LLVM gets it."""
    backend, steps = backend_of(target), steps_of(target)
    body = steps.multiply(body)
    body = tvm_ffi.structural_map(body, (tirx.For, prefetching))
    body = without_masks(body)
    body = weave(body, serial=threads_of(target.attrs) == 1)
    body = steps.order(body)
    if has_any(target, backend.lookups):
        body = tvm_ffi.structural_map(body, (TensorLoad, steps.look_up))
    if has_any(target, backend.segments):
        body = tvm_ffi.structural_map(body, (TensorLoad, lambda load: steps.look_up_floats(load, target)))
    body = tvm_ffi.structural_map(body, (tirx.Max, _rounded_product if contracts(target) else without_fence))
    if backend.stays_float and contracts(target):
        body = tvm_ffi.structural_map(body, (tirx.Cast, _floated))
    body = tvm_ffi.structural_map(body, (tirx.Cast, _widened))
    body = steps.narrow(body, target)
    body = tvm_ffi.structural_map(
        body, [(tvm.ir.Call, _plain), (tirx.AllocBuffer, partial(_on_stack, most=backend.stack_bytes))]
    )
    return importing(propagate_nan(steps.finish(body, target)))


def _begin(function: tirx.PrimFunc) -> tirx.PrimFunc:
    return steps_of(function.attrs["target"]).begin(function)


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
    value, offset = cast.value, tirx.const(0, "int32")
    if isinstance(value, (tirx.Sub, tirx.Add)):
        constant = scalar(value.b)
        if not is_small(constant):
            return cast
        value, offset = value.a, constant if isinstance(value, tirx.Sub) else -constant
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


def _on_stack(node: tirx.AllocBuffer, most: int) -> tirx.AllocBuffer:
    buffer = node.buffer
    if buffer.scope() not in ("global", "local") or not all(isinstance(size, tirx.IntImm) for size in buffer.shape):
        return node
    dtype = tvm.DataType(str(buffer.dtype))
    if prod(int(size) for size in buffer.shape) * dtype.bits * dtype.lanes > most * 8:
        return node
    return on_stack(buffer, node.annotations)


for _backend in CPU_BACKENDS:
    register_lowering(_backend, Lowering(finish=lower_for_cpu, begin=_begin))

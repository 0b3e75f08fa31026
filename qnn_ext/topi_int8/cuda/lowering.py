"""The last pass on the TIR of GPU kernels: operations that numerics express by LLVM's intrinsics, as CUDA functions.

Each of them rounds once, as the formulas require: __fmul_rn is a product that no compiler contracts with a sum,
__float2int_rn rounds midpoints to even. `targets/cuda_compiler.py` omits the compiler flags that would break the rest.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from ...numerics.extremes import propagate_nan
from ...numerics.saturate import is_saturate, narrowed, widened
from ...numerics.tir import fenced_product
from ...targets.families import CUDA
from ..lowering import Lowering, register_lowering
from .copies import asynchronous
from .fragments import in_registers

Expr = Any

_LLVM = "tirx.call_llvm_pure_intrin"
_PRODUCTS = {"float32": "__fmul_rn", "float64": "__dmul_rn"}

# LLVM's intrinsic -> dtype of its last argument -> CUDA's function
_FUNCTIONS = {
    "llvm.lrint": {"float32": "__float2int_rn", "float64": "__double2int_rn"},
    "llvm.fma": {"float32": "__fmaf_rn", "float64": "__fma_rn"},
    "llvm.copysign": {"float32": "copysignf", "float64": "copysign"},
}


def lower_for_cuda(body: tirx.Stmt) -> tirx.Stmt:
    """The body of a kernel in terms that TVM's CUDA code generation knows."""
    body = tvm_ffi.structural_map(body, [(tirx.Cast, _widened), (tirx.Max, _product), (tirx.Broadcast, _bytes)])
    return tvm_ffi.structural_map(body, (tvm.ir.Call, _called))


def _scalar(expr: Expr) -> str:
    return str(expr.ty.dtype).split("x")[0]


def _widened(cast: tirx.Cast) -> Expr:
    """A saturated value that is widened again never leaves its 32 bits."""
    return widened(cast.value).astype(cast.ty.dtype) if is_saturate(cast.value) else cast


def _product(node: tirx.Max) -> Expr:
    """A fenced product as one that is rounded separately."""
    product = fenced_product(node)
    if product is None:
        return node
    return tirx.call_pure_extern(node.ty.dtype, _PRODUCTS[_scalar(node)], product.a, product.b)


def _bytes(node: tirx.Broadcast) -> Expr:
    """One value in 4, 8 or 16 bytes as 32-bit lanes, or zeros of 16 bits: TVM would pass CUDA's int2 and int4 one value
    for each, and takes only constants."""
    kind, _, lanes = str(node.ty.dtype).partition("x")
    if kind in ("uint16", "float16") and lanes in ("4", "8") and getattr(node.value, "value", None) == 0:
        return tirx.reinterpret(node.ty.dtype, tirx.Broadcast(tirx.const(0, "int32"), int(lanes) // 2))
    constant = isinstance(node.value, tirx.IntImm)
    if kind not in ("int8", "uint8") or lanes not in ("4", "8", "16") or (constant and lanes == "4"):
        return node
    if constant:
        word = tirx.const(int.from_bytes(bytes([int(node.value) % 256] * 4), "little", signed=True), "int32")
    else:
        word = (node.value.astype("uint8").astype("uint32") * tirx.const(0x01010101, "uint32")).astype("int32")
    return tirx.reinterpret(node.ty.dtype, word if lanes == "4" else tirx.Broadcast(word, int(lanes) // 4))


def _called(call: Expr) -> Expr:
    if is_saturate(call):
        return narrowed(call)
    if _name(call) == "tirx.rsqrt":  # CUDA's rsqrtf is not correctly rounded; the quotient is, as on CPUs
        return tirx.const(1.0, call.ty.dtype) / tirx.sqrt(call.args[0])
    if _name(call) != _LLVM:
        return call
    args = list(call.args[1:])
    function = _names().get(int(call.args[0]), {}).get(_scalar(args[-1]))
    if function is None:
        raise ValueError(f"no CUDA function for LLVM's intrinsic {int(call.args[0])} of {_scalar(args[-1])}")
    return tirx.call_pure_extern(call.ty.dtype, function, *args)


def _name(node: Expr) -> str:
    return getattr(node.op, "name", "") if isinstance(node, tvm.ir.Call) else ""


def _names() -> dict[int, dict[str, str]]:
    """CUDA's functions by the number of LLVM's intrinsic."""
    if not _numbered:
        one = tirx.const(1.0, "float32")
        for name, functions in _FUNCTIONS.items():
            call = tirx.call_llvm_pure_intrin("int32" if name == "llvm.lrint" else "float32", name, one)
            _numbered[int(call.args[0])] = functions
    return _numbered


_numbered: dict[int, dict[str, str]] = {}


def _finish(body: tirx.Stmt, target: Target) -> tirx.Stmt:
    return propagate_nan(lower_for_cuda(asynchronous(body)), comparing=True)


register_lowering(CUDA, Lowering(begin=in_registers, finish=_finish))

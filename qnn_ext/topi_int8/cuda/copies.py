"""Asynchronous copies from global to shared memory: cp.async of sm_80 and later, also where an image is padded.

A schedule requests them by software pipelining with an asynchronous stage. TVM then emits commits and waits; the copies
themselves it turns into cp.async only if an option is set, and only if nothing or zeros replace values outside the
image. Here any value can: a thread either starts a copy or stores the value itself.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Call, TensorLoad

SIZES = (4, 8, 16)
"""What cp.async copies, in bytes."""

_SCOPE = "async_scope"
_WORDS = {
    4: "st.shared.b32 [%0], %3;",
    8: "st.shared.v2.b32 [%0], {%3, %3};",
    16: "st.shared.v4.b32 [%0], {%3, %3, %3, %3};",
}


def asynchronous(body: tirx.Stmt) -> tirx.Stmt:
    """The vectorized `body` of a kernel, with cp.async for copies that TVM has marked as asynchronous."""

    def copies(scope: tirx.AttrStmt) -> tirx.Stmt:
        if scope.attr_key != _SCOPE:
            return scope
        return tvm_ffi.structural_map(scope.body, (tirx.BufferStore, _copy))

    return tvm_ffi.structural_map(body, (tirx.AttrStmt, copies))


def _copy(store: tirx.BufferStore) -> tirx.Stmt:
    """A store to shared memory of a vector from global memory, or of a constant under some condition, as cp.async."""
    value, inside, other = store.value, tirx.const(True, "bool"), tirx.const(0, "int8")
    if not store.buffer.scope().startswith("shared"):
        return store
    if _name(value) == "prim.if_then_else":
        inside, value, other = value.args
        other = other.value if isinstance(other, tirx.Broadcast) else other
    size = _bytes(value)
    constant = isinstance(other, tirx.IntImm) if _is_bytes(value) else _is_zero(other)
    if not (isinstance(value, TensorLoad) and value.source.scope() in ("", "global") and constant and size in SIZES):
        return store
    pattern = (int(other.value) & 0xFF) * 0x01010101
    to, source = _address(store.buffer, store.indices), _address(value.source, value.indices)
    return tirx.Evaluate(
        cuda_func_call(
            f"qnn_copy_{size}",
            to,
            source,
            inside.astype("int32"),
            tirx.const(pattern - (1 << 32) if pattern >> 31 else pattern, "int32"),
            source_code=_function(size),
        )
    )


def _function(size: int) -> str:
    cache = "cg" if size == 16 else "ca"  # .cg bypasses L1, and exists only for 16 bytes
    return f"""
__forceinline__ __device__ void qnn_copy_{size}(void* to, const void* source, int inside, int other) {{
  unsigned int address = __cvta_generic_to_shared(to);
  asm volatile(
    "{{ .reg .pred p; setp.ne.b32 p, %2, 0; "
    "@p cp.async.{cache}.shared.global [%0], [%1], {size}; "
    "@!p {_WORDS[size]} }}"
    :: "r"(address), "l"(source), "r"(inside), "r"(other) : "memory");
}}
"""


def _address(buffer: Any, indices: Any) -> Any:
    """The address of the first element of a vector."""
    return tirx.address_of(tirx.BufferLoad(buffer, [_first(index) for index in indices]))


def _first(index: Any) -> Any:
    """The first lane of a vector of indices, a sum of ramps and constants."""
    if isinstance(index, tirx.Ramp):
        return index.base
    if isinstance(index, tirx.Broadcast):
        return index.value
    return _first(index.a) + _first(index.b) if isinstance(index, tirx.Add) else index


def _bytes(value: Any) -> int:
    dtype = value.ty.dtype
    taken = _is_bytes(value) or str(dtype).startswith(("uint16", "float16"))
    return dtype.bits * dtype.lanes // 8 if taken else 0


def _is_bytes(value: Any) -> bool:
    return str(value.ty.dtype).startswith(("int8", "uint8"))


def _is_zero(value: Any) -> bool:
    return isinstance(value, tirx.IntImm | tirx.FloatImm) and value.value == 0


def _name(node: Any) -> str:
    return getattr(node.op, "name", "") if isinstance(node, Call) else ""

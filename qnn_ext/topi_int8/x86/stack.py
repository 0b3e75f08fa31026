"""Kernels with their stack aligned to a register.

LLVM spills registers to wherever the stack happens to be, as calls align it to 16 bytes only: where a register of 64
bytes then crosses two cache lines, and in which process, is chance. A product with GELU took 2.4 ms or 3.4 to 4.1. LLVM
aligns the stack of a function that has a variable of such an alignment, and keeps the variable if an instruction takes
its address.
"""

from __future__ import annotations

from tvm import tirx

from ..cpu.statements import on_stack

_ALIGNED = "float32x16"
_NEAREST = 3  # the locality of llvm.prefetch


def with_aligned_stack(body: tirx.Stmt) -> tirx.Stmt:
    """The body of a kernel whose spilled registers each lie within a line."""
    slot = tirx.decl_buffer((1,), _ALIGNED, "aligned", scope="local", data_alignment=64)
    address = tirx.address_of(slot[0])
    kept = tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, 0, _NEAREST, 1))
    return tirx.SeqStmt([on_stack(slot), kept, body])

"""x86's steps in the last pass on TIR: chains of float products by step, saturating packs, table lookups, bounds that
LLVM must not see."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op
from tvm.target import Target

from ...numerics.saturate import is_saturate
from ...targets.families import I686, X86
from ...targets.features import has_feature
from ..cpu.chains import by_step
from ..cpu.steps import Steps, register_steps
from . import segments
from .lookup import looked_up
from .masks import with_hidden_bounds
from .matrices import with_matrices
from .pack import pack_saturated
from .stack import with_aligned_stack

_INTRINSIC = Op.get("tirx.call_llvm_pure_intrin")


def _order(body: tirx.Stmt) -> tirx.Stmt:
    """Chains of float products by step; those of integers are in the order that their kernels chose."""
    return tvm_ffi.structural_map(
        body, (tirx.SeqStmt, lambda sequence: by_step(sequence) if any(map(_adds_floats, sequence.seq)) else sequence)
    )


def _adds_floats(stmt: tirx.Stmt) -> bool:
    """Whether a statement is a multiply-add of `cpu.fma`."""
    value = stmt.value if isinstance(stmt, tirx.BufferStore) else None
    return isinstance(value, Call) and value.op.same_as(_INTRINSIC) and str(value.ty.dtype).startswith("float32x")


def _narrow(body: tirx.Stmt, target: Target) -> tirx.Stmt:
    return tvm_ffi.structural_map(body, (Call, _packed)) if has_feature(target, "avx512bw") else body


def _packed(call: Call) -> Any:
    packed = pack_saturated(call) if is_saturate(call) else None
    return call if packed is None else packed


def _finish(body: tirx.Stmt, target: Target) -> tirx.Stmt:
    if has_feature(target, "avx512f"):
        body = with_hidden_bounds(body)
    return with_aligned_stack(body) if has_feature(target, "avx") else body


for _backend in (X86, I686):
    register_steps(
        _backend,
        Steps(
            multiply=with_matrices,
            order=_order,
            look_up=looked_up,
            look_up_floats=segments.looked_up,
            narrow=_narrow,
            finish=_finish,
        ),
    )

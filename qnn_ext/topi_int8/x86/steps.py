"""x86's steps in the last pass on TIR: saturating packs, table lookups, bounds that LLVM must not see."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.target import Target

from ...numerics.saturate import is_saturate
from ...targets.families import I686, X86
from ...targets.features import has_feature
from ..cpu.steps import Steps, register_steps
from . import segments
from .lookup import looked_up
from .masks import with_hidden_bounds
from .pack import pack_saturated


def _narrow(body: tirx.Stmt, target: Target) -> tirx.Stmt:
    return tvm_ffi.structural_map(body, (Call, _packed)) if has_feature(target, "avx512bw") else body


def _packed(call: Call) -> Any:
    packed = pack_saturated(call) if is_saturate(call) else None
    return call if packed is None else packed


def _finish(body: tirx.Stmt, target: Target) -> tirx.Stmt:
    return with_hidden_bounds(body) if has_feature(target, "avx512f") else body


for _backend in (X86, I686):
    register_steps(
        _backend, Steps(look_up=looked_up, look_up_floats=segments.looked_up, narrow=_narrow, finish=_finish)
    )

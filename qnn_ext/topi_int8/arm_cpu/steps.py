"""ARM's steps in the last pass on TIR: ordering chains of products by step, table lookups, saturating narrowing."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.target import Target

from ...targets.families import AARCH64, ARM32
from ..cpu.chains import by_step
from ..cpu.lets import stored
from ..cpu.steps import Steps, register_steps
from .lookup import looked_up
from .narrow import finish_for_arm


def _order(body: tirx.Stmt) -> tirx.Stmt:
    return tvm_ffi.structural_map(body, (tirx.SeqStmt, by_step))


def _finish(body: tirx.Stmt, target: Target) -> tirx.Stmt:
    return stored(body)  # what `narrow` made has many


for _backend in (AARCH64, ARM32):
    register_steps(_backend, Steps(order=_order, look_up=looked_up, narrow=finish_for_arm, finish=_finish))

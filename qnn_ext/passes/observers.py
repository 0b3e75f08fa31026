"""Drops observers: qnn.observe marks a tensor for quantization and computes nothing."""

from __future__ import annotations

from tvm import IRModule, relax

from ..op.base import definition_of
from ..op.observe import OBSERVE, observed_sites
from .bodies import with_bodies
from .rewrite import Emit, rewrite


def drop_observers(mod: IRModule) -> IRModule:
    """`mod` with every qnn.observe, in loops too, replaced by its operand; the unchanged module if it has none."""

    def rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
        return value.args[0] if definition_of(value) is OBSERVE else None

    return with_bodies(rewrite(mod, rule) if observed_sites(mod) else mod, drop_observers)

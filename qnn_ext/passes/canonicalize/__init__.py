"""Canonicalize: rewrites QNN operators to integer primitives: the math, which is the same for every target.

    conv2d, dense, batch_matmul      the four terms T1 − T2 − T3 + T4 over `*_accumulate` and sums
    conv2d_transpose                 one convolution over all phases of its output, interleaved
    unary functions                  lookup tables
    concatenate                      requantize where QParams differ, then concat
    sums with constants              folded

The interpreter gives the same results before and after, bit for bit.
"""

from __future__ import annotations

import importlib
import pkgutil

from tvm import IRModule, relax

from ..rewrite import Emit, op_name, rewrite
from .registry import RULES

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def canonicalize(mod: IRModule) -> IRModule:
    """`mod` with every operator that has a rule rewritten."""
    return rewrite(mod, _apply)


def _apply(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
    rule = RULES.get(op_name(expr))
    return None if rule is None else rule(expr, emit)

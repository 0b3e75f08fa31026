"""Maxima and minima of floats that are NaN where an operand is: the last step before code generation.

LLVM gets max(a, b) as a > b ? a : b, which drops a NaN in a and keeps one in b; CUDA's max drops both. What a clip, a
rectifier, a maximum or a softmax makes of NaN would depend on the order of operands, on the loop and on the target.
NumPy's `maximum` and PyTorch propagate NaN, and so does every kernel here.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from .tir import shared

Expr = Any


def propagate_nan(body: tirx.Stmt, comparing: bool = False) -> tirx.Stmt:
    """`body` with every maximum and minimum of floats propagating NaN.

    comparing: whether maxima become comparisons, for code generators whose maximum is another
    """

    def rule(node: Expr) -> Expr:
        return _propagating(node, comparing) if "float" in str(node.ty.dtype) else node

    return tvm_ffi.structural_map(body, [(tirx.Max, rule), (tirx.Min, rule)])


def _propagating(node: Expr, comparing: bool) -> Expr:
    def extreme(a: Expr, b: Expr) -> Expr:
        if not comparing:
            return type(node)(a, b)
        return tirx.Select(a > b if isinstance(node, tirx.Max) else a < b, a, b)

    if _is_number(node.b):
        return extreme(node.b, node.a)  # one instruction still: x86's returns its second operand where one is NaN
    if _is_number(node.a):
        return extreme(node.a, node.b)
    # a = a but for NaN; a ≠ a would be an ordered comparison for LLVM, and false
    return shared(node.a, lambda a: tirx.Select(tirx.EQ(a, a), extreme(a, node.b), a))


def _is_number(expr: Expr) -> bool:
    """Whether it is a constant, perhaps of all lanes, other than NaN."""
    value = expr.value if isinstance(expr, tirx.Broadcast) else expr
    return isinstance(value, tirx.FloatImm) and float(value.value) == float(value.value)

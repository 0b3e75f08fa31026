"""Maxima, minima and inequality of floats that may be NaN: in NumPy, and as the last step before code generation.

TVM gives max(a, b) to LLVM as a > b ? a : b, which drops a NaN in a and keeps one in b; CUDA's max drops both. The
result of a clip, a rectifier, a maximum or a softmax for NaN would depend on the order of operands, on the loop and on
the target. NumPy's `maximum` and PyTorch propagate NaN, and so does every kernel here. TVM also gives a ≠ b to LLVM as
an ordered comparison, which is false for NaN; in IEEE 754 and every framework NaN differs from all numbers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm_ffi
from tvm import te, tirx

from .tir import is_fence, shared

Expr = Any


def maximum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """max(a, b) of arrays with one float dtype; the first of two zeros, whatever their signs."""
    return np.where((b > a) | np.isnan(b), b, a)


def minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """min(a, b) of arrays with one float dtype; the first of two zeros, whatever their signs."""
    return np.where((b < a) | np.isnan(b), b, a)


def clip(x: np.ndarray, low: Any, high: Any) -> np.ndarray:
    """min(max(x, low), high); NaN stays NaN."""
    return minimum(maximum(x, x.dtype.type(low)), x.dtype.type(high))


def _reducer(combine: Callable[[Expr, Expr], Expr], identity: float, name: str) -> Callable[..., Expr]:
    """A reducer that schedules can also split: TVM splits only those in its list."""
    get_combined = _kept(lambda a, b: [combine(a[0], b[0])])
    get_identity = _kept(lambda values: [tirx.const(identity, str(values[0].ty.dtype))])
    tvm_ffi.get_global_func("s_tir.schedule.RegisterReducer")(1, get_combined, get_identity)
    return te.comm_reducer(combine, lambda dtype: tirx.const(identity, dtype), name=name)


def _kept(function: Callable[..., Any]) -> tvm_ffi.Function:
    """A function for TVM's list, kept alive: the list is destroyed after Python has ended, when freeing a Python object
    aborts the process."""
    converted = tvm_ffi.convert(function)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(converted))
    return converted


largest = _reducer(lambda a, b: tirx.max(a, b), float("-inf"), "largest")
smallest = _reducer(lambda a, b: tirx.min(a, b), float("inf"), "smallest")
"""Reductions over axes, like te.max and te.min, whose identities are finite."""


def propagate_nan(body: tirx.Stmt, comparing: bool = False) -> tirx.Stmt:
    """`body` with every maximum and minimum of floats propagating NaN, and a ≠ b of floats true if one of them is NaN.
    Fences stay as they are, because LLVM must not see through them: it knows that no square is less than the lowest
    number.

    comparing: whether maxima become comparisons, for code generators with a different maximum
    """

    def rule(node: Expr) -> Expr:
        if "float" not in str(node.ty.dtype) or (isinstance(node, tirx.Max) and is_fence(node)):
            return node
        return _propagating(node, comparing)

    def unequal(node: Expr) -> Expr:
        return tirx.Not(tirx.EQ(node.a, node.b)) if "float" in str(node.a.ty.dtype) else node

    return tvm_ffi.structural_map(body, [(tirx.Max, rule), (tirx.Min, rule), (tirx.NE, unequal)])


def _propagating(node: Expr, comparing: bool) -> Expr:
    def extreme(a: Expr, b: Expr) -> Expr:
        if not comparing:
            return type(node)(a, b)
        return tirx.Select(a > b if isinstance(node, tirx.Max) else a < b, a, b)

    if _is_number(node.b):
        return extreme(node.b, node.a)  # still one instruction: x86's returns its second operand if one is NaN
    if _is_number(node.a):
        return extreme(node.a, node.b)
    # Test the second operand: in a reduction that is the new element, so the chain of extremes need not wait.
    if comparing:  # for CUDA b = b is simplified away
        return shared(node.b, lambda b: tirx.Select(tirx.isnan(b), b, extreme(b, node.a)))
    # b = b, except for NaN; b ≠ b would be an ordered comparison in LLVM, and false
    return shared(node.b, lambda b: tirx.Select(tirx.EQ(b, b), extreme(b, node.a), b))


def _is_number(expr: Expr) -> bool:
    """Whether it is a constant other than NaN, possibly broadcast to all lanes."""
    value = expr.value if isinstance(expr, tirx.Broadcast) else expr
    return isinstance(value, tirx.FloatImm) and float(value.value) == float(value.value)

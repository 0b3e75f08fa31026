"""Maxima, minima and inequality of floats that may be NaN: as NumPy, and as the last step before code generation.

LLVM gets max(a, b) as a > b ? a : b, which drops a NaN in a and keeps one in b; CUDA's max drops both. What a clip, a
rectifier, a maximum or a softmax makes of NaN would depend on the order of operands, on the loop and on the target.
NumPy's `maximum` and PyTorch propagate NaN, and so does every kernel here. LLVM also gets a ≠ b as an ordered
comparison, false for NaN, which IEEE 754 and every framework hold to differ from all numbers.
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
    """max(a, b) of arrays of one float dtype; of zeros of either sign the first."""
    return np.where((b > a) | np.isnan(b), b, a)


def minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """min(a, b) of arrays of one float dtype; of zeros of either sign the first."""
    return np.where((b < a) | np.isnan(b), b, a)


def clip(x: np.ndarray, low: Any, high: Any) -> np.ndarray:
    """min(max(x, low), high); NaN stays."""
    return minimum(maximum(x, x.dtype.type(low)), x.dtype.type(high))


def _reducer(combine: Callable[[Expr, Expr], Expr], identity: float, name: str) -> Callable[..., Expr]:
    """A reducer that schedules can split, too: TVM splits those alone that it has in a list."""
    get_combined = _kept(lambda a, b: [combine(a[0], b[0])])
    get_identity = _kept(lambda values: [tirx.const(identity, str(values[0].ty.dtype))])
    tvm_ffi.get_global_func("s_tir.schedule.RegisterReducer")(1, get_combined, get_identity)
    return te.comm_reducer(combine, lambda dtype: tirx.const(identity, dtype), name=name)


def _kept(function: Callable[..., Any]) -> tvm_ffi.Function:
    """A function for TVM's list, which is destroyed after Python has ended: what is freed then aborts the process."""
    converted = tvm_ffi.convert(function)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(converted))
    return converted


largest = _reducer(lambda a, b: tirx.max(a, b), float("-inf"), "largest")
smallest = _reducer(lambda a, b: tirx.min(a, b), float("inf"), "smallest")
"""Reductions over axes, as te.max and te.min, whose identities are finite."""


def propagate_nan(body: tirx.Stmt, comparing: bool = False) -> tirx.Stmt:
    """`body` with every maximum and minimum of floats propagating NaN, but for fences, which LLVM must not see through:
    it knows that no square is less than the lowest number; and with a ≠ b of floats true where one of them is NaN.

    comparing: whether maxima become comparisons, for code generators whose maximum is another
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
        return extreme(node.b, node.a)  # one instruction still: x86's returns its second operand where one is NaN
    if _is_number(node.a):
        return extreme(node.a, node.b)
    # The second operand is the one looked at: in a reduction it is new, and the chain of extremes need not wait.
    if comparing:  # for CUDA b = b is simplified away
        return shared(node.b, lambda b: tirx.Select(tirx.isnan(b), b, extreme(b, node.a)))
    # b = b but for NaN; b ≠ b would be an ordered comparison for LLVM, and false
    return shared(node.b, lambda b: tirx.Select(tirx.EQ(b, b), extreme(b, node.a), b))


def _is_number(expr: Expr) -> bool:
    """Whether it is a constant, perhaps of all lanes, other than NaN."""
    value = expr.value if isinstance(expr, tirx.Broadcast) else expr
    return isinstance(value, tirx.FloatImm) and float(value.value) == float(value.value)

"""Conditions around stores, written so that LLVM cannot tell which lanes remain.

LLVM's vectorizer turns `if i < 9: y[i] = …` in a loop into masked stores. If it knows a mask, because the loop's length
and the bound are constants, and a single lane remains, TVM 0.27's LLVM for AVX-512 stores that lane's value from before
narrowing: 8 bytes of an int64 instead of one of an int8, over the following elements or beyond the end of the buffer.
With a bound that LLVM cannot compute, the mask is made at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import detect_linear_equation

_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
_FEWEST_LANES = 8
"""Loop variables that count in multiples of it are not the lanes of a vector."""


def with_hidden_bounds(body: tirx.Stmt) -> tirx.Stmt:
    """The statement, with bounds unknown to LLVM in comparisons that may leave a single lane."""
    return tvm_ffi.structural_map(body, (tirx.IfThenElse, _hidden))


def _hidden(node: tirx.IfThenElse) -> tirx.IfThenElse:
    if not _stores_scalars(node):
        return node
    condition = tvm_ffi.structural_map(node.condition, [(kind, _compared) for kind in _COMPARISONS])
    return tirx.IfThenElse(condition, node.then_case, node.else_case)


def _stores_scalars(node: tirx.IfThenElse) -> bool:
    """Whether it holds a store that LLVM could make a lane of a masked one: of a value that is no vector yet."""
    found: list[tirx.BufferStore] = []

    def visit(store: tirx.BufferStore) -> None:
        if store.value.ty.dtype.lanes == 1:
            found.append(store)

    tvm_ffi.structural_walk(node, (tirx.BufferStore, visit))
    return bool(found)


def _compared(node: Any) -> Any:
    variables = _variables(node)
    if not variables or str(node.a.ty.dtype) not in ("int32", "int64") or _leaves_pairs(node, variables):
        return node
    # crc32(0, 0) is 0; LLVM does not evaluate it
    zero = tirx.call_llvm_pure_intrin(
        "int32", "llvm.x86.sse42.crc32.32.32", tirx.const(0, "uint32"), tirx.const(0, "uint32")
    )
    return type(node)(node.a, node.b + zero.astype(str(node.b.ty.dtype)))


def _variables(node: Any) -> list[tirx.Var]:
    """The variables of a comparison that LLVM may know; none if it depends on data."""
    found: list[tirx.Var] = []
    data: list[Any] = []
    tvm_ffi.structural_walk(node, [(tirx.Var, found.append), ((ir.TensorLoad, ir.Call), data.append)])
    return [] if data else found


def _leaves_pairs(node: Any, variables: Sequence[tirx.Var]) -> bool:
    """Whether it is i + 8·(…) < 2·n or i + 8·(…) ≥ 2·n: an even number of lanes i remains."""
    if not isinstance(node, (tirx.LT, tirx.GE)) or not isinstance(node.b, tirx.IntImm):
        return False
    *factors, base = detect_linear_equation(node.a, list(variables)) or [None]
    if not all(isinstance(term, tirx.IntImm) for term in (*factors, base)):
        return False
    apart = [int(factor) for factor in factors if int(factor) % _FEWEST_LANES]
    return apart == [1] and (int(node.b) - int(base)) % 2 == 0

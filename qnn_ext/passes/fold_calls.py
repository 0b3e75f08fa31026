"""Folds kernel calls that depend only on constants, unless that would take too long for a build."""

from __future__ import annotations

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.s_tir import SBlock

from ..numerics.annotations import COMPOSITE
from ..op.base import constant_value
from .rewrite import bindings_of, op_name, operands

_MOST_WORK = 2**31  # iterations of loops that LLVM has not optimized: about ten seconds
_MOST_ELEMENTS = 2**27  # of all results


@tvm.transform.module_pass(opt_level=0)
def fold_calls(mod: IRModule, _context: tvm.transform.PassContext) -> IRModule:
    """`mod` with calls that depend only on constants replaced by their results. A module where this would take too long
    or too much memory, or would run a kernel made for the target (see `fold_known`), stays as it is and computes
    them every time it runs."""
    elements, work = _cost(mod)
    return mod if elements > _MOST_ELEMENTS or work > _MOST_WORK else relax.transform.FoldConstant()(mod)


def _cost(mod: IRModule) -> tuple[int, float]:
    """Number of elements that can be folded, and of the loop iterations that compute them; infinite for the target's
    kernels."""
    known: set[Any] = set()
    elements, work = 0, 0.0
    for binding in bindings_of(mod["main"]):
        value = binding.value
        arguments = list(operands(value))
        if op_name(value) == "call_tir":
            function, arguments = mod[value.args[0]], list(value.args[1].fields)
            if not all(is_known(arg, known) for arg in arguments):
                continue
            elements += sum(_elements(ty) for ty in _tensor_types(binding.var.ty))
            work += _steps(function)
        elif not arguments or not all(is_known(arg, known) for arg in arguments):
            continue
        known.add(binding.var)
    return elements, work


def is_known(expr: Any, known: set[Any]) -> bool:
    """Whether an operand is a constant, or one of the variables in `known`."""
    return constant_value(expr) is not None or (isinstance(expr, relax.Var) and expr in known)


def _steps(function: Any) -> float:
    """How many times the blocks of a function are executed."""
    if not isinstance(function, tirx.PrimFunc):
        return 0
    if COMPOSITE in function.attrs:
        return math.inf
    counts: list[int] = []

    def count(block: SBlock) -> SBlock:
        counts.append(math.prod(_extent(iterator.dom.extent) for iterator in block.iter_vars))
        return block

    tvm_ffi.structural_map(function.body, (SBlock, count))
    return sum(counts)


def _tensor_types(ty: Any) -> list[Any]:
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]


def _elements(ty: Any) -> int:
    return math.prod(_extent(dim) for dim in ty.shape) if isinstance(ty, relax.TensorType) and ty.shape else 0


def _extent(value: Any) -> int:
    return int(value) if isinstance(value, (int, tirx.IntImm)) else 1

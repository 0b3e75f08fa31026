"""Folds what kernels would compute of constants alone, unless that would take longer than a build may."""

from __future__ import annotations

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.s_tir import SBlock

from ..op.base import constant_value
from .rewrite import bindings_of, op_name, operands

_MOST_WORK = 2**31  # steps of loops that LLVM has not optimized: some ten seconds
_MOST_ELEMENTS = 2**27  # of all results


@tvm.transform.module_pass(opt_level=0)
def fold_calls(mod: IRModule, _context: tvm.transform.PassContext) -> IRModule:
    """`mod` with the results of constants in place of the calls that compute them. A module in which these would take
    too long or too much memory stays as it is: it computes them at each call."""
    elements, work = _cost(mod)
    return mod if elements > _MOST_ELEMENTS or work > _MOST_WORK else relax.transform.FoldConstant()(mod)


def _cost(mod: IRModule) -> tuple[int, int]:
    """Elements of all that can be folded, and steps of the loops that make it."""
    known: set[Any] = set()
    elements = work = 0
    for binding in bindings_of(mod["main"]):
        value = binding.value
        arguments = list(operands(value))
        if op_name(value) == "call_tir":
            function, arguments = mod[value.args[0]], list(value.args[1].fields)
            if not all(_is_known(arg, known) for arg in arguments):
                continue
            elements += sum(_elements(ty) for ty in _tensor_types(binding.var.ty))
            work += _steps(function)
        elif not arguments or not all(_is_known(arg, known) for arg in arguments):
            continue
        known.add(binding.var)
    return elements, work


def _is_known(expr: Any, known: set[Any]) -> bool:
    return constant_value(expr) is not None or (isinstance(expr, relax.Var) and expr in known)


def _steps(function: Any) -> int:
    """How often the blocks of a function are executed."""
    if not isinstance(function, tirx.PrimFunc):
        return 0
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

"""Quantized operators on constants are evaluated by the interpreter and become constants.

Kernels use the target's instructions. FoldConstant compiles what it folds for a generic CPU, and there LLVM ends the
process at an instruction that this CPU lacks, so no kernel may be left for it to fold.
"""

from __future__ import annotations

from tvm import IRModule, relax

from ..op.base import definition_of
from ..op.folding import folded, leaves
from .fold_calls import is_known
from .rewrite import bindings_of, rewrite, variables_of


def fold_quantized(mod: IRModule) -> IRModule:
    """`mod` with QNN operators that depend on no input, and what they are computed from, replaced by their results.
    Results that are large or slow to compute stay calls, computed every time the model runs."""
    marks = _marks(mod["main"])
    if not any(marks):
        return mod
    marked = iter(marks)
    return rewrite(mod, lambda value, _: folded(value) if next(marked) else None)


def _marks(function: relax.Function) -> list[bool]:
    """For each binding, whether it depends on no input and is, or is needed by, a QNN operator that depends on none."""
    bindings = bindings_of(function)
    known: set[relax.Var] = set()
    for binding in bindings:
        if isinstance(binding.value, relax.Call) and all(is_known(arg, known) for arg in leaves(binding.value)):
            known.add(binding.var)
    needed: set[relax.Var] = set()
    marks = []
    for binding in reversed(bindings):
        marks.append(binding.var in known and (binding.var in needed or definition_of(binding.value) is not None))
        if marks[-1]:
            needed.update(variables_of(binding.value))
    return marks[::-1]

"""Operators on constants are evaluated by the interpreter and become constants.

Kernels use the target's instructions. FoldConstant compiles what it folds for a generic CPU, and there LLVM ends the
process at an instruction that this CPU lacks, so no kernel may be left for it to fold. And it compiles for a quarter of
a second for each operator and shape, of which the factors of quantized normalizations have dozens.
"""

from __future__ import annotations

from tvm import IRModule, relax

from ..op.folding import folded, leaves
from .fold_calls import is_known
from .rewrite import bindings_of, rewrite


def fold_known(mod: IRModule) -> IRModule:
    """`mod` with operators that depend on no input replaced by their results. Results that are large or slow to compute
    stay calls, computed every time the model runs."""
    marks = _marks(mod["main"])
    if not any(marks):
        return mod
    marked = iter(marks)
    return rewrite(mod, lambda value, _: folded(value) if next(marked) else None)


def _marks(function: relax.Function) -> list[bool]:
    """For each binding, whether it is a call that depends on no input."""
    known: set[relax.Var] = set()
    for binding in bindings_of(function):
        if isinstance(binding.value, relax.Call) and all(is_known(arg, known) for arg in leaves(binding.value)):
            known.add(binding.var)
    return [binding.var in known for binding in bindings_of(function)]

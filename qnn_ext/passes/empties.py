"""Tensors without elements: they are constants, joins leave them out, and what is computed from them alone is computed
here. LLVM cannot allocate them in a kernel, and TVM's own kernels divide by their number."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..op.base import constant, shape_of
from ..op.folding import folded, leaves
from ..op.relax_table import traits_of
from ..op.traits import Kind
from .layout.forms import is_tensor, static_shape
from .rewrite import Emit, bindings_of, op_name, operands, rewrite


def without_empties(mod: IRModule) -> IRModule:
    """`mod` without operators whose result has no elements, and without products over no elements."""

    def rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
        if isinstance(value, relax.TupleGetItem):
            var = emit(value)
            return _nothing(var) if is_empty(var) else var
        if not op_name(value) or not value.op.get_attr("FPurity"):
            return None
        if op_name(value) == "concat" and isinstance(value.args[0], relax.Tuple):
            return _joined(value)
        var = emit(value)
        if is_empty(var):
            return var if op_name(value) in _SORTING else _nothing(var)
        if not any(map(is_empty, leaves(value))):
            return var
        if traits_of(value).kind in (Kind.PRODUCT, Kind.ACCUMULATOR):
            return constant(np.zeros(shape_of(var), str(var.ty.dtype)))  # a sum of no products
        result = folded(value)
        return var if result is None else result

    bindings = bindings_of(mod["main"])
    if any(map(is_empty, (part for one in bindings for part in (one.var, *operands(one.value))))):
        return rewrite(mod, rule)
    return mod


_SORTING = ("sort", "argsort")  # have kernels that take tensors without elements


def _joined(call: relax.Call) -> relax.Expr:
    """A join without the tensors that have no elements."""
    every = list(call.args[0].fields)
    fields = [field for field in every if not is_empty(field)] or every[:1]
    return fields[0] if len(fields) == 1 else relax.op.concat(fields, call.attrs.axis)


def _nothing(value: relax.Expr) -> relax.Expr:
    return constant(np.zeros(shape_of(value), str(value.ty.dtype)))


def is_empty(value: Any) -> bool:
    """Whether it is a tensor known to have no elements."""
    shape = static_shape(value) if is_tensor(value) else None
    return shape is not None and 0 in shape

"""Tensors without elements: they are constants, joins leave them out, and what is computed from them alone is computed
here. LLVM cannot allocate them in a kernel, and TVM's own kernels divide by their number."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import IRModule, ir, relax

from ..op.base import constant, shape_of
from ..op.folding import folded, leaves
from ..op.relax_table import traits_of
from ..op.traits import Kind
from .layout.forms import is_tensor, static_shape
from .rewrite import Emit, op_name, rewrite


def without_empties(mod: IRModule) -> IRModule:
    """`mod` without operators whose result has no elements, and without products over no elements."""

    def rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
        if isinstance(value, relax.TupleGetItem):
            var = emit(value)
            return _nothing(var) if _is_empty(var) else var
        if not op_name(value) or not value.op.get_attr("FPurity"):
            return None
        if op_name(value) == "concat" and isinstance(value.args[0], relax.Tuple):
            return _joined(value)
        var = emit(value)
        if _is_empty(var):
            return var if op_name(value) in _SORTING else _nothing(var)
        if not any(map(_is_empty, leaves(value))):
            return var
        if traits_of(value).kind in (Kind.PRODUCT, Kind.ACCUMULATOR):
            return constant(np.zeros(shape_of(var), str(var.ty.dtype)))  # a sum of no products
        result = folded(value)
        return var if result is None else result

    return rewrite(mod, rule)


def allocated(mod: IRModule) -> IRModule:
    """A lowered module whose `main` allocates tensors without elements: TVM's virtual machine cannot load such
    constants."""
    return IRModule({**dict(mod.functions_items()), mod.get_global_var("main"): _Allocation().visit_expr(mod["main"])})


@relax.expr_functor.mutator
class _Allocation(relax.PyExprMutator):
    def visit_generic_const_(self, value: ir.GenericConst) -> relax.Expr:
        if not _is_empty(value):
            return value
        shape, dtype = relax.ShapeExpr(shape_of(value)), str(value.ty.dtype)
        return self.builder_.emit(relax.op.builtin.alloc_tensor(shape, dtype, 0))


_SORTING = ("sort", "argsort")  # have kernels that take tensors without elements


def _joined(call: relax.Call) -> relax.Expr:
    """A join without the tensors that have no elements."""
    every = list(call.args[0].fields)
    fields = [field for field in every if not _is_empty(field)] or every[:1]
    return fields[0] if len(fields) == 1 else relax.op.concat(fields, call.attrs.axis)


def _nothing(value: relax.Expr) -> relax.Expr:
    return constant(np.zeros(shape_of(value), str(value.ty.dtype)))


def _is_empty(value: Any) -> bool:
    shape = static_shape(value) if is_tensor(value) else None
    return shape is not None and 0 in shape

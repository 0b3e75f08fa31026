"""The forms of each value: the axis orders in which it exists, and how to create another one.

A form of x is an expression that equals x.transpose(order), together with that order. No order is special: the model's
order is just one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from ...op.base import constant, constant_value, dims_of, shape_of
from ..rewrite import op_name

Order = tuple[int, ...]
Form = tuple[Any, "Order | None"]


def channels_last_order(ndim: int) -> Order:
    """The order that takes N, C, spatial… to N, spatial…, C."""
    return (0, *range(2, ndim), 1) if ndim > 2 else tuple(range(ndim))


def static_shape(value: Any) -> tuple[int, ...] | None:
    """The shape of a tensor if all its dimensions are known, else None."""
    ty = value.ty
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return None
    dims = dims_of(ty)
    return tuple(int(dim) for dim in dims) if all(isinstance(dim, (int, tirx.IntImm)) for dim in dims) else None


class Forms:
    """Forms of the variables of the old module as expressions of the new one."""

    def __init__(self, emit: Callable[[Any], Any], any_order: bool = False) -> None:
        self.emit = emit
        self.any_order = any_order
        self._forms: dict[Any, dict[Order | None, Any]] = {}
        self._unshaped: dict[Any, Any] = {}  # variable bound to a reshape -> what it reshapes

    # ---- existing forms ------------------------------------------------------------------------------------------

    def define(self, var: Any, expr: Any, order: Order | None) -> None:
        """Record `expr` as `var` with its axes in that order; None: the original one, the only form of non-tensors."""
        if order is None and static_shape(var) is not None:
            order = tuple(range(len(shape_of(var))))
        self._forms.setdefault(var, {}).setdefault(order, expr)

    def of(self, value: Any) -> dict[Order, Any]:
        """All forms of a tensor, first the order it was computed in."""
        if value not in self._forms:
            self.define(value, value, None)
        return self._forms[value]  # type: ignore[return-value]

    def preferred(self, value: Any) -> Order:
        """The form to continue with: channels last if that exists, else the one it was computed in."""
        last = channels_last_order(len(shape_of(value)))
        return last if last in self.of(value) else next(iter(self.of(value)))

    def cost(self, value: Any, order: Order) -> int:
        """Bytes that must be moved to create this form."""
        if constant_value(value) is not None or self._free_source(value, order) is not None:
            return 0
        return math.prod(shape_of(value)) * np.dtype(str(value.ty.dtype)).itemsize

    # ---- new forms -----------------------------------------------------------------------------------------------

    def get(self, value: Any, order: Order) -> Any:
        """`value` with its axes in that order."""
        array = constant_value(value)
        if array is not None:
            return constant(array.transpose(order))
        forms = self.of(value)
        if order not in forms:
            source = self._free_source(value, order)
            source = next(iter(forms)) if source is None else source
            forms[order] = self.transpose(forms[source], [source.index(axis) for axis in order])
        return forms[order]

    def _free_source(self, value: Any, order: Order) -> Order | None:
        """An existing form that differs from this one only in the positions of dimensions of 1."""
        shape = shape_of(value)
        wide = [axis for axis in order if shape[axis] != 1]
        return next((o for o in self.of(value) if [axis for axis in o if shape[axis] != 1] == wide), None)

    def aligned(self, value: Any, order: Order) -> Any:
        """An operand of a broadcasting operator whose result has this order, with missing leading axes added."""
        shape, ndim = shape_of(value), len(order)
        if len(shape) == ndim:
            return self.get(value, order)
        if math.prod(shape) == 1 and not shape:
            return self.original(value)
        full = (1,) * (ndim - len(shape)) + shape
        array = constant_value(value)
        if array is not None:
            moved = array.reshape(full).transpose(order)
            lead = next((i for i, size in enumerate(moved.shape) if size != 1), ndim - 1)
            return constant(moved.reshape(moved.shape[lead:]))
        return self.transpose(self.reshape(self.original(value), full), order)

    def original(self, expr: Any) -> Any:
        """An expression of the old module, with its variables in their original form."""
        if isinstance(expr, relax.Var):
            shape = static_shape(expr)
            if shape is not None:
                return self.get(expr, tuple(range(len(shape))))
            return self._fields(expr) if expr in self._forms else expr
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.original(field) for field in expr.fields])
        if isinstance(expr, relax.Call):
            return relax.Call(expr.op, [self.original(arg) for arg in expr.args], expr.attrs, expr.ty_args)
        return expr

    def _fields(self, var: Any) -> Any:
        """A variable that is not a tensor of known shape; a tuple of tensors in another order, field by field."""
        order, expr = next(iter(self._forms[var].items()))
        if order is None:
            return expr
        axes = [order.index(axis) for axis in range(len(order))]
        items = [self.emit(relax.TupleGetItem(expr, index)) for index in range(len(var.ty.fields))]
        return relax.Tuple([self.transpose(item, axes) for item in items])

    # ---- moves in the new module ---------------------------------------------------------------------------------

    def transpose(self, expr: Any, axes: Sequence[int]) -> Any:
        """expr.transpose(axes); a reshape if only dimensions of 1 change their positions."""
        shape = shape_of(expr)
        wide = [axis for axis in axes if shape[axis] != 1]
        if wide == sorted(wide):
            return self.reshape(expr, [shape[axis] for axis in axes])
        return self.emit(relax.op.permute_dims(expr, list(axes)))

    def reshape(self, expr: Any, shape: Sequence[int]) -> Any:
        """expr in another shape, without a chain of reshapes."""
        source = self._unshaped.get(expr, expr)
        if shape_of(source) == tuple(shape):
            return source
        reshaped = self.emit(relax.op.reshape(source, list(shape)))
        self._unshaped[reshaped] = source
        return reshaped


def is_tensor(value: Any) -> bool:
    """Whether an argument is a tensor, as opposed to a shape or a number."""
    return isinstance(getattr(value, "ty", None), relax.TensorType)


def name_of(call: Any) -> str:
    """The operator's name without "qnn."."""
    return op_name(call).removeprefix("qnn.")

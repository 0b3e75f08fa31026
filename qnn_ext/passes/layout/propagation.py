"""How each operator passes on the order of its axes: (call, forms) -> forms of its result, None to leave it alone.

An operator without a rule, or whose rule returns None, reads its operands in the model's order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir.attrs import make_node

from ...op.arguments import argument, data_of, factors_of
from ...op.base import OPS, call_attributes, constant_value, definition_of, shape_of
from ...op.concatenate import split_arguments
from ...op.cost import attribute
from ...op.relax_table import traits_of
from ...op.traits import Kind
from ..rewrite import op_name
from .forms import Form, Forms, Order, channels_last_order, is_tensor, name_of, static_shape

LayoutRule = Callable[[Any, Forms], "list[Form] | None"]
RULES: dict[str, LayoutRule] = {}


def layout_rule(*names: str) -> Callable[[LayoutRule], LayoutRule]:
    """Register the decorated rule for specific operators, whose attributes it knows; `rule_of` has those for kinds."""

    def register(rule: LayoutRule) -> LayoutRule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def rule_of(value: Any) -> LayoutRule | None:
    """The rule for an operator: its own, or the one that its traits select."""
    if isinstance(value, relax.TupleGetItem):
        return tuple_item
    traits = traits_of(value)
    if op_name(value) in RULES:
        return RULES[op_name(value)]
    if traits.layouts:
        return _compute
    if traits.kind is Kind.POINTWISE:
        return _elementwise
    if traits.reduces:
        return _reduce
    if traits.axis is not None:
        return _along_a_row if traits.kind is Kind.ROWS else _along_an_axis
    return None


def rebuild(call: relax.Call, args: Sequence[Any], **changes: Any) -> relax.Call:
    """The call with new arguments and some attributes changed."""
    if definition_of(call) is not None:
        return OPS[name_of(call)].call(*args, **{**call_attributes(call), **changes})
    attrs = call.attrs
    if changes:
        info = type(attrs).__tvm_ffi_type_info__
        fields = {field.name: getattr(attrs, field.name) for field in info.fields}
        attrs = make_node(info.type_key, **{**fields, **changes})
    return relax.Call(call.op, list(args), attrs, call.ty_args)


def _arranged(call: relax.Call, order: Order, forms: Forms) -> list[Any]:
    """The arguments: the data in this order, all others as in the model."""
    data, *others = call.args
    return [forms.get(data, order), *map(forms.original, others)]


def _ndim(value: Any) -> int:
    return len(shape_of(value))


# ---- operators that have a layout --------------------------------------------------------------------------------


def wants_channels_last(value: Any, any_order: bool = False) -> bool:
    """Whether a call computes in a channels-first layout and may compute with the channels last.

    any_order: whether a float convolution may add its products in a different order
    """
    layouts = {str(attribute(value, name)) for name in traits_of(value).layouts}
    first = len(layouts) == 1 and next(iter(layouts)) in ("NCW", "NCHW", "NCDHW")
    return first and (any_order or op_name(value) != "nn.conv2d" or _sums_in_the_same_order(value))


def _sums_in_the_same_order(call: relax.Call) -> bool:
    """Whether a float convolution sums only over channels or only over pixels; otherwise its order of addition depends
    on the layout."""
    data, weight = factors_of(call)
    shape, layout = static_shape(weight), str(call.attrs.kernel_layout)
    if shape is None or str(data.ty.dtype).startswith(("int", "uint")):
        return shape is not None
    return shape[layout.index("I")] == 1 or shape[layout.index("H")] == shape[layout.index("W")] == 1


def _compute(call: relax.Call, forms: Forms) -> list[Form] | None:
    if not wants_channels_last(call, forms.any_order):
        return None
    ndim = _ndim(data_of(call))
    order = channels_last_order(ndim)
    layout = "".join(_AXES[ndim][axis] for axis in order)
    changes = dict.fromkeys(traits_of(call).layouts, layout)
    return [(rebuild(call, _arranged(call, order, forms), **changes), order)]


_AXES = {3: "NCW", 4: "NCHW", 5: "NCDHW"}


# ---- elementwise -------------------------------------------------------------------------------------------------


def _choose(data: Sequence[Any], shape: tuple[int, ...], forms: Forms) -> Order:
    """The common order of the operands that moves the fewest bytes; if equally cheap, preferably not the model's."""
    ndim = len(shape)
    variables = [value for value in data if constant_value(value) is None and _ndim(value) == ndim]
    orders = {forms.preferred(value): None for value in variables if math.prod(shape_of(value)) > 1}
    original = tuple(range(ndim))
    candidates = list(orders) or [original]
    return min(candidates, key=lambda order: (sum(forms.cost(v, order) for v in variables), order == original))


def _elementwise(call: relax.Call, forms: Forms) -> list[Form]:
    shape, traits = tuple(int(dim) for dim in call.ty.shape), traits_of(call)
    data = {traits.index(one.name): one for one in traits.data}
    order = _choose([call.args[i] for i in data if is_tensor(call.args[i])], shape, forms)
    if order == tuple(range(len(shape))):
        return [(rebuild(call, [*map(forms.original, call.args)]), order)]
    args = [
        forms.aligned(arg, order) if i in data and is_tensor(arg) else forms.original(arg)
        for i, arg in enumerate(call.args)
    ]
    changes = {
        one.axis: _axis_of(int(attribute(call, one.axis)), call.args[i], args[i], order)
        for i, one in data.items()
        if one.axis is not None and _ndim(call.args[i])
    }
    return [(rebuild(call, args, **changes), order)]


def _axis_of(axis: int, before: Any, after: Any, order: Order) -> int:
    """An axis of an operand, after aligning it with a result of this order; both may lack leading axes."""
    of_result = axis % _ndim(before) + len(order) - _ndim(before)
    return max(order.index(of_result) - (len(order) - _ndim(after)), 0)


# ---- transposes --------------------------------------------------------------------------------------------------


@layout_rule("permute_dims")
def _permute(call: relax.Call, forms: Forms) -> list[Form] | None:
    """Nothing moves: the forms of the data are forms of the result.

    If the data exists only in the model's order, the result is also computed in it, if anything uses that.
    """
    data = data_of(call)
    if constant_value(data) is not None:
        return None
    ndim = _ndim(data)
    axes = tuple(int(a) % ndim for a in call.attrs.axes) if call.attrs.axes is not None else tuple(range(ndim))[::-1]
    preferred = forms.preferred(data)
    orders = [preferred, *(order for order in forms.of(data) if order != preferred)]
    renamed: list[Form] = [(forms.of(data)[order], tuple(axes.index(axis) for axis in order)) for order in orders]
    if list(forms.of(data)) == [tuple(range(ndim))]:
        return [(rebuild(call, [forms.original(data)]), tuple(range(ndim))), *renamed]
    return renamed


# ---- operators along one or several axes -------------------------------------------------------------------------


def _order_of(call: relax.Call, forms: Forms) -> Order | None:
    """The order to compute in, None if that is the model's."""
    data = data_of(call)
    if constant_value(data) is not None:
        return None
    order = forms.preferred(data)
    return None if order == tuple(range(len(order))) else order


def _along_an_axis(call: relax.Call, forms: Forms) -> list[Form] | None:
    order = _order_of(call, forms)
    if order is None or call.attrs.axis is None or (op_name(call) == "take" and _ndim(argument(call, "indices")) != 1):
        return None
    axis = order.index(int(call.attrs.axis) % len(order))
    return [(rebuild(call, _arranged(call, order, forms), axis=axis), order)]


def tuple_item(item: relax.TupleGetItem, forms: Forms) -> list[Form] | None:
    """A part of a split, in the split's order."""
    if not isinstance(item.tuple_value, relax.Var):
        return None
    found = forms.of(item.tuple_value)
    return [(relax.TupleGetItem(expr, item.index), order) for order, expr in found.items()]


def _along_a_row(call: relax.Call, forms: Forms) -> list[Form] | None:
    """Along contiguous rows, as softmax kernels require: the channels if they are last, or the model's last axis."""
    order = _order_of(call, forms)
    if order is None:
        return None
    axis = int(attribute(call, "axis")) % len(order)
    if axis == len(order) - 1 != order.index(axis):
        return None
    return [(rebuild(call, _arranged(call, order, forms), axis=order.index(axis)), order)]


def _reduce(call: relax.Call, forms: Forms) -> list[Form] | None:
    """Reductions over some axes; float sums only if the order of their terms does not change."""
    order = _order_of(call, forms)
    axis, keepdims = attribute(call, "axis"), bool(attribute(call, "keepdims"))
    if order is None:
        return None
    ndim = len(order)
    reduced = sorted({int(a) % ndim for a in axis} if axis else range(ndim))
    moved = [order.index(a) for a in reduced]
    exact = traits_of(call).kind is Kind.SELECTION or np.dtype(str(data_of(call).ty.dtype)).kind in "iub"
    if not exact and moved != sorted(moved):
        return None
    kept = [a for a in range(ndim) if a not in reduced]
    result = order if keepdims else tuple(kept.index(a) for a in order if a in kept)
    return [(rebuild(call, _arranged(call, order, forms), axis=sorted(moved)), result)]


@layout_rule("concat", "qnn.concatenate")
def _concatenate(call: relax.Call, forms: Forms) -> list[Form] | None:
    quantized = definition_of(call) is not None
    tensors = split_arguments(list(call.args))[0] if quantized else getattr(data_of(call), "fields", None)
    if tensors is None:
        return None
    data = list(tensors)
    order = _choose(data, tuple(int(dim) for dim in call.ty.shape), forms)
    axis = order.index(int(call_attributes(call)["axis"] if quantized else call.attrs.axis or 0) % len(order))
    parts = [forms.get(value, order) for value in data]
    args = [*parts, *map(forms.original, call.args[len(parts) :])] if quantized else [relax.Tuple(parts)]
    return [(rebuild(call, args, axis=axis), order)]


@layout_rule("strided_slice")
def _slice(call: relax.Call, forms: Forms) -> list[Form] | None:
    order = _order_of(call, forms)
    data, axes, *rest = call.args
    if order is None or not all(isinstance(bound, relax.Tuple) for bound in (axes, *rest)):
        return None
    moved = relax.Tuple([tirx.IntImm("int64", order.index(int(field.value) % len(order))) for field in axes.fields])
    return [(rebuild(call, [forms.get(data, order), moved, *rest]), order)]


@layout_rule("nn.pad")
def _pad(call: relax.Call, forms: Forms) -> list[Form] | None:
    order = _order_of(call, forms)
    if order is None:
        return None
    widths = [int(width) for width in call.attrs.pad_width]
    moved = [width for axis in order for width in widths[2 * axis : 2 * axis + 2]]
    return [(rebuild(call, _arranged(call, order, forms), pad_width=moved), order)]


@layout_rule("tile")
def _tile(call: relax.Call, forms: Forms) -> list[Form] | None:
    order, repeats = _order_of(call, forms), [int(times) for times in call.attrs.repeats]
    if order is None or len(repeats) != len(order):
        return None
    moved = [repeats[axis] for axis in order]
    return [(rebuild(call, _arranged(call, order, forms), repeats=moved), order)]


@layout_rule("broadcast_to")
def _broadcast(call: relax.Call, forms: Forms) -> list[Form] | None:
    order, shape = _order_of(call, forms), [int(dim) for dim in call.ty.shape]
    if order is None or len(shape) != len(order):
        return None
    return [(relax.op.broadcast_to(forms.get(data_of(call), order), [shape[axis] for axis in order]), order)]

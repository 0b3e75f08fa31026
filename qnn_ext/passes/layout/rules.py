"""What each operator does with the order of its axes: (call, forms) -> forms of its result, None if it has no say.

An operator without a rule, or whose rule has no say, reads its operands in the order of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir.attrs import make_node

from ...op.base import OPS, call_attributes, constant_value, definition_of, shape_of
from ...op.concatenate import split_arguments
from ...op.unary import UNARY
from ..rewrite import op_name
from .forms import Form, Forms, Order, channels_last_order, is_tensor, name_of, static_shape

LayoutRule = Callable[[Any, Forms], "list[Form] | None"]
RULES: dict[str, LayoutRule] = {}


def layout_rule(*names: str) -> Callable[[LayoutRule], LayoutRule]:
    """Register the decorated rule for these operators."""

    def register(rule: LayoutRule) -> LayoutRule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def rebuild(call: relax.Call, args: Sequence[Any], **changes: Any) -> relax.Call:
    """The call with other arguments and some other attributes."""
    if definition_of(call) is not None:
        return OPS[name_of(call)].call(*args, **{**call_attributes(call), **changes})
    attrs = call.attrs
    if changes:
        info = type(attrs).__tvm_ffi_type_info__
        fields = {field.name: getattr(attrs, field.name) for field in info.fields}
        attrs = make_node(info.type_key, **{**fields, **changes})
    return relax.Call(call.op, list(args), attrs, call.ty_args)


def _with_data(call: relax.Call, data: Any, forms: Forms) -> list[Any]:
    """The arguments with another first one; the others as they were."""
    return [data, *map(forms.original, call.args[1:])]


def _ndim(value: Any) -> int:
    return len(shape_of(value))


# ---- operators that have a layout --------------------------------------------------------------------------------

_LAYOUT_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "qnn.conv2d": ("data_layout",),
    "qnn.conv2d_transpose": ("data_layout",),
    "qnn.avg_pool2d": ("layout",),
    "nn.conv2d": ("data_layout", "out_layout"),
    "image.resize2d": ("layout",),
    **{
        f"nn.{kind}{rank}d": ("layout", "out_layout")
        for kind in ("max_pool", "avg_pool", "adaptive_avg_pool")
        for rank in (1, 2, 3)
    },
}


def wants_channels_last(value: Any, any_order: bool = False) -> bool:
    """Whether a call computes in a channels-first layout and may compute with the channels last.

    any_order: whether a float convolution may add its products in another order
    """
    names = _LAYOUT_ATTRIBUTES.get(op_name(value))
    if names is None:
        return False
    attributes = (
        call_attributes(value) if definition_of(value) else {name: getattr(value.attrs, name) for name in names}
    )
    layouts = {str(attributes[name]) for name in names}
    first = len(layouts) == 1 and next(iter(layouts)) in ("NCW", "NCHW", "NCDHW")
    return first and (any_order or op_name(value) != "nn.conv2d" or _sums_in_the_same_order(value))


def _sums_in_the_same_order(call: relax.Call) -> bool:
    """A float convolution over channels alone or pixels alone; others add their products in the order of the layout."""
    weight, layout = static_shape(call.args[1]), str(call.attrs.kernel_layout)
    if weight is None or str(call.args[0].ty.dtype).startswith(("int", "uint")):
        return weight is not None
    return weight[layout.index("I")] == 1 or weight[layout.index("H")] == weight[layout.index("W")] == 1


@layout_rule(*_LAYOUT_ATTRIBUTES)
def _compute(call: relax.Call, forms: Forms) -> list[Form] | None:
    if not wants_channels_last(call, forms.any_order):
        return None
    ndim = _ndim(call.args[0])
    order = channels_last_order(ndim)
    layout = "".join(_AXES[ndim][axis] for axis in order)
    changes = dict.fromkeys(_LAYOUT_ATTRIBUTES[op_name(call)], layout)
    return [(rebuild(call, _with_data(call, forms.get(call.args[0], order), forms), **changes), order)]


_AXES = {3: "NCW", 4: "NCHW", 5: "NCDHW"}


# ---- elementwise -------------------------------------------------------------------------------------------------

# the leading arguments that are data, and the attributes that name an axis of each of them
_ELEMENTWISE_QNN: dict[str, tuple[int, tuple[str, ...]]] = {
    **{f"qnn.{name}": (1, ("axis",)) for name in ("quantize", "dequantize", "requantize")},
    **{f"qnn.{name}": (2, ("lhs_axis", "rhs_axis")) for name in ("add", "subtract", "mul")},
    **{f"qnn.{name}": (2, ()) for name in ("qlinear_add", "qlinear_mul", "prelu")},
    **{f"qnn.{name}": (1, ()) for name in ("table", *UNARY)},
    "qnn.fma": (3, ()),
}
# fmt: off
_ELEMENTWISE = (
    "add", "subtract", "multiply", "divide", "floor_divide", "mod", "floor_mod", "power", "maximum", "minimum",
    "where", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or",
    "logical_xor", "logical_not", "abs", "negative", "sign", "floor", "ceil", "round", "trunc", "square", "sqrt",
    "rsqrt", "exp", "log", "sin", "cos", "tan", "tanh", "sigmoid", "erf", "isnan", "isinf", "astype", "clip",
    "nn.relu", "nn.relu6", "nn.leakyrelu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.selu", "nn.softplus",
)
# fmt: on


def _choose(data: Sequence[Any], shape: tuple[int, ...], forms: Forms) -> Order:
    """The order in which operands meet with the fewest bytes moved; of equally cheap ones not that of the model."""
    ndim = len(shape)
    variables = [value for value in data if constant_value(value) is None and _ndim(value) == ndim]
    orders = {forms.preferred(value): None for value in variables if math.prod(shape_of(value)) > 1}
    original = tuple(range(ndim))
    candidates = list(orders) or [original]
    return min(candidates, key=lambda order: (sum(forms.cost(v, order) for v in variables), order == original))


def _elementwise(call: relax.Call, forms: Forms, count: int, axes: Sequence[str]) -> list[Form]:
    shape = tuple(int(dim) for dim in call.ty.shape)
    data = call.args[:count]
    order = _choose([value for value in data if is_tensor(value)], shape, forms)
    if order == tuple(range(len(shape))):
        return [(rebuild(call, [*map(forms.original, call.args)]), order)]
    args = [forms.aligned(value, order) if is_tensor(value) else value for value in data]
    changes = {
        name: _axis_of(int(call_attributes(call)[name]), value, arg, order)
        for name, value, arg in zip(axes, data, args, strict=False)
        if _ndim(value)
    }
    return [(rebuild(call, [*args, *map(forms.original, call.args[count:])], **changes), order)]


def _axis_of(axis: int, before: Any, after: Any, order: Order) -> int:
    """An axis of an operand, after it was aligned with a result of this order; both may lack axes in front."""
    of_result = axis % _ndim(before) + len(order) - _ndim(before)
    return max(order.index(of_result) - (len(order) - _ndim(after)), 0)


@layout_rule(*_ELEMENTWISE)
def _elementwise_relax(call: relax.Call, forms: Forms) -> list[Form] | None:
    return _elementwise(call, forms, len(call.args), ())


@layout_rule(*_ELEMENTWISE_QNN)
def _elementwise_qnn(call: relax.Call, forms: Forms) -> list[Form] | None:
    return _elementwise(call, forms, *_ELEMENTWISE_QNN[op_name(call)])


# ---- transposes --------------------------------------------------------------------------------------------------


@layout_rule("permute_dims")
def _permute(call: relax.Call, forms: Forms) -> list[Form] | None:
    """Nothing moves: the forms of the data are forms of the result.

    Where the data has only the model's order, the result is computed in it too, if anyone asks.
    """
    data = call.args[0]
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


# ---- one axis, or some -------------------------------------------------------------------------------------------


def _order_of(call: relax.Call, forms: Forms) -> Order | None:
    """The order to compute in, None when that is the model's."""
    if constant_value(call.args[0]) is not None:
        return None
    order = forms.preferred(call.args[0])
    return None if order == tuple(range(len(order))) else order


@layout_rule("flip", "cumsum", "nn.prelu", "repeat", "take", "split")
def _along_an_axis(call: relax.Call, forms: Forms) -> list[Form] | None:
    order = _order_of(call, forms)
    if order is None or call.attrs.axis is None or (op_name(call) == "take" and _ndim(call.args[1]) != 1):
        return None
    axis = order.index(int(call.attrs.axis) % len(order))
    return [(rebuild(call, _with_data(call, forms.get(call.args[0], order), forms), axis=axis), order)]


def tuple_item(item: relax.TupleGetItem, forms: Forms) -> list[Form] | None:
    """A part of a split, in the order of that."""
    if not isinstance(item.tuple_value, relax.Var):
        return None
    found = forms.of(item.tuple_value)
    return [(relax.TupleGetItem(expr, item.index), order) for order, expr in found.items()]


@layout_rule("nn.softmax", "nn.log_softmax", "qnn.softmax", "qnn.log_softmax")
def _softmax(call: relax.Call, forms: Forms) -> list[Form] | None:
    """Along a row, which is what kernels of softmax want: the channels if they are last, or the model's last axis."""
    order = _order_of(call, forms)
    if order is None:
        return None
    axis = int(call_attributes(call)["axis"] if definition_of(call) else call.attrs.axis) % len(order)
    if axis == len(order) - 1 != order.index(axis):
        return None
    args = _with_data(call, forms.get(call.args[0], order), forms)
    return [(rebuild(call, args, axis=order.index(axis)), order)]


_EXACT_REDUCTIONS = ("max", "min", "qnn.mean", "qnn.sum", "qnn.max", "qnn.min")


@layout_rule("mean", "sum", "prod", "variance", "std", *_EXACT_REDUCTIONS)
def _reduce(call: relax.Call, forms: Forms) -> list[Form] | None:
    """Reductions over some axes; float sums only where the order of their terms stays."""
    order = _order_of(call, forms)
    attributes = call_attributes(call) if definition_of(call) else {}
    axis = attributes["axis"] if attributes else call.attrs.axis
    keepdims = bool(attributes["keepdims"] if attributes else call.attrs.keepdims)
    if order is None:
        return None
    ndim = len(order)
    reduced = sorted({int(a) % ndim for a in axis} if axis else range(ndim))
    moved = [order.index(a) for a in reduced]
    exact = op_name(call) in _EXACT_REDUCTIONS or np.dtype(str(call.args[0].ty.dtype)).kind in "iub"
    if not exact and moved != sorted(moved):
        return None
    args = _with_data(call, forms.get(call.args[0], order), forms)
    kept = [a for a in range(ndim) if a not in reduced]
    result = order if keepdims else tuple(kept.index(a) for a in order if a in kept)
    return [(rebuild(call, args, axis=sorted(moved)), result)]


@layout_rule("concat", "qnn.concatenate")
def _concatenate(call: relax.Call, forms: Forms) -> list[Form] | None:
    quantized = definition_of(call) is not None
    if not quantized and not isinstance(call.args[0], relax.Tuple):
        return None
    data = list(split_arguments(list(call.args))[0]) if quantized else list(call.args[0].fields)
    order = _choose(data, tuple(int(dim) for dim in call.ty.shape), forms)
    axis = order.index(int(call_attributes(call)["axis"] if quantized else call.attrs.axis or 0) % len(order))
    parts = [forms.get(value, order) for value in data]
    args = [*parts, *map(forms.original, call.args[len(parts) :])] if quantized else [relax.Tuple(parts)]
    return [(rebuild(call, args, axis=axis), order)]


@layout_rule("strided_slice")
def _slice(call: relax.Call, forms: Forms) -> list[Form] | None:
    order = _order_of(call, forms)
    if order is None or not all(isinstance(arg, relax.Tuple) for arg in call.args[1:]):
        return None
    data, axes, *rest = call.args
    moved = relax.Tuple([tirx.IntImm("int64", order.index(int(field.value) % len(order))) for field in axes.fields])
    return [(rebuild(call, [forms.get(data, order), moved, *rest]), order)]


@layout_rule("nn.pad")
def _pad(call: relax.Call, forms: Forms) -> list[Form] | None:
    order = _order_of(call, forms)
    if order is None:
        return None
    widths = [int(width) for width in call.attrs.pad_width]
    moved = [width for axis in order for width in widths[2 * axis : 2 * axis + 2]]
    return [(rebuild(call, _with_data(call, forms.get(call.args[0], order), forms), pad_width=moved), order)]


@layout_rule("tile")
def _tile(call: relax.Call, forms: Forms) -> list[Form] | None:
    order, repeats = _order_of(call, forms), [int(times) for times in call.attrs.repeats]
    if order is None or len(repeats) != len(order):
        return None
    moved = [repeats[axis] for axis in order]
    return [(rebuild(call, [forms.get(call.args[0], order)], repeats=moved), order)]


@layout_rule("broadcast_to")
def _broadcast(call: relax.Call, forms: Forms) -> list[Form] | None:
    order, shape = _order_of(call, forms), [int(dim) for dim in call.ty.shape]
    if order is None or len(shape) != len(order):
        return None
    return [(relax.op.broadcast_to(forms.get(call.args[0], order), [shape[axis] for axis in order]), order)]

"""Integer rules of operators that move values: they work on the integers as on the reals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from ...op.base import as_expr, constant, constant_value, normalize_axis, shape_of
from .hoist import evaluate
from .rules import integer_rule
from .tensors import Mapped, Quantized
from .walker import Context

# (call, channel axis) -> the axis the channels have afterwards; None when they are torn apart
AxisRule = Callable[[relax.Call, int], "int | None"]

_MOST_GROWN = 2**22  # elements that a constant may become at import

TORN = "it tears apart the channels that have scales of their own"


def _permuted(call: relax.Call, axis: int) -> int | None:
    ndim = len(shape_of(call.args[0]))
    axes = [int(a) % ndim for a in call.attrs.axes] if call.attrs.axes is not None else list(range(ndim))[::-1]
    return axes.index(axis)


def _reshaped(call: relax.Call, axis: int) -> int | None:
    """The dimension of the same size with as many elements before it."""
    before, after = shape_of(call.args[0]), shape_of(call)
    for new, size in enumerate(after):
        if size == before[axis] and math.prod(after[:new]) == math.prod(before[:axis]):
            return new
    return None


def _untouched(call: relax.Call, axis: int) -> int | None:
    """Operators that leave the channel dimension as it is, when its length and position have not changed."""
    before, after = shape_of(call.args[0]), shape_of(call)
    touched = {int(a) % len(before) for a in _axes(call)}
    return axis if len(before) == len(after) and axis not in touched and before[axis] == after[axis] else None


def _axes(call: relax.Call) -> list[Any]:
    if len(call.args) > 1 and isinstance(call.args[1], relax.Tuple):  # strided_slice
        return [field.value if hasattr(field, "value") else field for field in call.args[1].fields]
    axis = getattr(call.attrs, "axis", None)
    return [] if axis is None else [axis]


def _broadcast(call: relax.Call, axis: int) -> int | None:
    before, after = shape_of(call.args[0]), shape_of(call)
    new = axis + len(after) - len(before)
    return new if after[new] == before[axis] else None


def _reduced(call: relax.Call, axis: int) -> int | None:
    ndim = len(shape_of(call.args[0]))
    axes = range(ndim) if call.attrs.axis is None else [normalize_axis(int(a), ndim) for a in call.attrs.axis]
    if axis in axes:
        return None
    return axis if call.attrs.keepdims else axis - sum(a < axis for a in axes)


_AXIS_RULES: dict[str, AxisRule] = {
    "permute_dims": _permuted,
    **dict.fromkeys(("reshape", "flatten", "nn.batch_flatten", "squeeze", "expand_dims"), _reshaped),
    **dict.fromkeys(("strided_slice", "flip", "repeat", "take", "gather_elements", "split"), _untouched),
    "broadcast_to": _broadcast,
    "max": _reduced,
    "min": _reduced,
    **dict.fromkeys(("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d"), lambda call, axis: axis if axis < 2 else None),
    "image.resize2d": lambda call, axis: axis if axis < 2 else None,
}
# these compare values: of a function of integers, not of the integers themselves
_ORDERED = frozenset({"nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d", "max", "min"})


@integer_rule(
    "permute_dims", "reshape", "flatten", "nn.batch_flatten", "squeeze", "expand_dims", "broadcast_to",
    "strided_slice", "flip", "tile", "repeat", "gather_elements", "gather_nd", *sorted(_ORDERED),
)  # fmt: skip
def move(call: relax.Call, context: Context) -> Any:
    """The same operator on the integers; scales per channel move with their axis."""
    tensor = context.known(call.args[0])
    if tensor is None:
        return None
    name = str(call.op.name).removeprefix("relax.")
    moved = relax.Call(call.op, [tensor.data, *map(context.value, call.args[1:])], call.attrs, call.ty_args)
    if isinstance(tensor, Mapped):
        return None if name in _ORDERED else Mapped(context.emit(moved), tensor.values, tensor.cheap)
    axis = tensor.channel_axis
    if axis is not None:
        rule = _AXIS_RULES.get(name)
        axis = None if rule is None else rule(call, axis)
        if axis is None:
            return context.refuse(TORN)
    return tensor.moved(_fold(moved, context), axis)


def _fold(call: relax.Call, context: Context) -> Any:
    """The call bound to a variable, or its value when its data is constant and does not grow much."""
    tensors = [arg for arg in call.args if isinstance(getattr(arg, "ty", None), relax.TensorType)]
    arrays = [constant_value(arg) for arg in tensors]
    bound = context.emit(call)
    known = [array for array in arrays if array is not None]
    if len(known) < len(arrays) or math.prod(shape_of(bound)) > _MOST_GROWN + 2 * sum(array.size for array in known):
        return bound
    return constant(evaluate(call))


@integer_rule("image.resize2d")
def _resize(call: relax.Call, context: Context) -> Any:
    if call.attrs.method == "nearest_neighbor":
        return move(call, context)
    known = context.known(call.args[0]) is not None
    return context.refuse(f"{call.attrs.method} interpolation computes in float") if known else None


@integer_rule("take")
def _take(call: relax.Call, context: Context) -> Any:
    """Rows of a table. Where each has a scale of its own, the scales are looked up beside them."""
    tensor, axis = context.quantized(call.args[0]), call.attrs.axis
    if tensor is None or axis is None or tensor.channel_axis != normalize_axis(int(axis), len(tensor.shape)):
        return move(call, context)
    if tensor.one_zero_point is None:
        return context.refuse("each row of its table has a zero point of its own")
    indices, after = context.value(call.args[1]), len(tensor.shape) - tensor.channel_axis - 1
    rows = context.emit(relax.Call(call.op, [tensor.data, indices], call.attrs, call.ty_args))
    mode = str(call.attrs.mode)
    scales = context.emit(relax.op.take(as_expr(tensor.scale), indices, 0, mode))
    shape = [*shape_of(scales), *(1,) * after]
    real = context.emit(relax.op.astype(rows, "float32"))
    if tensor.one_zero_point:
        real = context.emit(relax.op.subtract(real, constant(np.float32(tensor.one_zero_point))))
    return relax.op.multiply(real, context.emit(relax.op.reshape(scales, shape)))


@integer_rule("nn.pad")
def _pad(call: relax.Call, context: Context) -> Any:
    """Padding with a value that the integers can say: the zero point for 0."""
    tensor = context.quantized(call.args[0])
    if tensor is None:
        return None
    if call.attrs.pad_mode != "constant":
        return tensor.moved(context.emit(relax.Call(call.op, [tensor.data], call.attrs, call.ty_args)), tensor.axis)
    if tensor.constants is None or tensor.one_zero_point is None:
        return context.refuse("its data has zero points that differ or are computed at run time")
    steps = float(call.attrs.pad_value) / float(tensor.constants[0].flat[0]) + tensor.one_zero_point
    limits = np.iinfo(tensor.dtype)
    if not (steps.is_integer() and limits.min <= steps <= limits.max) or (tensor.vectors and call.attrs.pad_value):
        return context.refuse(f"it pads with {float(call.attrs.pad_value):g}, which is no quantized value")
    axis = tensor.channel_axis
    widths = [int(width) for width in call.attrs.pad_width]
    if axis is not None and any(widths[2 * axis : 2 * axis + 2]):
        return context.refuse(TORN)
    padded = relax.op.nn.pad(tensor.data, widths, pad_mode="constant", pad_value=int(steps))
    return tensor.moved(context.emit(padded), axis)


@integer_rule("concat", "stack")
def _join(call: relax.Call, context: Context) -> Any:
    """Tensors side by side; joined along an existing axis they may have differing scales, which become a vector."""
    if not isinstance(call.args[0], relax.Tuple):
        return None
    tensors = [context.quantized(field) for field in call.args[0].fields]
    known = [tensor for tensor in tensors if tensor is not None]
    if not known or len(known) < len(tensors):
        return None
    fields = relax.Tuple([tensor.data for tensor in known])
    joined = relax.Call(call.op, [fields], call.attrs, call.ty_args)
    if all(known[0].same_parameters(tensor) for tensor in known):
        return known[0].moved(context.emit(joined))
    plain = all(t.per_tensor and t.constants is not None and t.dtype == known[0].dtype for t in known)
    axis = call.attrs.axis
    if not plain or axis is None or str(call.op.name) != "relax.concat":
        return None
    axis = normalize_axis(int(axis), len(known[0].shape))
    scale, zero_point = (
        np.concatenate([np.full(t.shape[axis], t.constants[i].item()) for t in known])  # type: ignore[index]
        for i in range(2)
    )
    vectors = constant(scale.astype(np.float32)), constant(zero_point.astype(np.int32))
    return Quantized(context.emit(joined), *vectors, axis)


@integer_rule("split")
def _split(call: relax.Call, context: Context) -> Any:
    tensor = context.quantized(call.args[0])
    if tensor is None:
        return None
    axis = tensor.channel_axis
    if axis is not None and axis == normalize_axis(int(call.attrs.axis), len(tensor.shape)):
        return context.refuse(TORN)
    parts = context.emit(relax.Call(call.op, [tensor.data], call.attrs, call.ty_args))
    return [tensor.moved(context.emit(relax.TupleGetItem(parts, i)), axis) for i in range(len(parts.ty.fields))]


# ---- operators whose result depends on the order of values alone -------------------------------------------------


def _comparable(call: relax.Call, context: Context) -> Quantized | None:
    tensor = context.quantized(call.args[0])
    if tensor is not None and tensor.vectors:
        return context.refuse("it compares channels that have scales of their own")
    return tensor


@integer_rule("argmax", "argmin")
def _extreme_position(call: relax.Call, context: Context) -> Any:
    tensor = _comparable(call, context)
    return None if tensor is None else relax.Call(call.op, [tensor.data], call.attrs, call.ty_args)


@integer_rule("sort", "argsort")
def _sort(call: relax.Call, context: Context) -> Any:
    """In int32: TVM's runtime sorts no narrower integers."""
    tensor = _comparable(call, context)
    if tensor is None:
        return None
    wide = context.emit(relax.op.astype(tensor.data, "int32"))
    result = relax.Call(call.op, [wide], call.attrs, call.ty_args)
    if str(call.op.name) == "relax.argsort":
        return result
    return tensor.moved(context.emit(relax.op.astype(context.emit(result), tensor.dtype)))


@integer_rule("topk")
def _topk(call: relax.Call, context: Context) -> Any:
    tensor = _comparable(call, context)
    if tensor is None:
        return None
    result = context.emit(relax.Call(call.op, [tensor.data], call.attrs, call.ty_args))
    kind = str(call.attrs.ret_type)
    if kind == "both":
        return [tensor.moved(context.emit(relax.TupleGetItem(result, 0))), context.emit(relax.TupleGetItem(result, 1))]
    return tensor.moved(result) if kind == "values" else result

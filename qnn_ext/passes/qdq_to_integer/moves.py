"""Integer rules of operators that move values: they work on integers as they do on reals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ...numerics.windows import axis_counts
from ...op import axes
from ...op.arguments import argument, data_of, with_arguments, with_data
from ...op.base import as_expr, constant, constant_value, normalize_axis, shape_of
from ...op.relax_table import traits_of
from ...op.traits import Kind
from .context import Context
from .hoist import evaluate
from .registry import integer_rule
from .tensors import Mapped, Quantized

_MOST_GROWN = 2**22  # elements that a constant may grow to at import

TORN = "it separates the channels, which have a scale each"


@integer_rule(Kind.MOVE, Kind.SELECTION)
def move(call: relax.Call, context: Context) -> Any:
    """The same operator on the integers; per-channel scales move with their axis."""
    data, *others = call.args
    tensor = context.known(data)
    if tensor is None:
        return None
    traits = traits_of(call)
    moved = relax.Call(call.op, [tensor.data, *map(context.value, others)], call.attrs, call.ty_args)
    if traits.kind is Kind.SELECTION and traits.layouts and _has_empty_window(call):
        return context.refuse("one of its windows contains only padding, which is −∞ and not an integer")
    if isinstance(tensor, Mapped):  # the order is that of the function's values, not of the integers
        return None if traits.kind is Kind.SELECTION else Mapped(context.emit(moved), tensor.values, tensor.cheap)
    axis = tensor.channel_axis
    if axis is not None:
        axis = None if traits.moved_axis is None else traits.moved_axis(call, axis)
        if axis is None:
            return context.refuse(TORN)
    return tensor.moved(_fold(moved, context), axis)


def _has_empty_window(call: relax.Call) -> bool:
    """Whether a pooling has windows that contain only padding, which dilation and ceil_mode can cause."""
    attributes, layout = call.attrs, str(call.attrs.layout)
    before, after = shape_of(data_of(call)), shape_of(call)
    for position, axis in enumerate(axis for axis, letter in enumerate(layout) if letter in "DHW"):
        kernel, stride, low, dilation = (
            int(values[position])
            for values in (attributes.pool_size, attributes.strides, attributes.padding, attributes.dilation)
        )
        if not axis_counts(before[axis], after[axis], kernel, stride, low, 0, dilation, False).all():
            return True
    return False


def _fold(call: relax.Call, context: Context) -> Any:
    """The call bound to a variable, or its value if its data is constant and does not grow much."""
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
    known = context.known(data_of(call)) is not None
    return context.refuse(f"{call.attrs.method} interpolation computes in float") if known else None


@integer_rule("take")
def _take(call: relax.Call, context: Context) -> Any:
    """Rows of a table. If each row has its own scale, the scales are looked up along with them."""
    tensor, axis = context.quantized(data_of(call)), call.attrs.axis
    if tensor is None or axis is None or tensor.channel_axis != normalize_axis(int(axis), len(tensor.shape)):
        return move(call, context)
    if tensor.one_zero_point is None:
        return context.refuse("each row of its table has its own zero point")
    indices, after = context.value(argument(call, "indices")), len(tensor.shape) - tensor.channel_axis - 1
    rows = context.emit(with_arguments(call, data=tensor.data, indices=indices))
    mode = str(call.attrs.mode)
    scales = context.emit(relax.op.take(as_expr(tensor.scale), indices, 0, mode))
    shape = [*shape_of(scales), *(1,) * after]
    real = context.emit(relax.op.astype(rows, "float32"))
    if tensor.one_zero_point:
        real = context.emit(relax.op.subtract(real, constant(np.float32(tensor.one_zero_point))))
    return relax.op.multiply(real, context.emit(relax.op.reshape(scales, shape)))


@integer_rule("nn.pad")
def _pad(call: relax.Call, context: Context) -> Any:
    """Padding with a value that the integers can represent: the zero point for 0."""
    tensor = context.quantized(data_of(call))
    if tensor is None:
        return None
    if call.attrs.pad_mode != "constant":
        return tensor.moved(context.emit(with_data(call, tensor.data)), tensor.axis)
    if tensor.constants is None or tensor.one_zero_point is None:
        return context.refuse("its data has zero points that differ or are computed at run time")
    value = _quantized(float(call.attrs.pad_value), tensor.constants[0].flat[0], tensor.one_zero_point, tensor.dtype)
    if value is None or (tensor.vectors and call.attrs.pad_value):
        return context.refuse(f"it pads with {float(call.attrs.pad_value):g}, which is not a quantized value")
    axis = tensor.channel_axis
    widths = [int(width) for width in call.attrs.pad_width]
    if axis is not None and any(widths[2 * axis : 2 * axis + 2]):
        return context.refuse(TORN)
    padded = relax.op.nn.pad(tensor.data, widths, pad_mode="constant", pad_value=value)
    return tensor.moved(context.emit(padded), axis)


def _quantized(value: float, scale: np.floating, zero_point: int, dtype: str) -> int | None:
    """The integer that dequantizes to exactly this float32; None if there is none."""
    steps, limits = float(value) / float(scale), np.iinfo(dtype)
    if not limits.min - zero_point <= steps <= limits.max - zero_point:
        return None
    nearest = round(steps)
    return nearest + zero_point if np.float32(nearest) * np.float32(scale) == np.float32(value) else None


@integer_rule("concat", "stack")
def _join(call: relax.Call, context: Context) -> Any:
    """Joined tensors; if joined along an existing axis, they may have different scales, which become a vector."""
    joined = data_of(call)
    if not isinstance(joined, relax.Tuple):
        return None
    tensors = [context.quantized(field) for field in joined.fields]
    known = [tensor for tensor in tensors if tensor is not None]
    if not known or len(known) < len(tensors):
        return None
    integers = with_data(call, relax.Tuple([tensor.data for tensor in known]))
    if all(known[0].same_parameters(tensor) for tensor in known):
        return known[0].moved(context.emit(integers))
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
    return Quantized(context.emit(integers), *vectors, axis)


@integer_rule("split")
def _split(call: relax.Call, context: Context) -> Any:
    tensor = context.quantized(data_of(call))
    if tensor is None:
        return None
    axis = tensor.channel_axis
    if axis is not None and axes.divided(call, axis) is None:
        return context.refuse(TORN)
    parts = context.emit(with_data(call, tensor.data))
    if isinstance(parts.ty, relax.TensorType):  # a single part
        return tensor.moved(parts, axis)
    return [tensor.moved(context.emit(relax.TupleGetItem(parts, i)), axis) for i in range(len(parts.ty.fields))]


# ---- operators whose result depends only on the order of values --------------------------------------------------


def _comparable(call: relax.Call, context: Context) -> Quantized | None:
    tensor = context.quantized(data_of(call))
    if tensor is not None and tensor.vectors:
        return context.refuse("it compares channels that have different scales")
    return tensor


@integer_rule("argmax", "argmin")
def _extreme_position(call: relax.Call, context: Context) -> Any:
    tensor = _comparable(call, context)
    return None if tensor is None else with_data(call, tensor.data)


@integer_rule("sort", "argsort")
def _sort(call: relax.Call, context: Context) -> Any:
    """In int32, because TVM's runtime does not sort narrower integers."""
    tensor = _comparable(call, context)
    if tensor is None:
        return None
    wide = context.emit(relax.op.astype(tensor.data, "int32"))
    result = with_data(call, wide)
    if str(call.op.name) == "relax.argsort":
        return result
    return tensor.moved(context.emit(relax.op.astype(context.emit(result), tensor.dtype)))


@integer_rule("topk")
def _topk(call: relax.Call, context: Context) -> Any:
    tensor = _comparable(call, context)
    if tensor is None:
        return None
    result = context.emit(with_data(call, tensor.data))
    kind = str(call.attrs.ret_type)
    if kind == "both":
        return [tensor.moved(context.emit(relax.TupleGetItem(result, 0))), context.emit(relax.TupleGetItem(result, 1))]
    return tensor.moved(result) if kind == "values" else result

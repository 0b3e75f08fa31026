"""Integer rules of operators that move values: they work on the integers as on the reals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax

from ...interpreter import interpret
from ...op.base import constant, constant_value, shape_of
from .rules import integer_rule
from .tensors import Mapped
from .walker import Context

# (call, channel axis) -> the axis the channels have afterwards; None when they are torn apart
AxisRule = Callable[[relax.Call, int], "int | None"]


def _permuted(call: relax.Call, axis: int) -> int | None:
    ndim = len(shape_of(call.args[0]))
    axes = [int(a) % ndim for a in call.attrs.axes] if call.attrs.axes is not None else list(range(ndim))[::-1]
    return axes.index(axis)


def _reshaped(call: relax.Call, axis: int) -> int | None:
    """The dimension of the same size with as many elements before it."""
    before, after = shape_of(call.args[0]), tuple(int(dim) for dim in call.ty.shape)
    for new, size in enumerate(after):
        if size == before[axis] and math.prod(after[:new]) == math.prod(before[:axis]):
            return new
    return None


def _untouched(call: relax.Call, axis: int) -> int | None:
    """Operators that leave the channel dimension as it is, when its length and position have not changed."""
    before, after = shape_of(call.args[0]), tuple(int(dim) for dim in call.ty.shape)
    touched = {int(a) % len(before) for a in _axes(call)}
    return axis if len(before) == len(after) and axis not in touched and before[axis] == after[axis] else None


def _axes(call: relax.Call) -> list[Any]:
    if len(call.args) > 1 and isinstance(call.args[1], relax.Tuple):  # strided_slice
        return [field.value if hasattr(field, "value") else field for field in call.args[1].fields]
    axis = getattr(call.attrs, "axis", None)
    return [] if axis is None else [axis]


_AXIS_RULES: dict[str, AxisRule] = {
    "permute_dims": _permuted,
    "reshape": _reshaped,
    "flatten": _reshaped,
    "nn.batch_flatten": _reshaped,
    "squeeze": _reshaped,
    "expand_dims": _reshaped,
    "strided_slice": _untouched,
    "flip": _untouched,
    "take": _untouched,
}


@integer_rule(
    "permute_dims",
    "reshape",
    "flatten",
    "nn.batch_flatten",
    "squeeze",
    "expand_dims",
    "broadcast_to",
    "strided_slice",
    "flip",
    "tile",
    "repeat",
    "take",
    "nn.pixel_shuffle",
    "nn.max_pool1d",
    "nn.max_pool2d",
    "nn.max_pool3d",
    "max",
    "min",
)
def _move(call: relax.Call, context: Context) -> Any:
    tensor = context.known(call.args[0])
    if tensor is None:
        return None
    rest = [context.value(arg) for arg in call.args[1:]]
    moved = relax.Call(call.op, [tensor.data, *rest], call.attrs, call.ty_args)
    if isinstance(tensor, Mapped):
        monotone = not str(call.op.name).startswith(("relax.nn.max", "relax.max", "relax.min"))
        return Mapped(context.emit(moved), tensor.values) if monotone else None
    axis = tensor.channel_axis
    if axis is not None:
        rule = _AXIS_RULES.get(str(call.op.name).removeprefix("relax."))
        new = None if rule is None else rule(call, axis)
        if new is None:
            return context.refuse("it tears apart the channels that have scales of their own")
        axis = new
    return tensor.moved(fold(moved, context), axis)


def fold(call: relax.Call, context: Context) -> Any:
    """The call bound to a variable, or its value when its data is constant."""
    if any(constant_value(arg) is None for arg in call.args if isinstance(arg, relax.Expr) and _is_tensor(arg)):
        return context.emit(call)
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        result = builder.emit(call)
        builder.emit_func_output(result)
    return constant(interpret(builder.get(), [])[0])


def _is_tensor(arg: Any) -> bool:
    return isinstance(getattr(arg, "ty", None), relax.TensorType)


@integer_rule("concat", "maximum", "minimum")
def _join(call: relax.Call, context: Context) -> Any:
    """Tensors with one scale and zero point joined; others stay real, and requantize where they are quantized."""
    fields = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else list(call.args)
    tensors = [context.quantized(field) for field in fields]
    first = tensors[0]
    if first is None or not all(tensor is not None and first.same_parameters(tensor) for tensor in tensors):
        return None
    data = [tensor.data for tensor in tensors if tensor is not None]
    args = [relax.Tuple(data)] if isinstance(call.args[0], relax.Tuple) else data
    return first.moved(context.emit(relax.Call(call.op, args, call.attrs, call.ty_args)))


@integer_rule("split")
def _split(call: relax.Call, context: Context) -> Any:
    tensor = context.quantized(call.args[0])
    if tensor is None or tensor.vectors:
        return None
    parts = context.emit(relax.Call(call.op, [tensor.data], call.attrs, call.ty_args))
    return [tensor.moved(context.emit(relax.TupleGetItem(parts, i))) for i in range(len(parts.ty.fields))]

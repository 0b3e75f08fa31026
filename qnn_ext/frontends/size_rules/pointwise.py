"""Every element for itself: tensors with such sizes broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import relax

from ...op.base import call_attributes, shape_of
from ...op.cost import attribute
from ...op.relax_table import traits_of
from ...passes.rewrite import op_name
from ..sizes import Axes, Sizes, refusal
from .registry import only_data, rule


def pointwise(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Data tensors broadcast; parameters must not run along an axis with such a size."""
    traits = traits_of(call)
    data = [traits.argument(call, one.name) for one in traits.data]
    shape = sizes.result_shape(call)
    axes = broadcast_axes(sizes, call, data, shape)
    others = [arg for arg in call.args if _is_tensor(arg) and not any(arg.same_as(one) for one in data)]
    if any(prod(shape_of(arg)) != 1 and attribute(call, "axis") is None for arg in others):
        raise sizes.refused(call)
    if any(prod(shape_of(arg)) != 1 and int(attribute(call, "axis")) % len(shape) in axes for arg in others):
        raise sizes.refused(call)
    if any(sizes.of(arg) for arg in others):
        raise sizes.refused(call)
    return call, axes


def broadcast_axes(sizes: Sizes, call: relax.Call, tensors: Sequence[Any], shape: Any = None) -> Axes:
    """The sizes of tensors that broadcast: along an axis with such a size, all others have it too, or the length 1."""
    shape = sizes.result_shape(call) if shape is None else shape
    found: Axes = {}
    for tensor in tensors:
        for axis, size in sizes.of(tensor).items():
            found.setdefault(axis + len(shape) - len(shape_of(tensor)), size)
    for tensor in tensors:
        own, lengths = sizes.of(tensor), shape_of(tensor)
        behind = len(shape) - len(lengths)
        for axis, size in found.items():
            if axis < behind:
                continue
            mine = own.get(axis - behind)
            if mine is None and lengths[axis - behind] != 1:
                raise refusal(size, f"{op_name(call)} with a tensor of {lengths[axis - behind]} elements along it")
            if mine is not None and (not mine.same(size) or shape[axis] != lengths[axis - behind]):
                raise refusal(
                    size, f"{op_name(call)} with a tensor whose size comes from {mine.origin} and may be another one"
                )
    return found


@rule("isfinite")
def _is_finite(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    return call, sizes.of(call.args[0])


@rule("zeros_like", "ones_like")
def _alike(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    return call, sizes.of(call.args[0])


@rule("qnn.loop")
def _loop(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """What its rounds read from outside may have such sizes: `loops.loop` refuses states and results that do."""
    return call, {}


@rule("qnn.table")
def _table(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    return call, sizes.of(only_data(sizes, call))


@rule("qnn.check_bounds", "qnn.check_divisor")
def _check(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """What does not count passes the check."""
    data, attributes = call.args[0], call_attributes(call)
    if op_name(call) == "qnn.check_divisor":
        passing = attributes["zero"] + 1
    elif max(attributes["low"]) > min(attributes["high"]):
        return call, sizes.of(data)  # nothing passes
    else:
        passing = max(max(attributes["low"]), min(0, min(attributes["high"])))
    filled = sizes.filled(data, passing)
    return relax.Call(call.op, [filled], call.attrs, call.ty_args), sizes.of(data)


def _is_tensor(expr: Any) -> bool:
    return isinstance(getattr(expr, "ty", None), relax.TensorType)

"""Operators across an axis with such a size: what does not count must change nothing."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from ...op.base import call_attributes, constant, shape_of
from ...passes.rewrite import op_name
from ..sizes import Axes, Sizes
from .registry import along, only_data, rule


def extreme(dtype: str, highest: bool) -> Any:
    """The highest or lowest value of a dtype."""
    if dtype.startswith(("float", "bfloat")):
        return np.inf if highest else -np.inf
    if dtype == "bool":
        return highest
    limits = np.iinfo(dtype)
    return limits.max if highest else limits.min


_NEUTRAL: dict[str, Callable[[str], Any]] = {
    "sum": lambda dtype: 0,
    "mean": lambda dtype: 0,
    "prod": lambda dtype: 1,
    "max": lambda dtype: extreme(dtype, False),
    "min": lambda dtype: extreme(dtype, True),
    "argmax": lambda dtype: extreme(dtype, False),
    "argmin": lambda dtype: extreme(dtype, True),
}


@rule(*_NEUTRAL)
def _reduce(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """What does not count is replaced by a value that changes nothing."""
    name, data = op_name(call), call.args[0]
    axes, ndim = sizes.of(data), len(shape_of(data))
    given = call.attrs.axis
    chosen = [given] if isinstance(given, int) else given
    reduced = list(range(ndim)) if chosen is None else [int(axis) % ndim for axis in chosen]
    keep = bool(call.attrs.keepdims)
    rest = {
        axis if keep else axis - sum(one < axis for one in reduced): size
        for axis, size in axes.items()
        if axis not in reduced
    }
    across = [size for axis, size in axes.items() if axis in reduced]
    if not across:
        return call, rest
    dtype = str(data.ty.dtype)
    filled = sizes.filled(data, _NEUTRAL[name](dtype), {axis: size for axis, size in axes.items() if axis in reduced})
    if name != "mean":
        return relax.Call(call.op, [filled], call.attrs, call.ty_args), rest
    total = sizes.emit(relax.op.sum(filled, reduced, keep))
    count: Any = constant(np.int64(prod(shape_of(data)[axis] for axis in reduced if axis not in axes)))
    for size in across:
        count = sizes.emit(relax.op.multiply(count, size.value))
    return relax.op.divide(total, sizes.emit(relax.op.astype(count, dtype))), rest


@rule("qnn.softmax", "qnn.sum", "qnn.mean", "qnn.max", "qnn.min")
def _quantized_reduction(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Along other axes: the values that do not count are no zero points."""
    data, attributes = only_data(sizes, call), call_attributes(call)
    axes, ndim, given = sizes.of(data), len(shape_of(data)), attributes["axis"]
    chosen = [given] if isinstance(given, int) else list(given or range(ndim))
    reduced = [int(axis) % ndim for axis in chosen]
    if any(axis in axes for axis in reduced):
        raise sizes.refused(call)
    gone = [] if attributes.get("keepdims", True) else reduced
    return call, {axis - sum(one < axis for one in gone): size for axis, size in axes.items()}


@rule("qnn.response_norm")
def _between_channels(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Along other axes than that of channels."""
    axes = sizes.of(only_data(sizes, call))
    if 1 in axes:
        raise sizes.refused(call)
    return call, axes


@rule("topk")
def _top_k(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """The first k; `data_dependent.top_k` says how many of them count."""
    return _ordered(sizes, call, not bool(call.attrs.largest), whole=False)


@rule("sort", "argsort")
def _sort(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    return _ordered(sizes, call, not bool(call.attrs.descending), whole=True)


def _ordered(sizes: Sizes, call: relax.Call, highest_last: bool, whole: bool) -> tuple[relax.Expr, Axes]:
    """What does not count comes last: equal values keep their order."""
    data = call.args[0]
    axes, axis = sizes.of(data), int(call.attrs.axis) % len(shape_of(data))
    filled = sizes.filled(data, extreme(str(data.ty.dtype), highest_last), along(axes, axis))
    if axis in axes and not whole:
        axes = {one: size for one, size in axes.items() if one != axis}
    return relax.Call(call.op, [filled], call.attrs, call.ty_args), axes


@rule("cumsum")
def _running_sum(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Sums of elements before them, all of which count."""
    data = call.args[0]
    if call.attrs.axis is None and len(shape_of(data)) > 1:
        raise sizes.refused(call)
    return call, sizes.of(data)


@rule("nn.softmax", "nn.log_softmax")
def _softmax(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    data = call.args[0]
    axis = int(call.attrs.axis) % len(shape_of(data))
    filled = sizes.filled(data, -np.inf, along(sizes.of(data), axis))
    return relax.Call(call.op, [filled], call.attrs, call.ty_args), sizes.of(data)


@rule("nn.layer_norm", "nn.rms_norm")
def _norm(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    data = only_data(sizes, call)
    if any(int(axis) % len(shape_of(data)) in sizes.of(data) for axis in call.attrs.axes):
        raise sizes.refused(call)
    return call, sizes.of(data)


@rule("qnn.true_positions")
def _where_true(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Positions up to a size of their own, which whoever emits this sets."""
    return relax.Call(call.op, [sizes.filled(call.args[0], False)], call.attrs, call.ty_args), {}


@rule("qnn.non_max_suppression")
def _suppress(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """NaN is no score: no threshold is below it."""
    boxes, scores, overlap = call.args
    if 0 in sizes.of(scores) or 1 in sizes.of(boxes):
        raise sizes.refused(call)
    if sizes.of(boxes) and not (sizes.of(scores) and sizes.of(scores)[1].same(sizes.of(boxes)[0])):
        raise sizes.refused(call)
    return relax.Call(call.op, [boxes, sizes.filled(scores, np.nan), overlap], call.attrs, call.ty_args), {}

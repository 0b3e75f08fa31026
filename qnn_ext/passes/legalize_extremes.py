"""Maxima and minima of floats, legalized so that NaN stays NaN: elementwise, clip, ReLU, and along axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx

from ..numerics import extremes
from ..op.base import constant_value, shape_of

Expr = Any


def is_float(call: relax.Call) -> bool:
    """Whether the first operand is a tensor of floats that are computed in as they are."""
    return str(call.args[0].ty.dtype) in ("float16", "float32", "float64")


def elementwise(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """relax.maximum and relax.minimum."""
    combine = _combine(call)
    operands = [arg for arg in call.args if _scalar(arg) is None]
    shape = shape_of(call)

    def compute(*tensors: te.Tensor) -> te.Tensor:
        def element(*indices: Expr) -> Expr:
            given = iter(tensors)
            values = [_scalar(arg) for arg in call.args]
            return combine(*(_element(next(given), indices) if value is None else value for value in values))

        return te.compute(shape, element, name="extreme")

    return builder.call_te(compute, *operands, primfunc_name_hint=call.op.name.removeprefix("relax."))


def clip(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """relax.clip."""
    x, low, high = call.args
    dtype = str(x.ty.dtype)
    low, high = (tirx.const(float(limit.value), dtype) for limit in (low, high))

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: extremes.tir_minimum(extremes.tir_maximum(x(*i), low), high), name="clip")

    return builder.call_te(compute, x, primfunc_name_hint="tir_clip")


def relu(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """relax.nn.relu."""
    zero = tirx.const(0.0, str(call.args[0].ty.dtype))

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: extremes.tir_maximum(x(*i), zero), name="relu")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="relu")


def along_axes(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """relax.max and relax.min."""
    shape, keepdims = shape_of(call.args[0]), bool(call.attrs.keepdims)
    axes = range(len(shape)) if call.attrs.axis is None else [int(axis) % len(shape) for axis in call.attrs.axis]
    reduced = sorted(set(axes))
    reduction = extremes.largest if str(call.op.name) == "relax.max" else extremes.smallest

    def compute(x: te.Tensor) -> te.Tensor:
        def element(*indices: Expr) -> Expr:
            outer = [index for axis, index in enumerate(indices) if axis not in reduced] if keepdims else list(indices)
            within = [te.reduce_axis((0, shape[axis]), f"k{axis}") for axis in reduced]
            kept, inner = iter(outer), iter(within)
            place = [next(inner) if axis in reduced else next(kept) for axis in range(len(shape))]
            return reduction(x(*place), axis=within)

        return te.compute(shape_of(call), element, name="extreme")

    if not reduced:
        return call.args[0]
    return builder.call_te(compute, call.args[0], primfunc_name_hint=call.op.name.removeprefix("relax."))


def _combine(call: relax.Call) -> Callable[[Expr, Expr], Expr]:
    return extremes.tir_maximum if str(call.op.name) == "relax.maximum" else extremes.tir_minimum


def _scalar(arg: relax.Expr) -> Expr:
    """A constant without axes as a number, None for a tensor."""
    value = constant_value(arg)
    return None if value is None or value.ndim else tirx.const(float(value), str(value.dtype))


def _element(tensor: te.Tensor, indices: Sequence[Expr]) -> Expr:
    """An operand's element, broadcast from the right."""
    places = zip(tensor.shape, indices[len(indices) - len(tensor.shape) :], strict=True)
    return tensor(*(0 if int(size) == 1 else index for size, index in places))

"""Products, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ...op.base import shape_of
from ...passes.rewrite import op_name
from ..sizes import Axes, Size, Sizes
from .registry import along, only_data, rule


@rule("matmul")
def _matmul(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Rows of the left side, columns of the right one, or stacks of matrices; what does not count of those that are
    added up is 0 on both sides."""
    left, right = call.args
    shapes = shape_of(left), shape_of(right)
    summed = len(shapes[0]) - 1, max(len(shapes[1]) - 2, 0)
    counted = [along(sizes.of(side), axis) for side, axis in zip((left, right), summed, strict=True)]
    if any(counted):
        one, two = (next(iter(axes.values()), None) for axes in counted)
        if one is None or two is None or not one.same(two):
            raise sizes.refused(call)
        zeros = [sizes.filled(side, 0, axes) for side, axes in zip((left, right), counted, strict=True)]
        call = relax.Call(call.op, zeros, call.attrs, call.ty_args)
    result = sizes.result_shape(call)
    kept = (len(shapes[0]) > 1) + (len(shapes[1]) > 1)  # how many of the last two axes the result has
    found: Axes = {}
    for side, (tensor, shape) in enumerate(zip((left, right), shapes, strict=True)):
        for axis, size in sizes.of(tensor).items():
            if axis == summed[side]:
                continue
            behind = len(shape) - axis
            if behind <= 2:
                place = len(result) - (1 if side or len(shapes[1]) == 1 else 2)
            else:
                place = len(result) - kept - (behind - 2)
                if shape[axis] != result[place]:
                    raise sizes.refused(call)
                other = (right, left)[side]
                far = len(shape_of(other)) - behind
                mine = sizes.of(other).get(far)
                if far >= 0 and shape_of(other)[far] != 1 and not (mine is not None and mine.same(size)):
                    raise sizes.refused(call)
            found[place] = size
    return call, found


@rule("qnn.dense")
def _dense(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    data = only_data(sizes, call)
    if len(shape_of(data)) - 1 in sizes.of(data):
        raise sizes.refused(call)
    return call, sizes.of(data)


@rule(*(f"nn.conv{rank}d" for rank in (1, 2, 3)), "qnn.conv2d")
def _convolution(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """A number of samples, and windows over as many elements as count, with zeros (zero points) behind them."""

    def length(size: Size, pads: int, step: int, reach: int, extra: int) -> Any:
        more = pads - reach - 1 + step
        room = sizes.plus(size, more)
        result = sizes.quotient(room, step) if step > 1 else room
        return sizes.greatest(result, 0) if more < 0 else result

    return _windows(sizes, call, length)


@rule(*(f"nn.conv{rank}d_transpose" for rank in (1, 2, 3)))
def _transposed_convolution(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """A number of samples, and as many elements as count, with zeros behind them."""

    def length(size: Size, pads: int, step: int, reach: int, extra: int) -> Any:
        more = reach + 1 + extra - step - pads
        result = sizes.plus(sizes.times(size, step), more)
        return sizes.greatest(result, 0) if more < 0 else result

    return _windows(sizes, call, length)


def _windows(sizes: Sizes, call: relax.Call, length: Callable[..., Any]) -> tuple[relax.Expr, Axes]:
    """length: (size, padding on both sides, stride, distance of a window's ends, output_padding) -> the result's"""
    data, attributes = only_data(sizes, call), call.attrs
    axes, rank, integers = sizes.of(data), len(shape_of(data)) - 2, op_name(call) == "qnn.conv2d"
    if set(axes) == {0}:
        return call, axes
    layout = str(attributes.data_layout), str(attributes.kernel_layout)
    if 1 in axes or not layout[0].startswith("NC") or not layout[1].startswith(("OI", "IO")):
        raise sizes.refused(call)
    pads, strides, dilation = ([int(one) for one in attributes[name]] for name in ("padding", "strides", "dilation"))
    extra = [int(one) for one in attributes["output_padding"]] if "transpose" in op_name(call) else [0] * rank
    pads = pads * 2 if len(pads) == rank else pads
    found, kernel = along(axes, 0), shape_of(call.args[1])[2:]
    inner = {axis: size for axis, size in axes.items() if axis >= 2}
    for axis, size in inner.items():
        at = axis - 2
        reach = dilation[at] * (kernel[at] - 1)
        found[axis] = length(size, pads[at] + pads[rank + at], strides[at], reach, extra[at])
    padding = sizes.emit(relax.op.astype(call.args[2], str(data.ty.dtype))) if integers else 0
    filled = sizes.filled(data, padding, inner)
    return relax.Call(call.op, [filled, *call.args[1:]], call.attrs, call.ty_args), found


@rule(
    *(f"nn.{name}{rank}d" for name in ("max_pool", "avg_pool", "adaptive_avg_pool") for rank in (1, 2, 3)),
    *("nn.group_norm", "nn.instance_norm", "image.resize2d", "qnn.conv2d_transpose", "qnn.avg_pool2d"),
    *("qnn.qlinear_avg_pool", "qnn.group_norm", "qnn.instance_norm", "qnn.resize"),
)
def _samples(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """A number of samples, the first axis."""
    data = only_data(sizes, call)
    if set(sizes.of(data)) != {0}:
        raise sizes.refused(call)
    return call, sizes.of(data)

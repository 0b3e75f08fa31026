"""Poolings and means of com.microsoft on quantized tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax

from .... import op as qnn
from ....op import compound
from ....op.base import normalize_axis, shape_of
from ..node import Node
from ..registry import MICROSOFT, converter
from .arithmetic import cast, known, minus, number, requantize, scalar, times
from .geometry import window


def _qparams(node: Node) -> list[relax.Expr]:
    """Scale and zero point of the input, then of the result, all scalars."""
    inputs = (node.scale(1), node.zero_point(2), node.scale(3), node.zero_point(4))
    return [scalar(node, value, f"input {index}") for index, value in enumerate(inputs, 1)]


def _average(node: Node, axes: Sequence[int], data: relax.Expr, keepdims: bool = True) -> relax.Expr:
    """saturate(rint(f32(Σ (x − z_x)) · f32(s_x / f32(s_y·n))) + z_y) over the axes."""
    x_scale, x_zero, y_scale, y_zero = _qparams(node)
    divided = times(node, y_scale, number(math.prod(shape_of(data)[axis] for axis in axes)))
    if known(x_scale, x_zero, divided, y_zero) is not None:
        qparams = x_scale, x_zero, divided, y_zero
        return qnn.sum(data, *qparams, axis=list(axes), keepdims=keepdims, out_dtype=node.dtype(0))
    shifted = minus(node, cast(node, data, "int32"), x_zero)
    total = node.emit(relax.op.sum(shifted, axis=list(axes), keepdims=keepdims))
    return requantize(node, total, x_scale, divided, y_zero, node.dtype(0))


@converter("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(node: Node) -> relax.Expr:
    """The mean over all spatial dimensions, summed in integers; bit-exact with ONNX Runtime."""
    rank = len(node.shape(0))
    first = 1 if node.attribute("channels_last", 0) else 2
    return _average(node, range(first, first + rank - 2), node.input(0))


@converter("QLinearAveragePool", domain=MICROSOFT)
def qlinear_average_pool(node: Node) -> relax.Expr:
    """Averages over windows in ONNX Runtime's own float32, see `qnn.qlinear_avg_pool`; bit-exact.

    A window as large as the whole image without padding is a global average pooling, as in ONNX Runtime.
    """
    data, rank = node.input(0), len(node.shape(0))
    channels_last = bool(node.attribute("channels_last", 0))
    spatial = node.shape(0)[1:-1] if channels_last else node.shape(0)[2:]
    if any(step != 1 for step in node.attribute("dilations", [])):
        raise node.unsupported("dilated average pooling")
    geometry = window(node, spatial)
    if geometry.kernel == tuple(spatial) and not any(geometry.padding):
        return _average(node, range(1, rank - 1) if channels_last else range(2, rank), data)
    if not channels_last:
        data = compound.permute(data, [0, *range(2, rank), 1], node.emit)
    x_scale, x_zero, y_scale, y_zero = _qparams(node)
    pooled = qnn.qlinear_avg_pool(
        data,
        x_scale,
        x_zero,
        y_scale,
        y_zero,
        geometry.kernel,
        geometry.strides,
        geometry.padding,
        bool(node.attribute("ceil_mode", 0)),
        bool(node.attribute("count_include_pad", 0)),
        node.dtype(0),
    )
    return pooled if channels_last else relax.op.permute_dims(node.emit(pooled), [0, rank - 1, *range(1, rank - 1)])


@converter("QLinearReduceMean", domain=MICROSOFT)
def qlinear_reduce_mean(node: Node) -> relax.Expr:
    """The mean over `axes` (all of them by default), summed in integers and rounded once.

    ONNX Runtime declares this operator, but has no kernel for it on CPUs.
    """
    rank = len(node.shape(0))
    axes = sorted({normalize_axis(axis, rank) for axis in node.attribute("axes", [])}) or list(range(rank))
    return _average(node, axes, node.input(0), bool(node.attribute("keepdims", 1)))


@converter("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(node: Node) -> relax.Expr:
    """Maxima over windows of 8-bit integers, channels last."""
    shape = node.shape(0)
    if len(shape) not in (3, 4, 5):
        raise node.unsupported(f"data of shape {shape}; supported: 1, 2 and 3 spatial dimensions")
    geometry = window(node, shape[1:-1])
    ceil_mode = bool(node.attribute("ceil_mode", 0))
    if len(shape) == 5:
        data = compound.permute(node.input(0), [0, 4, 1, 2, 3], node.emit)
        sizes = geometry.kernel, geometry.strides, geometry.padding, geometry.dilation
        return relax.op.permute_dims(node.emit(relax.op.nn.max_pool3d(data, *sizes, ceil_mode)), [0, 2, 3, 4, 1])
    extra = (1,) * (4 - len(shape))  # one spatial dimension is an image of height 1
    n, *spatial, c = shape
    half = len(spatial)
    data = compound.reshape(node.input(0), (n, *extra, *spatial, c), node.emit)
    none = (0,) * len(extra)
    pooled = node.emit(
        relax.op.nn.max_pool2d(
            data,
            pool_size=(*extra, *geometry.kernel),
            strides=(*extra, *geometry.strides),
            padding=(*none, *geometry.padding[:half], *none, *geometry.padding[half:]),
            dilation=(*extra, *geometry.dilation),
            ceil_mode=ceil_mode,
            layout="NHWC",
        )
    )
    return compound.reshape(pooled, (n, *shape_of(pooled)[1 + len(extra) : -1], c), node.emit)

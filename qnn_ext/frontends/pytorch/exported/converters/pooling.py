"""Pooling over windows, whole images and adaptive regions; means."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from tvm import relax

from .....errors import UnsupportedOperatorError
from .....limits import check
from .....op.base import constant, shape_of
from ....maxima import first_maxima, unpooled
from ...norms import order_of, vector_norm
from ..registry import converter
from ..values import axes_of, cast, dtype_of, pair, reshape, scalar

_MAX = {1: relax.op.nn.max_pool1d, 2: relax.op.nn.max_pool2d, 3: relax.op.nn.max_pool3d}
_AVERAGE = {1: relax.op.nn.avg_pool1d, 2: relax.op.nn.avg_pool2d, 3: relax.op.nn.avg_pool3d}
_ADAPTIVE = {
    1: relax.op.nn.adaptive_avg_pool1d,
    2: relax.op.nn.adaptive_avg_pool2d,
    3: relax.op.nn.adaptive_avg_pool3d,
}


def _rank(importer: Any) -> int:
    """Dimensions of the windows, from the operator's name."""
    match = re.search(r"([123])d", str(importer.node.target))
    assert match is not None, "pooling operators are named after their rank"
    return int(match[1])


def _with_batch(importer: Any, x: relax.Expr, rank: int) -> relax.Expr:
    return x if len(shape_of(x)) == rank + 2 else reshape(importer, x, (1, *shape_of(x)))


def _without_batch(importer: Any, x: relax.Expr, result: relax.Expr) -> relax.Expr:
    return result if len(shape_of(x)) == len(shape_of(result)) else reshape(importer, result, shape_of(result)[1:])


def _ends(
    size: tuple[int, ...], kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil: bool
) -> list[int]:
    """Padding at the end of each dimension: with ceil_mode as much more as the last window needs. A window that would
    begin in that padding is dropped, which TVM's ceil_mode does not do."""
    ends = []
    for length, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True):
        reach = d * (k - 1) + 1
        steps = (length + 2 * p - reach) / s
        count = (math.ceil(steps) if ceil else math.floor(steps)) + 1
        if ceil and (count - 1) * s >= length + p:
            count -= 1
        ends.append(max(p, (count - 1) * s + reach - length - p))
    return ends


@converter("aten.max_pool1d.default", "aten.max_pool2d.default", "aten.max_pool3d.default")
def _max_pool(
    importer: Any, x: relax.Expr, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> relax.Expr:
    rank = _rank(importer)
    kernel, padding, dilation = pair(kernel, rank), pair(padding, rank), pair(dilation, rank)
    stride = pair(stride, rank) if stride else kernel
    size = shape_of(x)[-rank:]
    ends = _ends(size, kernel, stride, padding, dilation, ceil_mode)
    result = importer.emit(
        _MAX[rank](
            _with_batch(importer, x, rank),
            pool_size=kernel,
            strides=stride,
            padding=[*padding, *ends],
            dilation=dilation,
        )
    )
    return _without_batch(importer, x, result)


@converter("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def _max_pool_with_indices(
    importer: Any, x: relax.Expr, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[relax.Expr, relax.Expr]:
    """The values, and the place of each in its image."""
    rank = _rank(importer)
    pooled = _max_pool(importer, x, kernel, stride, padding, dilation, ceil_mode)
    kernel, padding, dilation = pair(kernel, rank), pair(padding, rank), pair(dilation, rank)
    stride = pair(stride, rank) if stride else kernel
    batched, result = _with_batch(importer, x, rank), shape_of(_with_batch(importer, pooled, rank))
    places = first_maxima(importer.emit, batched, kernel, stride, padding, dilation, result, importer.label)
    return pooled, _without_batch(importer, x, places)


@converter("aten.max_unpool2d.default")
def _max_unpool(importer: Any, x: relax.Expr, places: relax.Expr, size: Any) -> relax.Expr:
    return importer.emit(unpooled(importer.emit, x, places, pair(size, 2), importer.label))


@converter("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default")
def _average_pool(
    importer: Any,
    x: relax.Expr,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None = None,
) -> relax.Expr:
    rank = _rank(importer)
    kernel, padding = pair(kernel, rank), pair(padding, rank)
    stride = pair(stride, rank) if stride else kernel
    ends = _ends(shape_of(x)[-rank:], kernel, stride, padding, [1] * rank, ceil_mode)
    beyond = ends != padding
    if beyond and divisor is None and count_include_pad and any(padding):
        raise UnsupportedOperatorError("average pooling with padding, count_include_pad and ceil_mode is not supported")
    counts = divisor is not None or (count_include_pad and not beyond)
    result = importer.emit(
        _AVERAGE[rank](
            _with_batch(importer, x, rank),
            pool_size=kernel,
            strides=stride,
            padding=[*padding, *ends],
            count_include_pad=counts,
        )
    )
    if divisor is not None:
        factor = np.float32(math.prod(kernel) / divisor)
        result = importer.emit(relax.op.multiply(result, scalar(factor, dtype_of(result))))
    return _without_batch(importer, x, result)


@converter(
    "aten.adaptive_avg_pool1d.default",
    "aten.adaptive_avg_pool2d.default",
    "aten.adaptive_avg_pool3d.default",
    "aten._adaptive_avg_pool2d.default",
    "aten._adaptive_avg_pool3d.default",
)
def _adaptive_average_pool(importer: Any, x: relax.Expr, output_size: Any) -> relax.Expr:
    """A mean when the output is a single value, ordinary pooling when all windows are the same size."""
    rank = _rank(importer)
    size = pair(output_size, rank)
    image = shape_of(x)[-rank:]
    if all(length == 1 for length in size):
        return importer.emit(relax.op.mean(x, axis=list(range(-rank, 0)), keepdims=True))
    batched = _with_batch(importer, x, rank)
    if all(length % wanted == 0 for length, wanted in zip(image, size, strict=True)):
        kernel = [length // wanted for length, wanted in zip(image, size, strict=True)]
        result = _AVERAGE[rank](batched, pool_size=kernel, strides=kernel, padding=[0] * (2 * rank))
    else:
        result = _ADAPTIVE[rank](batched, size)
    return _without_batch(importer, x, importer.emit(result))


@converter("aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool1d.default", "aten.adaptive_max_pool3d.default")
def _adaptive_max_pool(importer: Any, x: relax.Expr, output_size: Any) -> tuple[relax.Expr]:
    """Ordinary pooling when all windows are the same size, else the largest values along one axis after the other."""
    rank = _rank(importer)
    size, image = pair(output_size, rank), shape_of(x)[-rank:]
    if any(length % wanted for length, wanted in zip(image, size, strict=True)):
        check("unrolled", sum(size), "pooling over windows of different sizes")
        for axis, wanted in zip(range(-rank, 0), size, strict=True):
            x = _largest_along(importer, x, len(shape_of(x)) + axis, wanted)
        return (x,)
    kernel = [length // wanted for length, wanted in zip(image, size, strict=True)]
    batched = _with_batch(importer, x, rank)
    result = importer.emit(_MAX[rank](batched, pool_size=kernel, strides=kernel, padding=[0] * (2 * rank)))
    return (_without_batch(importer, x, result),)


def _largest_along(importer: Any, x: relax.Expr, axis: int, count: int) -> relax.Expr:
    """The largest values of `count` adaptive windows along an axis."""
    length, parts = shape_of(x)[axis], []
    for place in range(count):
        begin, end = place * length // count, -(-(place + 1) * length // count)
        window = importer.emit(relax.op.strided_slice(x, [axis], [begin], [end]))
        parts.append(importer.emit(relax.op.max(window, axis, keepdims=True)))
    return parts[0] if count == 1 else importer.emit(relax.op.concat(parts, axis))


@converter("aten.mean.dim", "aten.mean.default", "aten.sum.dim_IntList", "aten.sum.default")
def _sum_or_mean(importer: Any, x: relax.Expr, *options: Any) -> relax.Expr:
    axes, keepdim = (options[0], options[1]) if len(options) == 3 else (None, False)
    function = relax.op.mean if "mean" in str(importer.node.target) else relax.op.sum
    x = cast(importer, x, importer.dtype)
    return importer.emit(function(x, axis=axes_of(axes, len(shape_of(x))), keepdims=bool(keepdim)))


@converter("aten.prod.default", "aten.prod.dim_int")
def _product(importer: Any, x: relax.Expr, *options: Any) -> relax.Expr:
    axes, keepdim = (options[0], options[1]) if len(options) == 3 else (None, False)
    x = cast(importer, x, importer.dtype)
    return importer.emit(relax.op.prod(x, axis=axes_of(axes, len(shape_of(x))), keepdims=bool(keepdim)))


@converter("aten.linalg_vector_norm.default")
def _vector_norm(importer: Any, x: relax.Expr, order: float, axes: Any, keepdim: bool, _dtype: Any) -> relax.Expr:
    axes = axes_of(axes, len(shape_of(x)))
    return vector_norm(importer.emit, cast(importer, x, importer.dtype), order, axes, bool(keepdim))


@converter("aten.linalg_norm.default", "aten.linalg_norm.ord_str")
def _norm(importer: Any, x: relax.Expr, order: Any, axes: Any, keepdim: bool, _dtype: Any) -> relax.Expr:
    dims, rank = None if axes is None else len(axes), len(shape_of(x))
    found = order_of(order, dims, rank)
    if found is None:
        raise UnsupportedOperatorError(f"the matrix norm of order {order!r} is not supported; norms of vectors are")
    return _vector_norm(importer, x, found, axes, keepdim, _dtype)


@converter("aten.amax.default", "aten.amin.default")
def _extreme(importer: Any, x: relax.Expr, axes: Any, keepdim: bool) -> relax.Expr:
    function = relax.op.max if "amax" in str(importer.node.target) else relax.op.min
    return importer.emit(function(x, axis=axes_of(axes, len(shape_of(x))), keepdims=bool(keepdim)))


@converter("aten.any.default", "aten.any.dim", "aten.any.dims", "aten.all.default", "aten.all.dim", "aten.all.dims")
def _truth(importer: Any, x: relax.Expr, axes: Any = None, keepdim: bool = False) -> relax.Expr:
    """Whether any element, or each, is not 0."""
    flags = importer.emit(relax.op.astype(cast(importer, x, "bool"), "int8"))
    function = relax.op.max if "any" in str(importer.node.target) else relax.op.min
    found = importer.emit(function(flags, axis=axes_of(axes, len(shape_of(x))), keepdims=bool(keepdim)))
    return cast(importer, found, importer.dtype)


@converter("aten.var.correction", "aten.var_mean.correction", "aten.std.correction")
def _variance(importer: Any, x: relax.Expr, axes: Any, correction: Any, keepdim: bool) -> Any:
    """In float64, as in PyTorch: squares of float32 fit, and the root is taken before rounding."""
    axes, dtype = axes_of(axes, len(shape_of(x))), dtype_of(x)
    count = math.prod(shape_of(x)[axis] for axis in axes)
    correction = 1 if correction is None else correction
    variance = relax.op.variance(cast(importer, x, "float64"), axis=axes, keepdims=bool(keepdim))
    if correction:
        factor = constant(np.asarray(count / (count - correction), np.float64))
        variance = relax.op.multiply(importer.emit(variance), factor)
    variance = importer.emit(variance)
    if ".std." in str(importer.node.target):
        variance = importer.emit(relax.op.sqrt(variance))
    variance = cast(importer, variance, dtype)
    if "var_mean" not in str(importer.node.target):
        return variance
    return variance, importer.emit(relax.op.mean(x, axis=axes, keepdims=bool(keepdim)))

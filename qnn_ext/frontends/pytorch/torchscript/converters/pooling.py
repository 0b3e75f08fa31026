"""Pooling: of quantized tensors on their integers, with the engine's rounding; and of float tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import relax

from ..... import limits
from ..... import op as qnn
from .....op.base import constant, shape_of
from .....op.compound import permute, reshape
from .....qparams import QParams
from ....maxima import first_maxima, unpooled
from ..formulas import VECTOR_CHANNELS, by_channels, f32, quantize, scalar
from ..node import Node
from ..registry import converter
from ..sums import ordered_sum


def _as_image(node: Node, value: relax.Expr, spatial: int) -> relax.Expr:
    """A tensor with 1 or 2 spatial dimensions, with or without a batch, as (N, C, H, W)."""
    shape = shape_of(value)
    lead = list(shape[: len(shape) - spatial])
    while len(lead) < 2:
        lead.insert(0, 1)
    return reshape(value, (*lead, *([1] * (2 - spatial)), *shape[len(shape) - spatial :]), node.emit)


# ---- maximum -----------------------------------------------------------------------------------------------------


@converter("aten::max_pool1d", "aten::max_pool2d", "aten::quantized_max_pool1d", "aten::quantized_max_pool2d",
           "quantized::max_pool1d", "quantized::max_pool2d", "aten::max_pool2d_with_indices")  # fmt: skip
def _max_pool(node: Node) -> relax.Expr | list[relax.Expr]:
    name = "self" if "self" in node.arguments else "qx"
    spatial = 1 if "1d" in node.kind else 2

    def numbers(argument: str, default: Sequence[int]) -> list[int]:
        given = node[argument]
        values = [int(v) for v in (given if isinstance(given, (list, tuple)) else [given])] or list(default)
        values = values if len(values) == spatial else values * spatial
        return values if spatial == 2 else [0 if argument == "padding" else 1, *values]

    if node.kind == "aten::max_pool2d_with_indices" and node.qparams("self") is not None:
        raise node.unsupported("positions of the maxima of a quantized tensor")
    kernel = numbers("kernel_size", ())
    strides = numbers("stride", kernel[2 - spatial :])
    padding, dilation = numbers("padding", ()), numbers("dilation", ())
    data = _as_image(node, node.expr(name), spatial)
    if max(dilation) > 1 and spatial == 2 and not node["ceil_mode"] and _is_qnnpack(node, node.qparams(name)):
        # of the pixels that a window takes, QNNPACK moves those in the padding into the image
        places = [
            np.pad(np.arange(size), pad, mode="edge") for size, pad in zip(shape_of(data)[2:], padding, strict=True)
        ]
        for axis, along in enumerate(places, 2):
            data = node.emit(relax.op.take(data, constant(along), axis, mode="clip"))
        padding = [0, 0]
    out = [1, *node.shape[-1:]] if spatial == 1 else list(node.shape[-2:])
    # ceil_mode: as much padding at the end as the last window needs
    behind = [
        max((o - 1) * s + (k - 1) * d + 1 - size - p, 0)
        for o, s, k, d, size, p in zip(out, strides, kernel, dilation, shape_of(data)[2:], padding, strict=True)
    ]
    pooled = relax.op.nn.max_pool2d(
        data, pool_size=kernel, strides=strides, padding=[*padding, *behind], dilation=dilation, layout="NCHW"
    )
    values = node.move(pooled)
    if node.kind != "aten::max_pool2d_with_indices":
        return values
    result = [*shape_of(data)[:2], *out]
    places = first_maxima(node.emit, data, kernel, strides, padding, dilation, result, node.label)
    return [values, node.move(places)]


@converter("aten::max_unpool2d")
def _max_unpool(node: Node) -> relax.Expr:
    """Each value at its place, and 0 elsewhere."""
    size = [int(length) for length in node["output_size"]]
    return unpooled(node.emit, node.expr("self"), node.expr("indices"), size, node.label)


# ---- average -----------------------------------------------------------------------------------------------------


def _is_common(arguments: Mapping[str, Any]) -> bool:
    return arguments["self"].is_quantized or arguments.get("divisor_override") is None


@converter("aten::avg_pool1d", "aten::avg_pool2d", takes=_is_common)
def _avg_pool(node: Node) -> relax.Expr:
    spatial = 1 if node.kind.endswith("1d") else 2

    def numbers(argument: str, default: Sequence[int], filler: int) -> list[int]:
        values = [int(v) for v in node[argument]] or list(default)
        values = values if len(values) == spatial else values * spatial
        return values if spatial == 2 else [filler, *values]

    kernel = numbers("kernel_size", (), 1)
    strides = numbers("stride", kernel[2 - spatial :], 1)
    padding = numbers("padding", (), 0)
    ceil_mode, include_pad = bool(node["ceil_mode"]), bool(node["count_include_pad"])
    divisor = node.get("divisor_override")
    data, source = _as_image(node, node.expr("self"), spatial), node.qparams("self")
    if source is None:
        node.note("average pooling of a float tensor")
        return node.move(_float_avg_pool(node, data, kernel, strides, padding, ceil_mode, include_pad))
    if _is_qnnpack(node, source) and not ceil_mode and spatial == 2:
        return node.move(_qnnpack_avg_pool(data, source, kernel, strides, padding))

    def average(part: relax.Expr, before: bool) -> relax.Expr:
        """before: whether the kernel adds the zero point before it rounds, as all do but the vectorized loop over
        channels, which only channels-last tensors use. It matters on midpoints with odd zero points."""
        return _quantized_avg_pool(
            node, part, source, kernel, strides, padding, ceil_mode, include_pad, divisor, before
        )

    if int(source.zero_point) % 2 == 0:
        return node.move(average(data, False))
    if not _is_channels_last(node["self"]):
        return node.move(average(data, True))
    averages = (partial(average, before=before) for before in (False, True))
    return node.move(by_channels(node, data, VECTOR_CHANNELS, *averages))


def _is_channels_last(example: Any) -> bool:
    import torch

    return (
        example.dim() == 4
        and example.is_contiguous(memory_format=torch.channels_last)
        and not (example.is_contiguous() and example.shape[1] == 1)
    )


def _is_qnnpack(node: Node, source: QParams | None) -> bool:
    """Whether QNNPACK pools, which knows images of quint8 only."""
    return node.engine == "qnnpack" and source is not None and source.dtype == "uint8"


def _qnnpack_avg_pool(
    data: relax.Expr, source: QParams, kernel: Sequence[int], strides: Sequence[int], padding: Sequence[int]
) -> relax.Expr:
    """rint(f32(Σ(q − z)) · f32(s / f32(n·s))) + z: n is the size of the window whatever the options say, and the factor
    is not quite 1/n, so that midpoints fall either way."""
    scales = f32(source.scale), f32(source.scale)
    zero = int(source.zero_point)
    return _averages(data, source, scales, zero, kernel, strides, padding, count_include_pad=True, reciprocal=True)


def _averages(
    data: relax.Expr,
    source: QParams,
    scales: tuple[Any, Any],
    zero: int,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    **options: Any,
) -> relax.Expr:
    """qnn.avg_pool2d of an image with equal zero points. scales: of the data and of the result"""
    return qnn.avg_pool2d(
        data,
        scales[0],
        zero,
        scales[1],
        zero,
        pool_size=tuple(kernel),  # type: ignore[arg-type]
        strides=tuple(strides),  # type: ignore[arg-type]
        padding=(*padding, *padding),  # type: ignore[arg-type]
        layout="NCHW",
        out_dtype=source.dtype,
        **options,
    )


def _quantized_avg_pool(
    node: Node,
    data: relax.Expr,
    source: QParams,
    kernel: list[int],
    strides: list[int],
    padding: list[int],
    ceil_mode: bool,
    include_pad: bool,
    divisor: int | None,
    before: bool,
) -> relax.Expr:
    """rint(Σ(q − z)/n) + z; `before`: rint(Σ(q − z)/n + z), which is the rounded average of raw integers.

    The window that `ceil_mode` adds counts no cells beyond the padding, unless there is a divisor.
    """
    zero, scales = int(source.zero_point), (np.float64(1), np.float64(1))
    out = [1, node.shape[-1]] if "1d" in node.kind else list(node.shape[-2:])
    if divisor is not None:
        scales = np.float64(np.prod(kernel)), np.float64(divisor)
        sizes = zip(out, strides, kernel, shape_of(data)[2:], padding, strict=True)
        behind = [max((o - 1) * s + k - size - p, 0) for o, s, k, size, p in sizes]
        data, padding, ceil_mode = _padded(node, data, padding, behind, zero), [0, 0], False
        if before:
            return _window_quotients(node, data, source, kernel, strides, divisor)
    elif before:
        if include_pad and any(padding):
            data, padding = _padded(node, data, padding, padding, zero), [0, 0]
        zero = 0
    options = {"ceil_mode": ceil_mode, "count_include_pad": include_pad}
    pooled = node.emit(_averages(data, source, scales, zero, kernel, strides, padding, **options))
    if list(shape_of(pooled)[2:]) == out:
        return pooled
    # no window starts in the padding behind the image, which `ceil_mode` does not know once that is data
    return relax.op.strided_slice(pooled, axes=[2, 3], begin=[0, 0], end=out)


def _window_quotients(
    node: Node, data: relax.Expr, source: QParams, kernel: Sequence[int], strides: Sequence[int], divisor: int
) -> relax.Expr:
    """rint(Σ(q − z)/divisor + z)."""
    zero, image = int(source.zero_point), permute(data, [0, 2, 3, 1], node.emit)
    total = node.emit(qnn.pool_sum(image, 1.0, zero, tuple(kernel), tuple(strides), (0, 0, 0, 0)))
    return permute(_quotients(node, total, np.array(divisor), source, True), [0, 3, 1, 2], node.emit)


def _padded(node: Node, data: relax.Expr, front: Sequence[int], behind: Sequence[int], zero: int) -> relax.Expr:
    (top, left), (bottom, right) = front, behind
    return node.emit(relax.op.nn.pad(data, [0, 0, 0, 0, top, bottom, left, right], pad_mode="constant", pad_value=zero))


def _float_avg_pool(
    node: Node, data: relax.Expr, kernel: list[int], strides: list[int], padding: list[int], ceil: bool, include: bool
) -> relax.Expr:
    return relax.op.nn.avg_pool2d(
        data,
        pool_size=kernel,
        strides=strides,
        padding=[*padding, *padding],
        ceil_mode=ceil,
        count_include_pad=include,
        layout="NCHW",
    )


@converter("aten::adaptive_avg_pool1d", "aten::adaptive_avg_pool2d")
def _adaptive_avg_pool(node: Node) -> relax.Expr:
    """QNNPACK averages windows of equal sizes; else the zero point is added before rounding, in every memory format."""
    spatial = 1 if node.kind.endswith("1d") else 2
    data, source = _as_image(node, node.expr("self"), spatial), node.qparams("self")
    out = [1, *node.shape[-1:]] if spatial == 1 else list(node.shape[-2:])
    size = shape_of(data)[2:]
    if source is None:
        node.note("average pooling of a float tensor")
        return node.move(relax.op.nn.adaptive_avg_pool2d(data, out, layout="NCHW"))
    before = bool(int(source.zero_point) % 2)
    if any(s % o for s, o in zip(size, out, strict=True)):
        return node.move(_uneven_avg_pool(node, data, source, out, before))
    kernel = [s // o for s, o in zip(size, out, strict=True)]
    if _is_qnnpack(node, source):
        return node.move(_qnnpack_avg_pool(data, source, kernel, kernel, [0, 0]))
    return node.move(_quantized_avg_pool(node, data, source, kernel, kernel, [0, 0], False, True, None, before))


def _uneven_avg_pool(node: Node, data: relax.Expr, source: QParams, out: Sequence[int], before: bool) -> relax.Expr:
    """Windows of different sizes over the last dimensions, which overlap. Sums along one axis after the other."""
    limits.check("unrolled", sum(out), "averaging windows of different sizes")
    rank = len(shape_of(data))
    counts: np.ndarray = np.ones(())
    total = node.emit(relax.op.subtract(node.emit(relax.op.astype(data, "int32")), constant(source.zero_point)))
    for axis, count in enumerate(out, rank - len(out)):
        size, sums = shape_of(data)[axis], []
        bounds = [(place * size // count, -(-(place + 1) * size // count)) for place in range(count)]
        for begin, end in bounds:
            window = node.emit(relax.op.strided_slice(total, axes=[axis], begin=[begin], end=[end]))
            sums.append(node.emit(relax.op.sum(window, axis, keepdims=True)))
        total = sums[0] if len(sums) == 1 else node.emit(relax.op.concat(sums, axis))
        counts = counts[..., None] * np.array([end - begin for begin, end in bounds])
    return _quotients(node, total, counts, source, before)


def _quotients(node: Node, total: relax.Expr, counts: np.ndarray, source: QParams, before: bool) -> relax.Expr:
    """rint(total/counts) + z; `before`: rint(total/counts + z). total: int32 or float32"""
    real = total if str(total.ty.dtype) == "float32" else node.emit(relax.op.astype(total, "float32"))
    real = node.emit(relax.op.divide(real, constant(counts.astype(f32))))
    zero = int(source.zero_point)
    if before:
        real, zero = node.emit(relax.op.add(real, scalar(zero))), 0
    return node.emit(qnn.quantize(real, 1.0, zero, out_dtype=source.dtype))


# ---- average of volumes --------------------------------------------------------------------------------------------


@converter("aten::avg_pool3d", takes=lambda arguments: arguments["self"].is_quantized)
def _avg_pool3d(node: Node) -> relax.Expr:
    """As the vectorized loop over channels rounds, into which PyTorch brings all volumes: see _quantized_avg_pool."""
    source, size = node.quantized("self"), node.shape_of("self")[-3:]
    kernel, strides, padding = (
        [int(v) for v in node[name]] * (3 if len(node[name]) == 1 else 1)
        for name in ("kernel_size", "stride" if node["stride"] else "kernel_size", "padding")
    )
    axes = list(zip(size, kernel, strides, padding, node.shape[-3:], strict=True))
    ends = [max((out - 1) * s + k - length - pad, 0) for length, k, s, pad, out in axes]
    counts: np.ndarray = np.ones(())
    for length, k, s, pad, out in axes:
        first = np.arange(out) * s - pad
        last = np.minimum(first + k, length + pad)
        if not node["count_include_pad"]:
            first, last = np.maximum(first, 0), np.minimum(last, length)
        counts = counts[..., None] * (last - first)
    if node["divisor_override"] is not None:
        counts = np.full((1, 1, 1), int(node["divisor_override"]))
    volume = reshape(node.expr("self"), (-1, *node.shape_of("self")[-4:]), node.emit)
    widths = [0, 0, 0, 0, *(width for pair in zip(padding, ends, strict=True) for width in pair)]
    if any(widths):
        volume = node.emit(relax.op.nn.pad(volume, widths, pad_mode="constant", pad_value=int(source.zero_point)))

    def average(part: relax.Expr, before: bool) -> relax.Expr:
        return _quotients(node, _sums(node, part, source, kernel, strides), counts, source, before)

    if int(source.zero_point) % 2 == 0:
        return node.move(average(volume, False))
    averages = (partial(average, before=before) for before in (False, True))
    return node.move(by_channels(node, volume, VECTOR_CHANNELS, *averages))


def _sums(node: Node, volume: relax.Expr, source: QParams, kernel: Sequence[int], strides: Sequence[int]) -> relax.Expr:
    """Σ(q − z) over windows of (N, C, D, H, W): over those of each image, then over depth."""
    images = permute(volume, [0, 2, 3, 4, 1], node.emit)
    n, d, h, w, c = shape_of(images)
    flat = reshape(images, (n * d, h, w, c), node.emit)
    zero, (deep, *plane), (step, *steps) = int(source.zero_point), kernel, strides
    sums = node.emit(qnn.pool_sum(flat, 1.0, zero, tuple(plane), tuple(steps), (0, 0, 0, 0)))  # type: ignore[arg-type]
    sums = reshape(sums, (n, d, *shape_of(sums)[1:]), node.emit)
    last = (d - deep) // step * step + 1
    parts = [
        node.emit(relax.op.strided_slice(sums, axes=[1], begin=[k], end=[k + last], strides=[step]))
        for k in range(deep)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = node.emit(relax.op.add(total, part))
    return permute(total, [0, 4, 1, 2, 3], node.emit)


@converter("aten::adaptive_avg_pool3d", takes=lambda arguments: arguments["self"].is_quantized)
def _adaptive_avg_pool3d(node: Node) -> relax.Expr:
    return _uneven_avg_pool(node, node.expr("self"), node.quantized("self"), node.shape[-3:], True)


@converter("aten::mean")
def _mean(node: Node) -> relax.Expr:
    data, source = node.expr("self"), node.qparams("self")
    rank = len(node.shape_of("self"))
    axes = sorted({int(axis) % rank for axis in node.get("dim") or range(rank)})
    keepdims = bool(node.get("keepdim", False))
    if source is None:
        node.note("the mean of a float tensor")
        return relax.op.mean(data, axes, keepdims)
    if _is_qnnpack(node, source) and rank == 4 and list(node.get("dim") or []) == [2, 3]:
        kernel = node.shape_of("self")[2:]
        return node.move(_qnnpack_avg_pool(data, source, kernel, kernel, [0, 0]))
    if axes == list(range(rank - len(axes), rank)) and node["self"].is_contiguous():
        pooled = qnn.mean(data, 1.0, 0, 1.0, 0, axis=tuple(axes), keepdims=keepdims, out_dtype=source.dtype)
        return node.move(pooled)
    return _mean_of_floats(node, data, source, axes, keepdims)


def _mean_of_floats(node: Node, data: relax.Expr, source: QParams, axes: list[int], keepdims: bool) -> relax.Expr:
    """quantize(Σ (q − z)·s / n): PyTorch adds dequantized values; a midpoint may fall either way where `ordered_sum`
    does not know the order."""
    wide = node.emit(relax.op.subtract(node.emit(relax.op.astype(data, "int32")), constant(source.zero_point)))
    shape, scale = node.shape_of("self"), constant(source.scale.astype(f32))
    parts = node.emit(qnn.dequantize(wide, scale, 0))
    total = ordered_sum(parts, node["self"].stride(), axes, node.emit)
    if total is None:
        total = node.emit(qnn.dequantize(node.emit(relax.op.sum(wide, axes)), scale, 0))
    count = int(np.prod([shape[axis] for axis in axes]))
    real = node.emit(relax.op.divide(total, scalar(count)))
    if keepdims:
        real = reshape(real, [1 if axis in axes else size for axis, size in enumerate(shape)], node.emit)
    return quantize(node, real, source)

"""Integer rules of averages: sums of 8- and 16-bit data, divided by the number of cells.

Windows are summed in float32, cell by cell, as in PyTorch and ONNX Runtime, because these sums decide many ties; whole
axes, whose order of summation no framework guarantees, are summed in integers. Between ONNX's quantize operators the
results are those of ONNX Runtime's own kernels: a global average uses a single multiplier, as in `qnn.mean`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ... import op as qnn
from ...numerics.windows import axis_counts
from ...op import compound
from ...op.arguments import data_of
from ...op.avg_pool2d import pool_output_size
from ...op.base import constant, normalize_axis, shape_of
from .bounds import constants_of
from .context import Context
from .products import signed
from .registry import integer_rule
from .tensors import NARROW, Quantized

_MOST = 1 << 31  # sums are int32


def _summands(expr: Any, count: int, context: Context) -> Quantized | None:
    """The operand as integers, if `count` of them can be added up in int32."""
    tensor = context.quantized(expr)
    if tensor is None or tensor.dtype not in NARROW:
        return None
    if tensor.constants is None:
        return context.refuse("the scale of its data is computed at run time")
    if count * (np.iinfo(tensor.dtype).max - np.iinfo(tensor.dtype).min) >= _MOST:
        return context.refuse(f"a sum of {count} {tensor.dtype} values does not fit into int32")
    return signed(tensor, context)


def _units(total: Any, tensor: Quantized, count: int, axis: int | None) -> Quantized:
    """A sum of `count` raw integers as a tensor: its zero point is `count` times as large."""
    assert tensor.constants is not None
    scale, zero_point = tensor.constants
    zero = constant((zero_point * count).astype(np.int32))
    return Quantized(total, constant(scale.astype(np.float32)), zero, -1 if axis is None else axis)


# ---- windows -----------------------------------------------------------------------------------------------------


@integer_rule("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")
def _average_pool(call: relax.Call, context: Context) -> Any:
    data, attributes = data_of(call), call.attrs
    sizes = shape_of(data)[2:]
    kernel, strides, dilation = (
        tuple(int(v) for v in values) for values in (attributes.pool_size, attributes.strides, attributes.dilation)
    )
    padding = [int(v) for v in attributes.padding]
    rank = len(sizes)
    tensor = _summands(data, math.prod(kernel), context)
    if tensor is None:
        return None
    if str(attributes.layout) != "NC" + "DHW"[3 - rank :]:
        return context.refuse(f"its layout is {attributes.layout}")
    if any(padding) and tensor.one_zero_point is None:
        return context.refuse("it pads channels whose zero points differ")
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    low, high = padding[:rank], padding[rank:]
    out, reach = [], []
    for i in range(rank):
        out.append(pool_output_size(sizes[i], extent[i], strides[i], low[i], high[i], bool(attributes.ceil_mode)))
        reach.append(max(high[i], (out[i] - 1) * strides[i] + extent[i] - sizes[i] - low[i]))
    counts = [
        axis_counts(sizes[i], out[i], kernel[i], strides[i], low[i], high[i], dilation[i], attributes.count_include_pad)
        for i in range(rank)
    ]
    # with ceil_mode, windows extend past the padding; those cells are zero points too
    if any(reach[i] > high[i] for i in range(rank)) and tensor.one_zero_point is None:
        return context.refuse("its windows reach beyond channels whose zero points differ")
    pooled = _as_onnx_runtime(tensor, kernel, context, strides, padding, dilation, attributes)
    if pooled is not None:
        return pooled
    if tensor.per_tensor and max(dilation) == 1:
        return _over(_real_sums(tensor, kernel, strides, padding, attributes, context), counts, context)
    total = _window_sums(tensor, kernel, strides, dilation, low, reach, context)
    return _divided(_units(total, tensor, math.prod(kernel), tensor.channel_axis), counts, context)


def _real_sums(
    tensor: Quantized,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    attributes: Any,
    context: Context,
) -> Any:
    """Σ over windows of the real values, one by one in float32 as in PyTorch: the sums decide many ties."""
    assert tensor.constants is not None
    ndim = len(tensor.shape)
    total = qnn.pool_sum(
        compound.permute(tensor.data, [0, *range(2, ndim), 1], context.emit),
        *tensor.constants,
        tuple(kernel),
        tuple(strides),
        tuple(padding),
        bool(attributes.ceil_mode),
    )
    return compound.permute(context.emit(total), [0, ndim - 1, *range(1, ndim - 1)], context.emit)


def _as_onnx_runtime(
    tensor: Quantized,
    kernel: Sequence[int],
    context: Context,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    attributes: Any,
) -> Quantized | None:
    """Between quantize operators that divide, as in ONNX: QLinearAveragePool, which sums reals one by one, but integers
    if the window is the whole image."""
    quantize = context.quantize_behind()
    if quantize is None or quantize.attributes["reciprocal"] or tensor.vectors or tensor.constants is None:
        return None
    if quantize.out_dtype != tensor.dtype or tensor.dtype not in ("int8", "uint8") or max(dilation) > 1:
        return None
    ndim, (scale, zero_point) = len(tensor.shape), constants_of(quantize)
    if tuple(kernel) == tuple(tensor.shape[2:]) and not any(padding):
        divided = np.float32(scale * np.float32(math.prod(kernel)))
        axes = list(range(2, ndim))
        total = qnn.sum(
            tensor.data, *tensor.constants, divided, zero_point, axis=axes, keepdims=True, out_dtype=tensor.dtype
        )
        return Quantized(context.emit(total), quantize.scale, quantize.zero_point)
    pooled = qnn.qlinear_avg_pool(
        compound.permute(tensor.data, [0, *range(2, ndim), 1], context.emit),
        *tensor.constants,
        scale,
        zero_point,
        tuple(kernel),
        tuple(strides),
        tuple(padding),
        bool(attributes.ceil_mode),
        bool(attributes.count_include_pad),
        quantize.out_dtype,
    )
    data = compound.permute(context.emit(pooled), [0, ndim - 1, *range(1, ndim - 1)], context.emit)
    return Quantized(data, quantize.scale, quantize.zero_point)


def _divided(total: Quantized, counts: Sequence[np.ndarray], context: Context) -> Any:
    """Integer sums over windows as averages."""
    real = context.emit(qnn.dequantize(total.data, total.scale, total.zero_point, axis=total.axis))
    return _over(real, counts, context)


def _over(real: Any, counts: Sequence[np.ndarray], context: Context) -> Any:
    """Sums over windows divided by each window's number of cells; `counts` are along the spatial axes."""
    cells = counts[0]
    for axis_cells in counts[1:]:
        cells = cells[..., None] * axis_cells
    if (cells == cells.flat[0]).all():
        cells = cells.reshape(-1)[0]
    return relax.op.divide(real, constant(cells.astype(np.float32)))


def _window_sums(
    tensor: Quantized,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    context: Context,
) -> Any:
    """Σ over windows of 1 to 3 spatial dimensions, with padding filled by the zero point: int32, channels second."""
    n, c, *sizes = shape_of(tensor.data)
    data, emit, pad = tensor.data, context.emit, tensor.one_zero_point or 0
    groups = c
    if len(sizes) == 1:
        data, kernel, strides, dilation = (
            compound.reshape(data, (n, c, 1, *sizes), emit),
            *((1, *values) for values in (kernel, strides, dilation)),
        )
        low, high = (0, *low), (0, *high)
    if len(sizes) == 3:  # a window's cells along the depth are laid side by side, as channels of one group
        if low[0] or high[0]:
            widths = [0, 0, 0, 0, low[0], high[0], 0, 0, 0, 0]
            data = emit(relax.op.nn.pad(data, widths, pad_mode="constant", pad_value=pad))
        data, _, depth = compound.depth_taps(data, kernel[0], strides[0], dilation[0], emit)
        kernel, strides, dilation, low, high = (v[1:] for v in (kernel, strides, dilation, low, high))
    total = qnn.window_sum(
        compound.permute(data, [0, 2, 3, 1], emit),
        tuple(kernel),  # type: ignore[arg-type]
        tuple(strides),  # type: ignore[arg-type]
        (*low, *high),  # type: ignore[arg-type]
        tuple(dilation),  # type: ignore[arg-type]
        groups,
        pad,
    )
    total = compound.permute(emit(total), [0, 3, 1, 2], emit)
    if len(sizes) == 3:
        return compound.unfold_depth(total, n, depth, emit)
    return compound.reshape(total, (n, c, shape_of(total)[3]), emit) if len(sizes) == 1 else total


# ---- whole axes --------------------------------------------------------------------------------------------------


@integer_rule("mean", "sum")
def _reduce(call: relax.Call, context: Context) -> Any:
    return _reduced(call, call.attrs.axis, bool(call.attrs.keepdims), context)


def _reduced(call: relax.Call, axis: Any, keepdims: bool, context: Context) -> Any:
    data = data_of(call)
    shape = shape_of(data)
    axes = sorted({normalize_axis(int(a), len(shape)) for a in axis}) if axis is not None else list(range(len(shape)))
    count, divide = math.prod(shape[a] for a in axes), str(call.op.name) != "relax.sum"
    tensor = _summands(data, count, context)
    if tensor is None or not axes:
        return None
    if tensor.vectors:
        return context.refuse("it sums channels that have different scales")
    assert tensor.constants is not None
    scale, zero_point = tensor.constants
    quantize = context.quantize_behind()
    folded = quantize is not None and not quantize.attributes["reciprocal"]
    if divide and folded and quantize is not None and quantize.out_dtype in ("int8", "uint8", "int16"):
        target = constants_of(quantize)
        mean = qnn.mean(
            tensor.data, scale, zero_point, *target, axis=axes, keepdims=keepdims, out_dtype=quantize.out_dtype
        )
        return Quantized(context.emit(mean), quantize.scale, quantize.zero_point)
    total = context.emit(
        qnn.sum(tensor.data, scale, zero_point, scale, 0, axis=axes, keepdims=keepdims, out_dtype="int32")
    )
    result = Quantized(total, constant(scale.astype(np.float32)), constant(np.int32(0)))
    return _divided(result, [np.asarray([count])], context) if divide else result


@integer_rule("nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d")
def _adaptive_average_pool(call: relax.Call, context: Context) -> Any:
    """Windows from ⌊i·n / m⌋ to ⌈(i + 1)·n / m⌉."""
    data = data_of(call)
    sizes, out = shape_of(data)[2:], shape_of(call)[2:]
    if str(call.attrs.layout) != "NC" + "DHW"[3 - len(sizes) :]:
        return context.refuse(f"its layout is {call.attrs.layout}")
    tensor = context.quantized(data)
    if math.prod(out) == 1 and tensor is not None and tensor.per_tensor:
        return _reduced(call, range(2, 2 + len(sizes)), True, context)
    windows = [_adaptive_windows(n, m) for n, m in zip(sizes, out, strict=True)]
    kernel = [max(end - begin for begin, end in axis) for axis in windows]
    tensor = _summands(data, math.prod(kernel), context)
    if tensor is None:
        return None
    if any(n % m for n, m in zip(sizes, out, strict=True)):
        if tensor.one_zero_point is None:
            return context.refuse("its windows differ in size, and the zero points of its channels differ")
        tensor = _side_by_side(tensor, windows, kernel, context)
    ones, none = [1] * len(sizes), [0] * len(sizes)
    total = _window_sums(tensor, kernel, kernel, ones, none, none, context)
    counts = [np.asarray([end - begin for begin, end in axis]) for axis in windows]
    return _divided(_units(total, tensor, math.prod(kernel), tensor.channel_axis), counts, context)


def _adaptive_windows(size: int, out: int) -> list[tuple[int, int]]:
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


def _side_by_side(
    tensor: Quantized, windows: Sequence[Sequence[tuple[int, int]]], kernel: Sequence[int], context: Context
) -> Quantized:
    """The cells of all windows in a row, each window padded with zero points to the size of the largest."""
    data, ndim = tensor.data, len(tensor.shape)
    for axis, (cells, length) in enumerate(zip(windows, kernel, strict=True), start=2):
        filler = shape_of(data)[axis]  # the position of an additional cell, which is a zero point
        widths = [0] * (2 * ndim)
        widths[2 * axis + 1] = 1
        data = context.emit(relax.op.nn.pad(data, widths, pad_mode="constant", pad_value=tensor.one_zero_point or 0))
        positions = [b + i if b + i < e else filler for b, e in cells for i in range(length)]
        data = context.emit(relax.op.take(data, constant(np.asarray(positions, np.int64)), axis))
    return tensor.moved(data)

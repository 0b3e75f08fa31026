"""Integer rules of products: convolutions, transposed convolutions, matrix products, and the bias after them.

A product of x = (q_x − z_x)·s_x and w = (q_w − z_w)·s_w is an int32 accumulator with scale s_x·s_w and no zero point.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ... import op as qnn
from ...op import compound
from ...op.arguments import data_of, factors_of
from ...op.base import along_axis, as_expr, constant, constant_value, normalize_axis
from .context import Context
from .notes import NOT_QUANTIZED
from .registry import integer_rule
from .tensors import NARROW, Quantized
from .weight_only import weight_only


def _operands(
    call: relax.Call, context: Context, rows: int, columns: int, groups: int = 1
) -> tuple[Quantized, Quantized] | None:
    """Both operands as integers that the product accepts.

    rows, columns: the axes of x and of w that end up in the result and may have per-channel scales
    groups: of a convolution
    """
    x, w = map(context.quantized, factors_of(call))
    if x is None or w is None:
        return context.refuse(NOT_QUANTIZED)
    x, w = _scales_in_weight(x, w, groups)
    if x.dtype not in NARROW or w.dtype not in NARROW:
        return context.refuse(f"its operands are {x.dtype} and {w.dtype}; products need 8 or 16 bits")
    if x.vectors and (x.channel_axis != rows or x.one_zero_point is None or w.vectors):
        return context.refuse(f"its data has scales along axis {x.channel_axis}, so the sum would mix scales")
    if w.vectors and w.channel_axis != columns:
        return context.refuse(f"its weight has scales along axis {w.channel_axis}, not one per output channel")
    if w.vectors and constant_value(w.data) is None and w.constants is None:
        return context.refuse("its weight has a scale per channel that is computed at run time")
    if not _has_product_scale(x, w):
        return context.refuse("the product of its scales is out of the range of normal float32 numbers")
    return signed(x, context), signed(w, context)


def _has_one_scale(data: Any, context: Context) -> bool:
    """Whether data that are carried as integers have one scale."""
    tensor = context.quantized(data)
    return tensor is not None and tensor.per_tensor


def _scales_in_weight(x: Quantized, w: Quantized, groups: int) -> tuple[Quantized, Quantized]:
    """Data with a scale for each channel, each of which is a group of its own, as data with the scale 1 and a weight
    with scales s_x·s_w: as NNCF quantizes depthwise convolutions."""
    if not x.vectors or x.channel_axis != 1 or groups != x.shape[1] or x.one_zero_point is None:
        return x, w
    if x.constants is None or w.constants is None or (w.vectors and w.channel_axis != 0):
        return x, w
    of_outputs = np.repeat(np.broadcast_to(_scalar_or_vector(x.constants[0]), groups), w.shape[0] // groups)
    with np.errstate(over="ignore", under="ignore"):  # which is refused then
        scale = of_outputs * _scalar_or_vector(w.constants[0])
    one = Quantized(x.data, constant(np.float32(1)), constant(np.int32(x.one_zero_point)))
    return one, Quantized(w.data, constant(scale), w.zero_point, 0)


def signed(tensor: Quantized, context: Context) -> Quantized:
    """uint16 as int16: kernels have no unsigned 16-bit sums, and a shift by 2¹⁵ is exact."""
    if tensor.dtype != "uint16":
        return tensor
    half = 1 << 15
    array = constant_value(tensor.data)
    if array is not None:
        data = constant((array.astype(np.int32) - half).astype(np.int16))
    else:
        data = context.emit(qnn.requantize(tensor.data, 1.0, half, 1.0, 0, out_dtype="int16"))
    zero_point = constant_value(as_expr(tensor.zero_point))
    moved = constant(zero_point - np.int32(half)) if zero_point is not None else None
    if moved is None:
        moved = context.emit(relax.op.subtract(tensor.zero_point, constant(np.int32(half))))
    return Quantized(data, tensor.scale, moved, tensor.axis)


def _product_scale(x: Quantized, w: Quantized, context: Context) -> Any:
    """f32(s_x · s_w), a scalar or a vector over the channels of w."""
    one, two = constant_value(as_expr(x.scale)), constant_value(as_expr(w.scale))
    if one is not None and two is not None:
        return constant(np.asarray(_scalar_or_vector(one) * _scalar_or_vector(two)))
    scalar = compound.reshape(as_expr(x.scale), (), context.emit) if x.per_tensor else x.scale
    return context.emit(relax.op.multiply(scalar, as_expr(w.scale)))


def _has_product_scale(x: Quantized, w: Quantized) -> bool:
    """Whether f32(s_x · s_w), if known, is always a normal number: otherwise the sum would lose its digits."""
    one, two = constant_value(as_expr(x.scale)), constant_value(as_expr(w.scale))
    if one is None or two is None:
        return True
    product = _scalar_or_vector(one).astype(np.float64) * _scalar_or_vector(two)
    limits = np.finfo(np.float32)
    return bool(((product >= limits.tiny) & (product <= limits.max)).all())


def _scalar_or_vector(scale: np.ndarray) -> np.ndarray:
    return (scale.reshape(()) if scale.size == 1 else scale).astype(np.float32)


def _single_zero_point(x: Quantized) -> Any:
    """The zero point of data whose scales may be a vector, but whose zero points are all equal."""
    return x.zero_point if x.per_tensor else constant(np.int32(x.one_zero_point or 0))


def _accumulator(x: Quantized, w: Quantized) -> str:
    """int64 where 16-bit data could overflow int32, as in TFLite's 16x8 kernels."""
    return "int64" if x.dtype == "int16" or w.dtype == "int16" else "int32"


@integer_rule("nn.conv1d", "nn.conv2d", "nn.conv3d")
def _convolution(call: relax.Call, context: Context) -> Any:
    attributes, rank = call.attrs, len(call.ty.shape) - 2
    if _layouts(attributes) != (_layout("N", "C", rank), _layout("O", "I", rank)):
        return context.refuse(f"its layouts are {', '.join(_layouts(attributes))}")
    operands = _operands(call, context, rows=0, columns=0, groups=int(attributes.groups))
    if operands is None:
        return None
    x, w = operands
    acc = compound.convolution(
        x.data,
        w.data,
        _single_zero_point(x),
        w.zero_point,
        strides=_ints(attributes.strides),
        padding=_ints(attributes.padding),
        dilation=_ints(attributes.dilation),
        groups=int(attributes.groups),
        emit=context.emit,
        out_dtype=_accumulator(x, w),
    )
    axis, rounds_bias = 0 if x.vectors else 1, _has_one_scale(data_of(call), context)
    return Quantized(acc, _product_scale(x, w, context), constant(np.int32(0)), axis, True, rounds_bias)


@integer_rule("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")
def _transposed_convolution(call: relax.Call, context: Context) -> Any:
    attributes, rank = call.attrs, len(call.ty.shape) - 2
    if _layouts(attributes) != (_layout("N", "C", rank), _layout("I", "O", rank)):
        return context.refuse(f"its layouts are {', '.join(_layouts(attributes))}")
    groups = int(attributes.groups)
    operands = _operands(call, context, rows=0, columns=1)
    if operands is None:
        return None
    x, w = operands
    known = constant_value(w.data) is not None and w.constants is not None and x.constants is not None
    if not known and any(t.dtype == "int16" and t.one_zero_point != 0 for t in (x, w)):
        return context.refuse(
            "its weight or a zero point is computed at run time, and int16 − zero point does not fit into int16"
        )
    if w.vectors and groups > 1:
        repeated = _over_groups(w, groups)
        if repeated is None:
            return context.refuse("its weight has scales per output channel of a group, computed at run time")
        w = repeated
    acc = compound.transposed_convolution(
        x.data,
        w.data,
        _single_zero_point(x),
        w.zero_point,
        strides=_ints(attributes.strides),
        padding=_ints(attributes.padding),
        output_padding=_ints(attributes.output_padding),
        dilation=_ints(attributes.dilation),
        groups=groups,
        emit=context.emit,
        out_dtype=_accumulator(x, w),
    )
    axis, rounds_bias = 0 if x.vectors else 1, x.per_tensor
    return Quantized(acc, _product_scale(x, w, context), constant(np.int32(0)), axis, True, rounds_bias)


def _over_groups(w: Quantized, groups: int) -> Quantized | None:
    """Scales for the O / groups channels of a group, repeated for all groups."""
    parameters = w.constants
    if parameters is None:
        return None
    scale, zero_point = (np.tile(p.reshape(-1), groups) if p.size > 1 else p for p in parameters)
    return Quantized(w.data, constant(scale), constant(zero_point), w.axis)


@integer_rule("matmul")
def _matmul(call: relax.Call, context: Context) -> Any:
    ranks = [len(operand.ty.shape) for operand in factors_of(call)]
    operands = _operands(call, context, rows=ranks[0] - 2, columns=ranks[1] - 1 if ranks[1] > 1 else -1)
    if operands is None:
        return weight_only(call, context)
    x, w = operands
    if x.vectors and ranks[1] < 2:
        return context.refuse("its data has a scale for each row, and its other operand is a vector")
    zero_point = _single_zero_point(x)
    acc = compound.matmul(x.data, w.data, zero_point, w.zero_point, emit=context.emit, out_dtype=_accumulator(x, w))
    axis = -2 if x.vectors else -1
    return Quantized(acc, _product_scale(x, w, context), constant(np.int32(0)), axis, True, x.per_tensor)


def add_bias(call: relax.Call, context: Context) -> Any:
    """An accumulator plus an int32 bias in the accumulator's own units stays an accumulator."""
    for one, two in (call.args, reversed(list(call.args))):
        acc = context.quantized(one)
        if acc is None or acc.dtype != "int32" or not acc.product:
            continue
        bias = _integer_bias(acc, two, context)
        if bias is not None and np.broadcast_shapes(acc.shape, bias.shape) == acc.shape:
            return acc.moved(context.emit(relax.op.add(acc.data, constant(bias))))
    return None


def _integer_bias(acc: Quantized, expr: Any, context: Context) -> np.ndarray | None:
    """The bias as int32 in the accumulator's units.

    A quantized bias is used unchanged: ONNX Runtime also adds it as integers, whatever its scale; here the scales must
    agree to 1e-5, because exporters multiply the two scales in different precisions. A float bias is rounded, as in
    ONNX Runtime, if the result, clipped or not, is quantized (by a division, as in ONNX): rint(b / f32(s_x·s_w)). In
    QONNX it stays what it is: steps of 4-bit data times those of 4-bit weights are too coarse for it.
    """
    tensor = context.quantized(expr)
    if tensor is not None:
        array = constant_value(tensor.data)
        return array if tensor.dtype == "int32" and _same_units(acc, tensor) else None
    bias = constant_value(context.value(expr))
    rounds = context.rounds_biases and acc.rounds_bias
    if bias is None or acc.constants is None or not rounds or not _along_channels(bias, acc):
        return None
    quantize = context.quantize_of_clipped()
    if quantize is None or quantize.attributes["reciprocal"]:
        return None
    scale = along_axis(acc.constants[0], acc.axis, len(acc.shape))
    steps = np.rint(bias.astype(np.float32) / scale)
    return steps.astype(np.int32) if np.abs(steps).max(initial=0) < 1 << 30 else None


def _along_channels(bias: np.ndarray, acc: Quantized) -> bool:
    """Whether the bias has one value per channel, or a single one."""
    axis = normalize_axis(acc.axis, len(acc.shape))
    shape = (1,) * (len(acc.shape) - bias.ndim) + bias.shape
    return all(size == 1 or (i == axis and size == acc.shape[i]) for i, size in enumerate(shape))


def _same_units(acc: Quantized, bias: Quantized) -> bool:
    if acc.constants is None or bias.constants is None or bias.constants[1].any():
        return False
    ndim = len(acc.shape)
    one = along_axis(acc.constants[0], acc.axis, ndim)
    two = along_axis(bias.constants[0], bias.axis, max(len(bias.shape), 1))
    try:
        return bool(np.allclose(one, two, rtol=1e-5, atol=0))
    except ValueError:
        return False


def _layouts(attributes: Any) -> tuple[str, str]:
    return str(attributes.data_layout), str(attributes.kernel_layout)


def _layout(first: str, second: str, rank: int) -> str:
    return first + second + "DHW"[3 - rank :]


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)

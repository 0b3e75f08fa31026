"""conv2d, dense and batch_matmul as four terms.

    Σ (Qa − za)(Qw − zw)  =  Σ Qa·Qw  −  zw·Σ Qa  −  za·Σ Qw  +  K·za·zw
                              T1          T2          T3          T4

T1 is the integer product that the kernels compute. Padding is filled with za, so each window has all K = kh·kw·C/G
terms. T2 exists only if zw ≠ 0; it is zw times a *sum* over the window, which stays exact with dilation, groups and
padding. T3 and T4 are constants that depend on the weights and fold into one addition together with the bias. For a
depthwise convolution a window sum would cost as much as T1: there Qw − zw is computed at compile time, in int16 if
necessary.

With constant weights, za may be a run-time zero point: a convolution then first pads its data with it, and T3 and T4
are a single product of za with constants. Run-time weights, or weights with run-time zero points, are first widened to
int16 and shifted, like the activations, and only T1 remains; but int16 − zero point does not fit into int16, so int16
operands keep all four terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from tvm import relax

from ... import op as qnn
from ...op.base import call_attributes, constant, constant_value, shape_of
from ...op.conv2d import ohwi_shape, permutation, weight_to_ohwi
from ...op.dense import unpack_weight
from ..rewrite import Emit
from .registry import canonical


def _constants(*exprs: relax.Expr) -> list[np.ndarray] | None:
    """The values of the expressions, or None unless all are constant."""
    values = [constant_value(expr) for expr in exprs]
    return None if any(value is None for value in values) else values  # type: ignore[return-value]


def _scalar(value: np.ndarray) -> int:
    return int(value.reshape(()))


def shift_weight(weight: np.ndarray, zero_point: np.ndarray) -> np.ndarray | None:
    """weight − zero_point (already shaped to broadcast) in int8 or else int16, None if it does not fit into either."""
    return _narrowed(weight.astype(np.int32) - zero_point)


def _narrowed(values: np.ndarray) -> np.ndarray | None:
    """`values` in int8 or else int16, None if they do not fit into either."""
    for dtype in (np.int8, np.int16):
        if values.min(initial=0) >= np.iinfo(dtype).min and values.max(initial=0) <= np.iinfo(dtype).max:
            return values.astype(dtype)
    return None


def subtract_constant(acc: relax.Expr, value: np.ndarray, emit: Emit) -> relax.Expr:
    """acc − value; acc itself if value is 0 everywhere. `value` is int64 and wraps to acc's dtype, as the sums do."""
    if not value.any():
        return acc
    return relax.op.add(emit(acc), constant((-value).astype(str(emit(acc).ty.dtype))))


def _minus(acc: relax.Expr, term: relax.Expr, emit: Emit) -> relax.Expr:
    acc, term = emit(acc), emit(term)
    if str(acc.ty.dtype) != str(term.ty.dtype):
        term = emit(relax.op.astype(term, str(acc.ty.dtype)))
    return relax.op.subtract(acc, term)


def _minus_weight_sums(acc: relax.Expr, zero_point: relax.Expr, sums: np.ndarray, emit: Emit) -> relax.Expr:
    """acc − za · Σ (Qw − zw), with one sum per output channel; za may be a run-time zero point."""
    known = constant_value(zero_point)
    if known is not None:
        return subtract_constant(acc, _scalar(known) * sums, emit)
    if not sums.any():
        return acc
    acc = emit(acc)
    dtype = str(acc.ty.dtype)
    scalar = _in_dtype(emit(relax.op.reshape(zero_point, ())), dtype, emit)
    return _minus(acc, emit(relax.op.multiply(scalar, constant(sums.astype(dtype)))), emit)


def _in_dtype(value: relax.Expr, dtype: str, emit: Emit) -> relax.Expr:
    """A zero point or sum in the accumulator's dtype, which their products fit into."""
    known = constant_value(value)
    if known is not None:
        return constant(known.astype(dtype))
    return value if str(value.ty.dtype) == dtype else emit(relax.op.astype(value, dtype))


def _widen(data: relax.Expr, zero_point: relax.Expr, axis: int, emit: Emit) -> relax.Expr:
    """int16 data − zero_point, for run-time zero points."""
    return emit(qnn.requantize(data, 1.0, zero_point, 1.0, 0, axis=axis, out_dtype="int16"))


def _fits_int16(data: relax.Expr, zero_point: relax.Expr) -> bool:
    """Whether data − zero_point fits into int16 for any data."""
    known = constant_value(zero_point)
    return str(data.ty.dtype) in ("int8", "uint8") or (known is not None and not known.any())


def _as_terms(
    acc: relax.Expr, x: relax.Expr, y: relax.Expr, zero_points: tuple[relax.Expr, relax.Expr], emit: Emit
) -> relax.Expr:
    """The terms of x (…, M, K) and y (…, N, K), whose product is `acc`; zy may be one per column."""
    dtype = str(acc.ty.dtype)
    rows, columns = (_wide_sum(operand, dtype, emit) for operand in (x, y))
    swapped = [*range(len(y.ty.shape) - 2), len(y.ty.shape) - 1, len(y.ty.shape) - 2]
    columns = emit(relax.op.permute_dims(columns, swapped))
    return _minus_sums(acc, rows, columns, int(x.ty.shape[-1]), zero_points, emit)


def _minus_sums(
    acc: relax.Expr,
    rows: relax.Expr,
    columns: relax.Expr,
    depth: int,
    zero_points: tuple[relax.Expr, relax.Expr],
    emit: Emit,
) -> relax.Expr:
    """acc − zw·Σ Qa − za·(Σ Qw − K·zw), all at run time: rows = Σ Qa, columns = Σ Qw, both in acc's dtype."""
    dtype = str(columns.ty.dtype)
    za, zw = (_in_dtype(zero_point, dtype, emit) for zero_point in zero_points)
    za = emit(relax.op.reshape(za, ()))
    shift = emit(relax.op.multiply(constant(np.asarray(depth, dtype)), zw))
    columns = emit(relax.op.subtract(columns, shift))
    acc = _minus(acc, emit(relax.op.multiply(rows, zw)), emit)
    return _minus(acc, emit(relax.op.multiply(columns, za)), emit)


def _wide_sum(data: relax.Expr, dtype: str, emit: Emit) -> relax.Expr:
    """Σ over the last axis, which is kept, in the accumulator's dtype."""
    return emit(relax.op.sum(_in_dtype(data, dtype, emit), axis=-1, keepdims=True))


# ---- conv2d ------------------------------------------------------------------------------------------------------


@canonical("qnn.conv2d")
def canonicalize_conv2d(call: relax.Call, emit: Emit) -> relax.Expr:
    """qnn.conv2d in any layout as NHWC/OHWI terms."""
    data, weight, input_zero_point, weight_zero_point, *_ = call.args
    attributes = call_attributes(call)
    layout, kernel_layout = attributes.pop("data_layout"), attributes.pop("kernel_layout")
    if layout != "NHWC":
        data = emit(relax.op.permute_dims(data, list(permutation(layout, "NHWC"))))
    weight_value = constant_value(weight)
    if weight_value is not None:
        weight_value = weight_to_ohwi(weight_value, kernel_layout, attributes["groups"])
    zw = constant_value(weight_zero_point)
    if weight_value is not None and zw is not None:
        if constant_value(input_zero_point) is None:
            data, attributes = _padded(data, input_zero_point, attributes, emit)
        acc = _conv2d_terms(data, weight_value, input_zero_point, zw.reshape(-1), attributes, emit)
    else:
        if weight_value is not None:
            weight = constant(weight_value)
        else:
            weight = _ohwi(weight, kernel_layout, attributes["groups"], emit)
        acc = _conv2d_of_run_time(data, weight, input_zero_point, weight_zero_point, attributes, emit)
    if layout != "NHWC":
        acc = relax.op.permute_dims(emit(acc), list(permutation("NHWC", layout)))
    return acc


def _conv2d_of_run_time(
    data: relax.Expr, weight: relax.Expr, za: relax.Expr, zw: relax.Expr, attributes: dict, emit: Emit
) -> relax.Expr:
    """T1 of int16 − zero point; if that does not fit, T1 − zw·Σ Qa − za·(Σ Qw − K·zw) in the accumulator's dtype."""
    dtype, groups = attributes.pop("out_dtype"), attributes["groups"]
    out_channels, *window = shape_of(weight)

    def sums(data: relax.Expr, weight: relax.Expr, **attributes: Any) -> relax.Expr:
        accumulate = partial(qnn.conv2d_accumulate, **attributes)
        return _sums(accumulate, data, weight, dtype, emit, math.prod(window[:2]))

    if _fits_int16(data, za) and _fits_int16(weight, zw):
        return sums(_widen(data, za, -1, emit), _widen(weight, zw, 0, emit), **attributes)
    known = constant_value(za)
    if known is None:
        data, attributes = _padded(data, za, attributes, emit)
    attributes = {**attributes, "pad_value": 0 if known is None else _scalar(known)}
    ones = constant(np.ones((groups, *window), str(weight.ty.dtype)))
    rows = emit(qnn.conv2d_accumulate(data, ones, out_dtype=dtype, **attributes))
    if groups > 1:
        rows = emit(relax.op.repeat(rows, out_channels // groups, axis=3))
    columns = emit(relax.op.sum(_in_dtype(weight, dtype, emit), axis=[1, 2, 3]))
    return _minus_sums(sums(data, weight, **attributes), rows, columns, math.prod(window), (za, zw), emit)


def _ohwi(weight: relax.Expr, kernel_layout: str, groups: int, emit: Emit) -> relax.Expr:
    """`weight_to_ohwi` of a weight computed at run time."""
    if kernel_layout == "HWOI" and groups > 1:
        by_channel = emit(relax.op.permute_dims(weight, [2, 3, 0, 1]))
        return emit(relax.op.reshape(by_channel, ohwi_shape(shape_of(weight), kernel_layout, groups)))
    return emit(relax.op.permute_dims(weight, list(permutation(kernel_layout, "OHWI"))))


def _padded(data: relax.Expr, zero_point: relax.Expr, attributes: dict, emit: Emit) -> tuple[relax.Expr, dict]:
    """NHWC data padded with a run-time zero point, and the attributes without padding."""
    top, left, bottom, right = attributes["padding"]
    if not any(attributes["padding"]):
        return data, attributes
    widths = [0, 0, top, bottom, left, right, 0, 0]
    framed = emit(relax.op.nn.pad(data, widths, pad_mode="constant", pad_value=0))
    height, width = (int(dim) for dim in list(data.ty.shape)[1:3])
    inside = np.pad(np.ones((1, height, width, 1), bool), [(0, 0), (top, bottom), (left, right), (0, 0)])
    frame = emit(relax.op.astype(emit(relax.op.reshape(zero_point, ())), str(data.ty.dtype)))
    return emit(relax.op.where(constant(inside), framed, frame)), {**attributes, "padding": (0, 0, 0, 0)}


def _conv2d_terms(
    data: relax.Expr, weight: np.ndarray, zero_point: relax.Expr, zw: np.ndarray, attributes: dict, emit: Emit
) -> relax.Expr:
    known = constant_value(zero_point)
    za = 0 if known is None else _scalar(known)
    groups, out_channels = attributes["groups"], weight.shape[0]
    geometry = {key: attributes[key] for key in ("strides", "padding", "dilation", "groups")}
    depthwise = groups > 1 and weight.shape[3] == 1
    shifted = shift_weight(weight, zw.reshape(-1, 1, 1, 1))
    if shifted is not None and (depthwise or shifted.dtype == np.int8 or weight.dtype == np.int16):
        weight, zw = shifted, np.zeros(1, np.int64)
    zw = zw.astype(np.int64)
    out_dtype = attributes["out_dtype"]
    accumulate = partial(qnn.conv2d_accumulate, pad_value=za, **geometry)
    window_size = math.prod(weight.shape[1:3])
    if out_dtype == "int64" and _splits_groups(weight, groups, window_size):
        single = partial(accumulate, groups=1)
        acc = _sums_of_groups(single, data, weight, groups, emit, window_size)
    else:
        acc = _sums(accumulate, data, weight, out_dtype, emit, window_size)  # T1
    if zw.any():
        if out_dtype == "int64":  # a window sum is int32
            ones = constant(np.ones((groups, *weight.shape[1:]), weight.dtype))
            window = emit(qnn.conv2d_accumulate(data, ones, pad_value=za, out_dtype=out_dtype, **geometry))
        else:
            window = emit(qnn.window_sum(data, kernel=weight.shape[1:3], pad_value=za, **geometry))
        if groups > 1:
            window = emit(relax.op.repeat(window, out_channels // groups, axis=3))
        scaled = window if (zw == 1).all() else emit(relax.op.multiply(window, constant(zw.astype(out_dtype))))
        acc = _minus(acc, scaled, emit)  # − T2
    taps = int(np.prod(weight.shape[1:]))
    columns = weight.astype(np.int64).sum(axis=(1, 2, 3)) - taps * zw
    return _minus_weight_sums(acc, zero_point, columns, emit)  # − T3 + T4


Weight: TypeAlias = "np.ndarray | relax.Expr"


def _sums(
    accumulate: Callable[..., relax.Call], data: relax.Expr, weight: Weight, dtype: str, emit: Emit, window: int = 1
) -> relax.Expr:
    """The sums of a product by weights of … × output channels × window × input channels, constant or computed ones.

    int64 is what 16-bit data need in the worst case. But CPUs have instructions only for sums in int32: so if that
    holds all sums of these weights, or of the weights of some input channels each, it is what they are computed in.
    Where weights are too large for it, their high and low bytes are multiplied on their own.
    """
    if dtype == "int64" and str(data.ty.dtype) == "int16":
        for pieces in (_whole, _in_bytes):
            terms = pieces(weight, window, emit)
            steps = [_channels_in_int32(term.magnitudes) for term in terms]
            if all(_is_divisible(data, term.magnitudes, step) for term, step in zip(terms, steps, strict=True)):
                sums = (_in_parts(accumulate, data, *one, dtype, emit) for one in zip(terms, steps, strict=True))
                return reduce(lambda one, other: emit(relax.op.add(one, other)), sums)
    return accumulate(data, _expression(weight), out_dtype=dtype)


def _splits_groups(weight: np.ndarray, groups: int, window: int) -> bool:
    """Whether a few groups of many channels have sums that int32 holds only for some of the channels at a time, which
    are not side by side in groups."""
    depth = weight.shape[-1]
    few = 1 < groups <= _MOST_PARTS and depth >= _WHOLE
    return few and 0 < _channels_in_int32(_magnitudes(weight, window)) < depth


def _sums_of_groups(
    accumulate: Callable[..., relax.Call], data: relax.Expr, weight: np.ndarray, groups: int, emit: Emit, window: int
) -> relax.Expr:
    """The sums of each group of a convolution, next to each other."""
    depth, parts = weight.shape[-1], []
    for group, own in enumerate(np.split(weight, groups)):
        some = _slice(data, group * depth, (group + 1) * depth, emit)
        parts.append(emit(_sums(accumulate, _expression(some), own, "int64", emit, window)))
    return emit(relax.op.concat(parts, 3))


class _Term(NamedTuple):
    """A part of a sum of weights: factor · value.

    magnitudes: upper bounds of Σ |value| over the window, as output channels × input channels
    """

    factor: int
    value: Weight
    magnitudes: np.ndarray


def _whole(weight: Weight, window: int, _emit: Emit) -> list[_Term]:
    return [_Term(1, weight, _magnitudes(weight, window))]


def _in_bytes(weight: Weight, window: int, emit: Emit) -> list[_Term]:
    """weight = low + 256 · high, with low in −128 … 127 and high in −128 … 128."""
    if isinstance(weight, np.ndarray):
        low = weight.astype(np.int8)  # keeps the low bits
        high = _narrowed((weight.astype(np.int32) - low) >> 8)
        return [_Term(factor, value, _magnitudes(value, window)) for factor, value in ((1, low), (256, high))]
    low = emit(relax.op.astype(weight, "int8"))
    wide = emit(relax.op.subtract(*(emit(relax.op.astype(value, "int32")) for value in (weight, low))))
    high = emit(relax.op.right_shift(wide, constant(np.asarray(8, np.int32))))
    bound = _magnitudes(low, window)
    return [_Term(f, emit(relax.op.astype(value, "int16")), bound) for f, value in ((1, low), (256, high))]


def _magnitudes(weight: Weight, window: int) -> np.ndarray:
    """Σ |weight| over the window, or for a computed one the largest that its dtype allows."""
    if isinstance(weight, np.ndarray):
        return np.abs(weight.astype(np.int64)).reshape(-1, window, weight.shape[-1]).sum(axis=1)
    ends = np.iinfo(str(weight.ty.dtype))
    return np.full((1, shape_of(weight)[-1]), window * max(-ends.min, ends.max))


def _is_divisible(data: relax.Expr, magnitudes: np.ndarray, step: int) -> bool:
    """Whether a product can be computed for `step` input channels at a time: not in groups, whose channels are not
    side by side."""
    channels = magnitudes.shape[-1]
    return step >= channels or (step > 0 and shape_of(data)[-1] == channels)


def _in_parts(
    accumulate: Callable[..., relax.Call], data: relax.Expr, term: _Term, step: int, dtype: str, emit: Emit
) -> relax.Expr:
    """The sums of one term, computed in int32 for `step` input channels at a time and added in `dtype`."""
    channels = term.magnitudes.shape[-1]

    def part(first: int) -> relax.Expr:
        last = min(first + step, channels)
        some, own = (one if step >= channels else _slice(one, first, last, emit) for one in (data, term.value))
        sums = emit(relax.op.astype(emit(accumulate(some, _expression(own), out_dtype="int32")), dtype))
        return sums if term.factor == 1 else emit(relax.op.multiply(sums, constant(np.asarray(term.factor, dtype))))

    return reduce(lambda one, other: emit(relax.op.add(one, other)), map(part, range(0, channels, step)))


def _slice(operand: Weight, first: int, last: int, emit: Emit) -> Weight:
    if isinstance(operand, np.ndarray):
        return operand[..., first:last]
    return emit(relax.op.strided_slice(operand, [-1], [first], [last]))


def _expression(weight: Weight) -> relax.Expr:
    return constant(np.ascontiguousarray(weight)) if isinstance(weight, np.ndarray) else weight


def _channels_in_int32(magnitudes: np.ndarray) -> int:
    """For how many consecutive input channels, the last axis, int32 holds the sum of any int16 values times the weights
    of each output channel, and all parts of it; 0 if that takes more than `_MOST_PARTS` sums."""
    channels = magnitudes.shape[-1]
    for parts in range(1, _MOST_PARTS + 1):
        step = -(-channels // parts)
        step = step if parts == 1 else -(-step // _WHOLE) * _WHOLE
        sums = np.add.reduceat(magnitudes, np.arange(0, channels, step), axis=1)
        if int(sums.max(initial=0)) << 15 < 1 << 31:
            return step
    return 0


_MOST_PARTS = 8  # each takes a kernel of its own
_WHOLE = 16  # channels, so that parts begin where vectors do


def _row_sum(data: relax.Expr, dtype: str, emit: Emit) -> relax.Expr:
    """Σ over the last axis, which is kept, in the accumulator's dtype: `qnn.row_sum` is int32."""
    return _wide_sum(data, dtype, emit) if dtype == "int64" else emit(qnn.row_sum(data))


# ---- dense -------------------------------------------------------------------------------------------------------


@canonical("qnn.dense")
def canonicalize_dense(call: relax.Call, emit: Emit) -> relax.Expr:
    """qnn.dense: the same identity with K = the inner dimension."""
    data, weight, input_zero_point, weight_zero_point, *_ = call.args
    out_dtype = call_attributes(call)["out_dtype"]
    values = _constants(weight, weight_zero_point)
    if values is None:
        zero_points = (input_zero_point, weight_zero_point)
        if not (_fits_int16(data, input_zero_point) and _fits_int16(weight, weight_zero_point)):
            product = emit(_sums(qnn.dense_accumulate, data, weight, out_dtype, emit))
            return _as_terms(product, data, weight, zero_points, emit)
        x = _widen(data, input_zero_point, -1, emit)
        return _sums(qnn.dense_accumulate, x, _widen(weight, weight_zero_point, 0, emit), out_dtype, emit)
    matrix, zw = values[0], values[1].reshape(-1)
    shifted = shift_weight(matrix, zw.reshape(-1, 1))
    if shifted is not None and (shifted.dtype == np.int8 or matrix.dtype == np.int16):
        matrix, zw = shifted, np.zeros(1, np.int64)
    zw = zw.astype(np.int64)
    acc = _sums(qnn.dense_accumulate, data, matrix, out_dtype, emit)  # T1
    if zw.any():
        rows = _row_sum(data, out_dtype, emit)
        acc = _minus(acc, emit(relax.op.multiply(rows, constant(zw.astype(out_dtype)))), emit)  # − T2
    columns = matrix.astype(np.int64).sum(axis=1) - matrix.shape[1] * zw
    return _minus_weight_sums(acc, input_zero_point, columns, emit)  # − T3 + T4


@canonical("qnn.contrib_dense_pack")
def canonicalize_dense_pack(call: relax.Call, emit: Emit) -> relax.Expr:
    """qnn.dense over the unpacked weight."""
    attributes = call_attributes(call)
    data, weight, za, zw, sa, sw = call.args
    value = constant_value(weight)
    if value is not None:
        weight = constant(unpack_weight(value, attributes["kernel_layout"]))
    elif attributes["kernel_layout"] != "NC":
        blocks, depth = (int(dim) for dim in list(weight.ty.shape)[:2])
        split = emit(relax.op.permute_dims(weight, [0, 2, 1, 3]))
        weight = emit(relax.op.reshape(split, (blocks * 32, depth * 4)))
    return canonicalize_dense(qnn.dense(data, weight, za, zw, sa, sw, attributes["out_dtype"]), emit)


# ---- batch_matmul ------------------------------------------------------------------------------------------------


@canonical("qnn.batch_matmul")
def canonicalize_batch_matmul(call: relax.Call, emit: Emit) -> relax.Expr:
    """qnn.batch_matmul: both are run-time operands, so T2 and T3 are row sums; T4 is constant."""
    x, y, x_zero_point, y_zero_point, *_ = call.args
    out_dtype = call_attributes(call)["out_dtype"]
    batch = max(int(x.ty.shape[0]), int(y.ty.shape[0]))
    x, y = (_broadcast_batch(operand, batch, emit) for operand in (x, y))
    values = _constants(x_zero_point, y_zero_point)
    if values is None:
        if not (_fits_int16(x, x_zero_point) and _fits_int16(y, y_zero_point)):
            product = emit(_batch_matmul_sums(x, y, out_dtype, emit))
            return _as_terms(product, x, y, (x_zero_point, y_zero_point), emit)
        x, y = _widen(x, x_zero_point, -1, emit), _widen(y, y_zero_point, -1, emit)
        return _batch_matmul_sums(x, y, out_dtype, emit)
    zx, zy = map(_scalar, values)
    acc = _batch_matmul_sums(x, y, out_dtype, emit)  # T1
    if zy:
        rows = _row_sum(x, out_dtype, emit)  # (B, M, 1)
        acc = _minus(acc, emit(relax.op.multiply(rows, constant(np.asarray(zy, out_dtype)))), emit)  # − T2
    if zx:
        columns = emit(relax.op.permute_dims(_row_sum(y, out_dtype, emit), [0, 2, 1]))  # (B, 1, N)
        acc = _minus(acc, emit(relax.op.multiply(columns, constant(np.asarray(zx, out_dtype)))), emit)  # − T3
    depth = int(x.ty.shape[2])
    return subtract_constant(acc, np.asarray(-depth * zx * zy, np.int64), emit)  # + T4


def _batch_matmul_sums(x: relax.Expr, y: relax.Expr, dtype: str, emit: Emit) -> relax.Expr:
    """x · yᵀ, of which the narrower or else smaller operand is divided if need be. For a few rows that costs more
    than it saves."""
    if min(shape_of(x)[1], shape_of(y)[1]) < _FEW:
        return qnn.batch_matmul_accumulate(x, y, out_dtype=dtype)
    if _extent(x) < _extent(y):
        return _sums(lambda y, x, **types: qnn.batch_matmul_accumulate(x, y, **types), y, x, dtype, emit)
    return _sums(qnn.batch_matmul_accumulate, x, y, dtype, emit)


def _extent(operand: relax.Expr) -> tuple[int, int]:
    return np.dtype(str(operand.ty.dtype)).itemsize, math.prod(shape_of(operand))


_FEW = 8


def _broadcast_batch(operand: relax.Expr, batch: int, emit: Emit) -> relax.Expr:
    shape = [int(dim) for dim in operand.ty.shape]
    return operand if shape[0] == batch else emit(relax.op.broadcast_to(operand, [batch, *shape[1:]]))

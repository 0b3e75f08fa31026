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
    shifted = weight.astype(np.int32) - zero_point
    for dtype in (np.int8, np.int16):
        if shifted.min(initial=0) >= np.iinfo(dtype).min and shifted.max(initial=0) <= np.iinfo(dtype).max:
            return shifted.astype(dtype)
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
    if _fits_int16(data, za) and _fits_int16(weight, zw):
        return qnn.conv2d_accumulate(_widen(data, za, -1, emit), _widen(weight, zw, 0, emit), **attributes)
    known, dtype, groups = constant_value(za), attributes["out_dtype"], attributes["groups"]
    if known is None:
        data, attributes = _padded(data, za, attributes, emit)
    attributes = {**attributes, "pad_value": 0 if known is None else _scalar(known)}
    out_channels, *window = (int(dim) for dim in weight.ty.shape)
    ones = constant(np.ones((groups, *window), str(weight.ty.dtype)))
    sums = emit(qnn.conv2d_accumulate(data, ones, **attributes))
    if groups > 1:
        sums = emit(relax.op.repeat(sums, out_channels // groups, axis=3))
    columns = emit(relax.op.sum(_in_dtype(weight, dtype, emit), axis=[1, 2, 3]))
    acc = qnn.conv2d_accumulate(data, weight, **attributes)
    return _minus_sums(acc, sums, columns, math.prod(window), (za, zw), emit)


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
    acc = _sums(partial(qnn.conv2d_accumulate, pad_value=za, **geometry), data, weight, out_dtype, emit)  # T1
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


def _sums(
    accumulate: Callable[..., relax.Call], data: relax.Expr, weight: np.ndarray, dtype: str, emit: Emit
) -> relax.Expr:
    """The sums of a product by weights of output channels × … × input channels.

    int64 is what 16-bit data need in the worst case. But CPUs have instructions only for sums in int32: so if that
    holds all sums of these weights, or of the weights of some input channels each, it is what they are computed in.
    """
    channels = weight.shape[-1]
    step = _channels_in_int32(weight) if dtype == "int64" and str(data.ty.dtype) == "int16" else 0
    if not step or (step < channels and shape_of(data)[-1] != channels):  # the latter: groups
        return accumulate(data, constant(weight), out_dtype=dtype)

    def part(first: int) -> relax.Expr:
        last = min(first + step, channels)
        some = data if step >= channels else emit(relax.op.strided_slice(data, [-1], [first], [last]))
        own = constant(np.ascontiguousarray(weight[..., first:last]))
        return emit(relax.op.astype(emit(accumulate(some, own, out_dtype="int32")), dtype))

    return reduce(lambda one, other: emit(relax.op.add(one, other)), map(part, range(0, channels, step)))


def _channels_in_int32(weight: np.ndarray) -> int:
    """For how many consecutive input channels, the last axis, int32 holds the sum of any int16 values times the weights
    of each output channel, and all parts of it; 0 if that takes more than `_MOST_PARTS` sums."""
    channels = weight.shape[-1]
    magnitudes = np.abs(weight.astype(np.int64)).reshape(len(weight), -1, channels).sum(axis=1)
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
            product = emit(qnn.dense_accumulate(data, weight, out_dtype=out_dtype))
            return _as_terms(product, data, weight, zero_points, emit)
        x = _widen(data, input_zero_point, -1, emit)
        return qnn.dense_accumulate(x, _widen(weight, weight_zero_point, 0, emit), out_dtype=out_dtype)
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
            product = emit(qnn.batch_matmul_accumulate(x, y, out_dtype=out_dtype))
            return _as_terms(product, x, y, (x_zero_point, y_zero_point), emit)
        x, y = _widen(x, x_zero_point, -1, emit), _widen(y, y_zero_point, -1, emit)
        return qnn.batch_matmul_accumulate(x, y, out_dtype=out_dtype)
    zx, zy = map(_scalar, values)
    acc: relax.Expr = qnn.batch_matmul_accumulate(x, y, out_dtype=out_dtype)  # T1
    if zy:
        rows = _row_sum(x, out_dtype, emit)  # (B, M, 1)
        acc = _minus(acc, emit(relax.op.multiply(rows, constant(np.asarray(zy, out_dtype)))), emit)  # − T2
    if zx:
        columns = emit(relax.op.permute_dims(_row_sum(y, out_dtype, emit), [0, 2, 1]))  # (B, 1, N)
        acc = _minus(acc, emit(relax.op.multiply(columns, constant(np.asarray(zx, out_dtype)))), emit)  # − T3
    depth = int(x.ty.shape[2])
    return subtract_constant(acc, np.asarray(-depth * zx * zy, np.int64), emit)  # + T4


def _broadcast_batch(operand: relax.Expr, batch: int, emit: Emit) -> relax.Expr:
    shape = [int(dim) for dim in operand.ty.shape]
    return operand if shape[0] == batch else emit(relax.op.broadcast_to(operand, [batch, *shape[1:]]))

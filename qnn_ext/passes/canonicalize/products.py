"""conv2d, dense and batch_matmul as four terms.

    Σ (Qa − za)(Qw − zw)  =  Σ Qa·Qw  −  zw·Σ Qa  −  za·Σ Qw  +  K·za·zw
                              T1          T2          T3          T4

T1 is the integer product the kernels compute. Padding is filled with za, so each window has all K = kh·kw·C/G terms.
T2 exists only where zw ≠ 0; it is zw times a *sum* over the window, which stays exact with dilation, groups and
padding. T3 and T4 are constants of the weights and fold into one addition, and the bias with them. With a depthwise
convolution a window sum would cost as much as T1: there Qw − zw is formed at compile time, in int16 if need be.

With constant weights za may come at run time: a convolution then pads its data with it first, and T3 and T4 are one
product of za with constants. Weights that come at run time, or their zero points, are widened to int16 and shifted
first, as the activations are, and T1 is all there is.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from ... import op as qnn
from ...op.base import call_attributes, constant, constant_value
from ...op.conv2d import permutation, weight_to_ohwi
from ...op.dense import unpack_weight
from ..rewrite import Emit
from .rules import canonical


def _constants(*exprs: relax.Expr) -> list[np.ndarray] | None:
    """The values of the expressions, or None unless all are constant."""
    values = [constant_value(expr) for expr in exprs]
    return None if any(value is None for value in values) else values  # type: ignore[return-value]


def _scalar(value: np.ndarray) -> int:
    return int(value.reshape(()))


def shift_weight(weight: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
    """weight − zero_point (already shaped to broadcast) in the narrowest of int8 and int16 that holds it."""
    shifted = weight.astype(np.int32) - zero_point
    narrow = shifted.min(initial=0) >= -128 and shifted.max(initial=0) <= 127
    return shifted.astype(np.int8 if narrow else np.int16)


def subtract_constant(acc: relax.Expr, value: np.ndarray, emit: Emit) -> relax.Expr:
    """acc − value, nothing when value is 0 throughout. `value` is int64 and wraps to acc's dtype, as the sums do."""
    if not value.any():
        return acc
    return relax.op.add(emit(acc), constant((-value).astype(str(emit(acc).ty.dtype))))


def _minus(acc: relax.Expr, term: relax.Expr, emit: Emit) -> relax.Expr:
    acc, term = emit(acc), emit(term)
    if str(acc.ty.dtype) != str(term.ty.dtype):
        term = emit(relax.op.astype(term, str(acc.ty.dtype)))
    return relax.op.subtract(acc, term)


def _minus_weight_sums(acc: relax.Expr, zero_point: relax.Expr, sums: np.ndarray, emit: Emit) -> relax.Expr:
    """acc − za · Σ (Qw − zw), one sum per output channel; za may come at run time."""
    known = constant_value(zero_point)
    if known is not None:
        return subtract_constant(acc, _scalar(known) * sums, emit)
    if not sums.any():
        return acc
    scalar = emit(relax.op.reshape(zero_point, ()))
    return _minus(acc, emit(relax.op.multiply(scalar, constant(sums.astype(np.int32)))), emit)


def _widen(data: relax.Expr, zero_point: relax.Expr, axis: int, emit: Emit) -> relax.Expr:
    """int16 data − zero_point, for zero points known at run time only."""
    return emit(qnn.requantize(data, 1.0, zero_point, 1.0, 0, axis=axis, out_dtype="int16"))


# ---- conv2d ------------------------------------------------------------------------------------------------------


@canonical("qnn.conv2d")
def canonicalize_conv2d(call: relax.Call, emit: Emit) -> relax.Expr:
    """qnn.conv2d in any layout as NHWC/OHWI terms."""
    data, weight, input_zero_point, weight_zero_point = call.args[:4]
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
        weight_expr = constant(weight_value) if weight_value is not None else _permuted(weight, kernel_layout, emit)
        shifted = _widen(weight_expr, weight_zero_point, 0, emit)
        acc = qnn.conv2d_accumulate(_widen(data, input_zero_point, -1, emit), shifted, **attributes)
    if layout != "NHWC":
        acc = relax.op.permute_dims(emit(acc), list(permutation("NHWC", layout)))
    return acc


def _permuted(weight: relax.Expr, kernel_layout: str, emit: Emit) -> relax.Expr:
    return emit(relax.op.permute_dims(weight, list(permutation(kernel_layout, "OHWI"))))


def _padded(data: relax.Expr, zero_point: relax.Expr, attributes: dict, emit: Emit) -> tuple[relax.Expr, dict]:
    """NHWC data padded with a zero point of run time, and the attributes without padding."""
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
    if depthwise or shifted.dtype == np.int8 or weight.dtype == np.int16:
        weight, zw = shifted, np.zeros(1, np.int64)
    zw = zw.astype(np.int64)
    acc: relax.Expr = qnn.conv2d_accumulate(
        data, constant(weight), pad_value=za, out_dtype=attributes["out_dtype"], **geometry
    )  # T1
    if zw.any():
        window = emit(qnn.window_sum(data, kernel=weight.shape[1:3], pad_value=za, **geometry))
        if groups > 1:
            window = emit(relax.op.repeat(window, out_channels // groups, axis=3))
        scaled = window if (zw == 1).all() else emit(relax.op.multiply(window, constant(zw.astype(np.int32))))
        acc = _minus(acc, scaled, emit)  # − T2
    taps = int(np.prod(weight.shape[1:]))
    columns = weight.astype(np.int64).sum(axis=(1, 2, 3)) - taps * zw
    return _minus_weight_sums(acc, zero_point, columns, emit)  # − T3 + T4


# ---- dense -------------------------------------------------------------------------------------------------------


@canonical("qnn.dense")
def canonicalize_dense(call: relax.Call, emit: Emit) -> relax.Expr:
    """qnn.dense: the same identity with K = the inner dimension."""
    data, weight, input_zero_point, weight_zero_point = call.args[:4]
    out_dtype = call_attributes(call)["out_dtype"]
    values = _constants(weight, weight_zero_point)
    if values is None:
        x = _widen(data, input_zero_point, -1, emit)
        return qnn.dense_accumulate(x, _widen(weight, weight_zero_point, 0, emit), out_dtype=out_dtype)
    matrix, zw = values[0], values[1].reshape(-1)
    shifted = shift_weight(matrix, zw.reshape(-1, 1))
    if shifted.dtype == np.int8 or matrix.dtype == np.int16:
        matrix, zw = shifted, np.zeros(1, np.int64)
    zw = zw.astype(np.int64)
    acc: relax.Expr = qnn.dense_accumulate(data, constant(matrix), out_dtype=out_dtype)  # T1
    if zw.any():
        rows = emit(qnn.row_sum(data))
        acc = _minus(acc, emit(relax.op.multiply(rows, constant(zw.astype(np.int32)))), emit)  # − T2
    columns = matrix.astype(np.int64).sum(axis=1) - matrix.shape[1] * zw
    return _minus_weight_sums(acc, input_zero_point, columns, emit)  # − T3 + T4


@canonical("qnn.contrib_dense_pack")
def canonicalize_dense_pack(call: relax.Call, emit: Emit) -> relax.Expr:
    """qnn.dense over the unpacked weight."""
    attributes = call_attributes(call)
    weight, value = call.args[1], constant_value(call.args[1])
    if value is not None:
        weight = constant(unpack_weight(value, attributes["kernel_layout"]))
    elif attributes["kernel_layout"] != "NC":
        blocks, depth = (int(dim) for dim in list(weight.ty.shape)[:2])
        split = emit(relax.op.permute_dims(weight, [0, 2, 1, 3]))
        weight = emit(relax.op.reshape(split, (blocks * 32, depth * 4)))
    data, _, za, zw, sa, sw = call.args
    return canonicalize_dense(qnn.dense(data, weight, za, zw, sa, sw, attributes["out_dtype"]), emit)


# ---- batch_matmul ------------------------------------------------------------------------------------------------


@canonical("qnn.batch_matmul")
def canonicalize_batch_matmul(call: relax.Call, emit: Emit) -> relax.Expr:
    """qnn.batch_matmul: both operands come at run time, so T2 and T3 are row sums; T4 is constant."""
    x, y, x_zero_point, y_zero_point = call.args[:4]
    out_dtype = call_attributes(call)["out_dtype"]
    batch = max(int(x.ty.shape[0]), int(y.ty.shape[0]))
    x, y = (_broadcast_batch(operand, batch, emit) for operand in (x, y))
    values = _constants(x_zero_point, y_zero_point)
    if values is None:
        x, y = _widen(x, x_zero_point, -1, emit), _widen(y, y_zero_point, -1, emit)
        return qnn.batch_matmul_accumulate(x, y, out_dtype=out_dtype)
    zx, zy = map(_scalar, values)
    acc: relax.Expr = qnn.batch_matmul_accumulate(x, y, out_dtype=out_dtype)  # T1
    if zy:
        rows = emit(qnn.row_sum(x))  # (B, M, 1)
        acc = _minus(acc, emit(relax.op.multiply(rows, constant(np.int32(zy)))), emit)  # − T2
    if zx:
        columns = emit(relax.op.permute_dims(emit(qnn.row_sum(y)), [0, 2, 1]))  # (B, 1, N)
        acc = _minus(acc, emit(relax.op.multiply(columns, constant(np.int32(zx)))), emit)  # − T3
    depth = int(x.ty.shape[2])
    return subtract_constant(acc, np.asarray(-depth * zx * zy, np.int64), emit)  # + T4


def _broadcast_batch(operand: relax.Expr, batch: int, emit: Emit) -> relax.Expr:
    shape = [int(dim) for dim in operand.ty.shape]
    return operand if shape[0] == batch else emit(relax.op.broadcast_to(operand, [batch, *shape[1:]]))

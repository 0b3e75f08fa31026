"""Hybrid products: float activations are quantized at run time, row by row, and multiplied with int8 weights in
integers.

q = round(x / s) + z per row; Σ (q − z)·w = Σ q·w − z·Σ w, where the second sum is a constant of the weights; one
multiplication by s·s_w then turns the accumulator back into float. It converts no operators.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op.base import constant
from ..node import Node, shape_of
from ..weights import packed_matrix
from .accumulators import as_dtype, float_bias, number, reshaped


@dataclass(frozen=True)
class Rows:
    """Activations quantized per row.

    data:       int8, in the shape of the activations
    scale:      float32 (rows, 1)
    zero_point: int32 (rows, 1), None when symmetric
    """

    data: relax.Expr
    scale: relax.Expr
    zero_point: relax.Expr | None


def quantize_rows(node: Node, data: relax.Expr, rows: int, asymmetric: bool) -> Rows:
    """Quantize float32 `data`, which divides into `rows` equal rows, each with the smallest scale that covers it.

    asymmetric: how TFLite's own kernel does it; XNNPACK always does it its own way, with zero points
    """
    shape = shape_of(data)
    flat = reshaped(node, data, (rows, int(np.prod(shape)) // rows))
    if node.delegated:
        scale, inverse, zero_point = _xnnpack(node, flat)
    else:
        scale, inverse, zero_point = _asymmetric(node, flat) if asymmetric else _symmetric(node, flat)
    scaled = node.emit(relax.op.multiply(flat, inverse))
    points = 0 if zero_point is None else node.emit(relax.op.reshape(zero_point, (rows,)))
    rounding = "TONEAREST_EVEN" if node.delegated else "TONEAREST"
    quantized = node.emit(qnn.quantize(scaled, 1.0, points, axis=0, out_dtype="int8", rounding=rounding))
    return Rows(reshaped(node, quantized, shape), scale, zero_point)


def _symmetric(node: Node, flat: relax.Expr) -> tuple[relax.Expr, relax.Expr, None]:
    """s = max|x| / 127; TFLite's SymmetricQuantizeFloats. A row of zeros has s = 1."""
    emit, top = node.emit, number(127)
    largest = emit(relax.op.max(emit(relax.op.abs(flat)), axis=[1], keepdims=True))
    extent = emit(relax.op.where(emit(relax.op.equal(largest, number(0))), top, largest))
    return emit(relax.op.divide(extent, top)), emit(relax.op.divide(top, extent)), None


def _asymmetric(node: Node, flat: relax.Expr) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """s = (max − min) / 255 over an interval that contains 0, in double but for the difference; z is taken from the end
    of the interval with the smaller rounding error; TFLite's AsymmetricQuantizeFloats. A row of zeros has s = 1."""
    emit = node.emit

    def real(value: float) -> relax.Expr:
        return number(value, "float64")

    zero = number(0)
    ends = [
        emit(relax.op.minimum(emit(relax.op.min(flat, axis=[1], keepdims=True)), zero)),
        emit(relax.op.maximum(emit(relax.op.max(flat, axis=[1], keepdims=True)), zero)),
    ]
    extent = emit(relax.op.subtract(ends[1], ends[0]))
    extent = emit(relax.op.where(emit(relax.op.equal(extent, zero)), number(255), extent))
    low, high, extent = (as_dtype(node, value, "float64") for value in (*ends, extent))
    scale = emit(relax.op.divide(extent, real(255)))
    below, above = emit(relax.op.divide(low, scale)), emit(relax.op.divide(high, scale))
    from_low, from_high = emit(relax.op.subtract(real(-128), below)), emit(relax.op.subtract(real(127), above))
    error_low = emit(relax.op.add(real(128), emit(relax.op.abs(below))))
    error_high = emit(relax.op.add(real(127), emit(relax.op.abs(above))))
    chosen = emit(relax.op.where(emit(relax.op.less(error_low, error_high)), from_low, from_high))
    nudged = emit(qnn.quantize(chosen, 1.0, 0, out_dtype="int8", rounding="TONEAREST"))
    narrow = as_dtype(node, scale, "float32")
    return narrow, emit(relax.op.divide(number(1), narrow)), as_dtype(node, nudged, "int32")


def _xnnpack(node: Node, flat: relax.Expr) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """As `_asymmetric`, in float32, with midpoints to even (xnn_f32_qd8_asymmetric_quantization_params). A row of zeros
    has s = 1."""
    emit, zero, one = node.emit, number(0), number(1)
    low = emit(relax.op.minimum(emit(relax.op.min(flat, axis=[1], keepdims=True)), zero))
    high = emit(relax.op.maximum(emit(relax.op.max(flat, axis=[1], keepdims=True)), zero))
    extent = emit(relax.op.subtract(high, low))
    extent = emit(relax.op.where(emit(relax.op.equal(extent, zero)), number(255), extent))
    inverse = emit(relax.op.divide(number(255), extent))
    below, above = emit(relax.op.multiply(low, inverse)), emit(relax.op.multiply(high, inverse))
    errors = emit(relax.op.add(emit(relax.op.add(number(-128), below)), emit(relax.op.add(number(127), above))))
    from_low, from_high = emit(relax.op.subtract(number(-128), below)), emit(relax.op.subtract(number(127), above))
    chosen = emit(relax.op.where(emit(relax.op.greater(errors, zero)), from_low, from_high))
    nudged = emit(qnn.quantize(chosen, 1.0, 0, out_dtype="int8"))
    return emit(relax.op.divide(one, inverse)), inverse, as_dtype(node, nudged, "int32")


def packed_product(node: Node, rows: Rows, bias: relax.Expr | None = None) -> relax.Expr:
    """Activations (…, K), quantized per row of their first axis, times the node's weights (N, K), which stay packed,
    and a bias: float32 (…, N)."""
    weight = packed_matrix(node, 1, bfloat16_scales=node.delegated)
    if weight is None:
        raise node.unsupported(f"scales along dimension {node.qparams(1).axis} of weights; output channels are 0")
    shape = shape_of(rows.data)
    sums, totals, scale = weight.sums(node, reshaped(node, rows.data, (int(np.prod(shape[:-1])), shape[-1])))
    sums = reshaped(node, sums, (*shape[:-1], shape_of(sums)[1]))
    return dequantize_accumulator(node, sums, rows, constant(totals), scale, bias)


def dequantize_accumulator(
    node: Node,
    accumulator: relax.Expr,
    rows: Rows,
    weight_sum: relax.Expr | None,
    weight_scale: np.ndarray,
    bias: relax.Expr | None = None,
    weight_first: bool = False,
) -> relax.Expr:
    """(Σ q·w − z·Σ w) · (s · s_w) + bias in float32; with `weight_first`, times s_w and then times s. XNNPACK
    multiplies by s, and then by s_w and adds the bias in one step, which rounds once.

    accumulator: int32 or float32, its first axis the rows, its last the output channels; weight_sum: of the same dtype,
    broadcasts against it; weight_scale: a number, or one for each channel
    """
    acc = node.emit(accumulator)
    shape = shape_of(acc)
    column = (shape[0],) + (1,) * (len(shape) - 1)
    if rows.zero_point is not None:
        zero_point = as_dtype(node, reshaped(node, rows.zero_point, column), str(acc.ty.dtype))
        correction = node.emit(relax.op.multiply(zero_point, weight_sum))
        acc = node.emit(relax.op.subtract(acc, correction))
    real, scale = as_dtype(node, acc, "float32"), reshaped(node, rows.scale, column)
    weight = constant(weight_scale)
    if node.delegated:
        real = node.emit(relax.op.multiply(real, scale))
        if bias is None:
            return node.emit(relax.op.multiply(real, weight))
        return node.emit(qnn.fma(real, weight, float_bias(node, bias)))
    if weight_first:
        real = node.emit(relax.op.multiply(node.emit(relax.op.multiply(real, weight)), scale))
    else:
        real = node.emit(relax.op.multiply(real, node.emit(relax.op.multiply(scale, weight))))
    return real if bias is None else node.emit(relax.op.add(real, float_bias(node, bias)))

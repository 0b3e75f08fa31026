"""Dynamically quantized products: float activations are quantized to uint8 by their own range at run time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op.base import constant, shape_of
from ....op.compound import reshape
from .formulas import f32, rounded_product, scalar
from .node import Node
from .packed import Weights

# fbgemm's SMALL_SCALE_THRESHOLD
_SMALLEST_SCALE = np.float64(f32(6.1e-5))
# scales up to here have no float32 reciprocal
_NO_RECIPROCAL = np.float64(f32(1) / np.finfo(f32).max)


@dataclass(frozen=True)
class Dynamic:
    """A tensor quantized at run time: uint8 data, a float32 scale and an int32 zero point of shape ()."""

    data: relax.Expr
    scale: relax.Expr
    zero_point: relax.Expr


def quantize_dynamic(node: Node, value: relax.Expr, reduce_range: bool) -> Dynamic:
    """PyTorch's ChooseQuantizationParams in double, then rint(fma(x, 1/f32(s), z)).

    s = (max − min)/q_max over an interval that contains 0, q_max = 127 with `reduce_range`, else 255; the zero point is
    taken from the end of the interval with the smaller rounding error.
    """
    emit, op = node.emit, relax.op
    top = 127 if reduce_range else 255

    def real(number: float) -> relax.Expr:
        return constant(np.float64(number))

    low = emit(op.minimum(emit(op.astype(emit(op.min(value)), "float64")), real(0)))
    high = emit(op.maximum(emit(op.astype(emit(op.max(value)), "float64")), real(0)))
    raw = emit(op.divide(emit(op.subtract(high, low)), real(top)))
    found = emit(op.where(emit(op.less(raw, real(_NO_RECIPROCAL))), real(0.1), raw))
    below, above = emit(op.divide(low, found)), emit(op.divide(high, found))
    from_low, from_high = emit(op.subtract(real(0), below)), emit(op.subtract(real(top), above))
    error_low, error_high = emit(op.abs(below)), emit(op.add(real(top), emit(op.abs(above))))
    chosen = emit(op.where(emit(op.less(error_low, error_high)), from_low, from_high))
    nudged = emit(qnn.quantize(chosen, np.float64(1), 0, out_dtype="uint8"))
    zero = emit(op.clip(emit(op.astype(nudged, "int32")), 0, top))
    scale = emit(op.astype(emit(op.maximum(found, real(_SMALLEST_SCALE))), "float32"))
    inverse = emit(op.divide(scalar(1), scale))
    moved = emit(qnn.fma(value, inverse, emit(op.astype(zero, "float32"))))
    return Dynamic(emit(qnn.quantize(moved, 1.0, 0, out_dtype="uint8")), scale, zero)


def dynamic_linear(node: Node, value: relax.Expr, weights: Weights, reduce_range: bool) -> relax.Expr:
    """f32(acc)·(s·sw) + b, with a fused multiply-add, except in QNNPACK, which also ignores `reduce_range`."""
    *lead, depth = shape_of(value)
    flat = reshape(value, (int(np.prod(lead, dtype=np.int64)), depth), node.emit)
    qnnpack = node.engine == "qnnpack"
    rows = quantize_dynamic(node, flat, reduce_range and not qnnpack)
    acc = node.emit(qnn.dense(rows.data, constant(weights.weight), 0, weights.zero_point, 1.0, 1.0))
    shifted = weights.weight.astype(np.int32) - weights.zero_point.reshape(-1, 1).astype(np.int32)
    correction = node.emit(relax.op.multiply(rows.zero_point, constant(shifted.sum(1, dtype=np.int32))))
    real = node.emit(qnn.dequantize(node.emit(relax.op.subtract(acc, correction)), 1.0, 0))
    weight_scale = constant(weights.scale.astype(f32))
    bias = constant(np.zeros((), f32) if weights.bias is None else weights.bias.astype(f32))
    if node.engine == "onednn":
        real = rounded_product(node, rounded_product(node, real, rows.scale), weight_scale)
        result = node.emit(relax.op.add(real, bias))
    else:
        unit = node.emit(relax.op.multiply(rows.scale, weight_scale))
        if qnnpack:
            result = node.emit(relax.op.add(rounded_product(node, real, unit), bias))
        else:
            result = node.emit(qnn.fma(real, unit, bias))
    return reshape(result, (*lead, weights.weight.shape[0]), node.emit)

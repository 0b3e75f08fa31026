"""Ranges only known at run time (calib_mode='none'): a scale is a float32 value of shape (1,) that the model computes.

Products stay int32, with a range that covers all of int32, until `_contrib_requantize` measures the data.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op.base import constant
from ..node import Node
from ..scales import F32, INT_MAX, LEVELS, as_real, round_saturate

# QuantizationRangeForS8S8MultiplicationStruct and its S8U8 twin count 127 and 255 levels, not 127.5 and 255.5
RANGE_LEVELS = {"int8": F32(127), "uint8": F32(255)}


def _number(value: float | np.float32) -> relax.Expr:
    return constant(np.full(1, value, F32))


def largest(node: Node, index: int) -> relax.Expr:
    """max(|min|, |max|) of the range given by inputs `index` and `index` + 1."""
    low, high = (node.emit(relax.op.abs(node.input(i))) for i in (index, index + 1))
    return node.emit(relax.op.maximum(low, high))


def largest_of(node: Node, data: relax.Expr) -> relax.Expr:
    """max(|x|) over a whole tensor."""
    ends = (node.emit(relax.op.abs(node.emit(function(data)))) for function in (relax.op.min, relax.op.max))
    return node.emit(relax.op.reshape(node.emit(relax.op.maximum(*ends)), (1,)))


def scale(node: Node, dtype: str, span: relax.Expr) -> relax.Expr:
    """Integer steps per real unit; INT_MAX for an empty range."""
    steps = node.emit(relax.op.divide(_number(LEVELS[dtype]), span))
    return node.emit(relax.op.where(node.emit(relax.op.equal(span, _number(0))), _number(INT_MAX), steps))


def symmetric(node: Node, value: relax.Expr, span: relax.Expr) -> list[relax.Expr]:
    """The three outputs: integers and the range (−span, span)."""
    return [value, node.emit(relax.op.negative(span)), span]


def product(node: Node, *factors: relax.Expr | np.float32) -> relax.Expr:
    """The factors multiplied from left to right, each product rounded to float32."""
    result, *rest = (_number(factor) if isinstance(factor, np.floating) else factor for factor in factors)
    for factor in rest:
        result = node.emit(relax.op.multiply(result, factor))
    return result


def quantize(node: Node) -> list[relax.Expr]:
    """Float data quantized by its own range: int8, or uint8 where out_type asks for it."""
    dtype = "uint8" if node.text("out_type", "int8") == "uint8" else "int8"
    span = largest_of(node, node.input(0))
    steps = node.emit(relax.op.multiply(node.input(0), scale(node, dtype, span)))
    if dtype == "int8":
        return symmetric(node, round_saturate(steps, dtype), span)
    ends = [node.emit(function(node.input(0))) for function in (relax.op.min, relax.op.max)]
    return [round_saturate(steps, dtype), *(relax.op.reshape(end, (1,)) for end in ends)]


def requantize(node: Node) -> list[relax.Expr]:
    """int32 → int8 by the largest |q| of the data: r' = f32(max |q|)·r / 2³¹, then as for a calibrated range."""
    count = node.emit(relax.op.astype(largest_of(node, node.input(0)), "float32"))
    given = largest(node, 1)
    span = node.emit(relax.op.divide(product(node, count, given), _number(INT_MAX)))
    first = node.emit(relax.op.divide(given, _number(INT_MAX)))
    second = node.emit(relax.op.divide(_number(RANGE_LEVELS["int8"]), span))
    real = node.emit(as_real(node.input(0)))
    steps = node.emit(relax.op.multiply(real, product(node, first, second)))
    return symmetric(node, round_saturate(steps, "int8"), span)


def dequantize(node: Node) -> relax.Expr:
    """f32(q) · f32(r / S)."""
    step = node.emit(relax.op.divide(largest(node, 1), _number(LEVELS[node.dtype(0)])))
    return relax.op.multiply(node.emit(as_real(node.input(0))), step)


def rescaled_data(node: Node, index: int, factor: relax.Expr, dtype: str) -> relax.Expr:
    """saturate(rint(f32(q) · factor)) of an input."""
    real = node.emit(as_real(node.input(index)))
    return node.emit(round_saturate(node.emit(relax.op.multiply(real, factor)), dtype))


def accumulator_range(
    node: Node, acc: relax.Expr, dtype: str, data: relax.Expr, weight: np.float32
) -> list[relax.Expr]:
    """An int32 product with the range that corresponds to INT_MAX."""
    step = node.emit(relax.op.divide(data, _number(RANGE_LEVELS[dtype])))
    return symmetric(node, acc, product(node, step, F32(weight / RANGE_LEVELS["int8"]), INT_MAX))


def bias_steps(node: Node, bias: np.ndarray, factor: relax.Expr, rounding: str) -> relax.Expr:
    """A constant vector in accumulator steps: round(bias · factor) in int32."""
    steps = node.emit(relax.op.multiply(constant(bias.astype(F32)), factor))
    return node.emit(qnn.quantize(steps, 1.0, 0, out_dtype="int32", rounding=rounding, reciprocal=True))


def concatenate(node: Node, count: int, axis: int) -> list[relax.Expr]:
    """All inputs rescaled to the widest range and concatenated."""
    dtypes = [node.dtype(i) for i in range(count)]
    dtype = "int8" if "int8" in dtypes else "uint8"
    low = high = _number(0)
    for at in range(count, 3 * count, 2):
        low = node.emit(relax.op.minimum(low, node.input(at)))
        high = node.emit(relax.op.maximum(high, node.input(at + 1)))
    span = node.emit(relax.op.maximum(node.emit(relax.op.abs(low)), high))
    target, parts = scale(node, dtype, span), []
    for index in range(count):
        own = scale(node, dtypes[index], largest(node, count + 2 * index))
        parts.append(rescaled_data(node, index, node.emit(relax.op.divide(target, own)), dtype))
    return [relax.op.concat(parts, axis), low, high]


def add(node: Node) -> list[relax.Expr]:
    """The int32 sum of two int8 tensors, or two uint8 ones, with the sum of their ranges."""
    if node.dtype(0) != node.dtype(1):
        raise node.unsupported("int8 and uint8 without calibration, where MXNet saturates one operand to nothing")
    spans = [largest(node, 2), largest(node, 4)]
    total = node.emit(relax.op.add(*spans))
    levels, terms = product(node, total, LEVELS[node.dtype(0)]), []
    for index, span in enumerate(spans):
        factor = node.emit(relax.op.divide(product(node, span, INT_MAX), levels))
        terms.append(node.emit(qnn.dequantize(node.input(index), factor, 0)))
    return symmetric(node, round_saturate(node.emit(relax.op.add(*terms)), "int32"), total)

"""Integer rules of sums and products of two 8-bit tensors that are quantized again.

Between quantize operators that divide, as in ONNX, they are computed like ONNX Runtime's QLinearAdd and QLinearMul.
All others need no rule: dequantize, operator and quantize become one kernel with 8-bit operands.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ... import op as qnn
from ...numerics.reference import fused_multiply_add
from ...op.base import shape_of
from ...op.qlinear import adds_lhs_first
from .bounds import constants_of
from .context import Context
from .hoist import Quantize
from .products import add_bias
from .registry import integer_rule
from .tables import tabulate
from .tensors import Quantized


@integer_rule("add")
def _add(call: relax.Call, context: Context) -> Any:
    """A bias, a step of a function of one tensor, or a sum of two."""
    for rule in (add_bias, tabulate, _sum_of_two):
        result = rule(call, context)
        if result is not None:
            return result
    return None


@integer_rule("multiply")
def _multiply(call: relax.Call, context: Context) -> Any:
    result = tabulate(call, context)
    return _product_of_two(call, context) if result is None else result


def _operands(call: relax.Call, context: Context) -> tuple[Quantized, Quantized, Quantize] | None:
    """Two tensors with the same 8-bit dtype, if the result is quantized to it again by a division."""
    one, two = (context.quantized(arg) for arg in call.args)
    quantize = context.quantize_behind()
    if one is None or two is None or quantize is None or quantize.attributes["reciprocal"]:
        return None
    same = {one.dtype, two.dtype, quantize.out_dtype}
    known = all(tensor.per_tensor and tensor.constants is not None for tensor in (one, two))
    return (one, two, quantize) if known and len(same) == 1 and same <= {"int8", "uint8"} else None


def _parameters(tensor: Quantized) -> tuple[np.float32, np.int32]:
    assert tensor.constants is not None
    scale, zero_point = tensor.constants
    return np.float32(scale.item()), np.int32(zero_point.item())


def _sum_of_two(call: relax.Call, context: Context) -> Any:
    """q = saturate(rint(fma(a, m_a, fma(b, m_b, offset)))), m = s / s_y, offset = z_y − fma(m_a, z_a, m_b·z_b)."""
    found = _operands(call, context)
    if found is None:
        return None
    one, two, quantize = found
    (a_scale, a_zero), (b_scale, b_zero) = _parameters(one), _parameters(two)
    scale, zero_point = constants_of(quantize)
    a_factor, b_factor = a_scale / np.float32(scale), b_scale / np.float32(scale)
    zeros = fused_multiply_add(*map(np.asarray, (a_factor, np.float32(a_zero), b_factor * np.float32(b_zero))))
    offset = np.float32(zero_point) - np.float32(zeros)
    operands = [(one.data, a_factor), (two.data, b_factor)]
    if adds_lhs_first(shape_of(one.data), shape_of(two.data)):
        operands.reverse()
    (outer, outer_factor), (inner, inner_factor) = operands
    total = qnn.qlinear_add(
        outer, inner, 0, 0, outer_factor, inner_factor, np.float32(offset), 0, out_dtype=quantize.out_dtype
    )
    return Quantized(context.emit(total), quantize.scale, quantize.zero_point)


def _product_of_two(call: relax.Call, context: Context) -> Any:
    """q = saturate(rint(f32((a − z_a)(b − z_b))·m + z_y)), m = (s_a·s_b) / s_y."""
    found = _operands(call, context)
    if found is None:
        return None
    one, two, quantize = found
    (a_scale, a_zero), (b_scale, b_zero) = _parameters(one), _parameters(two)
    scale, zero_point = constants_of(quantize)
    factor = np.float32(a_scale * b_scale) / np.float32(scale)
    product = qnn.qlinear_mul(
        one.data, two.data, a_zero, b_zero, factor, np.float32(zero_point), 0, out_dtype=quantize.out_dtype
    )
    return Quantized(context.emit(product), quantize.scale, quantize.zero_point)

"""Elementwise operators of com.microsoft on quantized tensors: sums, products, functions by lookup table, Concat,
Where.

All of them equal ONNX Runtime's CPU kernels (MLAS on x86 with AVX2) bit for bit when scales and zero points are
constant, QLinearAdd and QLinearMul also when they are run-time values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from tvm import relax

from .... import op as qnn
from ....numerics import elementary, mlas
from ....op.base import normalize_axis, shape_of
from ....op.qlinear import adds_lhs_first
from ....op.table import function_table
from ....qparams import QParams
from ..node import Node
from ..registry import MICROSOFT, converter
from .arithmetic import cast, float_function, known, lookup, minus, number, over, scalar, times
from .qdq import dequantize_linear, quantize_linear

converter("QuantizeLinear", domain=MICROSOFT)(quantize_linear)
converter("DequantizeLinear", domain=MICROSOFT)(dequantize_linear)


# ---- two operands ------------------------------------------------------------------------------------------------


def _operands(node: Node) -> list[tuple[relax.Expr, relax.Expr]]:
    """(scale, zero point) of A, B and C, each a scalar."""
    return [
        (
            scalar(node, node.scale(index), f"the scale of {name}"),
            scalar(node, node.zero_point(index + 1), f"the zero point of {name}"),
        )
        for name, index in (("A", 1), ("B", 4), ("C", 6))
    ]


@converter("QLinearAdd", domain=MICROSOFT)
def qlinear_add(node: Node) -> relax.Expr:
    """q = saturate(rint(fma(a, m_a, fma(b, m_b, offset)))), m = s / s_c, offset = z_c − fma(m_a, z_a, m_b·z_b).

    Bit-exact with ONNX Runtime, which swaps the operands where A is broadcast along the innermost axis.
    """
    (a_scale, a_zero), (b_scale, b_zero), (c_scale, c_zero) = _operands(node)
    a_factor, b_factor = over(node, a_scale, c_scale), over(node, b_scale, c_scale)
    a_zero, b_zero, c_zero = (cast(node, zero, "float32") for zero in (a_zero, b_zero, c_zero))
    operands = [(node.input(0), a_factor, a_zero), (node.input(3), b_factor, b_zero)]
    if adds_lhs_first(node.shape(0), node.shape(3)):
        operands.reverse()
    (outer, outer_factor, outer_zero), (inner, inner_factor, inner_zero) = operands
    zeros = node.emit(qnn.fma(outer_factor, outer_zero, times(node, inner_factor, inner_zero)))
    offset = minus(node, c_zero, zeros)
    return qnn.qlinear_add(outer, inner, 0, 0, outer_factor, inner_factor, offset, 0, out_dtype=node.dtype(0))


@converter("QLinearMul", domain=MICROSOFT)
def qlinear_mul(node: Node) -> relax.Expr:
    """q = saturate(rint(f32((a − z_a)(b − z_b))·m + z_c)), m = (s_a·s_b) / s_c; bit-exact with ONNX Runtime."""
    (a_scale, a_zero), (b_scale, b_zero), (c_scale, c_zero) = _operands(node)
    factor = over(node, times(node, a_scale, b_scale), c_scale)
    offset = cast(node, c_zero, "float32")
    return qnn.qlinear_mul(node.input(0), node.input(3), a_zero, b_zero, factor, offset, 0, out_dtype=node.dtype(0))


# ---- functions by lookup table -----------------------------------------------------------------------------------


def by_table(
    node: Node,
    data: relax.Expr,
    source: tuple[relax.Expr, relax.Expr],
    target: tuple[relax.Expr, relax.Expr],
    table: Callable[[np.ndarray], np.ndarray],
    computed: Callable[[relax.Expr], relax.Expr],
    out_dtype: str,
) -> relax.Expr:
    """saturate(rint(f(s_x·(x − z_x)) / s_y) + z_y) in float32 for every value of x.

    source, target: (scale, zero point). table: f in NumPy; computed: f in Relax, for run-time scales
    """
    dtype = str(data.ty.dtype)
    if dtype not in ("int8", "uint8") or out_dtype not in ("int8", "uint8"):
        raise node.unsupported(f"input of {dtype} and output of {out_dtype}; supported: int8 and uint8")
    values = known(*source, *target)
    if values is not None:
        x_scale, x_zero, y_scale, y_zero = values
        entries = function_table(table, QParams(x_scale, x_zero, dtype), QParams(y_scale, y_zero, out_dtype))
        return lookup(node, data, entries)
    real = computed(node.emit(qnn.dequantize(data, *source)))
    return node.emit(qnn.quantize(real, *target, out_dtype=out_dtype))


def _unary(
    node: Node, table: Callable[[np.ndarray], np.ndarray], computed: Callable[[relax.Expr], relax.Expr]
) -> relax.Expr:
    source = scalar(node, node.scale(1), "the scale of X"), scalar(node, node.zero_point(2), "the zero point of X")
    target = scalar(node, node.scale(3), "the scale of Y"), scalar(node, node.zero_point(4), "the zero point of Y")
    return by_table(node, node.input(0), source, target, table, computed, node.dtype(0))


@converter("QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_leaky_relu(node: Node) -> relax.Expr:
    """y = x for x ≥ 0, alpha·x below; bit-exact with ONNX Runtime."""
    alpha = float(np.float32(node.attribute("alpha", 0.01)))

    def computed(x: relax.Expr) -> relax.Expr:
        below = node.emit(relax.op.less(x, number(0)))
        return node.emit(relax.op.where(below, times(node, x, number(alpha)), x))

    return _unary(node, lambda x: np.where(x >= 0, x, np.float32(alpha) * x), computed)


@converter("QLinearSigmoid", domain=MICROSOFT)
def qlinear_sigmoid(node: Node) -> relax.Expr:
    """y = 1 / (1 + e^−x); bit-exact with ONNX Runtime."""
    of_floats = float_function("logistic")
    return _unary(node, partial(elementary.on_arrays, mlas.logistic), lambda x: node.emit(of_floats(x)))


# ---- several tensors ---------------------------------------------------------------------------------------------


def _moved_to(node: Node, data: relax.Expr, source: tuple, target: tuple, out_dtype: str) -> relax.Expr:
    """Data in other QParams: dequantized and quantized in float32, copied when the QParams are equal."""
    values = known(*source, *target)
    if values is not None and values[0] == values[2] and values[1] == values[3]:
        return data
    return by_table(node, data, source, target, lambda x: x, lambda x: x, out_dtype)


def _qparams(node: Node, index: int) -> tuple[relax.Expr, relax.Expr]:
    """Scale and zero point at `index` and `index` + 1."""
    return (
        scalar(node, node.scale(index), f"input {index}"),
        scalar(node, node.zero_point(index + 1), f"input {index + 1}"),
    )


@converter("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(node: Node) -> relax.Expr:
    """Every input in the result's QParams, then joined; bit-exact with ONNX Runtime."""
    count = len(node.inputs)
    if count < 5 or (count - 2) % 3:
        raise node.malformed(
            "its inputs must be Y_scale, Y_zero_point and a (tensor, scale, zero point) for each operand, found "
            f"{count} inputs"
        )
    target = _qparams(node, 0)
    parts = [
        _moved_to(node, node.input(index), _qparams(node, index + 1), target, node.dtype(1))
        for index in range(2, count, 3)
    ]
    axis = normalize_axis(node.attribute("axis", 0), len(shape_of(parts[0])))
    return relax.op.concat(parts, axis=axis) if len(parts) > 1 else parts[0]


@converter("QLinearWhere", domain=MICROSOFT)
def qlinear_where(node: Node) -> relax.Expr:
    """condition ? x : y, both in the result's QParams; bit-exact with ONNX Runtime."""
    target = _qparams(node, 7)
    chosen, other = (
        _moved_to(node, node.input(index), _qparams(node, index + 1), target, node.dtype(8)) for index in (1, 4)
    )
    return relax.op.where(node.input(0), chosen, other)


# ---- softmax -----------------------------------------------------------------------------------------------------


@converter("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(node: Node) -> relax.Expr:
    """`qnn.softmax` with the rounding "ONNXRUNTIME"."""
    shape = node.shape(0)
    flat = node.attribute("opset", 13) < 13  # in earlier versions everything from the axis on was one row
    axis = normalize_axis(node.attribute("axis", -1), len(shape))
    data = node.input(0)
    if flat:
        data, axis = node.emit(relax.op.reshape(data, (int(np.prod(shape[:axis])), int(np.prod(shape[axis:]))))), 1
    source, target = _qparams(node, 1), _qparams(node, 3)
    if known(*source, *target) is None:
        raise node.unsupported("a softmax whose scales or zero points are not constant")
    result = node.emit(qnn.softmax(data, *source, *target, axis=axis, rounding="ONNXRUNTIME", out_dtype=node.dtype(0)))
    return node.emit(relax.op.reshape(result, shape)) if flat else result

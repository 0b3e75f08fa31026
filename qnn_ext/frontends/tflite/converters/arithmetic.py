"""ADD, SUB, MUL, SQUARED_DIFFERENCE, MAXIMUM, MINIMUM, ADD_N, SQUARE, POW, ATAN2, FLOOR_DIV,
FLOOR_MOD."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from .... import op as qnn
from ....numerics.binary import ADD_LEFT_SHIFT, add_multipliers, power_of_two_shifts
from ....numerics.multiplier import FixedPoint
from ....numerics.reference import domain
from ....op.base import constant
from ....op.elementwise import scaled_operand
from ....qparams import QParams
from ...angles import atan2
from ...run_time import checked_divisor
from ..integers import (
    activate,
    centered,
    multiply,
    quantized_or_plain,
    require_dtype,
    result_qparams,
    same_dtype,
    scalar,
    tensor_qparams,
)
from ..node import Node, xnnpack_quantized
from ..registry import converter
from .accumulators import reshaped

PLAIN = {"ADD": relax.op.add, "SUB": relax.op.subtract, "MUL": relax.op.multiply}
VECTOR = 16  # elements that LiteRT's optimized kernels take at once
QUANTIZED = {"ADD": qnn.add, "SUB": qnn.subtract, "MUL": qnn.mul}


@converter("ADD", "SUB", max_version=5)
def convert_sum(node: Node) -> relax.Expr:
    """8-bit sums run as in XNNPACK, or as in LiteRT's own kernels where XNNPACK has none: for 16 bits, for quotients of
    scales outside its range, and with numerics "tflite". int16 with power-of-two scales may ask for the shifting kernel
    (pot_scale_int16).
    """
    if node.delegated:
        return _binary(node, rounding="UPWARD", compute_dtype="int32")
    pot_scale = node.dtype() == "int16" and bool(node.options["pot_scale_int16"])
    if _optimized(node, pot_scale):
        return _add_in_vectors(node)
    return _binary(node, rounding="TFLITE", pot_scale=pot_scale)


def _optimized(node: Node, pot_scale: bool) -> bool:
    """Whether LiteRT's optimized kernel for 16 bits adds: tensors of one shape, with scales for which it rounds some
    value of an operand otherwise than the reference kernel."""
    if node.reference_kernels or node.operator.name != "ADD" or not node.is_quantized() or node.dtype() != "int16":
        return False
    shapes = [node.shape(index) for index in (0, 1)]
    rank = max(map(len, shapes))
    if len({(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes}) > 1 or math.prod(shapes[0]) < VECTOR:
        return False
    lhs, rhs, output = tensor_qparams(node, 0), tensor_qparams(node, 1), result_qparams(node)
    if pot_scale and power_of_two_shifts(float(lhs.scale), float(rhs.scale), float(output.scale)) is not None:
        return False
    left_shift = ADD_LEFT_SHIFT[16]
    left, right, _ = add_multipliers(lhs.scale, rhs.scale, output.scale, left_shift)

    def differs(qparams: QParams, multiplier: FixedPoint) -> bool:
        values = domain("int16") - qparams.zero_point.astype(np.int32)
        twice, once = (scaled_operand(values, multiplier, left_shift, rule) for rule in ("TFLITE", "TFLITE_SHIFTED"))
        return not np.array_equal(twice, once)

    return differs(lhs, left) or differs(rhs, right)


def _add_in_vectors(node: Node) -> relax.Expr:
    """LiteRT's optimized kernel for 16 bits takes vectors of 16 elements, and what remains behind them as the reference
    kernel does."""
    size = math.prod(node.shape(0))
    whole = size - size % VECTOR
    if whole == size:
        return _binary(node, rounding="TFLITE_SHIFTED")
    flat = [reshaped(node, node.input(index), (size,)) for index in (0, 1)]
    parts = []
    for first, last, rounding in ((0, whole, "TFLITE_SHIFTED"), (whole, size, "TFLITE")):
        lhs, rhs = (node.emit(relax.op.strided_slice(x, [0], [first], [last])) for x in flat)
        parts.append(node.emit(_quantized(node, lhs, rhs, rounding=rounding)))
    shape = max((node.shape(index) for index in (0, 1)), key=len)
    return activate(node, reshaped(node, node.emit(relax.op.concat(parts, axis=0)), shape))


@converter("MUL", max_version=7)
def convert_mul(node: Node) -> relax.Expr:
    """A product; quantized products have the scale s_l·s_r before rescaling. XNNPACK squares 8-bit tensors by a
    table."""
    same = node.operator.inputs[0] == node.operator.inputs[1]
    if same and node.delegated:
        table = _square_table(tensor_qparams(node), result_qparams(node))
        return activate(node, qnn.table(node.input(0), table))
    return _binary(node, rounding=node.rounding)


def _square_table(source: QParams, target: QParams) -> np.ndarray:
    """q -> saturate(rint((s_i·(q − z_i))² / s_o + z_o)) in float32."""
    real = (domain(source.dtype) - source.zero_point).astype(np.float32) * source.scale.astype(np.float32)
    with np.errstate(over="ignore"):
        return xnnpack_quantized(real * real, target)


def _binary(node: Node, **options: Any) -> relax.Expr:
    dtype = same_dtype(node, 0, 1)
    operator = node.operator.name
    if not quantized_or_plain(node, 0, 1):
        plain = ("float32", "int32", "int64") if operator == "SUB" else ("float32", "int16", "int32", "int64")
        require_dtype(node, dtype, *plain)
        return activate(node, PLAIN[operator](node.input(0), node.input(1)))
    return activate(node, _quantized(node, node.input(0), node.input(1), **options))


def _quantized(node: Node, x: relax.Expr, y: relax.Expr, **options: Any) -> relax.Call:
    """The node's operator on tensors with its inputs' QParams, without the activation."""
    lhs, rhs, output = tensor_qparams(node, 0), tensor_qparams(node, 1), result_qparams(node)
    return QUANTIZED[node.operator.name](
        x,
        y,
        lhs.scale,
        lhs.zero_point,
        rhs.scale,
        rhs.zero_point,
        output.scale,
        output.zero_point,
        out_dtype=output.dtype,
        **options,
    )


@converter("SQUARED_DIFFERENCE", max_version=2)
def convert_squared_difference(node: Node) -> relax.Expr:
    """(x − y)²; int8 first rescales both operands to 2·max(s_x, s_y) / 2⁷."""
    dtype = same_dtype(node, 0, 1)
    if dtype == "int8":
        return _squared_difference_int8(node)
    require_dtype(node, dtype, "int8", "int32", "float32")
    difference = node.emit(relax.op.subtract(node.input(0), node.input(1)))
    return relax.op.multiply(difference, difference)


def _squared_difference_int8(node: Node) -> relax.Expr:
    left_shift = 7
    output = result_qparams(node)
    scales = [float(tensor_qparams(node, i).scale) for i in (0, 1)]
    twice_max = 2 * max(scales)
    parts = []
    for index, scale in enumerate(scales):
        shifted = node.emit(relax.op.multiply(centered(node, index), scalar(1 << left_shift)))
        parts.append(multiply(node, shifted, scale / twice_max))
    difference = node.emit(relax.op.subtract(*parts))
    square = node.emit(relax.op.multiply(difference, difference))
    factor = twice_max * twice_max / ((1 << 2 * left_shift) * float(output.scale))
    return multiply(node, square, factor, int(output.zero_point), "int8")


@converter("MAXIMUM", "MINIMUM", max_version=4)
def convert_extremum(node: Node) -> relax.Expr:
    """On the integers themselves, as LiteRT whatever the scales of operands and result."""
    require_dtype(node, same_dtype(node, 0, 1), "int8", "uint8", "int16", "int32", "int64", "float32")
    function = relax.op.maximum if node.operator.name == "MAXIMUM" else relax.op.minimum
    return function(node.input(0), node.input(1))


@converter("ADD_N", max_version=1)
def convert_add_n(node: Node) -> relax.Expr:
    """Sum of any number of tensors of one shape."""
    require_dtype(node, same_dtype(node, *range(node.input_count)), "float32", "int32")
    if len({node.shape(i) for i in range(node.input_count)}) > 1:
        raise node.malformed("all operands must have the same shape")
    total = node.input(0)
    for index in range(1, node.input_count):
        total = node.emit(relax.op.add(total, node.input(index)))
    return total


@converter("SQUARE", max_version=1)
def convert_square(node: Node) -> relax.Expr:
    """x²."""
    require_dtype(node, node.dtype(), "float32")
    return relax.op.multiply(node.input(0), node.input(0))


@converter("POW", max_version=1)
def convert_pow(node: Node) -> relax.Expr:
    """x^y; int32 in double precision, as in C++'s pow of two ints."""
    dtype = same_dtype(node, 0, 1)
    require_dtype(node, dtype, "float32", "int32")
    if dtype == "float32":
        return relax.op.power(node.input(0), node.input(1))
    wide = [node.emit(relax.op.astype(node.input(i), "float64")) for i in (0, 1)]
    return relax.op.astype(node.emit(relax.op.power(*wide)), "int32")


@converter("ATAN2", max_version=1)
def convert_atan2(node: Node) -> relax.Expr:
    """The angle of the point (x, y), of y and x."""
    require_dtype(node, same_dtype(node, 0, 1), "float32")
    return atan2(node.emit, node.input(0), node.input(1))


# ---- division with rounding down ---------------------------------------------------------------------------------


@converter("FLOOR_DIV", max_version=3)
def convert_floor_div(node: Node) -> relax.Expr:
    """⌊x / y⌋."""
    dtype = _unquantized(node, "int8", "int16", "int32", "float32")
    if dtype == "float32":
        # in float64, as in LiteRT: a quotient that underflows in float32 still rounds down to −1
        operands = [node.emit(relax.op.astype(node.input(index), "float64")) for index in range(2)]
        quotient = node.emit(relax.op.floor(node.emit(relax.op.divide(*operands))))
        return relax.op.astype(quotient, "float32")
    return integer_division(node, relax.op.floor_divide)


@converter("FLOOR_MOD", max_version=2)
def convert_floor_mod(node: Node) -> relax.Expr:
    """x − y·⌊x / y⌋, with y's sign."""
    dtype = _unquantized(node, "int8", "int16", "int32", "int64", "float32")
    if dtype != "float32":
        return integer_division(node, relax.op.floor_mod)
    divisor, zero = node.input(1), constant(np.float32(0))
    rest = node.emit(relax.op.mod(node.input(0), divisor))  # fmod: exact, with x's sign
    opposite = node.emit(relax.op.less(node.emit(relax.op.multiply(rest, node.emit(relax.op.sign(divisor)))), zero))
    return relax.op.where(opposite, node.emit(relax.op.add(rest, divisor)), rest)


def _unquantized(node: Node, *supported: str) -> str:
    """The operands' dtype. LiteRT divides the stored integers, ignoring scales: quantized operands are refused."""
    dtype = same_dtype(node, 0, 1)
    require_dtype(node, dtype, *supported)
    if node.is_quantized(0) or node.is_quantized(1):
        raise node.unsupported("quantized operands; only plain integers and floats are")
    return dtype


def integer_division(node: Node, function: Callable[..., relax.Expr]) -> relax.Expr:
    """`function`(x, y) of integers. As in LiteRT, y must not be 0; the lowest integer / −1 is itself."""
    return function(node.input(0), checked_divisor(node.emit, node.input(1), node.label))

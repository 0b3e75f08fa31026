"""QuantizeLinear and DequantizeLinear, operator sets 10 to 25, in QDQ form."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .... import op as qnn
from ....numerics.packed import WIDTHS, pack
from ....op.base import along_axis, constant, constant_value, normalize_axis, shape_of
from ....op.blockwise import LONGEST_GROUP
from ....qparams import dtype_range
from ...building import to_bfloat16
from ..node import Node
from ..registry import converter
from ..tensors import FLOAT8, NARROW, dtype_name
from .float8 import check_zero_point, rounded_to_float8

NARROW_RANGES = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}
QUANTIZE_DTYPES = ("int8", "uint8", "int16", "uint16", *NARROW.values(), *FLOAT8.values())
DEQUANTIZE_DTYPES = (*QUANTIZE_DTYPES, "int32")
_FLOAT32, _FLOAT16 = 1, 10  # TensorProto element types
_DIVIDES_IN_OWN_DTYPE = 23  # the first version of the operator set in which quantization of float16 divides in float16


@converter("QuantizeLinear", since=10)
def quantize_linear(node: Node) -> relax.Expr:
    """q = saturate(rint(x / scale) + zero_point): a true division, midpoints to even, then the zero point is added;
    for float8 the quotient rounded to it.

    The division is in float32, as in ONNX Runtime, unless the attribute `precision` asks for float16; by default, that
    is the scale's dtype since operator set 23.
    """
    onnx_dtype = _output_dtype(node)
    data = node.input(0)
    if node.dtype(0) not in ("float32", "float16", "bfloat16", "int32"):
        raise node.unsupported(f"quantizing {node.dtype(0)}; supported: float32, float16, bfloat16 and int32")
    if node.dtype(0) != "float32":
        data = node.emit(relax.op.astype(data, "float32"))
    precision = node.attribute("precision", 0)
    half = precision == _FLOAT16 or (
        precision == 0 and node.opset >= _DIVIDES_IN_OWN_DTYPE and node.dtype(1) == "float16"
    )
    if precision not in (0, _FLOAT32, _FLOAT16):
        raise node.unsupported("a precision other than float32 and float16")
    if onnx_dtype in FLOAT8.values():
        check_zero_point(node)
        return rounded_to_float8(node, _quotient(node, data, half), onnx_dtype)
    if half or _blocked(node) or _unbounded(node):
        quantized = _quantize_by_division(node, data, onnx_dtype, half)
    else:
        parameters = node.scale(1), node.zero_point(2)
        quantized = qnn.quantize(data, *parameters, axis=_axis(node), out_dtype=_held_as(onnx_dtype))
    if onnx_dtype in NARROW_RANGES:
        node.assembly.narrow_dtypes[node.outputs[0]] = onnx_dtype
        return relax.op.clip(node.emit(quantized), *NARROW_RANGES[onnx_dtype])
    return quantized


@converter("DequantizeLinear", since=10)
def dequantize_linear(node: Node) -> relax.Expr:
    """x = f32(q − zero_point) · scale."""
    if node.onnx_dtype(0) not in DEQUANTIZE_DTYPES:
        raise node.unsupported(f"dequantizing {node.onnx_dtype(0)}; supported: {', '.join(DEQUANTIZE_DTYPES)}")
    code = node.attribute("output_dtype", 0)
    out_dtype = dtype_name(code) if code else node.dtype(1)
    if out_dtype not in ("float32", "float16", "bfloat16"):
        raise node.malformed(f"cannot dequantize to {out_dtype}")
    if node.onnx_dtype(0) in FLOAT8.values():
        check_zero_point(node)
        node.note("its float8 values are multiplied as float32")
        real = relax.op.multiply(node.input(0), _along_axis(node, node.scale(1)))
        return _as(node, real, out_dtype)
    if _blocked(node):
        real = _packed_matrix(node)
        if real is None:
            node.note("its weights have a scale per block: they are dequantized at import and multiplied in float")
            real = _dequantize_by_product(node)
        return _as(node, real, out_dtype)
    if _unbounded(node):
        return _as(node, _dequantize_by_product(node), out_dtype)
    direct = out_dtype if out_dtype != "bfloat16" else "float32"
    real = qnn.dequantize(*_with_positive_scales(node), axis=_axis(node), out_dtype=direct)
    return real if direct == out_dtype else _as(node, real, out_dtype)


def _with_positive_scales(node: Node) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """The integers, scale and zero point; constants with negative scales, as NNCF writes them so that the largest
    magnitude becomes the lowest integer, as unsigned integers with positive ones: (q − z)·s = ((h − q) − (h − z))·(−s),
    h being the dtype's highest value; where s is positive, the lowest value is subtracted from q and z."""
    given = node.input(0), node.scale(1), node.zero_point(2)
    scale, zero_point = map(constant_value, given[1:])
    if scale is None or zero_point is None or not (scale < 0).any():
        return given
    values = constant_value(given[0])
    if values is None or values.dtype == np.int32:
        return given
    low, high = dtype_range(str(values.dtype))
    ndim, axis = values.ndim, _axis(node)
    sides = np.broadcast_to(along_axis(scale < 0, axis, ndim), values.shape)
    wide = values.astype(np.int32)
    moved = np.where(sides, high - wide, wide - low).astype(f"uint{8 * values.dtype.itemsize}")
    zeros = np.where(scale < 0, high - zero_point, zero_point - low).astype(np.int32)
    return constant(moved), constant(np.abs(scale)), constant(zeros)


def _as(node: Node, real: relax.Expr, dtype: str) -> relax.Expr:
    """A float32 result in the dtype of the output."""
    if dtype == "float32":
        return real
    real = node.emit(real)
    return to_bfloat16(node.emit, real) if dtype == "bfloat16" else relax.op.astype(real, dtype)


def _output_dtype(node: Node) -> str:
    """The dtype of the result: the zero point's, or the attribute's, or uint8."""
    code = node.attribute("output_dtype", 0)
    declared = dtype_name(code) if code else None
    if node.has_input(2):
        found = node.onnx_dtype(2)
        if declared not in (None, found):
            raise node.malformed(f"output_dtype is {declared}, but the zero point is {found}")
        declared = found
    dtype = declared or "uint8"
    if dtype not in QUANTIZE_DTYPES:
        raise node.unsupported(f"quantizing to {dtype}; supported: {', '.join(QUANTIZE_DTYPES)}")
    return dtype


def _held_as(onnx_dtype: str) -> str:
    return ("uint8" if onnx_dtype.startswith("u") else "int8") if onnx_dtype in NARROW_RANGES else onnx_dtype


def _axis(node: Node) -> int:
    """The axis that a vector of scales runs along. It is meaningless for a single scale or a single axis."""
    ndim = len(node.shape(0))
    if len(node.shape(1)) == 0 or node.shape(1) == (1,) or ndim == 1:
        return -1
    axis = node.attribute("axis", 1)
    if not -ndim <= axis < ndim:
        raise node.malformed(f"axis {axis} is out of range for {ndim} dimensions")
    return axis % ndim


def _unbounded(node: Node) -> bool:
    """Whether a constant scale is infinite, as where a quantizer has seen a mask of −inf; then says so."""
    scale = constant_value(node.any_scale(1))
    if scale is None or not np.isposinf(scale).any() or np.isnan(scale).any():
        return False
    node.note(
        "its scale is infinite, as the quantizer saw values without bounds, such as a mask of −inf: of them only "
        "infinities and NaN are left; use a large negative number there, or leave what reads it in float"
    )
    return True


# ---- blocks ------------------------------------------------------------------------------------------------------


def _blocked(node: Node) -> bool:
    return node.attribute("block_size", 0) != 0


def _expanded(node: Node, expr: relax.Expr) -> relax.Expr:
    """Scales or zero points of blocks, repeated to the shape of the data."""
    shape, blocks, size = node.shape(0), shape_of(expr), node.attribute("block_size", 0)
    axis = normalize_axis(node.attribute("axis", 1), len(shape))
    _check_blocks(node, blocks)
    repeated = node.emit(relax.op.repeat(expr, size, axis))
    if blocks[axis] * size == shape[axis]:
        return repeated
    return node.emit(relax.op.strided_slice(repeated, [axis], [0], [shape[axis]]))


def _packed_matrix(node: Node) -> relax.Expr | None:
    """A constant matrix of 2 to 8 bits with groups along either axis, whose integers stay packed, see
    `passes.blockwise`; None for anything else."""
    shape, size, dtype = node.shape(0), node.attribute("block_size", 0), node.onnx_dtype(0)
    known = all(node.is_constant(index) for index in (0, 1)) and (not node.has_input(2) or node.is_constant(2))
    if not known or len(shape) != 2 or 0 in shape or dtype not in WIDTHS or not 0 < size <= LONGEST_GROUP:
        return None
    axis = normalize_axis(node.attribute("axis", 1), 2)
    for index in range(1, 2 + node.has_input(2)):
        _check_blocks(node, node.shape(index))
    rows = [node.constant(index) for index in range(3) if node.has_input(index)]
    values, scale, *zeros = rows if axis else [array.T for array in rows]
    if not np.isfinite(scale.astype(np.float32)).all():
        raise node.malformed("its scales must be finite")
    zero_point = pack(zeros[0], dtype) if zeros else np.zeros((), np.int32)
    stored = scale if scale.dtype == np.float16 else scale.astype(np.float32)
    node.note(f"its {dtype} weights have a scale per block: floats are multiplied by them")
    parts = constant(pack(values, dtype)), constant(stored), constant(zero_point)
    real = node.emit(qnn.blockwise_dequantize(*parts, values.shape[1], dtype, size))
    return real if axis else node.emit(relax.op.permute_dims(real, [1, 0]))


def _check_blocks(node: Node, blocks: tuple[int, ...]) -> None:
    """Raise ModelFormatError unless the scales of blocks, or their zero points, match the data."""
    shape, size = node.shape(0), node.attribute("block_size", 0)
    axis = normalize_axis(node.attribute("axis", 1), len(shape))
    fits = len(blocks) == len(shape) and size > 0 and blocks[axis] == -(-shape[axis] // size)
    if not fits or any(b != d for i, (b, d) in enumerate(zip(blocks, shape, strict=True)) if i != axis):
        raise node.malformed(
            f"blocks of {size} along axis {axis} of shape {shape} do not match scales of shape {blocks}"
        )


def _dequantize_by_product(node: Node) -> relax.Expr:
    shifted = node.emit(relax.op.astype(node.input(0), "int32"))
    if node.has_input(2):
        shifted = node.emit(relax.op.subtract(shifted, _along_axis(node, node.zero_point(2))))
    real = node.emit(relax.op.astype(shifted, "float32"))
    return node.emit(relax.op.multiply(real, _along_axis(node, node.any_scale(1))))


def _along_axis(node: Node, expr: relax.Expr) -> relax.Expr:
    """Scales or zero points in a shape that broadcasts to the data's."""
    if _blocked(node):
        return _expanded(node, expr)
    if len(shape_of(expr)) == 1 and len(node.shape(0)) > 1:
        return node.emit(relax.op.reshape(expr, (-1,) + (1,) * (len(node.shape(0)) - _axis(node) - 1)))
    return expr


def _quotient(node: Node, data: relax.Expr, half: bool) -> relax.Expr:
    """data / scale as float32, of float16 if asked for."""
    scale = _along_axis(node, node.any_scale(1))
    if half:
        data, scale = (node.emit(relax.op.astype(value, "float16")) for value in (data, scale))
    return node.emit(relax.op.astype(node.emit(relax.op.divide(data, scale)), "float32"))


def _quantize_by_division(node: Node, data: relax.Expr, onnx_dtype: str, half: bool) -> relax.Expr:
    """First the quotient, in float16 if asked for, then quantization with scale 1."""
    quotient = _quotient(node, data, half)
    zero_point = _along_axis(node, node.zero_point(2)) if node.has_input(2) else node.zero_point(2)
    # via int32, so that adding the zero points is exact and saturates once
    steps = node.emit(qnn.quantize(quotient, constant(np.float32(1)), constant(np.int32(0)), out_dtype="int32"))
    low, high = dtype_range(_held_as(onnx_dtype))
    near = node.emit(relax.op.clip(steps, -(2**20), 2**20))  # no sum overflows
    total = node.emit(relax.op.add(near, zero_point))
    return relax.op.astype(node.emit(relax.op.clip(total, low, high)), _held_as(onnx_dtype))

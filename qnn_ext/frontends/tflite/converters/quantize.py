"""QUANTIZE, DEQUANTIZE, DENSIFY, FAKE_QUANT and CAST: between real values and integers, and between dtypes."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from .... import op as qnn
from ....numerics import reference
from ....op.base import constant
from ....op.requantize import requantize_array
from ....qparams import QParams, dtype_range
from .. import xnnpack
from ..node import QUANTIZED_DTYPES, Node
from ..registry import converter
from ..weights import packed_matrix, stays_packed
from .accumulators import as_dtype, number, reshaped

# input dtype -> integer dtypes it may be requantized to
REQUANTIZE_TARGETS = {
    "int8": ("int8", "uint8", "int16"),
    "uint8": ("int8", "uint8", "int16"),
    "int16": ("int8", "int16", "int32"),
    "int32": ("int8", "int16"),
}
CAST_DTYPES = (
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool",
)  # fmt: skip

# input scale and zero point, output scale and zero point
Rescaling = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@converter("QUANTIZE", max_version=5)
def convert_quantize(node: Node) -> relax.Expr:
    """From float32, or from one tensor's QParams to another's."""
    target, dtype = node.output_qparams(), node.dtype(0)
    if dtype == "float32" and target.dtype in QUANTIZED_DTYPES:
        axis = -1 if target.axis is None else target.axis
        return qnn.quantize(
            node.input(0),
            target.scale,
            target.zero_point,
            axis=axis,
            out_dtype=target.dtype,
            rounding=node.float_rounding,
            reciprocal=not node.reference_kernels,
        )
    if target.dtype not in REQUANTIZE_TARGETS.get(dtype, ()):
        raise node.unsupported(f"conversion from {dtype} to {target.dtype}")
    source = node.qparams(0)
    if source.per_channel or target.per_channel:
        raise node.unsupported("requantization with per-channel parameters")
    return _requantize(node, source, target)


def _requantize(node: Node, source: QParams, target: QParams) -> relax.Expr:
    """TFLite's fixed point; numerics="float32" uses XNNPACK's, which converts between 8-bit tensors of the same dtype
    with a multiplier of 8 fraction bits, midpoints up, and leaves all other pairs to TFLite's kernel."""
    if node.delegated:
        steps = np.rint(np.float64(source.scale / target.scale) * 256)
        scales, rounding = (steps, np.asarray(256.0)), "UPWARD"
    else:
        scales, rounding = (source.scale.astype(np.float64), target.scale.astype(np.float64)), "TFLITE"
    qparams: Rescaling = scales[0], source.zero_point, scales[1], target.zero_point
    bytewise = source.dtype in xnnpack.BYTES and target.dtype in xnnpack.BYTES
    if bytewise and not node.delegated and not node.reference_kernels:
        return _requantize_bytes(node, qparams, target.dtype)
    return qnn.requantize(node.input(0), *qparams, rounding=rounding, out_dtype=target.dtype)


def _requantize_bytes(node: Node, qparams: Rescaling, dtype: str) -> relax.Expr:
    """LiteRT's optimized kernel between 8-bit tensors takes vectors of 16 elements with midpoints up in both roundings;
    what remains behind them, one by one as the reference kernel does. Where no byte tells them apart, one rounding
    serves all."""

    def rescale(data: relax.Expr, rounding: str) -> relax.Call:
        return qnn.requantize(data, *qparams, rounding=rounding, out_dtype=dtype)

    data, shape, every = node.input(0), node.shape(0), reference.domain(node.dtype(0))
    size = math.prod(shape)
    whole = size - size % 16
    nearest, upward = (
        requantize_array(every, *qparams, rounding=rounding, out_dtype=dtype)
        for rounding in ("TFLITE", "TFLITE_UPWARD")
    )
    if np.array_equal(nearest, upward) or not whole:
        return rescale(data, "TFLITE")
    if whole == size:
        return rescale(data, "TFLITE_UPWARD")
    flat = reshaped(node, data, (size,))
    vectors = node.emit(relax.op.strided_slice(flat, [0], [0], [whole]))
    rest = node.emit(relax.op.strided_slice(flat, [0], [whole], [size]))
    parts = [node.emit(rescale(vectors, "TFLITE_UPWARD")), node.emit(rescale(rest, "TFLITE"))]
    return reshaped(node, node.emit(relax.op.concat(parts, axis=0)), shape)


@converter("DEQUANTIZE", max_version=8)
def convert_dequantize(node: Node) -> relax.Expr:
    """scale · (q − zero_point), per tensor, channel or block; float16 widens to float32. Weights stay packed, but
    int8 ones do not where results are quantized: XNNPACK multiplies by weights that it has dequantized before, which
    packed ones cannot equal bit for bit. Those of fewer bits it leaves to LiteRT's own kernels."""
    if node.dtype(0) == "float16":
        return as_dtype(node, node.input(0), "float32")
    matrix = packed_matrix(node, 0) if len(node.shape(0)) == 2 else None
    if matrix is not None and _is_weight(node):
        in_floats = node.assembly.quantizes_results and not stays_packed(node.tensor(0))
        return constant(matrix.floats()) if in_floats else matrix.dequantized(node)
    if matrix is not None and node.tensor(0).blocks is not None:
        return constant(matrix.floats())
    if node.dtype(0) not in QUANTIZED_DTYPES:
        raise node.unsupported(f"conversion from {node.dtype(0)}; supported: float16, {', '.join(QUANTIZED_DTYPES)}")
    return node.dequantize(node.input(0), node.qparams(0))


def _is_weight(node: Node) -> bool:
    """Whether all that reads the result multiplies by it or takes rows of it."""
    (output,) = node.operator.outputs
    readers = [one for one in node.assembly.graph.operators if output in one.inputs]
    places = {"FULLY_CONNECTED": 1, "BATCH_MATMUL": 1, "EMBEDDING_LOOKUP": 1, "GATHER": 0}
    return output not in node.assembly.graph.outputs and all(
        one.inputs.index(output) == places.get(one.name) and one.inputs.count(output) == 1 for one in readers
    )


@converter("DENSIFY", max_version=1)
def convert_densify(node: Node) -> relax.Expr:
    """A sparse constant as a dense one, which the reader has already made it."""
    return constant(node.constant(0))


@converter("FAKE_QUANT", max_version=2)
def convert_fake_quant(node: Node) -> relax.Expr:
    """Round float values to the grid of an integer dtype of `num_bits`, over [min, max] nudged to hold 0 exactly."""
    bits, low, high = node.options["num_bits"], np.float32(node.options["min"]), np.float32(node.options["max"])
    if node.options["narrow_range"]:
        raise node.unsupported("narrow_range on activations; TFLite's runtime rejects it as well")
    if not 2 <= bits <= 16 or not low <= 0 <= high or not low < high:
        raise node.malformed(f"{bits} bits over [{low}, {high}]: it must have 2 to 16 bits and an interval around 0")
    if node.dtype(0) != "float32":
        raise node.unsupported(f"fake quantization of {node.dtype(0)}")
    top = np.float32((1 << bits) - 1)
    scale = (high - low) / top
    zero_point = np.clip(np.floor(-low / scale + np.float32(0.5)), 0, top).astype(np.float32)
    low, high = -zero_point * scale, (top - zero_point) * scale
    bounded = node.emit(relax.op.clip(node.input(0), float(low), float(high)))
    shifted = node.emit(relax.op.subtract(bounded, number(low)))
    steps = node.emit(relax.op.multiply(shifted, number(np.float32(1) / scale)))
    rounded = node.emit(qnn.quantize(steps, 1.0, 0, out_dtype="uint16", rounding="TONEAREST"))
    real = node.emit(relax.op.multiply(as_dtype(node, rounded, "float32"), number(scale)))
    return relax.op.add(real, number(low))


@converter("CAST", max_version=8)
def convert_cast(node: Node) -> relax.Expr:
    """C's conversion: floats truncate and saturate, integers wrap, anything but 0 is true."""
    source, target = node.dtype(0), node.output_tensor().dtype
    for dtype in (source, target):
        if dtype not in CAST_DTYPES:
            raise node.unsupported(f"cast from {source} to {target}")
    if source == target:
        return node.input(0)
    if target == "bool":
        return relax.op.not_equal(node.input(0), constant(np.zeros((), source)))
    if source.startswith("float") and not target.startswith("float"):
        return _float_to_integer(node, source, target)
    return relax.op.astype(node.input(0), target)


def _float_to_integer(node: Node, source: str, target: str) -> relax.Expr:
    """Truncation; values beyond the target's range are clipped first, because converting them is undefined."""
    wide = node.input(0)
    if source == "float16":
        source, wide = "float32", as_dtype(node, wide, "float32")
    low, high = (np.asarray(bound, source) for bound in dtype_range(target))
    if int(high) > dtype_range(target)[1]:
        high = np.nextafter(high, np.zeros((), source))
    bounded = node.emit(relax.op.minimum(node.emit(relax.op.maximum(wide, constant(low))), constant(high)))
    return relax.op.astype(bounded, target)

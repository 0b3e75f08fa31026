"""What convolutions, dense layers and matrix products share: the supported combinations of dtypes, and what follows the
integer accumulator (bias, requantization, activation). It converts no operators."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op.base import constant, constant_value
from ....qparams import QParams
from ..node import Node, shape_of

# dtypes of (activations, weights) whose product runs in integers
INTEGER_PAIRS = (("int8", "int8"), ("uint8", "uint8"), ("int16", "int8"))


def product_kind(node: Node, data: int, weight: int) -> str:
    """ "integer", "hybrid" (float32 activations, int8 weights) or "float", for the inputs of these indices.

    Raises UnsupportedOperatorError for any other combination of dtypes.
    """
    dtypes = (node.dtype(data), node.dtype(weight))
    if dtypes == ("float32", "float32"):
        return "float"
    if dtypes == ("float32", "int8"):
        if node.tensor(weight).blocks is None and np.any(node.qparams(weight).zero_point):
            raise node.unsupported("hybrid weights with a zero point; only symmetric int8 weights are supported")
        return "hybrid"
    if dtypes in INTEGER_PAIRS:
        return "integer"
    raise node.unsupported(f"{dtypes[0]} activations with {dtypes[1]} weights")


def weight_qparams(node: Node, index: int, axis: int) -> QParams:
    """The weights' QParams; per-channel scales must run along `axis`, the dimension of the output channels."""
    qparams = node.qparams(index)
    if qparams.per_channel and qparams.axis != axis:
        raise node.unsupported(f"weight scales along dimension {qparams.axis}; the output channels are {axis}")
    return qparams


def accumulator_dtype(node: Node, dtype: str, bias: int | None = None) -> str:
    """int32, or int64 for 16-bit activations, unless options and bias ask for the kernels with a 32-bit accumulator."""
    if dtype != "int16":
        return "int32"
    declared = node.options.get("quantized_bias_type", "float32")
    if declared not in ("float32", "int32", "int64"):
        raise node.unsupported(f"quantized_bias_type {declared}; supported: int32 and int64")
    if bias is not None and node.has_input(bias) and declared not in ("float32", node.dtype(bias)):
        raise node.malformed(f"the bias is {node.dtype(bias)}, but quantized_bias_type says {declared}")
    return "int32" if declared == "int32" else "int64"


def runs_on_ruy(node: Node, data: int = 0, weight: int = 1, bias: int = 2) -> bool:
    """Whether LiteRT's optimized kernel computes a product: with the default numerics, if XNNPACK takes no part, and of
    int16 without zero points and without an int64 bias, be it only declared. Its accumulator is int32, its rounding
    TFLITE_UPWARD."""
    if node.reference_kernels or node.delegated:
        return False
    if node.dtype(data) != "int16":
        return True
    if any(np.any(qparams.zero_point) for qparams in (node.qparams(data), node.qparams(weight), node.output_qparams())):
        return False
    if node.has_input(bias):
        return node.dtype(bias) == "int32"
    return node.options.get("quantized_bias_type") != "int64"


def accumulator_scale(node: Node, data: QParams, weight: QParams, double: bool) -> np.ndarray:
    """The scale of Σ data·weight, in the precision of the numerics in force.

    TFLite's reference kernels multiply the two scales in double where they keep per-channel multipliers (`double`; all
    convolutions except those on uint8), otherwise in float32 (GetQuantizedConvolutionMultipler). XNNPACK stays in
    float32.
    """
    if not node.delegated and double:
        return data.scale.astype(np.float64) * weight.scale.astype(np.float64)
    product = data.scale.astype(np.float32) * weight.scale.astype(np.float32)
    return product if node.delegated else product.astype(np.float64)


def output_scale(node: Node, qparams: QParams) -> np.ndarray:
    """The output scale in the same precision."""
    return qparams.scale.astype(np.float32 if node.delegated else np.float64)


def bias_of(node: Node, index: int, channels: int) -> relax.Expr | None:
    """The optional bias as a vector. Raises ModelFormatError unless it has one element per channel."""
    if not node.has_input(index):
        return None
    shape = node.shape(index)
    if int(np.prod(shape)) != channels:
        raise node.malformed(f"a bias of shape {shape} does not match {channels} output channels")
    bias = node.input(index)
    return bias if len(shape) == 1 else node.emit(relax.op.reshape(bias, (channels,)))


def finish_accumulator(
    node: Node,
    accumulator: relax.Expr,
    data: QParams,
    weight: QParams,
    bias: relax.Expr | None,
    double: bool,
    compute_dtype: str = "int64",
    rounding: str | None = None,
) -> relax.Expr:
    """accumulator + bias, requantized to the output's QParams, then activated. Channels are the last axis.

    double: see `accumulator_scale`; compute_dtype: what TFLite's reference kernel multiplies in; rounding: if it is not
    the node's
    """
    acc = node.emit(accumulator)
    dtype = str(acc.ty.dtype)
    if bias is not None:
        if str(bias.ty.dtype) not in ("int32", "int64"):
            raise node.malformed(f"the bias of an integer product must be int32 or int64, found {bias.ty.dtype}")
        acc = node.emit(relax.op.add(acc, as_dtype(node, bias, dtype)))
    target = node.output_qparams()
    result = qnn.requantize(
        acc,
        accumulator_scale(node, data, weight, double),
        0,
        output_scale(node, target),
        target.zero_point,
        axis=-1,
        rounding=rounding or node.rounding,
        compute_dtype=None if node.delegated else compute_dtype,
        out_dtype=target.dtype,
    )
    return node.activate(result)


def finish_float(node: Node, result: relax.Expr, bias: relax.Expr | None) -> relax.Expr:
    """result + bias in float32, then activated."""
    return node.activate(result if bias is None else relax.op.add(node.emit(result), float_bias(node, bias)))


def float_bias(node: Node, bias: relax.Expr) -> relax.Expr:
    """The bias of a float product, which must be float32."""
    if str(bias.ty.dtype) != "float32":
        raise node.malformed(f"the bias of a float product must be float32, found {bias.ty.dtype}")
    return bias


def as_dtype(node: Node, expr: relax.Expr, dtype: str) -> relax.Expr:
    """The expression cast to `dtype`; constants are cast at once."""
    if str(expr.ty.dtype) == dtype:
        return expr
    value = constant_value(expr)
    return constant(value.astype(dtype)) if value is not None else node.emit(relax.op.astype(expr, dtype))


def number(value: float | np.floating, dtype: str = "float32") -> relax.Expr:
    """A 0-d constant."""
    return constant(np.asarray(value, dtype))


def reshaped(node: Node, expr: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    """The expression with another shape, itself when it already has that shape."""
    return expr if shape_of(expr) == tuple(shape) else node.emit(relax.op.reshape(expr, tuple(shape)))

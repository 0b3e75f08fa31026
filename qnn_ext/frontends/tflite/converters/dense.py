"""FULLY_CONNECTED and BATCH_MATMUL: quantized, hybrid (float activations, int8 weights) and float."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op.base import constant
from ....qparams import QParams
from ..node import Node, shape_of
from ..registry import converter
from ..weights import stays_packed
from .accumulators import (
    accumulator_dtype,
    bias_of,
    finish_accumulator,
    finish_float,
    product_kind,
    reshaped,
    runs_on_ruy,
    weight_qparams,
)
from .hybrid import Rows, dequantize_accumulator, packed_product, quantize_rows

Shape = tuple[int, ...]


# ---- FULLY_CONNECTED ---------------------------------------------------------------------------------------------


@converter("FULLY_CONNECTED", max_version=14)
def convert_fully_connected(node: Node) -> relax.Expr:
    """y = x·wᵀ + b over rows of the weights' length, for an input of any rank."""
    if node.options["weights_format"] != "DEFAULT":
        raise node.unsupported(f"weights_format {node.options['weights_format']}; only DEFAULT is supported")
    shape, matrix = node.shape(0), node.shape(1)
    if len(matrix) != 2 or 0 in matrix or math.prod(shape) % matrix[1]:
        raise node.malformed(f"an input of shape {shape} cannot be divided into rows for weights of shape {matrix}")
    units, depth = matrix
    data = reshaped(node, node.input(0), (math.prod(shape) // depth, depth))
    result = _dense(node, data, bias_of(node, 2, units))
    if not node.options["keep_num_dims"]:
        return result
    if not shape or shape[-1] != depth:
        raise node.malformed(f"keep_num_dims needs an input whose last dimension is {depth}, found shape {shape}")
    return reshaped(node, node.emit(result), (*shape[:-1], units))


def _dense(node: Node, data: relax.Expr, bias: relax.Expr | None) -> relax.Expr:
    """data (M, K), weights (N, K) -> (M, N)."""
    kind = product_kind(node, 0, 1)
    if kind == "hybrid" and stays_packed(node.tensor(1)):
        return node.activate(_packed_dense(node, data, bias))
    weight = node.input(1)
    if kind == "float":
        return finish_float(node, _float_product(node, data, weight), bias)
    if kind == "hybrid":
        return node.activate(hybrid_dense(node, data, weight, weight_qparams(node, 1, 0), bias))
    source, weights = node.qparams(0), weight_qparams(node, 1, 0)
    if runs_on_ruy(node):
        acc = integer_dense(data, weight, source, weights, "int32")
        return finish_accumulator(node, acc, source, weights, bias, weights.per_channel, rounding="TFLITE_UPWARD")
    acc = integer_dense(data, weight, source, weights, accumulator_dtype(node, source.dtype, 2))
    if node.delegated:
        return finish_accumulator(node, acc, source, weights, bias, weights.per_channel)
    # For this operator alone, TFLite's reference kernel multiplies in double: round(acc · s_x·s_w/s_y) + z
    return finish_accumulator(node, acc, source, weights, bias, double=True, compute_dtype="float64")


def integer_dense(data: relax.Expr, weight: relax.Expr, source: QParams, weights: QParams, dtype: str) -> relax.Call:
    """The accumulator of an integer product: (M, K)·(N, K)ᵀ."""
    return qnn.dense(data, weight, source.zero_point, weights.zero_point, source.scale, weights.scale, out_dtype=dtype)


def hybrid_dense(
    node: Node, data: relax.Expr, weight: relax.Expr, weights: QParams, bias: relax.Expr | None = None
) -> relax.Expr:
    """float32 (M, K), quantized per row at run time, times int8 (N, K)ᵀ, and a bias."""
    asymmetric = node.delegated or node.options["asymmetric_quantize_inputs"]
    rows = quantize_rows(node, data, shape_of(data)[0], asymmetric)
    acc = node.emit(qnn.dense(rows.data, weight, 0, 0, 1.0, weights.scale))
    weight_sum = None
    if asymmetric:
        weight_sum = reshaped(node, node.emit(qnn.row_sum(weight)), (1, shape_of(weight)[0]))
    return dequantize_accumulator(node, acc, rows, weight_sum, weights.scale, bias)


def _packed_dense(node: Node, data: relax.Expr, bias: relax.Expr | None) -> relax.Expr:
    """As `hybrid_dense`, with a weight that stays packed. With scales for blocks, LiteRT's kernels always use zero
    points."""
    asymmetric = node.delegated or node.tensor(1).blocks is not None or node.options["asymmetric_quantize_inputs"]
    rows = quantize_rows(node, data, shape_of(data)[0], asymmetric)
    return packed_product(node, rows, bias)


def _float_product(node: Node, data: relax.Expr, weight: relax.Expr) -> relax.Expr:
    return relax.op.matmul(data, _transposed(node, weight))


# ---- BATCH_MATMUL ------------------------------------------------------------------------------------------------


@converter("BATCH_MATMUL", max_version=4)
def convert_batch_matmul(node: Node) -> relax.Expr:
    """(…, M, K)·(…, K, N), either operand stored transposed if its adj option says so; leading dimensions broadcast."""
    for index in (0, 1):
        if not 2 <= len(node.shape(index)) <= 5 or 0 in node.shape(index):
            raise node.malformed(f"operands must have 2 to 5 dimensions, found shape {node.shape(index)}")
    left = _transposed(node, node.input(0)) if node.options["adj_x"] else node.input(0)
    right = node.input(1) if node.options["adj_y"] else _transposed(node, node.input(1))  # (…, N, K)
    left_shape, right_shape = shape_of(left), shape_of(right)
    if left_shape[-1] != right_shape[-1]:
        raise node.malformed(f"matrices of shapes {node.shape(0)} and {node.shape(1)} cannot be multiplied")
    try:
        batch = np.broadcast_shapes(left_shape[:-2], right_shape[:-2])
    except ValueError:
        raise node.malformed(f"shapes {node.shape(0)} and {node.shape(1)} do not broadcast") from None
    shape = (*batch, left_shape[-2], right_shape[-2])
    kind = _matmul_kind(node)
    if kind == "float":
        return relax.op.matmul(left, _transposed(node, right))
    if kind == "hybrid":
        return reshaped(node, node.emit(_hybrid_matmul(node, left, right, batch)), shape)
    return reshaped(node, node.emit(_integer_matmul(node, left, right, batch)), shape)


def _matmul_kind(node: Node) -> str:
    dtypes = (node.dtype(0), node.dtype(1))
    if dtypes == ("int16", "int16"):
        return "integer"
    if dtypes[0] == "uint8":  # LiteRT has no such kernel
        raise node.unsupported(f"{dtypes[0]} operands; supported: float32, int8 and int16")
    return product_kind(node, 0, 1)


def _integer_matmul(node: Node, left: relax.Expr, right: relax.Expr, batch: Shape) -> relax.Expr:
    source, weights = node.qparams(0), node.qparams(1)
    if weights.per_channel:
        raise node.unsupported("per-channel scales of an integer operand")
    dtype = "int64" if source.dtype == "int16" else "int32"
    if math.prod(shape_of(right)[:-2]) == 1:
        rows, matrix = _as_rows(node, left), reshaped(node, right, shape_of(right)[-2:])
        acc = integer_dense(rows, matrix, source, weights, dtype)
    else:
        x, y = _as_batch(node, left, batch), _as_batch(node, right, batch)
        qparams = (source.zero_point, weights.zero_point, source.scale, weights.scale)
        acc = qnn.batch_matmul(x, y, *qparams, out_dtype=dtype)
    if node.output_tensor().dtype != "int32":
        return finish_accumulator(node, acc, source, weights, None, double=False)
    if dtype != "int32" or np.any(source.zero_point) or np.any(weights.zero_point):
        raise node.unsupported("int32 results of operands that are 16-bit or have zero points")
    return acc


def _hybrid_matmul(node: Node, left: relax.Expr, right: relax.Expr, batch: Shape) -> relax.Expr:
    """Every row of the left operand is quantized separately."""
    weights = node.qparams(1)
    if math.prod(shape_of(right)[:-2]) == 1:
        columns = len(node.shape(1)) - (2 if node.options["adj_y"] else 1)
        if weights.per_channel and weights.axis != columns:
            raise node.unsupported(
                f"weight scales along dimension {weights.axis}, which is not that of the result's columns"
            )
        return hybrid_dense(node, _as_rows(node, left), reshaped(node, right, shape_of(right)[-2:]), weights)
    if weights.per_channel:
        raise node.unsupported("per-channel scales of more than one matrix")
    asymmetric = node.delegated or node.options["asymmetric_quantize_inputs"]
    x, y = _as_batch(node, left, batch), _as_batch(node, right, batch)
    count, height, depth = shape_of(x)
    rows = quantize_rows(node, reshaped(node, x, (count * height, depth)), count * height, asymmetric)
    data = reshaped(node, rows.data, (count, height, depth))
    acc = node.emit(qnn.batch_matmul(data, y, 0, 0, 1.0, weights.scale))
    repeated, _, units = shape_of(acc)
    left_batch, right_batch = shape_of(left)[:-2], shape_of(right)[:-2]
    weight_sum = None
    if asymmetric:
        sums = reshaped(node, node.emit(qnn.row_sum(y)), (shape_of(y)[0], 1, units))
        weight_sum = _rows_of(node, _taken(node, sums, right_batch, batch), (repeated, height, units))
    scale = _taken(node, reshaped(node, rows.scale, (count, height, 1)), left_batch, batch)
    scale = _rows_of(node, scale, (repeated, height, 1))
    zero_point = rows.zero_point
    if zero_point is not None:
        zero_point = _taken(node, reshaped(node, zero_point, (count, height, 1)), left_batch, batch)
        zero_point = _rows_of(node, zero_point, (repeated, height, 1))
    flat = reshaped(node, acc, (repeated * height, units))
    return dequantize_accumulator(node, flat, Rows(data, scale, zero_point), weight_sum, weights.scale)


def _taken(node: Node, values: relax.Expr, own: Shape, batch: Shape) -> relax.Expr:
    """Values of the matrices of one operand, (B or 1, …), which has `own` as leading dimensions, as LiteRT's own
    kernels find them: they step by one matrix in each of several leading dimensions."""
    if node.delegated or shape_of(values)[0] == 1 or sum(size > 1 for size in batch) < 2:
        return values
    own = (1,) * (len(batch) - len(own)) + own
    steps = np.sum([place * (size > 1) for place, size in zip(np.indices(batch), own, strict=True)], axis=0)
    places = np.ravel_multi_index(np.unravel_index(steps.reshape(-1), own), batch)
    return node.emit(relax.op.take(values, constant(places.astype(np.int32)), axis=0, mode="clip"))


def _rows_of(node: Node, expr: relax.Expr, shape: Shape) -> relax.Expr:
    """(B or 1, M or 1, C) broadcast to `shape`, then flattened to rows."""
    if shape_of(expr) != shape:
        expr = node.emit(relax.op.broadcast_to(expr, shape))
    return reshaped(node, expr, (shape[0] * shape[1], shape[2]))


def _as_rows(node: Node, expr: relax.Expr) -> relax.Expr:
    shape = shape_of(expr)
    return reshaped(node, expr, (math.prod(shape[:-1]), shape[-1]))


def _as_batch(node: Node, expr: relax.Expr, batch: Shape) -> relax.Expr:
    """(…, M, K) as (B, M, K), where B is all of `batch`, or 1 for a single matrix."""
    shape = shape_of(expr)
    if math.prod(shape[:-2]) == 1:
        return reshaped(node, expr, (1, *shape[-2:]))
    if shape[:-2] != batch:
        expr = node.emit(relax.op.broadcast_to(expr, (*batch, *shape[-2:])))
    return reshaped(node, expr, (math.prod(batch), *shape[-2:]))


def _transposed(node: Node, expr: relax.Expr) -> relax.Expr:
    """The last two dimensions swapped."""
    axes = list(range(len(shape_of(expr))))
    axes[-2:] = axes[:-3:-1]
    return node.emit(relax.op.permute_dims(expr, axes))

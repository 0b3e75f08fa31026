"""Float operators of com.microsoft that ONNX Runtime's optimizer puts into transformers, and QEmbedLayerNormalization,
whose embeddings stay integers until they are looked up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op.base import constant, shape_of
from ....passes.marks import Mark
from ...run_time import checked_indices
from ..node import Node
from ..registry import MICROSOFT, converter
from .arithmetic import cast, float_function, known, minus, number, plus, times

# ---- embeddings --------------------------------------------------------------------------------------------------


def _row(node: Node, ids: relax.Expr, table: relax.Expr) -> relax.Expr:
    """Rows of the table."""
    rows = checked_indices(node.emit, ids, shape_of(table)[0], node.label)
    return node.emit(relax.op.take(table, rows, axis=0, mode="clip"))


def _embed(
    node: Node,
    tables: tuple[int, int, int],
    positions: relax.Expr | None,
    real: Callable[[relax.Expr, int], relax.Expr],
) -> relax.Expr:
    """Sum of the word, position and segment embeddings. real: (looked-up rows, input) -> float rows."""
    word, position, segment = tables
    length = node.shape(0)[1]
    total = real(_row(node, node.input(0), node.input(word)), word)
    if positions is not None:
        rows = _row(node, positions, node.input(position))
    else:
        rows = node.emit(relax.op.strided_slice(node.input(position), [0], [0], [length]))
    total = plus(node, total, real(rows, position))
    if node.has_input(1):
        total = plus(node, total, real(_row(node, node.input(1), node.input(segment)), segment))
    return total


def _mask_index(node: Node) -> relax.Expr:
    """The number of ones in each row of the mask (input 7); 0 without a mask."""
    batch = node.shape(0)[0]
    if not node.has_input(7):
        return constant(np.zeros(batch, np.int32))
    ones = node.emit(relax.op.equal(cast(node, node.input(7), "int32"), number(1, "int32")))
    return node.emit(relax.op.sum(cast(node, ones, "int32"), axis=[1]))


def _norm(node: Node, data: relax.Expr, gamma: relax.Expr, beta: relax.Expr | None) -> relax.Expr:
    """(x − mean) / √(variance + epsilon) · gamma + beta over the last axis."""
    if beta is None:
        beta = constant(np.zeros(shape_of(gamma), str(gamma.ty.dtype)))
    epsilon = node.attribute("epsilon", 1e-12)
    return relax.op.nn.layer_norm(data, gamma, beta, axes=[-1], epsilon=epsilon)


@converter("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(node: Node) -> list[relax.Expr]:
    """Layer normalization of word + position + segment embeddings; also the lengths given by the mask, and the sum."""
    positions = node.input(8) if node.has_input(8) else None
    total = _embed(node, (2, 3, 4), positions, lambda rows, index: rows)
    return [_norm_one_by_one(node, total, node.input(5), node.input(6)), _mask_index(node), total]


@converter("QEmbedLayerNormalization", domain=MICROSOFT)
def qembed_layer_normalization(node: Node) -> list[relax.Expr]:
    """The same with 8-bit tables; rows are dequantized after the lookup."""

    def real(rows: relax.Expr, index: int) -> relax.Expr:
        scale, zero_point = node.scale(index + 6), node.zero_point(index + 11)
        return node.emit(qnn.dequantize(rows, scale, zero_point))

    def weight(index: int) -> relax.Expr:
        exprs = node.input(index), node.scale(index + 6), node.zero_point(index + 11)
        values = known(*exprs)
        if values is None:
            return node.emit(qnn.dequantize(*exprs))
        data, scale, zero_point = values
        return constant((data.astype(np.int32) - zero_point).astype(np.float32) * scale)

    total = _embed(node, (2, 3, 4), None, lambda rows, index: real(rows, index))
    return [_norm_one_by_one(node, total, weight(5), weight(6)), _mask_index(node)]


def _norm_one_by_one(node: Node, data: relax.Expr, gamma: relax.Expr, beta: relax.Expr) -> relax.Expr:
    """`_norm` in ONNX Runtime's order for embeddings: what it adds up it adds one by one, from the first element on.

    Sums over the first axis, as those over the last ones are added in lanes, see `passes.onnxruntime_rows`.
    """
    columns = node.emit(relax.op.permute_dims(data, [2, 0, 1]))
    count = number(shape_of(data)[-1], "float32")

    def mean_of(values: relax.Expr) -> relax.Expr:
        return node.emit(relax.op.divide(node.emit(relax.op.sum(values, axis=[0])), count))

    centred = minus(node, columns, mean_of(columns))
    variance = plus(node, mean_of(times(node, centred, centred)), number(node.attribute("epsilon", 1e-12), "float32"))
    unit = node.emit(relax.op.divide(centred, node.emit(relax.op.sqrt(variance))))
    return plus(node, times(node, node.emit(relax.op.permute_dims(unit, [1, 2, 0])), gamma), beta)


# ---- normalization -----------------------------------------------------------------------------------------------


def _skipped(node: Node, bias: int) -> relax.Expr:
    """input + skip + bias."""
    total = plus(node, node.input(0), node.input(1))
    return plus(node, total, node.input(bias)) if node.has_input(bias) else total


def _outputs(node: Node, result: relax.Expr, total: relax.Expr) -> list[relax.Expr]:
    if node.has_output(1) or node.has_output(2):
        raise node.unsupported("the outputs mean and inv_std_var")
    return [result, total, total, total]  # the two in the middle are unused


@converter("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(node: Node) -> list[relax.Expr]:
    """Layer normalization of input + skip + bias; the fourth output is that sum."""
    total = _skipped(node, 4)
    normed = _norm(node, total, node.input(2), node.input(3) if node.has_input(3) else None)
    return _outputs(node, node.assembly.emit_marked(normed, node.outputs[0], Mark.NORM_OF_SUM), total)


@converter("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(node: Node) -> list[relax.Expr]:
    """x / √(mean(x²) + epsilon) · gamma of x = input + skip + bias; the fourth output is x."""
    total = _skipped(node, 3)
    normed = relax.op.nn.rms_norm(total, node.input(2), axes=[-1], epsilon=node.attribute("epsilon", 1e-12))
    return _outputs(node, node.assembly.emit_marked(normed, node.outputs[0], Mark.NORM_OF_SUM), total)


# ---- activations -------------------------------------------------------------------------------------------------


@converter("Gelu", domain=MICROSOFT)
def gelu(node: Node) -> relax.Expr:
    """x · (1 + erf(x / √2)) / 2"""
    return float_function("gelu")(node.input(0))


@converter("BiasGelu", domain=MICROSOFT)
def bias_gelu(node: Node) -> relax.Expr:
    """gelu(A + B)"""
    return float_function("gelu")(plus(node, node.input(0), node.input(1)))


@converter("FastGelu", domain=MICROSOFT)
def fast_gelu(node: Node) -> relax.Expr:
    """x · (1 + tanh(√(2/π)·(x + 0.044715·x³))) / 2 of x = X + bias"""
    data = plus(node, node.input(0), node.input(1)) if node.has_input(1) else node.input(0)
    return float_function("gelu_tanh")(data)


@converter("QuickGelu", domain=MICROSOFT)
def quick_gelu(node: Node) -> relax.Expr:
    """x · sigmoid(alpha·x)"""
    scaled = times(node, node.input(0), number(node.attribute("alpha", 1.702), node.dtype(0)))
    return relax.op.multiply(node.input(0), node.emit(float_function("logistic")(scaled)))

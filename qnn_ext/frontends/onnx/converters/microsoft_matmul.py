"""Matrix products of com.microsoft: QGemm, MatMulIntegerToFloat, DynamicQuantizeMatMul, FusedMatMul, CDist."""

from __future__ import annotations

from tvm import relax

from .... import op as qnn
from ....op import compound
from ....op.base import shape_of
from ..node import Node
from ..registry import MICROSOFT, converter
from .arithmetic import cast, matmul, number, plus, requantize, times
from .integer import quantize_dynamically


def to_float(node: Node, accumulator: relax.Expr, scale: relax.Expr, bias: relax.Expr | None) -> relax.Expr:
    """f32(acc) · scale + bias, product and sum rounded separately. Scale: a scalar, or one per column."""
    shape = shape_of(scale)
    if len(shape) > 1:  # one set of scales per matrix of a batch
        real = times(node, cast(node, accumulator, "float32"), scale)
    else:
        real = node.emit(qnn.dequantize(accumulator, scale, 0, axis=-1))
    return real if bias is None else plus(node, real, bias)


@converter("QGemm", domain=MICROSOFT)
def qgemm(node: Node) -> relax.Expr:
    """acc = A'·B' + C in int32; saturate(rint(f32(acc) · (alpha·s_a·s_b / s_y)) + z_y), or f32(acc) · (alpha·s_a·s_b)
    where the result has no zero point; bit-exact with ONNX Runtime."""
    a, b = node.input(0), node.input(3)
    for value, name in ((a, "A"), (b, "B")):
        if len(shape_of(value)) != 2:
            raise node.malformed(f"{name} must be a matrix, found shape {shape_of(value)}")
    if node.attribute("transA", 0):
        a = compound.permute(a, [1, 0], node.emit)
    if node.attribute("transB", 0):
        b = compound.permute(b, [1, 0], node.emit)
    acc = matmul(node, a, b, node.zero_point(2), node.zero_point(5))
    if node.has_input(6):
        acc = plus(node, acc, node.input(6))
    alpha = number(node.attribute("alpha", 1.0))
    scale = times(node, times(node, alpha, node.scale(1)), node.scale(4))
    if not node.has_input(8):
        return to_float(node, acc, scale, None)
    return requantize(node, acc, scale, node.scale(7), node.zero_point(8), node.dtype(8))


@converter("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(node: Node) -> relax.Expr:
    """f32(Σ (a − z_a)(b − z_b)) · (s_a·s_b) + bias; equal to ONNX Runtime's floats."""
    scale = times(node, node.scale(2), node.scale(3))
    acc = matmul(node, node.input(0), node.input(1), node.zero_point(4), node.zero_point(5))
    return to_float(node, acc, scale, node.input(6) if node.has_input(6) else None)


@converter("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(node: Node) -> relax.Expr:
    """A is quantized to uint8 at run time; the rest is as in MatMulIntegerToFloat."""
    a = quantize_dynamically(node, node.input(0))
    scale = times(node, a.scale, node.scale(2))  # before the product, so that its kernel can use it
    acc = matmul(node, a.data, node.input(1), a.zero_point, node.zero_point(3))
    return to_float(node, acc, scale, node.input(4) if node.has_input(4) else None)


@converter("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(node: Node) -> relax.Expr:
    """alpha · A'·B' in float. transBatch: the first dimension of a matrix moves behind the others but the last; trans:
    then the last two are swapped."""
    operands = []
    for index, name in enumerate("AB"):
        rank = len(node.shape(index))
        axes = list(range(rank))
        if node.attribute(f"transBatch{name}", 0) and rank > 2:
            axes = [*axes[1:-1], 0, rank - 1]
        if node.attribute(f"trans{name}", 0) and rank > 1:
            axes = [*axes[:-2], axes[-1], axes[-2]]
        operands.append(compound.permute(node.input(index), axes, node.emit))
    product = node.emit(relax.op.matmul(*operands))
    alpha = node.attribute("alpha", 1.0)
    return product if alpha == 1 else relax.op.multiply(product, number(alpha, str(product.ty.dtype)))


@converter("CDist", domain=MICROSOFT)
def distances(node: Node) -> relax.Expr:
    """Euclidean distances of the rows of A and B, or their squares, as ONNX Runtime computes them:
    max(Σ a² − 2·A·Bᵀ + Σ b², 0)."""
    metric = node.attribute("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise node.malformed(f"metric must be euclidean or sqeuclidean, found {metric!r}")
    if any(len(node.shape(index)) != 2 for index in range(2)) or node.shape(0)[1] != node.shape(1)[1]:
        raise node.malformed(f"rows of shapes {node.shape(0)} and {node.shape(1)} have no distances")
    squares = [
        node.emit(relax.op.sum(times(node, node.input(index), node.input(index)), axis=1, keepdims=index == 0))
        for index in range(2)
    ]
    turned = compound.permute(node.input(1), [1, 0], node.emit)
    products = times(node, node.emit(relax.op.matmul(node.input(0), turned)), number(-2, node.dtype(0)))
    squared = plus(node, plus(node, products, squares[0]), squares[1])
    squared = node.emit(relax.op.maximum(squared, number(0, node.dtype(0))))
    return relax.op.sqrt(squared) if metric == "euclidean" else squared

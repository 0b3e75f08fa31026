"""Linear layers, matrix products, attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ..... import op as qnn
from .....errors import UnsupportedOperatorError
from .....limits import check_elements
from .....numerics.packed import pack
from .....op import compound
from .....op.base import constant, constant_value, shape_of
from .....op.blockwise import LONGEST_GROUP
from ..registry import converter
from ..values import cast, dtype_of, reshape, scalar


@converter("aten.linear.default")
def _linear(importer: Any, x: relax.Expr, weight: relax.Expr, bias: Any) -> relax.Expr:
    """x · Wᵀ + b."""
    ndim = len(shape_of(weight))
    transposed = importer.emit(relax.op.permute_dims(weight)) if ndim > 1 else weight
    result = importer.emit(relax.op.matmul(x, transposed))
    return result if bias is None else importer.emit(relax.op.add(result, bias))


@converter("aten.matmul.default", "aten.mm.default", "aten.bmm.default", "aten.mv.default", "aten.dot.default")
def _matmul(importer: Any, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    weight = importer.cast_weight(1)
    if weight is not None and len(shape_of(a)) == 2 and dtype_of(a) == "float32" and len(weight) <= LONGEST_GROUP:
        return importer.emit(_by_integers(a, weight))
    return importer.emit(relax.op.matmul(a, b))


def _by_integers(a: relax.Expr, weight: np.ndarray) -> relax.Call:
    """a · weight for 8-bit integers (K, N), which torchao's weight-only layers cast to float and scale afterwards."""
    depth, units = weight.shape
    dtype, ones, zero = str(weight.dtype), constant(np.ones((units, 1), np.float32)), constant(np.int32(0))
    return qnn.blockwise_dense(a, constant(pack(weight.T, dtype)), ones, zero, dtype, depth)


@converter("aten.addmm.default", "aten.baddbmm.default")
def _addmm(importer: Any, addend: relax.Expr, a: relax.Expr, b: relax.Expr, beta: Any, alpha: Any) -> relax.Expr:
    """beta · addend + alpha · a b."""
    result = importer.emit(relax.op.matmul(a, b))
    if alpha != 1:
        result = importer.emit(relax.op.multiply(result, scalar(alpha, dtype_of(result))))
    if beta == 0:
        return result
    if beta != 1:
        addend = importer.emit(relax.op.multiply(addend, scalar(beta, dtype_of(addend))))
    return importer.emit(relax.op.add(result, addend))


@converter("aten._int_mm.default")
def _integer_matmul(importer: Any, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """int8 or uint8 times int8 → int32."""
    return compound.matmul(a, b, constant(np.int32(0)), constant(np.int32(0)), emit=importer.emit)


@converter("aten.scaled_dot_product_attention.default")
def _attention(
    importer: Any,
    query: relax.Expr,
    key: relax.Expr,
    value: relax.Expr,
    mask: Any,
    dropout: float,
    causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> relax.Expr:
    """softmax(Q Kᵀ · scale + mask) V."""
    if dropout:
        raise UnsupportedOperatorError("attention with dropout is not supported; export the model in eval mode")
    product = _by_groups if enable_gqa else _matmul
    ndim, dtype = len(shape_of(key)), dtype_of(query)
    axes = [*range(ndim - 2), ndim - 1, ndim - 2]
    scores = product(importer, query, importer.emit(relax.op.permute_dims(key, axes)))
    factor = 1 / math.sqrt(shape_of(query)[-1]) if scale is None else scale
    scores = importer.emit(relax.op.multiply(scores, scalar(factor, dtype)))
    if causal:
        rows, columns = check_elements(shape_of(scores)[-2:], "the causal mask", "folded")
        mask = constant(np.tril(np.ones((rows, columns), bool)))
    if mask is not None:
        scores = _masked(importer, scores, mask, dtype)
    return product(importer, importer.emit(relax.op.nn.softmax(scores, -1)), value)


def _masked(importer: Any, scores: relax.Expr, mask: relax.Expr, dtype: str) -> relax.Expr:
    """A boolean mask selects, any other mask is added."""
    if dtype_of(mask) != "bool":
        return importer.emit(relax.op.add(scores, cast(importer, mask, dtype)))
    known = constant_value(mask)
    if known is not None:
        return importer.emit(relax.op.add(scores, constant(np.where(known, 0, -np.inf).astype(dtype))))
    return importer.emit(relax.op.where(mask, scores, scalar(-np.inf, dtype)))


def _by_groups(importer: Any, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """a · b of (…, heads, S, n) and (…, groups, n, m): heads // groups of a share one of b. They are rows of one
    matrix, so that b, which may be a long cache, is not repeated for them."""
    shape, groups = shape_of(a), shape_of(b)[-3]
    if shape[-3] == groups:
        return _matmul(importer, a, b)
    rows = (*shape[:-3], groups, shape[-3] // groups * shape[-2])
    result = _matmul(importer, reshape(importer, a, (*rows, shape[-1])), b)
    return reshape(importer, result, (*shape[:-1], shape_of(b)[-1]))

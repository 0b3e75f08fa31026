"""Block-wise quantized weights stay packed where a kernel reads them so; elsewhere their floats are computed.

    matmul(x, transpose(blockwise_dequantize(w)))   → blockwise_dense(x, w)
    the same with x = dequantize(q) row by row      → blockwise_dense_int8(q, w), and a term for the zero points of q
    take(blockwise_dequantize(w), rows)             → blockwise_dequantize(take(w, rows))      an embedding
    blockwise_dequantize(w), read by anything else  → a constant

Runs at import, before the conversion of QDQ graphs, which computes what is constant.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import IRModule, relax

from .. import op as qnn
from ..op.arguments import argument, data_of, factors_of
from ..op.base import call_attributes, constant, constant_value, normalize_axis, shape_of
from ..op.blockwise import dequantized
from ..op.compound import reshape
from ..op.relax_table import traits_of
from .bodies import with_bodies
from .layout.forms import static_shape
from .matrix_moves import axes_of
from .rewrite import Emit, bindings_of, op_name, rewrite

FLOAT = "float32"


def keep_packed(mod: IRModule) -> IRModule:
    """`mod` with the products and embeddings of block-wise quantized constants computed from their packed integers."""
    return with_bodies(_kept(mod), keep_packed)


def _kept(mod: IRModule) -> IRModule:
    weights: dict[Any, relax.Call] = {}  # variable -> the dequantization that it is the result of
    transposed: dict[Any, relax.Call] = {}  # variable -> the one whose transposed result it is
    rows: dict[Any, relax.Call] = {}  # variable -> the dequantization of int8 rows that it is a reshape of

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        name = op_name(expr)
        if _is_packed(expr):
            var = emit(expr)
            weights[var] = expr
            return var
        if traits_of(expr).permutes and axes_of(expr) == (1, 0):
            return _transposed(expr, emit, weights, transposed)
        if _dequantizes_rows(expr) or (traits_of(expr).reshapes and data_of(expr) in rows):
            var = emit(expr)
            rows[var] = rows.get(data_of(expr), expr)
            return var
        if name == "matmul" and factors_of(expr)[1] in transposed:
            data, weight = factors_of(expr)
            return _product(expr, transposed[weight], rows.get(data), emit)
        if name == "take" and data_of(expr) in weights and int(expr.attrs.axis or 0) == 0:
            return _rows(expr, weights[data_of(expr)], emit)
        return None

    if not any(_is_packed(binding.value) for binding in bindings_of(mod["main"])):
        return mod
    return rewrite(rewrite(mod, rule), _computed)


def _is_packed(expr: relax.Expr) -> bool:
    """Whether it dequantizes a block-wise quantized constant."""
    return op_name(expr) == "qnn.blockwise_dequantize" and all(constant_value(arg) is not None for arg in expr.args)


def _transposed(
    call: relax.Call, emit: Emit, weights: dict[Any, relax.Call], transposed: dict[Any, relax.Call]
) -> relax.Expr:
    var, data = emit(call), data_of(call)
    for before, after in ((weights, transposed), (transposed, weights)):
        if data in before:
            after[var] = before[data]
            break
    return var


def _computed(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
    """What still reads a dequantized constant reads its floats."""
    if not _is_packed(expr):
        return None
    values = map(constant_value, expr.args)
    return constant(dequantized(*values, **call_attributes(expr)))  # type: ignore[arg-type]


def _dequantizes_rows(call: relax.Call) -> bool:
    """Whether it dequantizes int8 values with a scale for each row, along the only axis that has several rows."""
    if op_name(call) != "qnn.dequantize" or str(data_of(call).ty.dtype) != "int8":
        return False
    shape = static_shape(data_of(call))
    if shape is None or len(shape) < 2 or 0 in shape:
        return False
    count, attributes = math.prod(shape_of(argument(call, "scale"))), call_attributes(call)
    if attributes["out_dtype"] != FLOAT or count != math.prod(shape[:-1]):
        return False
    axis = normalize_axis(attributes["axis"], len(shape))
    return count == 1 or (axis < len(shape) - 1 and shape[axis] == count)


def _product(call: relax.Call, weight: relax.Call, source: relax.Call | None, emit: Emit) -> relax.Expr | None:
    """x · wᵀ for x of float32, all its rows as one matrix; `source`: what dequantizes them."""
    data, shape = factors_of(call)[0], static_shape(factors_of(call)[0])
    if shape is None or 0 in shape or str(data.ty.dtype) != FLOAT or (call.attrs.out_dtype or FLOAT) != FLOAT:
        return None
    attributes = call_attributes(weight)
    depth = attributes.pop("depth")
    matrix = (math.prod(shape[:-1]), depth)
    if source is not None and shape_of(data_of(source))[-1] == depth and _has_integer_zeros(weight):
        product = _of_rows(source, weight, emit)
    else:
        product = emit(qnn.blockwise_dense(reshape(data, matrix, emit), *weight.args, **attributes))
    return reshape(product, (*shape[:-1], shape_of(product)[1]), emit)


def _has_integer_zeros(weight: relax.Call) -> bool:
    return str(argument(weight, "zero_point").ty.dtype) in ("uint8", "int32")


def _of_rows(source: relax.Call, weight: relax.Call, emit: Emit) -> relax.Expr:
    """Σ (q − z)·s · w = s · Σ q · w − (z · s) · Σ w, the last sum known at import."""
    attributes = call_attributes(weight)
    depth = attributes.pop("depth")
    count = math.prod(shape_of(data_of(source))[:-1])
    data = reshape(data_of(source), (count, depth), emit)
    scale = reshape(argument(source, "scale"), (count, 1), emit)
    product = emit(qnn.blockwise_dense_int8(data, scale, *weight.args, **attributes))
    zero_point = argument(source, "zero_point")
    known = constant_value(zero_point)
    if known is not None and not known.any():
        return product
    values = [constant_value(arg) for arg in weight.args]
    total = dequantized(*values, depth=depth, **attributes).sum(axis=1, dtype=np.float64)  # type: ignore[arg-type]
    zeros = emit(relax.op.astype(reshape(zero_point, (math.prod(shape_of(zero_point)), 1), emit), FLOAT))
    offset = emit(relax.op.multiply(zeros, scale))
    return emit(relax.op.subtract(product, emit(relax.op.multiply(offset, constant(total.astype(FLOAT))))))


def _rows(call: relax.Call, weight: relax.Call, emit: Emit) -> relax.Expr | None:
    """Some rows of a matrix: the packed ones are taken and then made floats."""
    indices = call.args[1]
    shape = static_shape(indices)
    if shape is None or 0 in shape:
        return None
    flat = reshape(indices, (math.prod(shape),), emit)

    def taken(part: relax.Expr) -> relax.Expr:
        return emit(relax.op.take(part, flat, 0, call.attrs.mode)) if len(part.ty.shape) else part

    rows = emit(qnn.blockwise_dequantize(*map(taken, weight.args), **call_attributes(weight)))
    return reshape(rows, (*shape, call_attributes(weight)["depth"]), emit)

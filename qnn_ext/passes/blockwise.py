"""Block-wise quantized weights stay packed where a kernel reads them so; elsewhere their floats are computed.

    matmul(x, transpose(blockwise_dequantize(w)))   → blockwise_dense(x, w)
    take(blockwise_dequantize(w), rows)             → blockwise_dequantize(take(w, rows))      an embedding
    blockwise_dequantize(w), read by anything else  → a constant

Runs at import, before the conversion of QDQ graphs, which computes what is constant.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import IRModule, relax

from .. import op as qnn
from ..op.arguments import data_of, factors_of
from ..op.base import call_attributes, constant, constant_value, shape_of
from ..op.blockwise import dequantized
from ..op.compound import reshape
from ..op.relax_table import traits_of
from .bodies import with_bodies
from .layout.forms import static_shape
from .matrix_moves import axes_of
from .rewrite import Emit, op_name, rewrite

FLOAT = "float32"


def keep_packed(mod: IRModule) -> IRModule:
    """`mod` with the products and embeddings of block-wise quantized constants computed from their packed integers."""
    return with_bodies(_kept(mod), keep_packed)


def _kept(mod: IRModule) -> IRModule:
    weights: dict[Any, relax.Call] = {}  # variable -> the dequantization that it is the result of
    transposed: dict[Any, relax.Call] = {}  # variable -> the one whose transposed result it is

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        name = op_name(expr)
        if name == "qnn.blockwise_dequantize" and all(constant_value(arg) is not None for arg in expr.args):
            var = emit(expr)
            weights[var] = expr
            return var
        if traits_of(expr).permutes and axes_of(expr) == (1, 0):
            return _transposed(expr, emit, weights, transposed)
        if name == "matmul" and factors_of(expr)[1] in transposed:
            return _product(expr, transposed[factors_of(expr)[1]], emit)
        if name == "take" and data_of(expr) in weights and int(expr.attrs.axis or 0) == 0:
            return _rows(expr, weights[data_of(expr)], emit)
        return None

    kept = rewrite(mod, rule)
    return rewrite(kept, _computed) if weights else mod


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
    if op_name(expr) != "qnn.blockwise_dequantize":
        return None
    values = [constant_value(arg) for arg in expr.args]
    if any(value is None for value in values):
        return None
    return constant(dequantized(*values, **call_attributes(expr)))  # type: ignore[arg-type]


def _product(call: relax.Call, weight: relax.Call, emit: Emit) -> relax.Expr | None:
    """x · wᵀ for x of float32, all its rows as one matrix."""
    data, shape = factors_of(call)[0], static_shape(factors_of(call)[0])
    if shape is None or 0 in shape or str(data.ty.dtype) != FLOAT or (call.attrs.out_dtype or FLOAT) != FLOAT:
        return None
    attributes = call_attributes(weight)
    depth = attributes.pop("depth")
    rows = reshape(data, (math.prod(shape[:-1]), depth), emit)
    product = emit(qnn.blockwise_dense(rows, *weight.args, **attributes))
    return reshape(product, (*shape[:-1], shape_of(product)[1]), emit)


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

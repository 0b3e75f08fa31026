"""Products of int8 activations and weights of 4 and 8 bits in groups, with ONNX Runtime's bits.

    blockwise_dense_int8(x, w) [+ bias]  →  blockwise_dense_lanes(x, w, bias)

in quantized ONNX models (see `blocked_sums`), on CPUs with the instruction that ONNX Runtime's order of sums follows
from. Activations are quantized again behind such a product, where a last bit may decide between two steps. Elsewhere
the order of `blockwise_dense_int8` is as good, and faster where many rows share weights.

A bias, constant, is added before the zero points' term, be it the operator's own or added by an Add behind it, which
ONNX Runtime makes its own; also where the rows have several axes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import IRModule, relax
from tvm.target import Target

from .. import op as qnn
from ..numerics.mlas_blocks import BLOCKS
from ..op.arguments import argument
from ..op.base import call_attributes, constant, constant_value, shape_of
from ..op.blockwise import groups_of
from ..op.blockwise_lanes import WEIGHT_DTYPES
from ..op.compound import reshape
from ..targets.features import multiplies_by
from .blocked_sums import asks_for_blocks
from .rewrite import Emit, bindings_of, consumers, only_reader, op_name, rewrite

_INSTRUCTION = "vpdpbusd_512"


def blockwise_lanes(mod: IRModule, target: Target) -> IRModule:
    """`mod` with these products in partial sums, if it asks for ONNX Runtime's order and the CPU is one of its."""
    if not asks_for_blocks(mod, target) or not multiplies_by(target, _INSTRUCTION):
        return mod
    main = mod["main"]
    bindings = bindings_of(main)
    readers = consumers(main, bindings)
    variables = iter([binding.var for binding in bindings])
    products: dict[Any, relax.Call] = {}  # behind which a bias is added

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        var = next(variables)
        if op_name(expr) == "add" and (found := next((one for one in expr.args if one in products), None)) is not None:
            bias = next(value for value in map(constant_value, expr.args) if value is not None)
            return reshape(emit(_in_lanes(products[found], np.ravel(bias))), shape_of(expr), emit)
        if op_name(expr) == "reshape" and expr.args[0] in products:
            reshaped = emit(expr)
            products[reshaped] = products[expr.args[0]]
            return reshaped
        if not _is_summed_so(expr):
            return None
        if not biased(var, shape_of(expr)[1]):
            return _in_lanes(expr, np.zeros(shape_of(expr)[1], np.float32))
        product = emit(expr)
        products[product] = expr
        return product

    def biased(product: Any, columns: int) -> bool:
        """Whether a bias is added to it, and nothing else reads it."""
        reader = only_reader(product, readers, bindings)
        if reader is not None and op_name(reader.value) == "reshape" and shape_of(reader.var)[-1] == columns:
            return biased(reader.var, columns)
        return reader is not None and _adds_bias(reader.value, product)

    return rewrite(mod, rule)


def _is_summed_so(expr: relax.Expr) -> bool:
    """Whether it is such a product of constant weights, with a scale for each group of a row."""
    if op_name(expr) != "qnn.blockwise_dense_int8":
        return False
    parts = {name: argument(expr, name) for name in ("data", "data_scale", "weight", "scale", "zero_point")}
    known = all(constant_value(parts[name]) is not None for name in ("weight", "scale", "zero_point"))
    attributes = call_attributes(expr)
    block, dtype = attributes["group_size"], attributes["weight_dtype"]
    groups = groups_of(shape_of(parts["data"])[1], block)
    return (
        known
        and dtype in WEIGHT_DTYPES
        and block in BLOCKS
        and shape_of(parts["data_scale"])[1] == groups
        and str(parts["scale"].ty.dtype) == "float32"
    )


def _adds_bias(expr: relax.Expr, product: Any) -> bool:
    """Whether it adds one row to the product."""
    if op_name(expr) != "add" or shape_of(expr) != shape_of(product):
        return False
    known = [value for value in map(constant_value, expr.args) if value is not None]
    return any(bias.ndim > 0 and bias.size == bias.shape[-1] == shape_of(product)[-1] for bias in known)


def _in_lanes(call: relax.Call, bias: np.ndarray) -> relax.Call:
    data, data_scale, weight, scale, zero_point = call.args
    return qnn.blockwise_dense_lanes(
        data, data_scale, weight, scale, zero_point, constant(bias), **call_attributes(call)
    )

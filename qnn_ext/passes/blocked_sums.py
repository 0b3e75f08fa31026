"""Long float products of quantized ONNX models, summed in the blocks of ONNX Runtime's MLAS.

    matmul(x, w)  →  matmul(x₁, w₁) + matmul(x₂, w₂) + …        + bias: bias + matmul(x₁, w₁) + …

with the blocks x₁, x₂, … of the columns of x and w₁, w₂, … of the rows of w: each sum of a block is one chain of fused
multiply-adds, see `float_products`. What is quantized afterwards then has ONNX Runtime's bits, as a last bit may decide
between two steps. Elsewhere one chain is as good, and needs no sums in between.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import IRModule, relax
from tvm.target import Target

from ..numerics.mlas import block_of_products
from ..op.arguments import factors_of
from ..op.base import constant, constant_value, shape_of
from ..targets.features import backend_of
from .bodies import with_bodies
from .layout.forms import static_shape
from .rewrite import Emit, bindings_of, consumers, op_name, rewrite, with_main

BLOCKED = "blocked_sums"
"""The attribute of functions whose products are summed in blocks."""


def ask_for_blocks(mod: IRModule) -> IRModule:
    """`mod` with the attribute, on the bodies of loops too."""
    return with_bodies(with_main(mod, mod["main"].with_attr(BLOCKED, True)), ask_for_blocks)


def asks_for_blocks(mod: IRModule, target: Target) -> bool:
    """Whether it has the attribute, and the target has chains of fused multiply-adds."""
    return bool(mod["main"].attrs.get(BLOCKED) and backend_of(target).float_products)


def blocked_sums(mod: IRModule, target: Target) -> IRModule:
    """`mod` with long products as sums of blocks, if it asks for them."""
    main = mod["main"]
    if not asks_for_blocks(mod, target):
        return mod
    bindings = bindings_of(main)
    readers, variables = consumers(main, bindings), iter([binding.var for binding in bindings])
    sums: dict[Any, list[relax.Expr]] = {}  # to which ONNX Runtime's Gemm adds the bias

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        var = next(variables)
        if op_name(expr) == "add":
            return _with_bias(expr.args[0], expr.args[1], sums, emit)
        blocks = _blocks(expr, emit) if op_name(expr) == "matmul" else []
        if len(blocks) < 2:
            return None
        total = _total(blocks, emit)
        if len(readers[var]) == 1 and len(shape_of(factors_of(expr)[1])) == 2:
            sums[total] = blocks
        return total

    return rewrite(mod, rule)


def _blocks(call: relax.Call, emit: Emit) -> list[relax.Expr]:
    """The product's blocks; none if it is not of float32 or has unknown sizes."""
    x, y = factors_of(call)
    left, right = static_shape(x), static_shape(y)
    if left is None or right is None or len(left) < 2 or len(right) < 2 or not left[-1]:
        return []
    if {str(one.ty.dtype) for one in (x, y, call)} != {"float32"}:
        return []
    known = constant_value(y)
    (terms, columns), rows = right[-2:], int(np.prod(left[:-1])) if len(right) == 2 else left[-2]
    block = block_of_products(rows, terms, columns, packed=known is not None and len(right) == 2)
    found = []
    for start in range(0, terms, block):
        stop = min(start + block, terms)
        first = relax.op.strided_slice(x, [len(left) - 1], [start], [stop])
        second = relax.op.strided_slice(y, [len(right) - 2], [start], [stop])
        part = emit(second) if known is None else constant(np.ascontiguousarray(known[..., start:stop, :]))
        found.append(emit(relax.op.matmul(emit(first), part)))
    return found


def _with_bias(
    first: relax.Expr, second: relax.Expr, sums: dict[Any, list[relax.Expr]], emit: Emit
) -> relax.Expr | None:
    """The sum of a bias, a constant vector or matrix, and of blocks behind it."""
    for product, bias in ((first, second), (second, first)):
        is_bias = constant_value(bias) is not None and len(shape_of(bias)) <= 2
        if is_bias and product in sums:
            return _total([bias, *sums[product]], emit)
    return None


def _total(terms: list[relax.Expr], emit: Emit) -> relax.Expr:
    """Their sum from the first on."""
    total = terms[0]
    for term in terms[1:]:
        total = emit(relax.op.add(total, term))
    return total

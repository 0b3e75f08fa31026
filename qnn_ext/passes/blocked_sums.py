"""Long float products of quantized ONNX models, summed in the blocks of ONNX Runtime's MLAS.

    matmul(x, w)  →  matmul(x₁, w₁) + matmul(x₂, w₂) + …        + bias: bias + matmul(x₁, w₁) + …

with the blocks x₁, x₂, … of the columns of x and w₁, w₂, … of the rows of w: each sum of a block is one chain of fused
multiply-adds, see `float_products`. What is quantized afterwards then has ONNX Runtime's bits, as a last bit may decide
between two steps. Elsewhere one chain is as good, and needs no sums in between.

A row times a computed matrix, as of attention's probabilities and values in a decoder, has products of its own in MLAS:
neither fused nor in blocks, but four at a time; eight partial sums if the matrix is transposed, as keys are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import IRModule, relax
from tvm.target import Target

from .. import op as qnn
from ..numerics.mlas import block_of_products
from ..op.arguments import factors_of
from ..op.base import constant, constant_value, shape_of
from ..targets.features import backend_of
from .bodies import with_bodies
from .layout.forms import static_shape
from .rewrite import Emit, bindings_of, consumers, only_reader, op_name, rewrite, total_of, with_main

_SUMS = 8  # partial sums of a row times a transposed matrix
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
    on_cpu = not backend_of(target).grid
    graph, variables = _Graph(mod), iter([binding.var for binding in bindings])
    sums: dict[Any, list[relax.Expr]] = {}  # to which ONNX Runtime's Gemm adds the bias

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        var = next(variables)
        if op_name(expr) in ("multiply", "qnn.fma") and expr.args[0] in sums:
            return _scaled(sums[expr.args[0]], expr.args[1], expr.args[2:], emit)
        if op_name(expr) == "add":
            return _with_bias(expr.args[0], expr.args[1], sums, emit)
        if op_name(expr) != "matmul" or not _is_float(expr):
            return None
        scaled = graph.is_scaled(var)
        if on_cpu and _is_row(expr) and constant_value(factors_of(expr)[1]) is None and not scaled:
            return (_by_eights if graph.is_transposed(factors_of(expr)[1]) else _by_fours)(expr, emit)
        blocks = _blocks(expr, scaled, emit)
        if len(blocks) < 2:
            return None
        total = total_of(blocks, emit)
        if len(graph.readers[var]) == 1 and len(shape_of(factors_of(expr)[1])) == 2:
            sums[total] = blocks
        return total

    return rewrite(mod, rule)


class _Graph:
    """What stands around the products of `main`."""

    def __init__(self, mod: IRModule) -> None:
        self._bindings = bindings_of(mod["main"])
        self._values = {binding.var: binding.value for binding in self._bindings}
        self.readers = consumers(mod["main"], self._bindings)

    def is_scaled(self, product: Any) -> bool:
        """Whether ONNX Runtime multiplies the product by a number in the same kernel: one that it or a factor is
        multiplied with or divided by."""
        around = [self._values.get(factor) for factor in factors_of(self._values[product])]
        if (reader := only_reader(product, self.readers, self._bindings)) is not None:
            around.append(reader.value)
        return any(op_name(value) in ("multiply", "divide", "qnn.fma") and _has_number(value) for value in around)

    def is_transposed(self, matrix: Any) -> bool:
        """Whether ONNX Runtime transposes it as it multiplies: its last two axes are exchanged."""
        value = self._values.get(matrix)
        if value is None or op_name(value) != "permute_dims":
            return False
        rank = len(shape_of(matrix))
        axes = [int(axis) for axis in value.attrs.axes or range(rank)[::-1]]
        return axes == [*range(rank - 2), rank - 1, rank - 2]


def _has_number(call: relax.Call) -> bool:
    known = [constant_value(arg) for arg in call.args]
    return any(value is not None and value.size == 1 for value in known)


def _is_float(call: relax.Call) -> bool:
    """Whether it is a product of float32 matrices of known sizes."""
    shapes = [static_shape(factor) for factor in factors_of(call)]
    known = all(shape is not None and len(shape) >= 2 and 0 not in shape for shape in shapes)
    return known and {str(one.ty.dtype) for one in (*factors_of(call), call)} == {"float32"}


def _rows(call: relax.Call) -> int:
    """Those that are multiplied by one matrix."""
    left, right = map(shape_of, factors_of(call))
    return int(np.prod(left[:-1])) if len(right) == 2 else left[-2]


def _is_row(call: relax.Call) -> bool:
    """Whether it is a row times a matrix of several columns."""
    return _rows(call) == 1 and shape_of(call)[-1] > 1


def _by_fours(call: relax.Call, emit: Emit) -> relax.Expr:
    """Σ over the groups of four terms of ((p₀ + p₁) + p₂) + p₃ each, from 0 on; then p₀ + p₁ of two further terms, then
    the last one, each added to what is before it."""
    x, y = factors_of(call)
    terms = shape_of(y)[-2]
    column = emit(relax.op.reshape(x, (*shape_of(x)[:-2], terms, 1)))
    products = emit(relax.op.multiply(column, y))
    return relax.op.reshape(by_fours(products, len(shape_of(products)) - 2, terms, emit), shape_of(call))


def by_fours(products: relax.Expr, axis: int, terms: int, emit: Emit) -> relax.Expr:
    """The sum of products over an axis in this order."""

    def part(start: int, stop: int, step: int = 1) -> relax.Expr:
        return emit(relax.op.strided_slice(products, [axis], [start], [stop], [step]))

    def fours(whole: int) -> relax.Expr:
        groups = total_of([part(place, whole, 4) for place in range(4)], emit)
        return emit(relax.op.sum(groups, [axis], keepdims=True))

    def rest(start: int, stop: int) -> relax.Expr:
        return total_of([part(place, place + 1) for place in range(start, stop)], emit)

    return fours_and_rest(terms, fours, rest, emit)


def fours_and_rest(
    terms: int,
    fours: Callable[[int], relax.Expr],
    rest: Callable[[int, int], relax.Expr],
    emit: Emit,
) -> relax.Expr:
    """The sum of so many terms in this order: of the sums of four each, then of two and of one that are left.

    fours: the sum of the terms in front of a place, four by four; rest: that of the terms from one place to another
    """
    whole = terms // 4 * 4
    totals = [fours(whole)] if whole else []
    if terms - whole >= 2:
        totals.append(rest(whole, whole + 2))
    if terms % 2:
        totals.append(rest(terms - 1, terms))
    return total_of(totals, emit)


def _by_eights(call: relax.Call, emit: Emit) -> relax.Expr:
    """Eight partial sums of products, each over every eighth term, from 0 on. For groups of four columns:
    ((s₀ + s₁) + s₂) + s₃ of the first four and of the last, added; for two further columns, pairs of sums two apart,
    those of even places first; for a last column, neighbours."""
    x, y = factors_of(call)
    *batch, terms, columns = shape_of(y)
    rows = emit(relax.op.permute_dims(y, [*range(len(batch)), len(batch) + 1, len(batch)]))
    products = emit(relax.op.multiply(x, rows))
    if terms % _SUMS:
        widths = [0, 0] * (len(shape_of(products)) - 1)
        products = emit(relax.op.nn.pad(products, [*widths, 0, _SUMS - terms % _SUMS]))
    *lead, _, _ = shape_of(products)
    split = emit(relax.op.reshape(products, (*lead, columns, -(-terms // _SUMS), _SUMS)))
    sums, axis = emit(relax.op.sum(split, [len(lead) + 1])), len(lead)
    whole = columns // 4 * 4
    pairs_end = columns // 2 * 2
    found = []
    for start, stop, fold in ((0, whole, _of_four), (whole, pairs_end, _of_two), (pairs_end, columns, _of_one)):
        if start < stop:
            parts = [
                emit(relax.op.strided_slice(sums, [axis, axis + 1], [start, one], [stop, one + 1]))
                for one in range(_SUMS)
            ]
            found.append(fold(parts, emit))
    total = found[0] if len(found) == 1 else emit(relax.op.concat(found, axis))
    return relax.op.reshape(total, shape_of(call))


def _of_four(s: list[relax.Expr], emit: Emit) -> relax.Expr:
    """The eight partial sums of columns, added as for groups of four."""
    return total_of([total_of(s[:4], emit), total_of(s[4:], emit)], emit)


def _of_two(s: list[relax.Expr], emit: Emit) -> relax.Expr:
    """The same for two columns."""
    fours = [[total_of([s[place], s[place + 2]], emit) for place in (one, one + 4)] for one in (0, 1)]
    return total_of([total_of(pair, emit) for pair in fours], emit)


def _of_one(s: list[relax.Expr], emit: Emit) -> relax.Expr:
    """The same for a single column."""
    pairs = [total_of(s[place : place + 2], emit) for place in range(0, _SUMS, 2)]
    return total_of([total_of(pairs[:2], emit), total_of(pairs[2:], emit)], emit)


def _blocks(call: relax.Call, scaled: bool, emit: Emit) -> list[relax.Expr]:
    """The product's blocks. scaled: whether it is multiplied by a number, and so none by a vector to ONNX Runtime"""
    x, y = factors_of(call)
    left, right = shape_of(x), shape_of(y)
    known = constant_value(y)
    terms, columns = right[-2:]
    rows = max(_rows(call), 2) if scaled else _rows(call)
    block = block_of_products(rows, terms, columns, packed=known is not None and len(right) == 2)
    found = []
    for start in range(0, terms, block):
        stop = min(start + block, terms)
        first = relax.op.strided_slice(x, [len(left) - 1], [start], [stop])
        second = relax.op.strided_slice(y, [len(right) - 2], [start], [stop])
        part = emit(second) if known is None else constant(np.ascontiguousarray(known[..., start:stop, :]))
        found.append(emit(relax.op.matmul(emit(first), part)))
    return found


def _scaled(
    blocks: list[relax.Expr], factor: relax.Expr, summand: Sequence[relax.Expr], emit: Emit
) -> relax.Expr | None:
    """A number times the sum of blocks, plus a summand if there is one: each block is multiplied as it is added."""
    if constant_value(factor) is None or shape_of(factor):
        return None
    total = summand[0] if summand else emit(relax.op.multiply(blocks[0], factor))
    for block in blocks if summand else blocks[1:]:
        total = emit(qnn.fma(block, factor, total))
    return total


def _with_bias(
    first: relax.Expr, second: relax.Expr, sums: dict[Any, list[relax.Expr]], emit: Emit
) -> relax.Expr | None:
    """The sum of a bias, a constant vector or matrix, and of blocks behind it."""
    for product, bias in ((first, second), (second, first)):
        is_bias = constant_value(bias) is not None and len(shape_of(bias)) <= 2
        if is_bias and product in sums:
            return total_of([bias, *sums[product]], emit)
    return None

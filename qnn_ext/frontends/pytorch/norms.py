"""Norms of vectors, powers and running sums, which both halves of the PyTorch frontend import."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ...op.base import constant, normalize_axis, shape_of


def vector_norm(
    emit: Callable[[relax.Expr], relax.Expr], x: relax.Expr, order: float, axes: Sequence[int], keepdims: bool
) -> relax.Expr:
    """(Σ |x|^p)^(1/p) along the axes; the largest or the smallest |x| for ±∞, the number of elements ≠ 0 for p = 0.

    x: of a float dtype, which is the result's; order: p, any number. Source: torch.linalg.vector_norm.
    """
    op, dtype = relax.op, str(x.ty.dtype)

    def scalar(value: float) -> relax.Expr:
        return constant(np.asarray(value, dtype))

    def total(terms: relax.Expr) -> relax.Expr:
        return emit(op.sum(emit(terms), list(axes), keepdims))

    if order == 0:
        return total(op.astype(emit(op.not_equal(x, scalar(0))), dtype))
    if order == 2:
        return emit(op.sqrt(total(op.multiply(x, x))))
    size = emit(op.abs(x))
    if math.isinf(order):
        return emit((op.max if order > 0 else op.min)(size, list(axes), keepdims))
    if order == 1:
        return total(size)
    return emit(op.power(total(op.power(size, scalar(order))), scalar(1 / order)))


def order_of(order: Any, dims: int | None, rank: int) -> float | None:
    """The p of torch.linalg.norm and torch.norm where they are norms of vectors, None where they are matrix norms.

    order: as given: a number, None or "fro"; dims: over how many dimensions, None for all; rank: of the tensor
    """
    if order is None or order == "fro":
        return 2.0
    is_vector = dims == 1 or (dims is None and rank == 1)
    return float(order) if is_vector and not isinstance(order, str) else None


def power(emit: Callable[[relax.Expr], relax.Expr], base: relax.Expr, exponent: relax.Expr) -> relax.Expr:
    """base^exponent, of one dtype; that of integers in float64, which has all below 2⁵³."""
    dtype = str(base.ty.dtype)
    if dtype.startswith("float"):
        return emit(relax.op.power(base, exponent))
    wide = (emit(relax.op.astype(value, "float64")) for value in (base, exponent))
    return emit(relax.op.astype(emit(relax.op.power(*wide)), dtype))


def cumulative_sum(emit: Callable[[relax.Expr], relax.Expr], x: relax.Expr, axis: int) -> relax.Expr:
    """Σ of the elements up to each along an axis; sums of float32 are float64 until they are stored."""
    if not shape_of(x):
        return x
    axis = normalize_axis(axis, len(shape_of(x)))
    if str(x.ty.dtype) != "float32":
        return emit(relax.op.cumsum(x, axis))
    sums = emit(relax.op.cumsum(emit(relax.op.astype(x, "float64")), axis))
    return emit(relax.op.astype(sums, "float32"))

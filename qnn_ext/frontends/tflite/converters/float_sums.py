"""Sums and means of floats over any axes with the bits of XNNPACK. It converts no operators."""

from __future__ import annotations

import math
from itertools import groupby

import numpy as np
from tvm import relax

from .... import op as qnn
from ..node import Node
from .accumulators import number, reshaped

_MOST_SLICES = 128
"""The most rows whose means are added up one by one in fused steps."""


def float_sum(node: Node, axes: list[int], shape: tuple[int, ...], mean: bool) -> relax.Expr:
    """Σ x over `axes`, or Σ x · 1/n, of the node's input, in the given shape. Neighbouring axes are as one. Over the
    last one of them x is added up, as in `qnn.wide_sum` if no axis follows, otherwise one by one; the results, times
    1/n, are then added one by one over the others, rounded once with the product where rows are added up."""
    extents = node.shape(0)
    sizes = [(extent, axis in axes) for axis, extent in enumerate(extents) if extent > 1]
    runs = [(math.prod(extent for extent, _ in run), key) for key, run in groupby(sizes, key=lambda one: one[1])]
    places = [place for place, (_, is_reduced) in enumerate(runs) if is_reduced]
    if not places:
        return reshaped(node, node.input(0), shape)
    *outer, inner = places
    data, is_row = reshaped(node, node.input(0), tuple(extent for extent, _ in runs)), inner == len(runs) - 1
    sums = node.emit(qnn.wide_sum(data) if is_row else relax.op.sum(data, [inner], keepdims=True))
    count = math.prod(runs[place][0] for place in places)
    scale = np.float32(1) / np.float32(count)
    if outer:
        kept = [place for place in range(len(runs)) if place not in places]
        first = node.emit(relax.op.permute_dims(sums, [*outer, inner, *kept]))
        groups = math.prod(runs[place][0] for place in outer)
        sums = reshaped(node, first, (groups, *(runs[place][0] for place in kept)))
        if mean and is_row and groups <= _MOST_SLICES:
            return reshaped(node, _sum_of_products(node, sums, groups, scale), shape)
    if mean:
        sums = node.emit(relax.op.multiply(sums, number(scale)))
    if outer:
        sums = node.emit(relax.op.sum(sums, [0]))
    return reshaped(node, sums, shape)


def _sum_of_products(node: Node, sums: relax.Expr, count: int, scale: np.float32) -> relax.Expr:
    """Σ sums[i] · scale, each step rounded once."""
    rows = [node.emit(relax.op.strided_slice(sums, [0], [index], [index + 1])) for index in range(count)]
    total = node.emit(relax.op.multiply(rows[0], number(scale)))
    for row in rows[1:]:
        total = node.emit(qnn.fma(row, number(scale), total))
    return total

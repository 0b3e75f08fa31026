"""Operators whose results have sizes that depend on data: nonzero, boolean masks, distinct elements,
torchvision's nms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ..... import op as qnn
from .....errors import UnsupportedOperatorError
from .....op.base import constant, shape_of
from .... import data_dependent as build
from .... import sized_shapes as shapes
from ....distinct import distinct
from ....sizes import Sizes
from ...indexing import elements_at
from ..registry import converter
from ..values import cast, dtype_of


def _sizes(importer: Any) -> Sizes:
    return importer.assembly.builder.sizes


@converter("aten.nonzero.default", "aten.argwhere.default")
def _nonzero(importer: Any, x: relax.Expr) -> relax.Expr:
    """The coordinates of all elements that are not 0, int64 (number of them, rank), in row-major order."""
    sizes = _sizes(importer)
    found, size = build.coordinates(sizes, _mask(importer, x), importer.label)
    return sizes.emit(relax.op.stack(found, 1), {0: size})


@converter("aten.nonzero_numpy.default", "aten.where.default")
def _coordinates(importer: Any, x: relax.Expr) -> tuple[relax.Expr, ...]:
    """The coordinates along each axis."""
    found, _ = build.coordinates(_sizes(importer), _mask(importer, x), importer.label)
    return tuple(found)


def _mask(importer: Any, x: relax.Expr) -> relax.Expr:
    if not shape_of(x):
        raise UnsupportedOperatorError("a scalar's coordinates are not supported")
    return build.nonzero_mask(_sizes(importer), x)


@converter("aten.masked_select.default")
def _masked_select(importer: Any, x: relax.Expr, mask: relax.Expr) -> relax.Expr:
    """The elements for which the mask is true, after both are broadcast."""
    sizes = _sizes(importer)
    x = shapes.broadcast(sizes, x, shapes.dims_of(sizes, mask), importer.label)
    mask = shapes.broadcast(sizes, mask, shapes.dims_of(sizes, x), importer.label)
    if not shape_of(x):
        x, mask = (shapes.reshape(sizes, value, [1], importer.label) for value in (x, mask))
    return build.masked(sizes, x, mask, 0, importer.label)


@converter("aten.index.Tensor")
def _index(importer: Any, x: relax.Expr, indices: list[Any]) -> relax.Expr:
    """x[mask] and x[:, mask]; x[i], x[:, i], x[i, j], … by tensors of integers. Where their number is known only at run
    time, they are along one axis or the first ones."""
    sizes = _sizes(importer)
    given = {axis: one for axis, one in enumerate(indices) if one is not None}
    masks = {axis: one for axis, one in given.items() if dtype_of(one) == "bool"}
    if masks:
        if len(given) != 1:
            raise UnsupportedOperatorError("a mask together with other indices is not supported; use one mask")
        ((axis, mask),) = masks.items()
        return build.masked(sizes, x, mask, axis, importer.label)
    if not sizes.of(x) and not any(sizes.of(one) for one in given.values()):
        return elements_at(importer.emit, x, indices, importer.label)
    if list(given) == list(range(len(given))) and len(given) > 1:
        return build.elements(sizes, x, list(given.values()), importer.label)
    if len(given) != 1:
        raise UnsupportedOperatorError("indices along several axes, other than the first ones, are not supported")
    ((axis, one),) = given.items()
    return build.rows_by(sizes, x, one, axis, importer.label)


@converter("aten._unique2.default")
def _unique(
    importer: Any, x: relax.Expr, _sorted: bool, with_inverse: bool, with_counts: bool
) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """All distinct elements, ascending; which of them each element of x is; how often each of them is in x. As in
    PyTorch, what is not asked for is empty."""
    sizes, shape, dtype = _sizes(importer), shape_of(x), dtype_of(x)
    if sizes.of(x) and len(shape) != 1:
        raise UnsupportedOperatorError("unique of a tensor with a size known only at run time, other than a vector")
    vector = x if len(shape) == 1 else importer.emit(relax.op.reshape(x, [-1]))
    found = distinct(sizes, cast(importer, vector, "uint8") if dtype == "bool" else vector, True, importer.label)
    values = (
        sizes.emit(relax.op.astype(found.values, dtype), sizes.of(found.values)) if dtype == "bool" else found.values
    )
    nothing = constant(np.zeros(0, np.int64))
    inverse = found.inverse if len(shape) == 1 else importer.emit(relax.op.reshape(found.inverse, shape))
    return values, inverse if with_inverse else nothing, found.counts if with_counts else nothing


@converter("torchvision.nms.default")
def _suppressed(importer: Any, boxes: relax.Expr, scores: relax.Expr, threshold: float) -> relax.Expr:
    """Indices of the boxes kept, int64, by descending score. A score that is NaN is never kept; PyTorch takes it for
    the highest."""
    sizes, shape = _sizes(importer), shape_of(boxes)
    if (dtype_of(boxes), dtype_of(scores)) != ("float32", "float32") or not 0 <= threshold <= 1:
        raise UnsupportedOperatorError(
            f"boxes of {dtype_of(boxes)}, scores of {dtype_of(scores)} and a threshold of {threshold}; supported: "
            "float32, and a threshold from 0 to 1"
        )
    row = importer.emit(relax.op.expand_dims(scores, 0))
    found = importer.emit(qnn.non_max_suppression(boxes, row, threshold, shape[0], -math.inf))
    chosen = importer.emit(relax.op.reshape(found, (shape[0],)))
    mask = importer.emit(relax.op.greater_equal(chosen, constant(np.int32(0))))
    positions, _ = build.true_positions(sizes, mask, importer.label)
    return shapes.rows(sizes, importer.emit(relax.op.astype(chosen, "int64")), positions, 0)

"""Resizing of images (N, C, H, W). Where the new size is not exactly what the factor says, places follow from the
factor: PyTorch gives the indices and weights of each axis, for a line of numbers or unit vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tvm import relax

from .....limits import check_elements
from .....op.base import constant, shape_of
from ..registry import converter

_AXES = (-2, -1)
Factors = Sequence[float | None] | None


def _is_exact(length: int, new: int, factor: float | None) -> bool:
    """Whether places that follow from the sizes are those of the factor."""
    return factor is None or np.float32(1 / factor) == np.float32(length) / np.float32(new)


@converter("aten.upsample_nearest2d.vec")
def _nearest(importer: Any, x: relax.Expr, _size: Any, factors: Factors) -> relax.Expr:
    factors = factors or (None, None)
    for axis, factor in zip(_AXES, factors, strict=True):
        x = _nearest_along(importer, x, axis, int(importer.meta.shape[axis]), factor)
    return x


@converter("aten.upsample_nearest2d.default")
def _nearest_by_size(importer: Any, x: relax.Expr, size: Any, *factors: float | None) -> relax.Expr:
    return _nearest(importer, x, size, factors)


def _nearest_along(importer: Any, x: relax.Expr, axis: int, new: int, factor: float | None) -> relax.Expr:
    length, place = shape_of(x)[axis], len(shape_of(x)) + axis
    if _is_exact(length, new, factor) and new % length == 0:
        return x if new == length else importer.emit(relax.op.repeat(x, new // length, axis=place))
    check_elements((length, new), "the resized axis", "folded")
    line = torch.arange(length, dtype=torch.float32).reshape(1, 1, 1, length)
    rows = torch.ops.aten.upsample_nearest2d.default(line, [1, new], None, factor).reshape(-1).numpy()
    return importer.emit(relax.op.take(x, constant(rows.astype(np.int64)), axis=place))


@converter("aten.upsample_bilinear2d.vec", "aten.upsample_bicubic2d.vec")
def _interpolated(importer: Any, x: relax.Expr, _size: Any, corners: bool, factors: Factors) -> relax.Expr:
    factors = factors or (None, None)
    news = [int(importer.meta.shape[axis]) for axis in _AXES]
    lengths = shape_of(x)[-2:]
    if corners or all(map(_is_exact, lengths, news, factors)):
        return importer.by_tvm()
    bilinear = "bilinear" in str(importer.node.target)
    resize = torch.ops.aten.upsample_bilinear2d if bilinear else torch.ops.aten.upsample_bicubic2d
    return _weighted(importer, x, news, resize.default, corners, factors)


@converter("aten._upsample_bilinear2d_aa.default", "aten._upsample_bicubic2d_aa.default")
def _antialiased(importer: Any, x: relax.Expr, _size: Any, corners: bool, *factors: float | None) -> relax.Expr:
    news = [int(importer.meta.shape[axis]) for axis in _AXES]
    return _weighted(importer, x, news, importer.node.target, corners, factors)


def _weighted(
    importer: Any,
    x: relax.Expr,
    news: Sequence[int],
    resize: Callable[..., torch.Tensor],
    corners: bool,
    factors: Sequence[float | None],
) -> relax.Expr:
    """Each row, then each column, times a matrix of weights.

    resize: PyTorch's function of an image, its new size, `corners` and the factors
    """

    def weights(length: int, new: int, factor: float | None) -> np.ndarray:
        check_elements((length, new), "the weights of an interpolation", "folded")
        units = torch.eye(length).reshape(1, length, 1, length)
        return resize(units, [1, new], corners, None, factor)[0, :, 0].numpy()

    columns, rows = map(weights, shape_of(x)[-2:], news, factors)
    result = importer.emit(relax.op.matmul(x, constant(rows)))
    return relax.op.matmul(constant(np.ascontiguousarray(columns.T)), result)

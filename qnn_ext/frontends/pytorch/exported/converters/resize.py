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
from .shape import static

Factors = Sequence[float | None] | None


def _new_size(x: relax.Expr, size: Any, factors: Factors) -> list[int]:
    """The size that is given, or what the factors leave of it."""
    if size:
        return static(size)
    return [int(length * (factor or 1)) for length, factor in zip(shape_of(x)[-2:], factors or (), strict=True)]


def _is_exact(length: int, new: int, factor: float | None) -> bool:
    """Whether places that follow from the sizes are those of the factor."""
    return factor is None or np.float32(1 / factor) == np.float32(length) / np.float32(new)


@converter("aten.upsample_nearest2d.vec")
def _nearest(importer: Any, x: relax.Expr, size: Any, factors: Factors) -> relax.Expr:
    for axis, new, factor in zip((-2, -1), _new_size(x, size, factors), factors or (None, None), strict=True):
        x = _nearest_along(importer, x, axis, new, factor)
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
def _interpolated(importer: Any, x: relax.Expr, size: Any, corners: bool, factors: Factors) -> relax.Expr:
    news, bilinear = _new_size(x, size, factors), "bilinear" in str(importer.node.target)
    factors = factors or (None, None)
    if corners or all(map(_is_exact, shape_of(x)[-2:], news, factors)):
        method, places = "linear" if bilinear else "cubic", "align_corners" if corners else "half_pixel"
        return relax.op.image.resize2d(x, news, layout="NCHW", method=method, coordinate_transformation_mode=places)
    resize = torch.ops.aten.upsample_bilinear2d if bilinear else torch.ops.aten.upsample_bicubic2d
    return _weighted(importer, x, news, resize.default, corners, factors)


@converter("aten._upsample_bilinear2d_aa.default", "aten._upsample_bicubic2d_aa.default")
def _antialiased(importer: Any, x: relax.Expr, size: Any, corners: bool, *factors: float | None) -> relax.Expr:
    return _weighted(importer, x, static(size), importer.node.target, corners, factors)


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

"""Values of an image at places that a tensor names, and grids of places."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from .....limits import check_elements
from .....op.base import constant, shape_of
from ..registry import converter
from ..values import reshape
from .shape import static

_MODES, _PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


@converter("aten.grid_sampler_2d.default", "aten.grid_sampler.default")
def _grid_sample(importer: Any, x: relax.Expr, grid: relax.Expr, mode: int, padding: int, corners: bool) -> relax.Expr:
    """x (N, C, H, W) at the places (x, y) of a grid (N, P, Q, 2), from −1 to 1."""
    places = importer.emit(relax.op.permute_dims(grid, [0, 3, 1, 2]))
    return importer.emit(
        relax.op.image.grid_sample(
            x, places, _MODES[mode], layout="NCHW", padding_mode=_PADDINGS[padding], align_corners=bool(corners)
        )
    )


@converter("aten.affine_grid_generator.default")
def _affine_grid(importer: Any, theta: relax.Expr, size: Any, corners: bool) -> relax.Expr:
    """(N, H, W, 2): theta (N, 2, 3) times (x, y, 1) of each place. −1 and 1 are the centres of the outermost pixels, or
    where `corners` is false their outer edges."""
    _, _, height, width = static(size)
    check_elements((height, width, 3), "the grid", "folded")
    columns, rows = np.meshgrid(_places(width, corners), _places(height, corners))
    places = np.stack([columns, rows, np.ones_like(rows)], -1).reshape(-1, 3)
    turned = importer.emit(relax.op.permute_dims(theta, [0, 2, 1]))
    return reshape(
        importer, importer.emit(relax.op.matmul(constant(places), turned)), (shape_of(theta)[0], height, width, 2)
    )


def _places(length: int, corners: bool) -> np.ndarray:
    places = np.linspace(-1, 1, length, dtype=np.float32) if length > 1 else np.zeros(1, np.float32)
    return places if corners else places * np.float32((length - 1) / length)


@converter("aten.meshgrid.default", "aten.meshgrid.indexing")
def _meshgrid(importer: Any, tensors: list[relax.Expr], indexing: str = "ij") -> tuple[relax.Expr, ...]:
    """Each vector along an axis of its own; with "xy", the first two axes change places."""
    vectors = [reshape(importer, x, (1,)) if not shape_of(x) else x for x in tensors]
    lengths = [shape_of(x)[0] for x in vectors]
    order = list(range(len(vectors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    shape = [lengths[axis] for axis in order]
    results = []
    for axis, vector in enumerate(vectors):
        tall = reshape(importer, vector, [lengths[axis] if one == axis else 1 for one in order])
        results.append(importer.emit(relax.op.broadcast_to(tall, shape)))
    return tuple(results)

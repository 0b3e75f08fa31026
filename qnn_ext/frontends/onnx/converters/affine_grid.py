"""AffineGrid: the positions at which a spatial transformer reads an image or a volume."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ....limits import check_elements
from ....op import compound
from ....op.base import constant
from ..node import Node
from ..registry import converter


@converter("AffineGrid", since=20)
def affine_grid(node: Node) -> relax.Expr:
    """grid[n, …] = theta[n] · (x, y, 1), for a volume (x, y, z, 1): x from −1 to 1 along the last axis, y along the one
    before. These ends are the middles of the outer pixels if `align_corners`, else their edges."""
    batch, rows, columns = node.shape(0) if len(node.shape(0)) == 3 else (0, 0, 0)
    size = node.integers(1)
    spatial = size[2:]
    if size[:1] != [batch] or (rows, columns) != (len(spatial), len(spatial) + 1) or not 2 <= rows <= 3:
        raise node.malformed(f"theta of shape {node.shape(0)} does not fit the size {size}")
    if min(spatial) < 1:
        raise node.malformed(f"the size must be positive, found {size}")
    check_elements((*spatial, columns), "the grid", "folded")
    steps = [_along(count, bool(node.attribute("align_corners", 0))) for count in spatial]
    places = np.stack([*reversed(np.meshgrid(*steps, indexing="ij")), np.ones(spatial)], axis=-1)
    homogeneous = constant(places.reshape(1, -1, columns).astype(node.dtype(0)))
    turned = compound.permute(node.input(0), [0, 2, 1], node.emit)
    return compound.reshape(node.emit(relax.op.matmul(homogeneous, turned)), (batch, *spatial, rows), node.emit)


def _along(count: int, align_corners: bool) -> np.ndarray:
    """Positions of pixels along an axis; where both ends are one pixel, the upper end."""
    if align_corners:
        return np.linspace(-1, 1, count) if count > 1 else np.ones(1)
    return (2 * np.arange(count) + 1) / count - 1

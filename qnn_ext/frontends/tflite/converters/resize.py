"""RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR, on the stored integers."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .... import op as qnn
from ....numerics import reference
from ..integers import require_dtype
from ..node import Node
from ..registry import converter
from .shape import check_elements, take


def _target_size(node: Node) -> tuple[int, int]:
    """The constant (height, width). Raises ModelFormatError unless positive and the input has 4 dimensions."""
    size = node.integers(1)
    shape = node.shape(0)
    if len(size) != 2 or min(size) < 1 or len(shape) != 4 or 0 in shape[1:3]:
        raise node.malformed(f"cannot resize {shape} to {size}")
    check_elements(node, [shape[0], *size, shape[3]])
    check_elements(node, size, "folded")  # positions and weights are computed at import
    return size[0], size[1]


@converter("RESIZE_BILINEAR", max_version=4)
def convert_resize_bilinear(node: Node) -> relax.Expr:
    """As XNNPACK does it, or as TFLite's own kernels: int8 and int16 in fixed point, uint8 in float32."""
    align_corners, half_pixel = bool(node.options["align_corners"]), bool(node.options["half_pixel_centers"])
    if align_corners and half_pixel:
        raise node.malformed("align_corners and half_pixel_centers cannot both be set")
    require_dtype(node, node.dtype(), "int8", "uint8", "int16", "float32")
    arithmetic = "fixed" if node.dtype() in ("int8", "int16") else "float32"
    if node.follows_xnnpack or (node.delegated and node.dtype() != "float32"):
        arithmetic = "xnnpack"
    return qnn.resize_bilinear(node.input(0), _target_size(node), align_corners, half_pixel, arithmetic)


@converter("RESIZE_NEAREST_NEIGHBOR", max_version=4)
def convert_resize_nearest(node: Node) -> relax.Expr:
    """Copies of single elements, chosen at import."""
    align_corners, half_pixel = bool(node.options["align_corners"]), bool(node.options["half_pixel_centers"])
    result = node.input(0)
    for axis, (size, out_size) in enumerate(zip(node.shape(0)[1:3], _target_size(node), strict=False), start=1):
        result = take(node, result, nearest_indices(size, out_size, align_corners, half_pixel), axis)
    return result


def nearest_indices(size: int, out_size: int, align_corners: bool, half_pixel_centers: bool) -> np.ndarray:
    """The element that each output position copies; positions in float32 as in TFLite's GetNearestNeighbor."""
    corners = align_corners and out_size > 1
    scale = np.float32(size - 1 if corners else size) / np.float32(out_size - 1 if corners else out_size)
    offset = np.float32(0.5 if half_pixel_centers else 0.0)
    position = (np.arange(out_size, dtype=np.float32) + offset) * scale
    nearest = reference.round_half_away(position) if align_corners else np.floor(position)
    return np.clip(nearest.astype(np.int64), 0, size - 1)

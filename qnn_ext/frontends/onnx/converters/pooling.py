"""Poolings over windows in float or on integers as they are: MaxPool and AveragePool."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ....limits import check_elements
from ....op.base import constant, shape_of
from ...maxima import first_maxima
from ..node import Node
from ..registry import converter
from .geometry import Window, window


@converter("MaxPool", "AveragePool")
def pool(node: Node) -> relax.Expr | list[relax.Expr]:
    """Maximum or average of each window, over 1, 2 or 3 dimensions; and where the maximum was, if that is wanted."""
    shape = node.shape(0)
    rank = len(shape) - 2
    if rank not in (1, 2, 3):
        raise node.unsupported(f"data of shape {shape}; supported: 1, 2 and 3 spatial dimensions")
    geometry = window(node, shape[2:])
    same = str(node.attribute("auto_pad", "NOTSET")).startswith("SAME")  # the padding makes the windows fit
    ceil_mode = bool(node.attribute("ceil_mode", 0)) and not same
    for axis, size in enumerate(shape[2:]):
        reach = (geometry.kernel[axis] - 1) * geometry.dilation[axis] + 1
        rest = size + geometry.padding[axis] + geometry.padding[axis + rank] - reach
        if rest + (geometry.strides[axis] - 1 if ceil_mode else 0) < 0:
            raise node.malformed(f"the window is larger than the padded input {shape}")
    kind = "max" if node.op_type == "MaxPool" else "avg"
    pooled = node.emit(
        getattr(relax.op.nn, f"{kind}_pool{rank}d")(
            node.input(0),
            geometry.kernel,
            geometry.strides,
            geometry.padding,
            geometry.dilation,
            ceil_mode,
            bool(node.attribute("count_include_pad", 0)),
        )
    )
    return [pooled, _places(node, geometry, shape_of(pooled))] if node.has_output(1) else pooled


def _places(node: Node, geometry: Window, result: tuple[int, ...]) -> relax.Expr:
    """The position of each maximum in the flattened data, the first of equal ones; in column-major order of each image
    if that is the `storage_order`."""
    shape, rank = node.shape(0), len(node.shape(0)) - 2
    low = geometry.padding[:rank]
    place = first_maxima(
        node.emit, node.input(0), geometry.kernel, geometry.strides, low, geometry.dilation, result, node.label
    )
    if node.attribute("storage_order", 0):
        pixels = math.prod(shape[2:])
        check_elements((pixels,), "the positions", "folded")
        turned = np.arange(pixels, dtype=np.int64).reshape(shape[2:], order="F").reshape(-1)
        place = node.emit(relax.op.take(constant(turned), node.emit(place), mode="clip"))
    images = np.arange(math.prod(shape[:2]), dtype=np.int64) * math.prod(shape[2:])
    return relax.op.add(place, constant(images.reshape(*shape[:2], *[1] * rank)))

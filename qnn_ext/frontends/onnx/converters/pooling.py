"""Poolings over windows in float or on integers as they are: MaxPool and AveragePool."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ....limits import check
from ....op.base import constant, shape_of
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
    """The position of each maximum in the flattened data, the first of equal ones."""
    shape, dtype = node.shape(0), np.dtype(node.dtype(0))
    if node.attribute("storage_order", 0):
        raise node.unsupported("positions in column-major order")
    check("unrolled", math.prod(geometry.kernel), f"{node.label}: the elements of a window")
    rank = len(shape) - 2
    ends = [
        (count - 1) * stride + (k - 1) * dilation + 1
        for count, stride, k, dilation in zip(
            result[2:], geometry.strides, geometry.kernel, geometry.dilation, strict=True
        )
    ]
    after = [max(end - n - low, 0) for end, n, low in zip(ends, shape[2:], geometry.padding, strict=False)]
    widths = [0, 0, 0, 0, *(width for pair in zip(geometry.padding, after, strict=False) for width in pair)]
    lowest = -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)
    data = node.emit(relax.op.nn.pad(node.input(0), widths, pad_value=lowest)) if any(widths) else node.input(0)
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    best, offset = None, None
    for tap in np.ndindex(*geometry.kernel):
        begin = [place * dilation for place, dilation in zip(tap, geometry.dilation, strict=True)]
        end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, result[2:], geometry.strides, strict=True)]
        axes = list(range(2, 2 + rank))
        value = node.emit(relax.op.strided_slice(data, axes, begin, end, list(geometry.strides)))
        own = constant(np.int64(sum(b * step for b, step in zip(begin, steps[2:], strict=True))))
        if best is None:
            best, offset = value, own
            continue
        larger = node.emit(relax.op.greater(value, best))
        offset = node.emit(relax.op.where(larger, own, offset))
        best = node.emit(relax.op.where(larger, value, best))
    place = node.emit(relax.op.broadcast_to(offset, result))
    strides, low = (1, 1, *geometry.strides), (0, 0, *geometry.padding[:rank])
    for axis, count in enumerate(result):
        firsts = (np.arange(count, dtype=np.int64) * strides[axis] - low[axis]) * steps[axis]
        firsts = firsts.reshape([-1 if number == axis else 1 for number in range(len(result))])
        place = node.emit(relax.op.add(place, constant(firsts)))
    return place

"""Deformable convolution: a convolution whose taps are read beside their places, at offsets that the model computes."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ....op import compound
from ....op.base import constant, shape_of
from ..node import Node
from ..registry import converter
from .arithmetic import number, plus, times
from .attention_core import part
from .geometry import Window, window


@converter("DeformConv", since=19)
def deform_conv(node: Node) -> relax.Expr:
    """y[o, p] = b[o] + Σ over channels c and taps k of w[o, c, k] · m[k, p] · x[c, s·p − pad + d·k + offset[k, p]]

    x between pixels is bilinear, and 0 outside. A group of channels has its own offsets, (y, x) for each tap, and its
    own mask m, which is 1 where there is none.
    """
    batch, channels, *image = node.shape(0)
    filters, depth, *kernel = node.shape(1)
    if len(image) != 2 or len(kernel) != 2:
        raise node.unsupported(f"a deformable convolution over {len(image)} dimensions; supported: 2")
    groups, offset_groups = node.attribute("group", 1), node.attribute("offset_group", 1)
    if groups < 1 or offset_groups < 1 or channels % offset_groups or depth * groups != channels or filters % groups:
        raise node.malformed(
            f"{channels} channels and weights {node.shape(1)} do not fit {groups} groups and {offset_groups} of offsets"
        )
    where = window(node, image, kernel)
    taps, places = kernel[0] * kernel[1], _size(where, image)
    if node.shape(2) != (batch, 2 * offset_groups * taps, *places):
        raise node.malformed(f"offsets of shape {node.shape(2)} for {offset_groups} groups of them and places {places}")

    def shaped(data: relax.Expr, *shape: int) -> relax.Expr:
        return compound.reshape(data, shape, node.emit)

    offsets = shaped(node.input(2), batch * offset_groups, taps, 2, *places)
    data = shaped(node.input(0), batch * offset_groups, channels // offset_groups, *image)
    sampled = node.emit(relax.op.image.grid_sample(data, _grid(node, offsets, where, image), layout="NCHW"))
    if node.has_input(4):
        if node.shape(4) != (batch, offset_groups * taps, *places):
            raise node.malformed(f"a mask of shape {node.shape(4)} for offsets of shape {node.shape(2)}")
        sampled = times(node, sampled, shaped(node.input(4), batch * offset_groups, 1, taps * places[0], places[1]))
    columns = shaped(sampled, batch, groups, depth * taps, places[0] * places[1])
    weight = shaped(node.input(1), 1, groups, filters // groups, depth * taps)
    result = shaped(node.emit(relax.op.matmul(weight, columns)), batch, filters, *places)
    return plus(node, result, shaped(node.input(3), 1, filters, 1, 1)) if node.has_input(3) else result


def _size(where: Window, image: list[int]) -> tuple[int, ...]:
    """The number of places along each dimension."""
    reach = [dilation * (kernel - 1) + 1 for dilation, kernel in zip(where.dilation, where.kernel, strict=True)]
    return tuple(
        (size + where.padding[i] + where.padding[2 + i] - reach[i]) // where.strides[i] + 1
        for i, size in enumerate(image)
    )


def _grid(node: Node, offsets: relax.Expr, where: Window, image: list[int]) -> relax.Expr:
    """Positions (n, 2, taps · rows, columns) of samples, (x, y) from −1 to 1 between the image's edges."""
    count, taps, _, *places = shape_of(offsets)
    ticks = [np.arange(places[i]) * where.strides[i] - where.padding[i] for i in range(2)]
    steps = [np.arange(where.kernel[i]) * where.dilation[i] for i in range(2)]
    rows = np.add.outer(np.repeat(steps[0], where.kernel[1]), ticks[0])[:, :, None]
    columns = np.add.outer(np.tile(steps[1], where.kernel[0]), ticks[1])[:, None, :]
    axes = []
    for axis, regular in ((1, columns), (0, rows)):
        offset = compound.reshape(part(node, offsets, 2, axis, axis + 1), (count, taps, *places), node.emit)
        pixels = plus(node, offset, constant((regular + 0.5).astype(np.float32)))
        scaled = plus(node, times(node, pixels, number(2 / image[axis])), number(-1.0))
        axes.append(compound.reshape(scaled, (count, 1, taps * places[0], places[1]), node.emit))
    return node.emit(relax.op.concat(axes, axis=1))

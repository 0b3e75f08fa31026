"""Windows of images as columns, and columns added up to images: torch.nn.functional.unfold and fold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax

from ...errors import UnsupportedOperatorError
from ...limits import check_elements
from ...op.base import constant, shape_of

Emit = Callable[[relax.Expr], relax.Expr]


def _places(size: Sequence[int], kernel: Sequence[int], dilation: Sequence[int], stride: Sequence[int]) -> np.ndarray:
    """(kernel elements, windows): the place of each in the flattened image, which has padding around it already."""
    lines = []
    for length, k, d, s in zip(size, kernel, dilation, stride, strict=True):
        starts = np.arange(0, length - d * (k - 1), s)
        lines.append(d * np.arange(k)[:, None] + starts)
    rows, columns = lines
    check_elements((rows.size, columns.size), "the places in all windows", "folded")
    places = rows[:, None, :, None] * size[1] + columns[None, :, None, :]
    return places.reshape(math.prod(kernel), -1)


def unfold(
    emit: Emit,
    image: relax.Expr,
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> relax.Expr:
    """(N, C, H, W) or (C, H, W) → (N, C · kernel elements, windows) or without N, as aten::im2col."""
    *lead, height, width = shape_of(image)
    widths = [0] * (2 * len(lead)) + [padding[0], padding[0], padding[1], padding[1]]
    padded = emit(relax.op.nn.pad(image, widths)) if any(padding) else image
    size = [height + 2 * padding[0], width + 2 * padding[1]]
    places = _places(size, kernel, dilation, stride)
    flat = emit(relax.op.reshape(padded, [*lead, math.prod(size)]))
    taken = emit(relax.op.take(flat, constant(places.reshape(-1)), axis=len(lead), mode="clip"))
    return relax.op.reshape(taken, [*lead[:-1], lead[-1] * len(places), places.shape[1]])


def fold(
    emit: Emit,
    columns: relax.Expr,
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> relax.Expr:
    """(N, C · kernel elements, windows) or without N → (N, C, H, W) or without N, as aten::col2im: where windows
    overlap, their elements are added, in the order in which they lie in the windows."""
    *lead, rows, windows = shape_of(columns)
    within = [length + 2 * pad for length, pad in zip(size, padding, strict=True)]
    places = _places(within, kernel, dilation, stride)
    if places.shape[1] != windows or rows % len(places):
        raise UnsupportedOperatorError(f"fold of {rows} × {windows} values to an image of {tuple(size)}")
    check_elements((len(places), math.prod(within)), "the windows of all pixels", "folded")
    absent = len(places) * windows  # the place of a zero behind the values
    sources = np.full((len(places), math.prod(within)), absent)
    np.put_along_axis(sources, places, np.arange(absent).reshape(places.shape), 1)
    inside = tuple(slice(pad, pad + length) for pad, length in zip(padding, size, strict=True))
    sources = sources.reshape(len(places), *within)[:, inside[0], inside[1]].reshape(len(places), -1)
    if ((sources < absent).sum(0) <= 1).all():  # no two windows overlap
        sources = sources.min(0, keepdims=True)
    flat = emit(relax.op.reshape(columns, [*lead, rows // len(places), absent]))
    flat = emit(relax.op.nn.pad(flat, [0] * (2 * len(lead) + 3) + [1]))
    total = None
    for source in sources:
        part = emit(relax.op.take(flat, constant(source), axis=len(lead) + 1, mode="clip"))
        total = part if total is None else emit(relax.op.add(total, part))
    assert total is not None
    return relax.op.reshape(total, [*lead, rows // len(places), *size])

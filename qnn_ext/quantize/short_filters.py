"""Filters with fewer taps than their convolution has, such as banks of windowed oscillations: in audio networks those
for high frequencies are short, and are filled up with values around 0.

A convolution that stays float becomes several, each with the taps of a run of its output channels, where that leaves
out a good part of the multiply-accumulates. What is left out changes a result by less than its own rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from tvm import IRModule, relax

from ..op.arguments import factors_of
from ..op.base import constant, constant_value, shape_of
from ..passes.rewrite import Emit, op_name, rewrite
from .fold import output_axis

_NEGLIGIBLE = 2.0**-24  # of the sum of a filter's magnitudes: half a unit in the last place of float32
_BLOCK = 8  # channels that stay together: a vector's
_PART = 0.02  # what a further convolution costs, in multiply-accumulates of the whole
_WORTH = 0.75  # of the multiply-accumulates at most

Window = tuple[tuple[int, int], ...]  # along each spatial axis: first tap, and one behind the last


def short_filters(mod: IRModule) -> IRModule:
    """`mod` with float convolutions of short filters as several convolutions, joined along the channels."""

    def rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
        if op_name(value) not in ("nn.conv1d", "nn.conv2d") or int(value.attrs.groups) != 1:
            return None
        data, matrix = factors_of(value)
        weight, layout = constant_value(matrix), str(value.attrs.kernel_layout)
        if weight is None or weight.dtype != np.float32 or not layout.startswith("OI"):
            return None
        windows = [_window(np.abs(weight[first : first + _BLOCK], dtype=np.float64)) for first in _blocks(weight)]
        runs = _runs(windows, prod(weight.shape[2:]))
        if not runs:
            return None
        parts = [emit(_part(value, data, weight, first, last, window, emit)) for first, last, window in runs]
        return relax.op.concat(parts, axis=output_axis(value, weight.ndim)) if len(parts) > 1 else parts[0]

    return rewrite(mod, rule)


def _blocks(weight: np.ndarray) -> range:
    return range(0, len(weight), _BLOCK)


def _window(magnitudes: np.ndarray) -> Window:
    """The taps that filters of shape (O, I, …) need, all of them together."""
    spatial = range(2, magnitudes.ndim)
    most = _NEGLIGIBLE / (2 * len(spatial)) * magnitudes.sum(axis=tuple(range(1, magnitudes.ndim)))[:, None]
    found = []
    for axis in spatial:
        mass = magnitudes.sum(axis=tuple(other for other in range(1, magnitudes.ndim) if other != axis))
        before = (np.cumsum(mass, 1) <= most).sum(1).min()
        behind = (np.cumsum(mass[:, ::-1], 1) <= most).sum(1).min()
        length = magnitudes.shape[axis]
        found.append((int(before), int(length - behind)) if before + behind < length else (0, 1))
    return tuple(found)


def _runs(windows: Sequence[Window], taps: int) -> list[tuple[int, int, Window]]:
    """Runs of blocks with the least multiply-accumulates: (first channel, one behind the last, window).

    None if that is not worth it.
    """
    best: list[tuple[float, int, Window]] = [(0.0, 0, ())]  # of the blocks before each one: cost, where its run begins
    for end in range(1, len(windows) + 1):
        window, choices = windows[end - 1], []
        for start in range(end - 1, -1, -1):
            window = _joined(window, windows[start])
            size = prod(last - first for first, last in window)
            choices.append((best[start][0] + (end - start) * size + _PART * len(windows) * taps, start, window))
        best.append(min(choices))
    if best[-1][0] > _WORTH * len(windows) * taps:
        return []
    runs, end = [], len(windows)
    while end:
        _, start, window = best[end]
        runs.append((start * _BLOCK, end * _BLOCK, window))
        end = start
    return runs[::-1]


def _joined(one: Window, other: Window) -> Window:
    return tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def _part(
    call: relax.Call, data: relax.Expr, weight: np.ndarray, first: int, last: int, window: Window, emit: Emit
) -> relax.Call:
    """The convolution with a run of its filters, and the taps in a window."""
    attrs, layout = call.attrs, str(call.attrs.data_layout)
    count = len(window)
    padding, dilation = [int(n) for n in attrs.padding], [int(n) for n in attrs.dilation]
    axes, begin, end = [], [], []
    for place, ((low, high), length) in enumerate(zip(window, weight.shape[2:], strict=True)):
        padding[place] -= low * dilation[place]
        padding[count + place] -= (length - high) * dilation[place]
        if min(padding[place], padding[count + place]) < 0:  # the first or last elements are not read
            axis = layout.index("DHW"[-count:][place])
            axes.append(axis)
            begin.append(max(0, -padding[place]))
            end.append(shape_of(data)[axis] + min(0, padding[count + place]))
    if axes:
        data = emit(relax.op.strided_slice(data, axes, begin, end))
    taps = (slice(first, last), slice(None), *(slice(low, high) for low, high in window))
    return getattr(relax.op.nn, op_name(call).removeprefix("nn."))(
        data,
        constant(np.ascontiguousarray(weight[taps])),
        strides=[int(n) for n in attrs.strides],
        padding=[max(0, n) for n in padding],
        dilation=dilation,
        data_layout=layout,
        kernel_layout=str(attrs.kernel_layout),
        out_layout=str(attrs.out_layout) or None,
        out_dtype=attrs.out_dtype or None,
    )

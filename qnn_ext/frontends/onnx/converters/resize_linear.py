"""Linear interpolation of images and volumes as in ONNX Runtime: a weighted sum over the 4 or 8 corners around each
position.

The sum is in float32, and truncated for integers; for 8-bit images with channels last it is in fixed point. Images lie
so in the model, or behind ONNX Runtime's integer convolutions: it moves the channels when it loads the model, and they
stay there as long as it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from tvm import relax

from ....limits import check_elements
from ....op.base import constant
from ..node import Node
from .arithmetic import cast, plus, times

DTYPES = ("float32", "int8", "uint8", "int32")
_FRACTION_BITS = 10  # of a weight along one axis
_ONE, _TWO = slice(0, 1), slice(0, 4, 3)
_CHANNELS_STAY_LAST = {
    **{"MaxPool": _ONE, "Relu": _ONE, "Resize": _ONE, "QLinearLeakyRelu": _ONE, "QLinearSigmoid": _ONE},
    **{"QLinearAdd": _TWO, "QLinearMul": _TWO, "QLinearConcat": slice(2, None, 3)},
}
"""Operators that ONNX Runtime computes in the layout of their data, and which inputs are that."""


def spatial_axes(scales: Sequence[float]) -> tuple[int, ...]:
    """The axes that are interpolated together: all of 2 or 3, or those that are not batch and channels; () if one of
    these is resized too."""
    whole = {2: (0, 1), 3: (0, 1, 2), 4: (2, 3), 5: (2, 3, 4)}
    for axes in (whole.get(len(scales), ()), (1, 2) if len(scales) == 4 else ()):
        if axes and all(scale == 1.0 for axis, scale in enumerate(scales) if axis not in axes):
            return axes
    return ()


def interpolated(node: Node, axes: Sequence[int], positions: Sequence[np.ndarray]) -> relax.Expr:
    """The data at all combinations of these float32 positions along the axes."""
    shape = node.shape(0)
    check_elements([len(values) for values in positions], "the weights", "folded")
    in_fixed_point = len(shape) == 4 and node.dtype(0) in ("int8", "uint8") and _are_channels_last(node, axes)
    taps = [
        (_fixed_taps if in_fixed_point else _float_taps)(values, shape[axis])
        for axis, values in zip(axes, positions, strict=True)
    ]
    total = None
    # the last axis changes fastest, and the weights are multiplied from the last axis on
    for corner in product(*taps):
        data, weight = node.input(0), np.ones((), corner[-1][1].dtype)
        for axis, (indices, weights) in reversed(list(zip(axes, corner, strict=True))):
            data = node.emit(relax.op.take(data, constant(indices), axis))
            weight = weight * weights.reshape((-1,) + (1,) * (len(shape) - axis - 1))
        term = times(node, cast(node, data, str(weight.dtype)), constant(weight))
        total = term if total is None else plus(node, total, term)
    assert total is not None, "there are at least two axes"
    if in_fixed_point:
        total = _shifted(node, total, 2 * _FRACTION_BITS)
    return cast(node, total, node.dtype(0))


def _are_channels_last(node: Node, axes: Sequence[int]) -> bool:
    if tuple(axes) == (1, 2):
        return True
    graph = node.assembly.neighbours
    return tuple(axes) == (2, 3) and graph.all_come_from("QLinearConv", _CHANNELS_STAY_LAST, node.input_name(0))


def _float_taps(positions: np.ndarray, length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(indices, float32 weights) of the neighbours below and above; at the last element both have the weight ½."""
    inside = np.clip(positions, np.float32(0), np.float32(length - 1))
    below = np.minimum(inside.astype(np.int64), length - 1)
    above = np.minimum(below + 1, length - 1)
    weights = [np.abs(inside - other.astype(np.float32)) for other in (above, below)]
    return [
        (indices, np.where(below == above, np.float32(0.5), weight))
        for indices, weight in zip((below, above), weights, strict=True)
    ]


def _fixed_taps(positions: np.ndarray, length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The same with int32 weights in units of 2⁻¹⁰, from positions truncated to these."""
    one = 1 << _FRACTION_BITS
    inside = (np.clip(positions, np.float32(0), np.float32(length - 1)) * np.float32(one)).astype(np.int64)
    below = np.minimum(inside >> _FRACTION_BITS, length - 1)
    above = np.minimum(below + 1, length - 1)
    weights = [np.abs(inside - other * one) for other in (above, below)]
    return [
        (indices, np.where(below == above, one // 2, weight).astype(np.int32))
        for indices, weight in zip((below, above), weights, strict=True)
    ]


def _shifted(node: Node, total: relax.Expr, bits: int) -> relax.Expr:
    """total / 2^bits, truncated towards zero."""
    if node.dtype(0) == "int8":
        negative = node.emit(relax.op.less(total, constant(np.int32(0))))
        below = constant(np.int32((1 << bits) - 1))
        total = plus(node, total, node.emit(relax.op.where(negative, below, constant(np.int32(0)))))
    return node.emit(relax.op.right_shift(total, constant(np.int32(bits))))

"""Resize of images whose size, or whose result's, is known only at run time: positions and weights are computed there,
by the formulas of `resize` in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from tvm import relax

from ....limits import check_elements
from ....op.base import constant
from ....op.folding import known_value
from ... import sized_shapes as shapes
from ...sizes import Size
from ..node import Node
from ..run_time_sizes import given_shape
from .arithmetic import cast, minus, number, over, plus, times

Taps = "list[tuple[relax.Expr, Any]]"


class Axis(NamedTuple):
    """How one axis is resized: from a length to another, each an integer or a size; scale: float32, or a scalar."""

    length: Any
    target: Any
    scale: Any

    @property
    def unchanged(self) -> bool:
        if isinstance(self.length, Size):
            return isinstance(self.target, Size) and self.target.same(self.length)
        return isinstance(self.target, int) and self.length == self.target


def wanted(node: Node, chosen: Sequence[int]) -> list[Axis] | None:
    """The axes of the data, with those chosen resized by the node's sizes or scales; None where all is known at import.
    Raises UnsupportedOperatorError where the largest size is not known."""
    sizes = node.assembly.builder.sizes
    own = shapes.dims_of(sizes, node.input(0))
    by_scale = node.has_input(2) and node.shape(2) != (0,)
    known = by_scale or known_value(sizes.builder, node.input(3)) is not None
    if known and not any(isinstance(own[axis], Size) for axis in chosen):
        return None
    if node.attribute("keep_aspect_ratio_policy", "stretch") != "stretch" or node.attribute("antialias", 0):
        raise node.unsupported("a size known only at run time with antialias, or with the aspect ratio kept")
    if by_scale:
        given = [np.float32(scale) for scale in node.constant(2).reshape(-1)]
        targets = [_scaled(node, own[axis], scale) for axis, scale in zip(chosen, given, strict=True)]
    else:
        targets = given_shape(node, 3)
        given = [_ratio(node, target, own[axis]) for axis, target in zip(chosen, targets, strict=True)]
    axes = [Axis(length, length, np.float32(1)) for length in own]
    for axis, target, scale in zip(chosen, targets, given, strict=True):
        axes[axis] = Axis(own[axis], target, scale)
    unknown = (isinstance(axis.target, Size) or isinstance(axis.length, Size) for axis in axes if not axis.unchanged)
    return axes if any(unknown) else None


def _scaled(node: Node, length: Any, scale: np.float32) -> int | Size:
    """⌊length · scale⌋ in float32."""
    if isinstance(length, int):
        return math.floor(np.float32(length) * scale)
    sizes = node.assembly.builder.sizes
    if scale == int(scale):
        return sizes.times(length, int(scale))
    product_ = times(node, cast(node, length.value, "float32"), constant(scale))
    value = cast(node, node.emit(relax.op.floor(product_)), "int64")
    return sizes.size(value, max(math.floor(np.float32(length.most) * scale), 1), length.origin)


def _ratio(node: Node, target: Any, length: Any) -> Any:
    if isinstance(target, int) and isinstance(length, int):
        return np.float32(target / length)
    one, two = (cast(node, _scalar(value), "float32") for value in (target, length))
    return over(node, one, two)


def _scalar(value: Any) -> relax.Expr:
    return value.value if isinstance(value, Size) else constant(np.int64(value))


def resized(node: Node, axes: Sequence[Axis], coordinates: str, nearest: str) -> relax.Expr:
    """The data at positions along all axes that change. Raises UnsupportedOperatorError for what is not implemented."""
    mode = node.attribute("mode", "nearest")
    changed = [index for index, axis in enumerate(axes) if not axis.unchanged]
    check_elements([getattr(axis.target, "most", axis.target) for axis in axes], node.label)
    if node.attribute("exclude_outside", 0) or (mode != "nearest" and node.dtype(0) != "float32"):
        raise node.unsupported(f"mode {mode} with exclude_outside, or on {node.dtype(0)}, and a run-time size")
    if mode == "linear":
        spatial = range(len(axes)) if len(axes) < 4 else range(2, len(axes))
        if not set(changed) <= set(spatial):
            raise node.unsupported(f"linear interpolation along axes {changed} to a run-time size")
        return _weighted(
            node, {axis: _linear(node, _positions(node, axes[axis], coordinates), axes[axis]) for axis in spatial}
        )
    data = node.input(0)
    for index in reversed(changed) if mode == "cubic" else changed:
        axis = axes[index]
        positions = _positions(node, axis, coordinates)
        if mode == "nearest":
            places = _inside(node, _rounded(node, positions, nearest), axis)
            data = shapes.rows(node.assembly.builder.sizes, data, places, index)
        else:
            data = _one_axis(node, data, index, _cubic(node, positions, axis))
    return data


def _positions(node: Node, axis: Axis, coordinates: str) -> relax.Expr:
    """Where the elements of the result are in the data, float32 (target,)."""
    sizes = node.assembly.builder.sizes
    places = constant(np.arange(getattr(axis.target, "most", axis.target), dtype=np.float32))
    if isinstance(axis.target, Size):
        places = sizes.emit(places, {0: axis.target})
    scale = axis.scale if isinstance(axis.scale, relax.Expr) else constant(axis.scale)
    half = number(0.5)
    if coordinates in ("half_pixel", "pytorch_half_pixel"):
        found = minus(node, over(node, plus(node, places, half), scale), half)
        if coordinates == "half_pixel":
            return found
        several = node.emit(relax.op.greater(_scalar(axis.target), constant(np.int64(1))))
        return node.emit(relax.op.where(several, found, number(0)))
    if coordinates == "asymmetric":
        return over(node, places, scale)
    if coordinates == "align_corners":
        last = [cast(node, _scalar(value), "float32") for value in (axis.length, axis.target)]
        from_, to = (minus(node, value, number(1)) for value in last)
        return over(node, times(node, places, from_), node.emit(relax.op.maximum(to, number(1))))
    raise node.unsupported(f"coordinates {coordinates!r} with a size known only at run time")


def _rounded(node: Node, positions: relax.Expr, how: str) -> relax.Expr:
    """Positions as integers; what is close to a midpoint counts as one, as in `resize`."""
    below, above = (node.emit(function(positions)) for function in (relax.op.floor, relax.op.ceil))
    if how in ("floor", "ceil"):
        return below if how == "floor" else above
    distance = minus(node, minus(node, positions, below), number(0.5))
    midpoint = node.emit(relax.op.less_equal(node.emit(relax.op.abs(distance)), number(1e-6)))
    nearer = plus(node, cast(node, positions, "float64"), number(0.5, "float64"))
    rounded = cast(node, node.emit(relax.op.floor(nearer)), "float32")
    if how not in ("round_prefer_floor", "round_prefer_ceil"):
        raise node.unsupported(f"nearest_mode {how!r} with a size known only at run time")
    return node.emit(relax.op.where(midpoint, below if how == "round_prefer_floor" else above, rounded))


def _inside(node: Node, positions: relax.Expr, axis: Axis) -> relax.Expr:
    """Positions, which are integers, as int64 indices of the nearest elements that there are."""
    places = node.emit(relax.op.maximum(cast(node, positions, "int64"), constant(np.int64(0))))
    last = minus(node, _scalar(axis.length), constant(np.int64(1)))
    return node.emit(relax.op.minimum(places, last))


def _linear(node: Node, positions: relax.Expr, axis: Axis) -> list[tuple[relax.Expr, relax.Expr]]:
    """(indices, weights) of the neighbours below and above; at the last element both have the weight ½."""
    last = cast(node, minus(node, _scalar(axis.length), constant(np.int64(1))), "float32")
    inside = node.emit(relax.op.minimum(node.emit(relax.op.maximum(positions, number(0))), last))
    below = _inside(node, inside, axis)
    above = _inside(node, plus(node, below, constant(np.int64(1))), axis)
    end = node.emit(relax.op.equal(below, above))
    weights = [node.emit(relax.op.abs(minus(node, inside, cast(node, other, "float32")))) for other in (above, below)]
    return [
        (places, node.emit(relax.op.where(end, number(0.5), weight)))
        for places, weight in zip((below, above), weights, strict=True)
    ]


def _weighted(node: Node, taps: dict[int, list[tuple[relax.Expr, relax.Expr]]]) -> relax.Expr:
    """The sum over all corners, in the order of `resize_linear.interpolated`."""
    total = None
    for corner in product(*taps.values()):
        data, weight = node.input(0), None
        for axis, (places, along) in reversed(list(zip(taps, corner, strict=True))):
            data = shapes.rows(node.assembly.builder.sizes, data, places, axis)
            wide = _along(node, along, axis)
            weight = wide if weight is None else times(node, weight, wide)
        term = times(node, data, weight)
        total = term if total is None else plus(node, total, term)
    return total


def _along(node: Node, values: relax.Expr, axis: int) -> relax.Expr:
    """A vector along an axis of the data."""
    rank = len(node.shape(0))
    return node.emit(relax.op.expand_dims(values, list(range(1, rank - axis)))) if axis < rank - 1 else values


def _one_axis(node: Node, data: relax.Expr, index: int, taps: list[tuple[relax.Expr, relax.Expr]]) -> relax.Expr:
    total = None
    for places, weight in taps:
        term = times(node, shapes.rows(node.assembly.builder.sizes, data, places, index), _along(node, weight, index))
        total = term if total is None else plus(node, total, term)
    return total


def _cubic(node: Node, positions: relax.Expr, axis: Axis) -> list[tuple[relax.Expr, relax.Expr]]:
    """(indices, weights) of four neighbours: Keys' cubic convolution, as in `resize`."""
    base = node.emit(relax.op.floor(positions))
    fraction = minus(node, positions, base)
    a = np.float32(node.attribute("cubic_coeff_a", -0.75))

    def polynomial(x: relax.Expr, *factors: np.float32) -> relax.Expr:
        """((f₀ · x + f₁) · x + …"""
        found = times(node, constant(factors[0]), x)
        for factor in factors[1:-1]:
            found = times(node, plus(node, found, constant(factor)), x)
        return plus(node, found, constant(factors[-1]))

    def near(x: relax.Expr) -> relax.Expr:
        inner = minus(node, times(node, constant(a + 2), x), constant(a + 3))
        return plus(node, times(node, times(node, inner, x), x), number(1))

    def far(x: relax.Expr) -> relax.Expr:
        return polynomial(x, a, -5 * a, 8 * a, -4 * a)

    one, two = number(1), number(2)
    weights = {-1: far(plus(node, fraction, one)), 0: near(fraction), 1: near(minus(node, one, fraction))}
    weights[2] = far(minus(node, two, fraction))
    return [(_inside(node, plus(node, base, number(tap)), axis), weight) for tap, weight in weights.items()]

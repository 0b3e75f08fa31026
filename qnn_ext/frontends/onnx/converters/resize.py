"""Resize and Upsample: along each axis a weighted sum of a few slices, with positions and weights computed at import.

Nearest neighbour only moves values; linear takes two slices per axis, cubic four. The rules are those of the ONNX
specification (version 19) in float64. Where a position is mathematically an integer or a midpoint, its last bit decides
which neighbour is nearest: so these positions are computed in float32 as ONNX Runtime does, and with its tolerance for
midpoints (upsamplebase.h). Linear interpolation of images and volumes is in `resize_linear`, what keeps images from
aliasing in `resize_antialias`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ....limits import check_elements
from ....op.base import constant, normalize_axis
from ... import sized_shapes as shapes
from ...counterparts import given_dims
from ..node import Node
from ..registry import converter
from . import resize_antialias, resize_linear, resize_run_time


@dataclass(frozen=True)
class Axis:
    """How one axis is resized.

    width: the result's length that positions are computed for: before truncation to an integer, as in ONNX's reference,
           or `target` for nearest neighbour
    roi:   begin and end of the part that tf_crop_and_resize crops, as fractions
    """

    length: int
    target: int
    scale: float
    width: float
    roi: tuple[float, float] = (0.0, 1.0)

    def in_float32(self) -> Axis:
        """For nearest neighbour: all arithmetic with these numbers is in float32."""
        numbers = (self.length, self.target, self.scale, self.target, *self.roi)
        length, target, scale, width, *roi = (np.float32(number) for number in numbers)
        fields: Any = (length, target, scale, width, tuple(roi))
        return Axis(*fields)


# coordinate_transformation_mode -> (output positions, axis) -> positions in the input
_COORDINATES: dict[str, Callable[[np.ndarray, Axis], np.ndarray]] = {
    "half_pixel": lambda x, axis: (x + 0.5) / axis.scale - 0.5,
    "asymmetric": lambda x, axis: x / axis.scale,
    "pytorch_half_pixel": lambda x, axis: (x + 0.5) / axis.scale - 0.5 if axis.width > 1 else np.zeros_like(x),
    "tf_half_pixel_for_nn": lambda x, axis: (x + 0.5) / axis.scale,
    "align_corners": lambda x, axis: x * (axis.length - 1) / (axis.width - 1) if axis.width != 1 else x * 0,
    "tf_crop_and_resize": lambda x, axis: _crop(x, axis),
    "half_pixel_symmetric": lambda x, axis: _symmetric(x, axis),
}

_MIDPOINT = np.float32(1e-6)  # anything this close to a midpoint counts as one

_NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.where(_is_midpoint(x), np.floor(x), np.floor(x.astype(np.float64) + 0.5)),
    "round_prefer_ceil": lambda x: np.where(_is_midpoint(x), np.ceil(x), np.floor(x.astype(np.float64) + 0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}
_BY_SCALE = "floor, where an axis shrinks ceil"  # for Upsample, and Resize before version 11


@converter("Upsample", since=7)
def upsample_by_attribute(node: Node) -> relax.Expr:
    """Upsample with the scales in an attribute; otherwise as the later version."""
    return _by_scales(node, np.asarray(node.attribute("scales", []), np.float32))


@converter("Upsample", since=9)
@converter("Resize", since=10)
def resize_by_scales(node: Node) -> relax.Expr:
    """Version 10 and Upsample: scales only, positions x / scale; for nearest their floor, or their ceiling where an
    axis shrinks, as in ONNX Runtime: the specification leaves it open."""
    return _by_scales(node, node.constant(1))


@converter("Resize", since=11)
def resize(node: Node) -> relax.Expr:
    """Version 11 and later: scales or sizes, perhaps of some axes only or keeping the aspect ratio; seven coordinate
    modes."""
    shape = node.shape(0)
    chosen = node.attribute("axes") or list(range(len(shape)))
    chosen = [normalize_axis(axis, len(shape)) for axis in chosen]
    mode = node.attribute("coordinate_transformation_mode", "half_pixel")
    found = resize_run_time.wanted(node, chosen)
    if found is not None:
        return resize_run_time.resized(node, found, mode, node.attribute("nearest_mode", "round_prefer_floor"))
    crop = mode == "tf_crop_and_resize"
    roi = (
        [float(value) for value in node.constant(1).reshape(-1)] if crop else [0.0] * len(chosen) + [1.0] * len(chosen)
    )
    if len(roi) != 2 * len(chosen):
        raise node.malformed(f"roi has {len(roi)} values, which does not match {len(chosen)} axes")
    axes = [Axis(length, length, 1.0, length) for length in shape]
    for index, (axis, (target, scale)) in enumerate(zip(chosen, _targets(node, chosen), strict=True)):
        part = (roi[index], roi[index + len(chosen)])
        length = shape[axis]
        wanted = _product(length * (part[1] - part[0]), scale) if target is None else target
        axes[axis] = Axis(length, wanted, scale, scale * length, part)
    return _resize(node, axes, mode, node.attribute("nearest_mode", "round_prefer_floor"))


def _by_scales(node: Node, values: np.ndarray) -> relax.Expr:
    shape, scales = node.shape(0), _scales(node, values)
    if len(scales) != len(shape):
        raise node.malformed(f"{len(scales)} scales do not match {len(shape)} axes")
    pairs = zip(shape, scales, strict=True)
    axes = [Axis(length, _product(length, scale), scale, scale * length) for length, scale in pairs]
    return _resize(node, axes, "asymmetric", _BY_SCALE)


def _product(length: float, scale: float) -> int:
    """The resized length, computed in float32 as in ONNX's shape inference: 20 · 0.7 is 14."""
    return math.floor(np.float32(length) * np.float32(scale))


def _scales(node: Node, values: np.ndarray) -> list[float]:
    """Scales with their exact float32 values."""
    values = values.reshape(-1)
    if values.dtype.kind != "f" or not (np.isfinite(values).all() and (values > 0).all()):
        raise node.malformed(f"scales must be positive, found {values.tolist()}")
    return [float(value) for value in values]


def _targets(node: Node, chosen: list[int]) -> list[tuple[int | None, float]]:
    """(size or None, scale) of each chosen axis."""
    if node.has_input(2) and node.shape(2) != (0,):
        scales = _scales(node, node.constant(2))
        if len(scales) != len(chosen):
            raise node.malformed(f"{len(scales)} scales do not match {len(chosen)} axes")
        return [(None, scale) for scale in scales]
    sizes = shapes.largest(given_dims(node, node.assembly.builder.sizes, 3))
    lengths = [node.shape(0)[axis] for axis in chosen]
    if len(sizes) != len(chosen) or any(size < 1 for size in sizes):
        raise node.malformed(f"sizes {sizes} do not match {len(chosen)} axes")
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    ratios = [size / length for size, length in zip(sizes, lengths, strict=True)]
    if policy == "stretch":
        return list(zip(sizes, ratios, strict=True))
    if policy not in ("not_larger", "not_smaller"):
        raise node.malformed(f"unknown keep_aspect_ratio_policy {policy!r}")
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return [(math.floor(ratio * length + 0.5), ratio) for length in lengths]


def _is_midpoint(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.abs(x - np.floor(x) - np.float32(0.5)) <= _MIDPOINT)


def _crop(x: np.ndarray, axis: Axis) -> np.ndarray:
    begin, end = axis.roi
    last = axis.length - 1
    if axis.target == 1:
        return np.full_like(x, 0.5 * (begin + end) * last)
    return begin * last + x * (end - begin) * last / (axis.target - 1)


def _symmetric(x: np.ndarray, axis: Axis) -> np.ndarray:
    """ONNX Runtime adds in float64 what it has computed in float32."""
    adjustment = axis.target / (axis.scale * axis.length)
    centre = axis.length / 2
    return centre * (1 - adjustment) + (x.astype(np.float64) + 0.5) / axis.scale - 0.5


def _resize(node: Node, axes: list[Axis], coordinates: str, nearest: str) -> relax.Expr:
    mode = node.attribute("mode", "nearest")
    if (
        coordinates not in _COORDINATES
        or nearest not in (*_NEAREST, _BY_SCALE)
        or mode not in ("nearest", "linear", "cubic")
    ):
        raise node.unsupported(f"mode {mode!r} with coordinates {coordinates!r} and nearest_mode {nearest!r}")
    if any(axis.target < 1 for axis in axes):
        raise node.malformed(f"the result would have shape {tuple(axis.target for axis in axes)}")
    check_elements([axis.target for axis in axes])
    if node.attribute("antialias", 0):
        return _antialiased(node, axes, coordinates)
    spatial = _spatial_axes(node, axes, coordinates) if mode == "linear" else ()
    if mode != "nearest" and not spatial and not node.dtype(0).startswith("float"):
        raise node.unsupported(
            f"mode {mode} on {node.dtype(0)} data of shape {node.shape(0)} with scales {[axis.scale for axis in axes]}"
        )
    data = node.input(0)
    if coordinates != "tf_crop_and_resize" and all(axis.target == axis.length for axis in axes):
        return data  # as in ONNX Runtime, even where a scale is not exactly 1
    if spatial:
        return _interpolate_together(node, axes, spatial, coordinates)
    cubic = mode == "cubic"  # ONNX Runtime goes through the width first
    for index, axis in reversed(list(enumerate(axes))) if cubic else enumerate(axes):
        rounding = ("ceil" if axis.scale < 1 else "floor") if nearest == _BY_SCALE else nearest
        same = axis.target == axis.length and axis.scale == 1.0 and axis.roi == (0.0, 1.0)
        if not same:
            data = _resize_axis(node, data, index, axis, _COORDINATES[coordinates], _NEAREST[rounding])
    return data


def _antialiased(node: Node, axes: list[Axis], coordinates: str) -> relax.Expr:
    """The last axis first; one that keeps its length is not filtered, whatever its scale."""
    mode, dtype = node.attribute("mode", "nearest"), node.dtype(0)
    if mode == "nearest":
        raise node.malformed("antialias is for mode linear or cubic, found nearest")
    if not dtype.startswith("float") and dtype != "uint8":
        raise node.unsupported(
            f"antialias on {dtype} data, where ONNX Runtime is wrong for int8: cast it to float32 before"
        )
    data, exclude_outside = node.input(0), bool(node.attribute("exclude_outside", 0))
    positions = [_float32_positions(axis, _COORDINATES[coordinates]) for axis in axes]
    for index, axis in reversed(list(enumerate(axes))):
        if axis.target != axis.length:
            data = resize_antialias.resized(
                node, data, index, positions[index], axis.length, axis.scale, exclude_outside
            )
    for index, axis in enumerate(axes):
        data = _extrapolated(node, data, index, axis, positions[index])
    return data


def _spatial_axes(node: Node, axes: list[Axis], coordinates: str) -> tuple[int, ...]:
    """The axes that ONNX Runtime interpolates together, () where each axis is resized on its own.

    Floats whose positions depend on a width that is no integer follow the specification, and not ONNX Runtime.
    """
    fractional = any(axis.width != axis.target for axis in axes) and coordinates in (
        "align_corners",
        "pytorch_half_pixel",
    )
    if fractional and node.dtype(0) == "float32":
        return ()
    if node.dtype(0) not in resize_linear.DTYPES or node.attribute("exclude_outside", 0):
        return ()
    return resize_linear.spatial_axes([axis.scale for axis in axes])


def _interpolate_together(node: Node, axes: list[Axis], spatial: tuple[int, ...], coordinates: str) -> relax.Expr:
    positions = [_float32_positions(axes[index], _COORDINATES[coordinates]) for index in spatial]
    result = resize_linear.interpolated(node, spatial, positions)
    for index, values in zip(spatial, positions, strict=True):
        result = _extrapolated(node, result, index, axes[index], values)
    return result


def _float32_positions(axis: Axis, coordinates: Callable[[np.ndarray, Axis], np.ndarray]) -> np.ndarray:
    check_elements((axis.target,), "an axis", "folded")
    return coordinates(np.arange(axis.target, dtype=np.float32), axis.in_float32()).astype(np.float32)


def _resize_axis(
    node: Node,
    data: relax.Expr,
    index: int,
    axis: Axis,
    coordinates: Callable[[np.ndarray, Axis], np.ndarray],
    nearest: Callable[[np.ndarray], np.ndarray],
) -> relax.Expr:
    check_elements((axis.target,), f"axis {index}", "folded")
    mode = node.attribute("mode", "nearest")
    if mode == "linear":
        positions = coordinates(np.arange(axis.target, dtype=np.float64), axis)
    else:
        positions = _float32_positions(axis, coordinates)
    if mode == "nearest":
        result = _take(node, data, index, nearest(positions), axis.length)
    else:
        result = _interpolated(node, data, index, axis, positions)
    return _extrapolated(node, result, index, axis, positions)


def _extrapolated(node: Node, result: relax.Expr, index: int, axis: Axis, positions: np.ndarray) -> relax.Expr:
    """The result, with extrapolation_value at positions outside of the data where it is cropped."""
    outside = (positions < 0) | (positions > axis.length - 1)
    if node.attribute("coordinate_transformation_mode") != "tf_crop_and_resize" or not outside.any():
        return result
    ndim = len(node.shape(0))
    mask = constant(outside.reshape((-1,) + (1,) * (ndim - index - 1)))
    fill = constant(np.asarray(node.attribute("extrapolation_value", 0.0), node.dtype(0)))
    return node.emit(relax.op.where(mask, fill, result))


def _interpolated(node: Node, data: relax.Expr, index: int, axis: Axis, positions: np.ndarray) -> relax.Expr:
    """Σ weight · slice over the two or four neighbours, in the data's dtype. Weights are of the positions' dtype,
    cubic ones float32 as in ONNX Runtime."""
    base = np.floor(positions)
    fraction = positions - base
    if node.attribute("mode") == "linear":
        taps = {0: 1 - fraction, 1: fraction}
    else:
        taps = _cubic(fraction, np.float32(node.attribute("cubic_coeff_a", -0.75)))
    trailing = (1,) * (len(node.shape(0)) - index - 1)

    def along(values: np.ndarray) -> relax.Expr:
        return constant(values.astype(node.dtype(0)).reshape((-1, *trailing)))

    divisor = None
    if node.attribute("exclude_outside", 0):
        taps = {tap: weight * ((base + tap >= 0) & (base + tap < axis.length)) for tap, weight in taps.items()}
        total = sum(taps.values())
        if trailing:  # where ONNX Runtime divides the products
            divisor = along(total)
        else:
            taps = {tap: weight / total for tap, weight in taps.items()}
    result = None
    for tap, weight in taps.items():
        if not weight.any():
            continue
        term = node.emit(relax.op.multiply(_take(node, data, index, base + tap, axis.length), along(weight)))
        if divisor is not None:
            term = node.emit(relax.op.divide(term, divisor))
        result = term if result is None else node.emit(relax.op.add(result, term))
    return data if result is None else result


def _cubic(fraction: np.ndarray, a: np.float32) -> dict[int, np.ndarray]:
    """Keys' cubic convolution at distances 1 + f, f, 1 − f, 2 − f."""

    def near(x: np.ndarray) -> np.ndarray:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: np.ndarray) -> np.ndarray:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return {-1: far(1 + fraction), 0: near(fraction), 1: near(1 - fraction), 2: far(2 - fraction)}


def _take(node: Node, data: relax.Expr, index: int, positions: np.ndarray, length: int) -> relax.Expr:
    """Slices at these positions; positions outside take the nearest edge."""
    inside = np.clip(positions, 0, length - 1).astype(np.int64)
    if len(inside) == length and np.array_equal(inside, np.arange(length)):
        return data
    return node.emit(relax.op.take(data, constant(inside), index))

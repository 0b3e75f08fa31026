"""MediaPipe's custom operators, all of float32, as its own kernels compute them (util/tflite/operations): pooling with
places, its inverse, and regions of feature maps around landmarks. Transposed convolution is in `transpose_conv.py`.

A region's matrix maps points of the region to points of the feature map: x' = M₀₀·x + M₀₁·y + M₀₃, y' likewise from
row 1.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ....op.base import constant
from ...angles import atan2
from ...building import padded
from ..integers import require_dtype, scalar
from ..node import ACTIVATION_RANGES, Node
from ..registry import converter
from .accumulators import as_dtype, number, reshaped
from .convolution import check_rank4, same_padding
from .shape import block, check_elements

Pair = tuple[int, int]
_SAME, _VALID = 1, 2  # TfLitePadding
_MOST_PLACES = 256  # each is a few expressions of its own
_LOWEST = float(np.finfo(np.float32).min)
_BESIDE = np.float32(0.1)  # added to places, which are float32, so that they truncate to the integer


# ---- pooling -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pool:
    """TfLitePoolParams: pairs are (height, width)."""

    padding: int
    strides: Pair
    window: Pair
    activation: str

    @property
    def places(self) -> list[Pair]:
        """The positions in a window, in order."""
        return [(y, x) for y in range(self.window[0]) for x in range(self.window[1])]


def _pool(node: Node) -> _Pool:
    check_rank4(node, 0)
    require_dtype(node, node.dtype(0), "float32")
    if len(node.operator.custom_options) < 24:
        raise node.malformed(f"{len(node.operator.custom_options)} bytes of options; a window needs 24")
    padding, *sizes, activation = struct.unpack_from("<6i", node.operator.custom_options)
    stride_w, stride_h, width, height = sizes
    if padding not in (_SAME, _VALID) or min(sizes) < 1 or not 0 <= activation < len(ACTIVATION_RANGES):
        raise node.malformed(f"padding {padding}, strides and window {sizes} or activation {activation} are not valid")
    if width * height > _MOST_PLACES:
        raise node.unsupported(f"a window of {width} × {height}; at most {_MOST_PLACES} elements are supported")
    names = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6")
    return _Pool(padding, (stride_h, stride_w), (height, width), names[activation])


@converter("MaxPoolingWithArgmax2D", max_version=1)
def convert_pool_with_places(node: Node) -> list[relax.Expr]:
    """The largest element of each window, the first of several, and its place within the window, plus 0.1."""
    pool, data, emit = _pool(node), node.input(0), node.emit
    shape = node.shape(0)
    dims = list(zip(shape[1:3], pool.window, pool.strides, strict=True))
    pads = [(0, 0)] * 2
    if pool.padding == _SAME:
        pads = [same_padding(size, window, stride, 1) for size, window, stride in dims]
    sizes = [(size + sum(pad) - window) // stride + 1 for (size, window, stride), pad in zip(dims, pads, strict=True)]
    if min(sizes) < 1:
        raise node.malformed(f"a window of {pool.window} does not fit into {shape}")
    if any(map(sum, pads)):
        data = emit(padded(emit, data, [0, 0, *pads[0], *pads[1], 0, 0], _LOWEST))
    ends = [(size - 1) * stride + 1 for size, stride in zip(sizes, pool.strides, strict=True)]
    result_shape = check_elements(node, [shape[0], *sizes, shape[3]])
    largest = constant(np.full(result_shape, _LOWEST, np.float32))
    place = constant(np.full(result_shape, _BESIDE, np.float32))
    for index, (y, x) in enumerate(pool.places):
        part = block(node, data, [1, 2], [y, x], [y + ends[0], x + ends[1]], pool.strides)
        larger = emit(relax.op.greater(part, largest))
        largest = emit(relax.op.where(larger, part, largest))
        place = emit(relax.op.where(larger, number(np.float32(index) + _BESIDE), place))
    return [emit(node.activate(largest, pool.activation)), place]


@converter("MaxUnpooling2D", max_version=1)
def convert_unpooling(node: Node) -> relax.Expr:
    """Each element at its place in a window of zeros: data and places of the same shape. Places beyond the
    window, which pooling does not give, are dropped."""
    pool, emit = _pool(node), node.emit
    data, places = node.input(0), node.input(1)
    batch, height, width, channels = node.shape(0)
    if node.shape(1) != node.shape(0) or node.dtype(1) != "float32":
        raise node.malformed(f"places of {node.dtype(1)} {node.shape(1)} do not match data of {node.shape(0)}")
    if pool.strides != pool.window:
        raise node.unsupported(f"windows of {pool.window} with strides {pool.strides}; both must be equal")
    rows, columns = pool.window
    check_elements(node, [batch, height * rows, width * columns, channels])
    index = emit(relax.op.astype(places, "int32"))
    zero = number(0)
    parts = [
        emit(relax.op.where(emit(relax.op.equal(index, scalar(place))), data, zero))
        for place in range(len(pool.places))
    ]
    stacked = emit(relax.op.stack(parts, 3))
    split = reshaped(node, stacked, (batch, height, width, rows, columns, channels))
    ordered = emit(relax.op.permute_dims(split, [0, 1, 3, 2, 4, 5]))
    return reshaped(node, ordered, (batch, height * rows, width * columns, channels))


# ---- regions -----------------------------------------------------------------------------------------------------


def _row(node: Node, matrix: relax.Expr, row: int) -> list[relax.Expr]:
    """The coefficients of x and y, and the offset, of one row of a matrix of 16 elements."""
    return [_element(node, matrix, 4 * row + column) for column in (0, 1, 3)]


def _element(node: Node, vector: relax.Expr, index: int) -> relax.Expr:
    return reshaped(node, block(node, vector, [0], [index], [index + 1], [1]), ())


def _matrix(node: Node, index: int) -> relax.Expr:
    require_dtype(node, node.dtype(index), "float32")
    if int(np.prod(node.shape(index))) != 16:
        raise node.malformed(f"a matrix of shape {node.shape(index)}; (1, 4, 4) is expected")
    return reshaped(node, node.input(index), (16,))


def _mapped(node: Node, row: Sequence[relax.Expr], x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """a·x + b·y + c."""
    emit, (a, b, c) = node.emit, row
    return emit(relax.op.add(emit(relax.op.add(*(emit(relax.op.multiply(*pair)) for pair in ((a, x), (b, y))))), c))


@converter("TransformTensorBilinear", max_version=2)
def convert_transform_tensor(node: Node) -> relax.Expr:
    """A region of a feature map (1, H, W, C), between pixels linearly; 0 outside of the map."""
    _require_version(node, 2)
    options = node.custom_map()
    emit, shape, matrix = node.emit, node.shape(0), _matrix(node, 1)
    require_dtype(node, node.dtype(0), "float32")
    if len(shape) != 4 or shape[0] != 1 or 0 in shape:
        raise node.malformed(f"features of shape {shape}; (1, H, W, C) is expected")
    _, height, width, channels = shape
    rows, columns = (node.custom_number(options, f"output_{name}", int) for name in ("height", "width"))
    check_elements(node, [1, rows, columns, channels])
    if min(rows, columns) < 1:
        raise node.malformed(f"a region of {rows} × {columns}")
    across = constant(np.broadcast_to(np.arange(columns, dtype=np.float32), (rows, columns)).copy())
    down = constant(np.broadcast_to(np.arange(rows, dtype=np.float32)[:, None], (rows, columns)).copy())
    x, y = (_mapped(node, _of_centers(node, _row(node, matrix, row)), across, down) for row in range(2))
    left, top = (emit(relax.op.floor(value)) for value in (x, y))
    inside = [
        emit(condition)
        for value, size in ((x, width), (y, height))
        for condition in (relax.op.greater_equal(value, number(0)), relax.op.less_equal(value, number(size - 1)))
    ]
    within = inside[0]
    for condition in inside[1:]:
        within = emit(relax.op.logical_and(within, condition))
    flat = reshaped(node, node.input(0), (height * width, channels))

    def corner(rows_below: int, columns_right: int) -> relax.Expr:
        place = [
            emit(relax.op.clip(emit(relax.op.add(value, number(more))), 0.0, float(size - 1)))
            for value, more, size in ((top, rows_below, height), (left, columns_right, width))
        ]
        row, column = (emit(relax.op.astype(value, "int32")) for value in place)
        index = emit(relax.op.add(emit(relax.op.multiply(row, scalar(width))), column))
        return emit(relax.op.take(flat, index, 0, mode="clip"))

    wide = [
        reshaped(node, emit(relax.op.subtract(value, whole)), (rows, columns, 1))
        for value, whole in ((x, left), (y, top))
    ]
    upper, lower = (_between(node, corner(below, 0), corner(below, 1), wide[0]) for below in (0, 1))
    result = _between(node, upper, lower, wide[1])
    result = emit(relax.op.where(reshaped(node, within, (rows, columns, 1)), result, number(0)))
    return reshaped(node, result, (1, rows, columns, channels))


def _of_centers(node: Node, row: Sequence[relax.Expr]) -> list[relax.Expr]:
    """A row of the matrix for pixels' indices in place of their centers: c + a/2 + b/2 − 1/2, in double."""
    emit, half = node.emit, number(0.5, "float64")
    a, b, c = (as_dtype(node, value, "float64") for value in row)
    halves = emit(relax.op.add(emit(relax.op.multiply(a, half)), emit(relax.op.multiply(b, half))))
    offset = emit(relax.op.add(c, emit(relax.op.subtract(halves, half))))
    return [*row[:2], as_dtype(node, offset, "float32")]


def _between(node: Node, first: relax.Expr, second: relax.Expr, part: relax.Expr) -> relax.Expr:
    """(1 − part)·first + part·second, the first product and the sum in double."""
    emit = node.emit
    rest = emit(relax.op.subtract(number(1, "float64"), as_dtype(node, part, "float64")))
    one = emit(relax.op.multiply(rest, as_dtype(node, first, "float64")))
    two = as_dtype(node, emit(relax.op.multiply(part, second)), "float64")
    return as_dtype(node, emit(relax.op.add(one, two)), "float32")


@converter("TransformLandmarks", max_version=2)
def convert_transform_landmarks(node: Node) -> relax.Expr:
    """Points (1, N, 2 or 3) of a region as points of the map; a third coordinate stays as it is."""
    _require_version(node, 2)
    require_dtype(node, node.dtype(0), "float32")
    emit, shape, matrix = node.emit, node.shape(0), _matrix(node, 1)
    if len(shape) != 3 or shape[0] != 1 or shape[2] not in (2, 3) or not shape[1]:
        raise node.malformed(f"landmarks of shape {shape}; (1, N, 2) or (1, N, 3) is expected")
    x, y, *rest = (block(node, node.input(0), [2], [axis], [axis + 1], [1]) for axis in range(shape[2]))
    mapped = [_mapped(node, _row(node, matrix, row), x, y) for row in range(2)]
    return emit(relax.op.concat([*mapped, *rest], 2))


@converter("Landmarks2TransformMatrix", max_version=2)
def convert_landmarks_to_matrix(node: Node) -> relax.Expr:
    """The matrix (1, 4, 4) of the region around some landmarks (1, N, 3), turned so that the line between two of them
    has a given angle: shift · rotation · scale · shift of the region's center to its middle pixel."""
    _require_version(node, 2)
    require_dtype(node, node.dtype(0), "float32")
    options, shape, emit = node.custom_map(), node.shape(0), node.emit
    if len(shape) != 3 or shape[0] != 1 or shape[2] != 3:
        raise node.malformed(f"landmarks of shape {shape}; (1, N, 3) is expected")
    ends = [node.custom_number(options, f"{side}_rotation_idx", int) for side in ("left", "right")]
    subset = _subset(node, options)
    if not subset or not all(0 <= index < shape[1] for index in (*ends, *subset)):
        raise node.malformed(f"indices {ends} and {subset} of {shape[1]} landmarks")
    size = [node.custom_number(options, f"output_{name}", int) for name in ("width", "height")]
    factors = [np.float32(node.custom_number(options, f"scale_{axis}", float)) for axis in "xy"]
    if min(size) < 1 or not all(factor > 0 for factor in factors):
        raise node.malformed(f"a region of {size} pixels, scaled by {factors}")
    target = np.float32(node.custom_number(options, "target_rotation_radians", float))
    points = reshaped(node, node.input(0), (shape[1], 3))

    def coordinates(indices: Sequence[int]) -> list[relax.Expr]:
        found = emit(relax.op.take(points, constant(np.array(indices, np.int64)), 0, mode="clip"))
        return [reshaped(node, block(node, found, [1], [axis], [axis + 1], [1]), (len(indices),)) for axis in (0, 1)]

    across, down = (
        emit(relax.op.subtract(_element(node, value, 1), _element(node, value, 0))) for value in coordinates(ends)
    )
    turned = emit(relax.op.subtract(number(target), emit(atan2(emit, down, across))))
    x, y = _rotated(node, coordinates(subset), turned)
    low, high = ([emit(function(value)) for value in (x, y)] for function in (relax.op.min, relax.op.max))
    middle = [emit(relax.op.divide(emit(relax.op.add(*pair)), number(2))) for pair in zip(low, high, strict=True)]
    back = emit(relax.op.negative(turned))
    center = _rotated(node, middle, back)
    cosine, sine = emit(relax.op.cos(back)), emit(relax.op.sin(back))
    scales = [
        emit(
            relax.op.divide(
                emit(relax.op.multiply(number(factor), emit(relax.op.subtract(last, first)))), number(pixels)
            )
        )
        for factor, first, last, pixels in zip(factors, low, high, size, strict=True)
    ]
    shifts = [number(np.float32(-pixels / 2)) for pixels in size]
    matrix: list[relax.Expr] = []
    for directions, offset in (
        ((cosine, emit(relax.op.negative(sine))), center[0]),
        ((sine, cosine), center[1]),
    ):
        factors_of_row = [emit(relax.op.multiply(*pair)) for pair in zip(directions, scales, strict=True)]
        matrix += [*factors_of_row, number(0), _mapped(node, [*factors_of_row, offset], *shifts)]
    rest = constant(np.eye(4, dtype=np.float32)[2:].reshape(-1))
    values = [emit(relax.op.reshape(value, (1,))) for value in matrix]
    return reshaped(node, emit(relax.op.concat([*values, rest], 0)), (1, 4, 4))


def _rotated(node: Node, point: Sequence[relax.Expr], angle: relax.Expr) -> list[relax.Expr]:
    emit, zero = node.emit, number(0)
    cosine, sine = emit(relax.op.cos(angle)), emit(relax.op.sin(angle))
    rows = ([cosine, emit(relax.op.negative(sine)), zero], [sine, cosine, zero])
    return [_mapped(node, row, *point) for row in rows]


def _subset(node: Node, options: dict[str, Any]) -> list[int]:
    values = options.get("subset_idxs")
    if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
        raise node.malformed("its option subset_idxs is not a list of integers")
    return values


def _require_version(node: Node, version: int) -> None:
    if node.operator.version != version:
        raise node.unsupported(f"version {node.operator.version}; supported: {version}")

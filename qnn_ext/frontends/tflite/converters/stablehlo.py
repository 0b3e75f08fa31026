"""STABLEHLO operators for which LiteRT has kernels: elementwise ones, GATHER and SCATTER. Those with windows and
padding are in `windows.py`, COMPOSITE is in `control_flow.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax

from ....op.base import constant, shape_of
from ..integers import require_dtype, same_dtype
from ..node import Node
from ..registry import converter
from .shape import check_elements, reshape
from .windows import NUMBERS, body_function

_INDICES = ("int32", "int64")
_ARITHMETIC = {
    "STABLEHLO_ADD": relax.op.add,
    "STABLEHLO_MULTIPLY": relax.op.multiply,
    "STABLEHLO_MAXIMUM": relax.op.maximum,
    "STABLEHLO_MINIMUM": relax.op.minimum,
}


def _operands(node: Node, *supported: str) -> tuple[relax.Expr, relax.Expr]:
    require_dtype(node, same_dtype(node, 0, 1), *supported)
    if node.shape(0) != node.shape(1):
        raise node.malformed(f"operands of shapes {node.shape(0)} and {node.shape(1)} differ")
    if node.is_quantized(0) or node.is_quantized(1):
        raise node.unsupported("quantized operands")
    return node.input(0), node.input(1)


@converter(*_ARITHMETIC, max_version=1)
def convert_arithmetic(node: Node) -> relax.Expr:
    """Two tensors of one shape, element by element."""
    supported = ("float32", "int8", "int16", "int32", "int64")
    return _ARITHMETIC[node.operator.name](*_operands(node, *supported))


@converter("STABLEHLO_AND", max_version=1)
def convert_and(node: Node) -> relax.Expr:
    """The bits, or truth values, that both have."""
    x, y = _operands(node, "bool", "int8", "int16", "int32", "int64")
    return (relax.op.logical_and if node.dtype() == "bool" else relax.op.bitwise_and)(x, y)


@converter("STABLEHLO_SHIFT_LEFT", max_version=1)
def convert_shift_left(node: Node) -> relax.Expr:
    """x · 2ⁿ; 0 where n is not below the number of bits."""
    x, bits = _operands(node, "int8", "int16", "int32", "int64")
    dtype = node.dtype()
    zero, most = constant(np.zeros((), dtype)), constant(np.array(np.iinfo(dtype).bits, dtype))
    defined = node.emit(
        relax.op.logical_and(
            node.emit(relax.op.less(bits, most)),
            node.emit(relax.op.greater_equal(bits, zero)),
        )
    )
    shifted = node.emit(relax.op.left_shift(x, node.emit(relax.op.where(defined, bits, zero))))
    return relax.op.where(defined, shifted, zero)


# ---- places by index vectors -------------------------------------------------------------------------------------


def _vectors(node: Node, index: int, axis: int) -> tuple[relax.Expr, tuple[int, ...], int]:
    """Index vectors as an int64 matrix, a row for each; the shape of the rows; and the vectors' length."""
    require_dtype(node, node.dtype(index), *_INDICES)
    shape = node.shape(index)
    if not 0 <= axis <= len(shape):
        raise node.malformed(f"index vectors along dimension {axis} of shape {shape}")
    rows = shape[:axis] + shape[axis + 1 :]
    length = shape[axis] if axis < len(shape) else 1
    wide = node.emit(relax.op.astype(node.input(index), "int64"))
    if axis < len(shape) - 1:
        order = [number for number in range(len(shape)) if number != axis]
        wide = node.emit(relax.op.permute_dims(wide, [*order, axis]))
    return reshape(node, wide, (math.prod(rows), length)), rows, length


def _starts(node: Node, vectors: relax.Expr, dims: Sequence[int], rank: int) -> relax.Expr:
    """(rows, rank): for each dimension of the operand the component that `dims` assigns to it, else 0."""
    rows, length = shape_of(vectors)
    if len(dims) != length or len(set(dims)) != length or not all(0 <= dim < rank for dim in dims):
        raise node.malformed(f"index vectors of {length} numbers for dimensions {list(dims)} of {rank}")
    zeros = constant(np.zeros((rows, 1), np.int64))
    extended = node.emit(relax.op.concat([vectors, zeros], 1))
    places = np.array([dims.index(dim) if dim in dims else length for dim in range(rank)], np.int64)
    return node.emit(relax.op.take(extended, constant(places), axis=1, mode="clip"))


def _strides(shape: Sequence[int]) -> np.ndarray:
    """By how many elements a step along each dimension moves."""
    return np.array([math.prod(shape[axis + 1 :]) for axis in range(len(shape))], np.int64)


def _offsets(shape: Sequence[int]) -> np.ndarray:
    """(elements, rank): the indices of all elements of a tensor, in order."""
    return np.indices(shape).reshape(len(shape), -1).T.astype(np.int64)


def _interleaved(
    node: Node, data: relax.Expr, rows: Sequence[int], window: Sequence[int], places: Sequence[int]
) -> relax.Expr:
    """(rows…, window…) with the window's dimensions moved to these places of the result."""
    rank = len(rows) + len(window)
    if len(places) != len(window) or sorted(set(places)) != list(places) or not all(0 <= p < rank for p in places):
        raise node.malformed(f"dimensions {list(places)} for windows of shape {tuple(window)}")
    data = reshape(node, data, (*rows, *window))
    rest = iter(range(len(rows)))
    order = [len(rows) + places.index(axis) if axis in places else next(rest) for axis in range(rank)]
    return data if order == list(range(rank)) else node.emit(relax.op.permute_dims(data, order))


@converter("STABLEHLO_GATHER", max_version=1)
def convert_gather(node: Node) -> relax.Expr:
    """Slices of one size that begin at places named by index vectors; a start is moved so that its slice stays
    inside."""
    options, shape = node.options, node.shape(0)
    require_dtype(node, node.dtype(), *NUMBERS)
    sizes, collapsed = [int(size) for size in options["slice_sizes"]], list(options["collapsed_slice_dims"])
    if len(sizes) != len(shape) or any(not 0 <= size <= dim for size, dim in zip(sizes, shape, strict=True)):
        raise node.malformed(f"slices of {sizes} of an operand of shape {shape}")
    if any(not 0 <= axis < len(shape) or sizes[axis] != 1 for axis in collapsed):
        raise node.malformed(f"dimensions {collapsed} of slices of {sizes} cannot be left out")
    vectors, rows, _ = _vectors(node, 1, int(options["index_vector_dim"]))
    starts = _starts(node, vectors, list(options["start_index_map"]), len(shape))
    room = np.array(shape, np.int64) - sizes
    starts = node.emit(relax.op.maximum(starts, constant(np.zeros((), np.int64))))
    starts = node.emit(relax.op.minimum(starts, constant(room)))
    strides = _strides(shape)
    first = node.emit(relax.op.sum(node.emit(relax.op.multiply(starts, constant(strides))), [1], keepdims=True))
    offsets = (_offsets(sizes) @ strides).reshape(1, -1)
    check_elements(node, (math.prod(rows), offsets.size))
    places = node.emit(relax.op.add(first, constant(offsets)))
    flat = reshape(node, node.input(0), (math.prod(shape),))
    taken = node.emit(relax.op.take(flat, places, axis=0, mode="clip"))
    window = [size for axis, size in enumerate(sizes) if axis not in collapsed]
    return _interleaved(node, taken, rows, window, list(options["offset_dims"]))


_SCATTERED = {"UPDATE": "update", "ADD": "add", "MUL": "mul", "MAXIMUM": "max", "MINIMUM": "min"}


@converter("STABLEHLO_SCATTER", max_version=1)
def convert_scatter(node: Node) -> relax.Expr:
    """The operand with windows of updates combined into it, at places named by index vectors; elements that land
    outside are dropped."""
    options, shape, updates = node.options, node.shape(0), node.shape(2)
    if node.input_count != 3:
        raise node.unsupported(f"{node.input_count // 2} operands at once; supported: one")
    require_dtype(node, same_dtype(node, 0, 2), *NUMBERS)
    function = body_function(node, "update_computation_subgraph_index")
    if function not in _SCATTERED:
        raise node.unsupported(f"an update by {function}; supported: {', '.join(_SCATTERED)}")
    window_dims, inserted = list(options["update_window_dims"]), list(options["inserted_window_dims"])
    kept = [axis for axis in range(len(shape)) if axis not in inserted]
    vectors, rows, _ = _vectors(node, 1, int(options["index_vector_dim"]))
    batch = [axis for axis in range(len(updates)) if axis not in window_dims]
    window = [updates[axis] for axis in window_dims if 0 <= axis < len(updates)]
    if len(window) != len(window_dims) or len(window) != len(kept) or [updates[axis] for axis in batch] != list(rows):
        raise node.malformed(f"updates of shape {updates} for {rows} windows of {len(kept)} dimensions")
    starts = _starts(node, vectors, list(options["scatter_dims_to_operand_dims"]), len(shape))
    sizes = [1] * len(shape)
    for axis, size in zip(kept, window, strict=True):
        sizes[axis] = size
    offsets, count = _offsets(sizes), math.prod(rows)
    check_elements(node, (count, len(offsets), max(len(shape), 1)))
    places = node.emit(
        relax.op.add(
            reshape(node, starts, (count, 1, len(shape))),
            constant(offsets.reshape(1, -1, len(shape))),
        )
    )
    inside = node.emit(
        relax.op.logical_and(
            node.emit(relax.op.greater_equal(places, constant(np.zeros((), np.int64)))),
            node.emit(relax.op.less(places, constant(np.array(shape, np.int64)))),
        )
    )
    inside = node.emit(relax.op.min(node.emit(relax.op.astype(inside, "int32")), [2]))
    linear = node.emit(relax.op.sum(node.emit(relax.op.multiply(places, constant(_strides(shape)))), [2]))
    total = math.prod(shape)
    kept_place = node.emit(relax.op.equal(inside, constant(np.int32(1))))
    linear = node.emit(relax.op.where(kept_place, linear, constant(np.int64(total))))  # an element that is cut off
    linear = reshape(node, linear, (count * len(offsets), 1))
    values = node.input(2)
    if [*batch, *window_dims] != list(range(len(updates))):
        values = node.emit(relax.op.permute_dims(values, [*batch, *window_dims]))
    values = reshape(node, values, (count * len(offsets),))
    dtype = node.dtype()
    wide = "int32" if dtype == "bool" or (dtype in ("int8", "uint8", "int16") and function != "UPDATE") else dtype
    flat = reshape(node, node.input(0), (total,))
    if wide != dtype:
        flat, values = (node.emit(relax.op.astype(value, wide)) for value in (flat, values))
    spare = constant(np.zeros(1, wide))
    target = node.emit(relax.op.concat([flat, spare], 0))
    found = node.emit(relax.op.scatter_nd(target, linear, values, _SCATTERED[function]))
    found = node.emit(relax.op.strided_slice(found, [0], [0], [total]))
    if wide != dtype:
        found = node.emit(relax.op.astype(found, dtype))
    return reshape(node, found, shape)

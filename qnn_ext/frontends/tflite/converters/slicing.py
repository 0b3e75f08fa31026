"""Operators that pick elements: slices, gathers, one-hot vectors, the largest values. They move stored integers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ....op.base import constant, constant_value
from ...run_time import checked_indices
from ..node import Node
from ..registry import converter
from .shape import block, check_elements, from_file, reshape

# ---- SLICE, STRIDED_SLICE ----------------------------------------------------------------------------------------


@converter("SLICE", max_version=7)
def convert_slice(node: Node) -> relax.Expr:
    """begin and size per dimension; size −1 means the rest. A dimension that the model takes whole stays whole when the
    import changes its size."""
    shape = node.shape(0)
    begin, size = (node.integers(i) for i in (1, 2))
    if not len(begin) == len(size) == len(shape):
        raise node.malformed(f"begin {begin} and size {size} do not match shape {shape}")
    declared = node.tensor(0).shape if from_file(node, 2) and node.assembly.shapes else ()
    end = []
    for axis, dim in enumerate(shape):
        whole = len(declared) == len(shape) and (begin[axis], size[axis]) == (0, declared[axis])
        end.append(dim if size[axis] == -1 or whole else begin[axis] + size[axis])
        if not 0 <= begin[axis] <= end[axis] <= dim:
            raise node.malformed(f"begin {begin} and size {size} reach beyond shape {shape}")
    return block(node, node.input(0), range(len(shape)), begin, end, [1] * len(shape))


@dataclass(frozen=True)
class AxisSlice:
    """What STRIDED_SLICE does to one input dimension."""

    begin: int
    end: int
    stride: int
    shrink: bool = False


@converter("STRIDED_SLICE", max_version=8)
def convert_strided_slice(node: Node) -> relax.Expr:
    """NumPy's basic indexing: x[b:e:s, newaxis, ..., i]. Indices i may be known only at run time, where everything else
    is whole."""
    if takes_single_elements(node):
        return _elements_at(node, _single_indices(node))
    slices, target = _specification(node)
    data = block(
        node,
        node.input(0),
        range(len(slices)),
        [s.begin for s in slices],
        [s.end for s in slices],
        [s.stride for s in slices],
    )
    sizes = [int(dim) for dim in data.ty.shape]
    return reshape(node, data, [1 if axis is None else sizes[axis] for axis in target])


def takes_single_elements(node: Node) -> bool:
    """Whether a STRIDED_SLICE takes one element, or all, along each axis, at indices known only at run time."""
    return constant_value(node.input(1)) is None and bool(_single_indices(node))


def _single_indices(node: Node) -> list[int]:
    """The dimensions of which one element is taken, if the others are taken whole; none otherwise."""
    count = math.prod(node.shape(1))
    masks = {
        name: int(node.options[f"{name}_mask"]) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    steps = constant_value(node.input(3))
    if masks["ellipsis"] or masks["new_axis"] or count > len(node.shape(0)) or steps is None or (steps != 1).any():
        return []
    single = [axis for axis in range(count) if _bit(masks["shrink_axis"], axis) and not _bit(masks["begin"], axis)]
    whole = [axis for axis in range(count) if _bit(masks["begin"], axis) and _bit(masks["end"], axis)]
    return single if len(single) + len(set(whole) - set(single)) == count else []


def _elements_at(node: Node, axes: Sequence[int]) -> relax.Expr:
    """The elements at the begin of the slice, from the last dimension to the first, so that these keep their places."""
    data = node.input(0)
    for axis in reversed(axes):
        index = reshape(node, block(node, node.input(1), [0], [axis], [axis + 1], [1]), ())
        index = checked_indices(node.emit, index, node.shape(0)[axis], node.label, negative=True)
        data = node.emit(relax.op.take(data, index, axis=axis, mode="clip"))
    return data


def _specification(node: Node) -> tuple[list[AxisSlice], list[int | None]]:
    """One slice per input dimension; and, per output dimension, its input dimension or None for a new one."""
    shape = node.shape(0)
    begin, end, strides = (node.integers(i) for i in (1, 2, 3))
    if not len(begin) == len(end) == len(strides):
        raise node.malformed(f"begin {begin}, end {end} and strides {strides} differ in length")
    masks = {
        name: int(node.options[f"{name}_mask"]) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    if masks["ellipsis"].bit_count() > 1:
        raise node.malformed("it has more than one ellipsis")
    named = sum(not (_bit(masks["ellipsis"], i) or _bit(masks["new_axis"], i)) for i in range(len(begin)))
    if named > len(shape):
        raise node.malformed(f"{named} indices for {len(shape)} dimensions")
    slices: list[AxisSlice] = []
    target: list[int | None] = []

    def keep_whole(count: int) -> None:
        for _ in range(count):
            target.append(len(slices))
            slices.append(AxisSlice(0, shape[len(slices)], 1))

    for i in range(len(begin)):
        if _bit(masks["ellipsis"], i):
            keep_whole(len(shape) - named)
        elif _bit(masks["new_axis"], i):
            target.append(None)
        else:
            taken = _axis_slice(node, len(slices), i, begin[i], end[i], strides[i], masks)
            if not taken.shrink:
                target.append(len(slices))
            slices.append(taken)
    keep_whole(len(shape) - len(slices))
    return slices, target


def _bit(mask: int, index: int) -> bool:
    return bool(mask >> index & 1)


def _axis_slice(
    node: Node, axis: int, index: int, begin: int, end: int, stride: int, masks: dict[str, int]
) -> AxisSlice:
    """The normalized slice that entry `index` takes of input dimension `axis`; end < 0: "before the first"."""
    size = node.shape(0)[axis]
    if stride == 0:
        raise node.malformed("a stride is 0")
    if _bit(masks["shrink_axis"], index):
        first = begin + size if begin < 0 else begin
        if _bit(masks["begin"], index):
            first = 0 if stride > 0 else size - 1
        if not 0 <= first < size:
            raise node.malformed(f"index {begin} is outside dimension {axis} of {node.shape(0)}")
        return AxisSlice(first, first + 1, 1, shrink=True)
    if node.options.get("offset"):
        end = begin + end  # the end is relative to the begin
    first_index = None if _bit(masks["begin"], index) else begin
    last_index = None if _bit(masks["end"], index) else end
    declared = node.tensor(0).shape
    resized = node.assembly.shapes and from_file(node, 2) and len(declared) == len(node.shape(0))
    if resized and first_index in (None, 0) and (last_index, stride) == (declared[axis], 1):
        last_index = None  # the model takes this dimension whole
    start, stop, _ = slice(first_index, last_index, stride).indices(size)
    count = len(range(start, stop, stride))
    return AxisSlice(start, start + count * stride, stride) if count != size else _whole(stride, size)


def _whole(stride: int, size: int) -> AxisSlice:
    return AxisSlice(0, size, 1) if stride > 0 else AxisSlice(size - 1, -1, -1)


# ---- GATHER, GATHER_ND -------------------------------------------------------------------------------------------


@converter("GATHER", max_version=7)
def convert_gather(node: Node) -> relax.Expr:
    """out[b…, p…, i…, q…] = x[b…, p…, indices[b…, i…], q…] with `batch_dims` leading dimensions b shared.

    Constant indices are checked now, computed ones at run time.
    """
    shape, index_shape = node.shape(0), node.shape(1)
    batch_dims, axis = int(node.options["batch_dims"]), int(node.options["axis"])
    batch_dims += len(index_shape) if batch_dims < 0 else 0
    axis += len(shape) if axis < 0 else 0
    if not (0 <= batch_dims <= axis < len(shape) and shape[:batch_dims] == index_shape[:batch_dims]):
        raise node.malformed(
            f"axis {axis} and {batch_dims} batch dimensions do not match data of shape {shape} and indices of shape "
            f"{index_shape}"
        )
    _require_indices(node, shape[axis : axis + 1])
    indices = checked_indices(node.emit, node.input(1), shape[axis], node.label)
    if not batch_dims:
        return relax.op.take(node.input(0), indices, axis=axis, mode="clip")
    # Rows of all batches in one axis: batch b's row r is row b·n + r.
    batch, before, size = shape[:batch_dims], shape[batch_dims:axis], shape[axis]
    after, picked = shape[axis + 1 :], index_shape[batch_dims:]
    order = [*range(batch_dims), axis, *range(batch_dims, axis), *range(axis + 1, len(shape))]
    moved = node.emit(relax.op.permute_dims(node.input(0), order))
    rows = reshape(node, moved, [math.prod(batch) * size, *before, *after])
    taken = node.emit(relax.op.take(rows, _rows_of_all_batches(node, indices, batch_dims, size), axis=0, mode="clip"))
    taken = reshape(node, taken, [*batch, math.prod(picked), *before, *after])
    place = [*range(batch_dims + 1, axis + 1), batch_dims]
    ordered = node.emit(relax.op.permute_dims(taken, [*range(batch_dims), *place, *range(axis + 1, len(shape))]))
    return reshape(node, ordered, [*batch, *before, *picked, *after])


def _require_indices(node: Node, sizes: Sequence[int]) -> None:
    if node.dtype(1) not in ("int16", "int32", "int64"):
        raise node.unsupported(f"indices of dtype {node.dtype(1)}")
    if 0 in sizes:
        raise node.malformed("indices select from an axis without elements")


def _rows_of_all_batches(node: Node, indices: relax.Expr, batch_dims: int, size: int) -> relax.Expr:
    """indices + batch · size, flattened."""
    shape, dtype = node.shape(1), node.dtype(1)
    batches = math.prod(shape[:batch_dims])
    flat = reshape(node, indices, [batches, math.prod(shape[batch_dims:])])
    if dtype == "int16":
        flat, dtype = node.emit(relax.op.astype(flat, "int32")), "int32"
    check_elements(node, (batches,), "folded")
    first_rows = (np.arange(batches) * size).astype(dtype).reshape(-1, 1)
    rows = node.emit(relax.op.add(flat, constant(first_rows)))
    return reshape(node, rows, [batches * math.prod(shape[batch_dims:])])


@converter("GATHER_ND", max_version=5)
def convert_gather_nd(node: Node) -> relax.Expr:
    """out[i…, q…] = x[indices[i…, 0], …, indices[i…, k − 1], q…]; out-of-range indices as in GATHER."""
    shape, index_shape = node.shape(0), node.shape(1)
    depth = index_shape[-1] if index_shape else 0
    if not 1 <= depth <= len(shape):
        raise node.malformed(f"indices of shape {index_shape} do not match data of shape {shape}")
    _require_indices(node, shape[:depth])
    indices = checked_indices(node.emit, node.input(1), shape[:depth], node.label)
    steps = constant(np.array([math.prod(shape[k + 1 : depth]) for k in range(depth)], np.int64))
    wide = node.emit(relax.op.astype(indices, "int64"))
    row = node.emit(relax.op.sum(node.emit(relax.op.multiply(wide, steps)), axis=-1))
    rows = reshape(node, node.input(0), [math.prod(shape[:depth]), *shape[depth:]])
    return relax.op.take(rows, row, axis=0, mode="clip")


# ---- ONE_HOT, TOPK_V2 --------------------------------------------------------------------------------------------


@converter("ONE_HOT", max_version=1)
def convert_one_hot(node: Node) -> relax.Expr:
    """`on` where the position along the new axis equals the index, `off` elsewhere; indices outside the depth give only
    `off`."""
    shape, dtype = node.shape(0), node.dtype(0)
    depth, axis = node.integer(1), int(node.options["axis"])
    if depth < 0 or not -1 <= axis <= len(shape) or dtype not in ("int32", "int64"):
        raise node.malformed(f"invalid depth {depth}, axis {axis} or indices of {dtype} {shape}")
    axis = len(shape) if axis == -1 else axis
    target = check_elements(node, [*shape[:axis], depth, *shape[axis:]], "folded")
    positions = np.arange(depth, dtype=dtype).reshape([-1 if i == axis else 1 for i in range(len(target))])
    indices = reshape(node, node.input(0), [*shape[:axis], 1, *shape[axis:]])
    hit = node.emit(relax.op.equal(indices, constant(positions)))
    on, off = (reshape(node, node.input(i), ()) for i in (2, 3))
    return relax.op.where(hit, on, off)


@converter("TOPK_V2", max_version=3)
def convert_topk(node: Node) -> list[relax.Expr]:
    """The k largest values along the last axis in descending order, and their indices; equal values in index order."""
    k, shape = node.integer(1), node.shape(0)
    if not shape or not 0 < k <= shape[-1]:
        raise node.malformed(f"cannot take {k} values from rows of shape {shape}")
    index_dtype = node.output_tensor(1).dtype
    if index_dtype not in ("int32", "int64"):
        raise node.unsupported(f"indices of dtype {index_dtype}")
    dtype = node.dtype()
    data = (
        node.emit(relax.op.astype(node.input(0), "int32")) if dtype == "int16" else node.input(0)
    )  # TVM cannot sort int16
    both = node.emit(relax.op.topk(data, k, axis=-1, ret_type="both", largest=True, dtype=index_dtype))
    values, indices = node.emit(relax.TupleGetItem(both, 0)), relax.TupleGetItem(both, 1)
    return [relax.op.astype(values, dtype) if dtype == "int16" else values, indices]

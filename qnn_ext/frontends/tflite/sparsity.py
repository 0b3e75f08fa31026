"""Sparse constants of a .tflite file, stored without their zeros, as dense arrays.

The dimensions, split into blocks where the file says so, form a tree of levels in the order in which it traverses them.
A dense level has a node for each index; a compressed one (CSR) lists the indices that its parent has. The leaves are
the stored values in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ModelFormatError, UnsupportedOperatorError
from ...limits import charge, check_elements
from .flatbuffer import FlatFile, numbers
from .options import dtype_name, enum_name, require_schema


@dataclass(frozen=True)
class _Level:
    """size: indices of a dense level; segments, indices: of a compressed one, node p has indices[s[p]:s[p + 1]]."""

    size: int = 0
    segments: np.ndarray | None = None
    indices: np.ndarray | None = None


def read_sparse(file: FlatFile, table: Any, raw: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The dense array of a sparse tensor: a checked schema Tensor, the bytes of its values, its shape.

    Raises ModelFormatError when the description contradicts itself, LimitError when the array would be too big.
    """
    dtype = dtype_name(table.Type())
    if dtype not in ("float16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64"):
        raise UnsupportedOperatorError(f"a sparse tensor of dtype {dtype}; convert the model again without sparsity")
    check_elements([max(dim, 1) for dim in shape], "a sparse tensor", "folded")
    charge(shape, "sparse tensors")
    sparsity = file.table(table.Sparsity())
    order, blocked = numbers(file, sparsity, "TraversalOrder"), numbers(file, sparsity, "BlockMap")
    levels = [_read_level(file, level) for level in file.tables(sparsity, "DimMetadata")]
    if raw.size % np.dtype(dtype).itemsize:
        raise ModelFormatError(f"{raw.size} bytes are not a whole number of {dtype} values")
    values = np.frombuffer(raw.tobytes(), np.dtype(dtype).newbyteorder("<"))
    places = _places(levels, *_extents(shape, order, blocked, levels))
    if len(places) != len(values):
        raise ModelFormatError(f"the sparse tensor has places for {len(places)} values, but the file has {len(values)}")
    dense = np.zeros(math.prod(shape), dtype)
    dense[places] = values
    dense.flags.writeable = False
    return dense.reshape(shape)


def _read_level(file: FlatFile, level: Any) -> _Level:
    if enum_name("DimensionType", level.Format()) == "DENSE":
        return _Level(size=level.DenseSize())
    return _Level(
        segments=_index_vector(file, level.ArraySegmentsType(), level.ArraySegments()),
        indices=_index_vector(file, level.ArrayIndicesType(), level.ArrayIndices()),
    )


def _index_vector(file: FlatFile, kind: int, union: Any) -> np.ndarray:
    name = enum_name("SparseIndexVector", kind)
    if name == "NONE" or union is None:
        raise ModelFormatError("a compressed dimension lacks its segments or indices")
    vector = getattr(require_schema(), name)()
    vector.Init(union.Bytes, union.Pos)
    file.table(vector)
    length = vector.ValuesLength()
    values = np.asarray(vector.ValuesAsNumpy()) if length else np.empty(0, np.int32)
    file.charge(values.nbytes)
    return values.astype(np.int64)


def _extents(
    shape: Sequence[int], order: Sequence[int], blocked: Sequence[int], levels: list[_Level]
) -> tuple[list[int], list[int]]:
    """For each level, how many indices it ranges over, and how far apart these are in the flat dense array.

    blocked: the dimensions that are split into blocks, whose levels come last
    """
    rank = len(shape)
    consistent = (
        len(levels) == len(order) == rank + len(blocked)
        and sorted(order[:rank]) == list(range(rank))
        and sorted(order[rank:]) == list(range(rank, len(order)))
        and list(blocked) == sorted(set(blocked))
        and all(0 <= dim < rank for dim in blocked)
    )
    if not consistent:
        raise ModelFormatError(
            f"traversal order {order}, blocks of dimensions {blocked} and {len(levels)} levels do not fit {rank} "
            "dimensions"
        )
    sizes = [*shape, *(0 for _ in blocked)]
    strides = [math.prod(shape[dim + 1 :]) for dim in (*range(rank), *blocked)]
    for level, dim in zip(levels[rank:], order[rank:], strict=True):
        split = blocked[dim - rank]
        if level.segments is not None or level.size < 1 or shape[split] % level.size:
            raise ModelFormatError(f"blocks of {level.size} do not divide dimension {split} of {tuple(shape)}")
        sizes[dim] = level.size
        sizes[split] //= level.size
        strides[split] *= level.size
    for level, dim in zip(levels, order, strict=True):
        if level.segments is None and level.size != sizes[dim]:
            raise ModelFormatError(f"a dense dimension of {tuple(shape)} has {level.size} indices, not {sizes[dim]}")
    return [sizes[dim] for dim in order], [strides[dim] for dim in order]


def _places(levels: list[_Level], sizes: list[int], strides: list[int]) -> np.ndarray:
    """The position of every leaf in the flat dense array."""
    places = np.zeros(1, np.int64)
    for level, size, stride in zip(levels, sizes, strides, strict=True):
        if level.segments is None or level.indices is None:
            check_elements([len(places), size], "a sparse tensor", "folded")
            places = (places[:, None] + stride * np.arange(size)).reshape(-1)
            continue
        segments, indices = level.segments, level.indices
        lengths = np.diff(segments)
        whole = len(lengths) == len(places) and segments[0] == 0 and segments[-1] == len(indices)
        if not whole or (lengths < 0).any():
            raise ModelFormatError(f"{len(segments)} segment bounds do not divide {len(indices)} indices")
        if len(indices) and not 0 <= indices.min() <= indices.max() < size:
            raise ModelFormatError(f"an index of a compressed dimension is outside 0 … {size - 1}")
        places = np.repeat(places, lengths) + stride * indices
    return places

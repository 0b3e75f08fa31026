"""qnn.partial_sort: the positions of the largest elements, equal ones in the order of libstdc++'s std::partial_sort."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from . import heaps
from .base import Shape, TensorInfo, check_dtype, check_rank, define, export_to_script
from .traits import Data, Kind, Traits


def _infer(data: TensorInfo, *, count: int) -> tuple[Shape, str]:
    check_dtype(data, "float32")
    check_rank(data, 2)
    if not 0 < count <= data.shape[1]:
        raise ShapeError(f"count must be from 1 to the length of a row, found {count} and shape {data.shape}")
    return (data.shape[0], count), "int32"


def _reference(data: np.ndarray, *, count: int) -> np.ndarray:
    result = np.empty((len(data), count), np.int32)
    for places, values in zip(result, data, strict=True):
        places[:] = _sorted(values, count)
    return result


def _sorted(values: np.ndarray, count: int) -> list[int]:
    """A heap has the smallest of the best so far first. What is larger takes its place; in the end, first ones go
    behind the others until none is left."""

    def larger(one: int, two: int) -> bool:
        return bool(values[one] > values[two])

    heap = list(range(count))
    for place in reversed(range(count // 2)):
        heaps.settle(heap, place, count, heap[place], larger)
    for position in range(count, len(values)):
        if larger(position, heap[0]):
            heaps.settle(heap, 0, count, position, larger)
    for size in reversed(range(1, count)):
        last, heap[size] = heap[size], heap[0]
        heaps.settle(heap, 0, size, last, larger)
    return heap


PARTIAL_SORT = define(
    "partial_sort", "data", _infer, _reference, Traits(Kind.SEARCH, data=(Data("data"),)), "the largest of each row"
)


def partial_sort(data: relax.Expr, count: int) -> relax.Call:
    """positions[r, k]: of the k-th largest element of row r, (rows, count) int32.

    data: (rows, length) float32; count: at most the length. Equal elements come in the order in which libstdc++'s
    std::partial_sort leaves positions in ascending order that are compared by what is at them. Raises ShapeError.
    Source: TFLite DecreasingPartialArgSort.
    """
    return PARTIAL_SORT.call(data, count=int(count))


export_to_script(partial_sort=partial_sort)

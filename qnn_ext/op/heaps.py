"""Heaps as libstdc++ keeps them, which decides the order of equal elements in std::priority_queue and
std::partial_sort."""

from __future__ import annotations

from collections.abc import Callable

Before = Callable[[int, int], bool]
"""Whether one item is less than another: a heap has the greatest first."""


def push(heap: list[int], item: int, less: Before) -> None:
    """Add an item below all that are not less than it on the way to the top, as std::push_heap."""
    heap.append(item)
    _rise(heap, len(heap) - 1, 0, item, less)


def pop(heap: list[int], less: Before) -> int:
    """Remove the first item as std::pop_heap."""
    first, last = heap[0], heap.pop()
    if heap:
        settle(heap, 0, len(heap), last, less)
    return first


def settle(heap: list[int], hole: int, size: int, item: int, less: Before) -> None:
    """Put an item into a hole of the first `size` places, as std::__adjust_heap: the greater one of two children moves
    up, the second one if they are equal, down to the end; the item takes the place that is left and rises from there,
    at most to where the hole was."""
    top = hole
    while 2 * hole + 2 < size:
        child = 2 * hole + 2
        child -= less(heap[child], heap[child - 1])
        heap[hole], hole = heap[child], child
    if 2 * hole + 2 == size:
        heap[hole], hole = heap[size - 1], size - 1
    _rise(heap, hole, top, item, less)


def _rise(heap: list[int], hole: int, top: int, item: int, less: Before) -> None:
    while hole > top and less(heap[(hole - 1) // 2], item):
        heap[hole] = heap[(hole - 1) // 2]
        hole = (hole - 1) // 2
    heap[hole] = item

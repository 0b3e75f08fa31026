"""Static memory plan: tensors that live at the same time get separate bytes of one workspace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ...tvm_runtime import aligned_empty
from .storage import ALIGNMENT, Storage, aligned
from .tight import tightly


def place(
    storages: Iterable[Storage],
    start: int,
    tasks: int = 1,
    overlaps: Mapping[tuple[Storage, Storage], int] | None = None,
) -> int:
    """Give each storage its offset, from `start` on, and return the bytes needed. Parts are placed with their whole.

    overlaps: pairs that may share memory, see `overlaps`, if memory is scarcer than time
    """
    storages = list(storages)
    roots = sorted((item for item in storages if item.whole is None), key=lambda item: (-item.size, item.first))
    if overlaps is not None:
        end = tightly(roots, start, overlaps)
    else:
        end = _by_gaps(roots, start) if tasks == 1 else _by_columns(roots, start)
    for storage in storages:
        root, inside = storage.root
        storage.offset = root.offset + inside
    return end


def _by_gaps(storages: Sequence[Storage], start: int) -> int:
    """Largest first, each into the smallest gap it fits between those that live at the same time.

    For networks this is within a few per cent of the optimum (Pisarchyk and Lee, Efficient memory management for deep
    neural net inference, 2020).
    """
    placed = _Placed(storages)
    end = start
    for storage in storages:
        storage.offset = _best_gap(storage.size, *placed.beside(storage), start)
        placed.add(storage, storage.offset)
        end = max(end, storage.offset + aligned(storage.size))
    return end


def _by_columns(storages: Sequence[Storage], start: int) -> int:
    """Largest first, each centred in the first column where no other lives at the same time.

    Tasks write and read equal contiguous shares of a tensor's rows. With two tasks, each finds what it wrote before,
    into whichever tensor, in its own core's cache if all tensors that share memory have their middle at the same
    address. That takes about a quarter more memory than filling gaps.
    """
    columns: list[list[Storage]] = []
    placed = _Placed(storages)
    for storage in storages:
        free = np.ones(len(columns) + 1, bool)
        free[placed.beside(storage)[0]] = False
        chosen = int(free.argmax())
        if chosen == len(columns):
            columns.append([])
        columns[chosen].append(storage)
        placed.add(storage, chosen)
    for column in columns:
        width = aligned(column[0].size)
        for storage in column:
            storage.offset = start + (width - aligned(storage.size)) // (2 * ALIGNMENT) * ALIGNMENT
        start += width
    return start


class _Placed:
    """The storages that already have a place (an offset or a column), as arrays: a model may have thousands."""

    def __init__(self, storages: Sequence[Storage]) -> None:
        self._count = 0
        self._first, self._last, self._place, self._size = np.empty((4, len(storages)), np.int64)

    def add(self, storage: Storage, place: int) -> None:
        fields = (self._first, self._last, self._place, self._size)
        for array, value in zip(fields, (storage.first, storage.last, place, aligned(storage.size)), strict=True):
            array[self._count] = value
        self._count += 1

    def beside(self, storage: Storage) -> tuple[np.ndarray, np.ndarray]:
        """The places and sizes of the storages that live at the same time as this one."""
        count = self._count
        meet = (self._first[:count] <= storage.last) & (self._last[:count] >= storage.first)
        return self._place[:count][meet], self._size[:count][meet]


def _best_gap(size: int, offsets: np.ndarray, sizes: np.ndarray, start: int) -> int:
    """The start of the smallest gap of at least `size` bytes, the first of equal ones; the end if there is no gap."""
    if not offsets.size:
        return start
    order = np.argsort(offsets, kind="stable")
    ends = np.maximum.accumulate((offsets + sizes)[order])
    begins = np.concatenate([[start], ends[:-1]])
    rooms = offsets[order] - begins
    if rooms.max() < size:
        return int(ends[-1])
    return int(begins[np.where(rooms >= size, rooms, np.iinfo(np.int64).max).argmin()])


def pack(constants: Iterable[Storage]) -> np.ndarray:
    """One byte array with all constants; equal ones are stored once, and parts with their whole."""
    constants = sorted(constants, key=lambda storage: storage.whole is not None)
    known: dict[bytes, int] = {}
    parts: list[tuple[int, bytes]] = []
    end = 0
    for storage in constants:
        if storage.whole is not None:
            root, inside = storage.root
            storage.offset = root.offset + inside
            continue
        assert storage.array is not None
        data = storage.array.tobytes()
        if data not in known:
            known[data] = end
            parts.append((end, data))
            end += aligned(len(data))
        storage.offset = known[data]
    blob = aligned_empty((max(end, 1),), np.dtype(np.uint8))
    blob[...] = 0
    for offset, data in parts:
        blob[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
    return blob

"""Static memory plan: tensors that live at the same time get separate bytes of one workspace."""

from __future__ import annotations

import hashlib
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
    known: Sequence[Storage] = (),
) -> int:
    """Give each storage its offset, from `start` on, and return the bytes needed. Parts are placed with their whole.

    overlaps: pairs that may share memory, see `overlaps`, if memory is scarcer than time
    known:    those that have their offset, before `start`
    """
    storages = list(storages)
    fixed = set(known)
    roots = [item for item in storages if item.whole is None and item not in fixed]
    roots.sort(key=lambda item: (-item.size, item.first))
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


class Constants:
    """The constants of a program, or of several over the same ones: one byte array, in which equal ones are once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], int] = {}
        self._arrays: list[tuple[int, np.ndarray]] = []
        self._end = 0

    def add(self, constants: Iterable[Storage]) -> None:
        """Give each of a program's constants its place; parts are placed with their whole."""
        for storage in sorted(constants, key=lambda storage: storage.whole is not None):
            if storage.whole is not None:
                root, inside = storage.root
                storage.offset = root.offset + inside
                continue
            assert storage.array is not None
            data = np.ascontiguousarray(storage.array).reshape(-1).view(np.uint8)
            key = data.size, hashlib.blake2b(data.data).digest()
            if key not in self._known:
                self._known[key] = self._end
                self._arrays.append((self._end, data))
                self._end += aligned(data.size)
            storage.offset = self._known[key]

    @property
    def size(self) -> int:
        """Bytes so far."""
        return max(self._end, 1)

    def array(self) -> np.ndarray:
        """All of them."""
        blob = aligned_empty((self.size,), np.dtype(np.uint8))
        blob[...] = 0
        for offset, data in self._arrays:
            blob[offset : offset + data.size] = data
        return blob

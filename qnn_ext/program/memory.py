"""Static memory plan: every tensor that lives at the same time as another gets bytes of its own in one workspace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..tvm_runtime import aligned_empty
from .graph import ALIGNMENT, Storage


def aligned(size: int) -> int:
    """`size` rounded up to whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def place(storages: Iterable[Storage], start: int, tasks: int = 1) -> int:
    """Give each storage its offset, from `start` on, and return the bytes needed. Parts lie where the whole does."""
    storages = list(storages)
    roots = sorted((item for item in storages if item.whole is None), key=lambda item: (-item.size, item.first))
    end = _by_gaps(roots, start) if tasks == 1 else _by_columns(roots, start)
    for storage in storages:
        root, inside = storage.root
        storage.offset = root.offset + inside
    return end


def _by_gaps(storages: Iterable[Storage], start: int) -> int:
    """Largest first, each into the smallest gap it fits between those that live at the same time.

    Within a few per cent of the optimum on networks (Pisarchyk and Lee, Efficient memory management for deep neural net
    inference, 2020).
    """
    placed: list[Storage] = []
    end = start
    for storage in storages:
        others = [other for other in placed if _meet(storage, other)]
        storage.offset = _best_gap(storage.size, sorted(others, key=lambda item: item.offset), start)
        placed.append(storage)
        end = max(end, storage.offset + aligned(storage.size))
    return end


def _by_columns(storages: Iterable[Storage], start: int) -> int:
    """Largest first, each into the middle of the first column where no other lives at the same time.

    Tasks write and read equal runs of a tensor's rows. Two tasks find what they wrote before, into whatever tensor, in
    their own core's cache if all tensors that share memory have their middle at the same address. That takes some
    quarter more memory than filling gaps.
    """
    columns: list[list[Storage]] = []
    for storage in storages:
        column = next((found for found in columns if not any(_meet(storage, other) for other in found)), None)
        if column is None:
            columns.append(column := [])
        column.append(storage)
    for column in columns:
        width = aligned(column[0].size)
        for storage in column:
            storage.offset = start + (width - aligned(storage.size)) // (2 * ALIGNMENT) * ALIGNMENT
        start += width
    return start


def _meet(a: Storage, b: Storage) -> bool:
    """Whether two storages live at the same time."""
    return a.first <= b.last and b.first <= a.last


def _best_gap(size: int, others: Sequence[Storage], start: int) -> int:
    best, slack, cursor = -1, -1, start
    for other in others:
        room = other.offset - cursor
        if room >= size and (best < 0 or room < slack):
            best, slack = cursor, room
        cursor = max(cursor, other.offset + aligned(other.size))
    return cursor if best < 0 else best


def pack(constants: Iterable[Storage]) -> np.ndarray:
    """One array of bytes with all constants; equal ones are kept once."""
    known: dict[bytes, int] = {}
    parts: list[tuple[int, bytes]] = []
    end = 0
    for storage in constants:
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

"""Static memory plan: every tensor that lives at the same time as another gets bytes of its own in one workspace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..tvm_runtime import aligned_empty
from .graph import ALIGNMENT, Storage


def aligned(size: int) -> int:
    """`size` rounded up to whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def place(storages: Iterable[Storage], start: int) -> int:
    """Give each storage its offset, from `start` on, and return the bytes needed. Parts lie where the whole does.

    Largest first, each into the smallest gap it fits between those that live at the same time: within a few per cent
    of the optimum on networks (Pisarchyk and Lee, Efficient memory management for deep neural net inference, 2020).
    """
    storages = list(storages)
    placed: list[Storage] = []
    end = start
    for storage in sorted((item for item in storages if item.whole is None), key=lambda item: (-item.size, item.first)):
        others = [other for other in placed if other.first <= storage.last and storage.first <= other.last]
        storage.offset = _best_gap(storage.size, sorted(others, key=lambda item: item.offset), start)
        placed.append(storage)
        end = max(end, storage.offset + aligned(storage.size))
    for storage in storages:
        root, inside = storage.root
        storage.offset = root.offset + inside
    return end


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

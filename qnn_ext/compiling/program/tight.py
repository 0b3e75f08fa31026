"""A memory plan for where memory is scarcer than time: many orders are tried, and tensors may overlap."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from .storage import Storage, aligned

ROUNDS = 400
"""Orders that are tried, each a small change of the best one so far."""

MOST = 400
"""Storages up to which they are: more would take minutes."""

Forbidden = list[list[tuple[int, int, int]]]
"""For each storage, (another one that lives at the same time, from, to): where it must not start, relative to that."""


def tightly(storages: Sequence[Storage], start: int, overlaps: Mapping[tuple[Storage, Storage], int]) -> int:
    """Give each storage its offset, from `start` on, and return the bytes needed.

    storages: largest first
    overlaps: (operand, result) -> the bytes by which the operand must at least start behind the result, see `overlaps`
    """
    sizes = [aligned(storage.size) for storage in storages]
    forbidden = _forbidden(storages, sizes, overlaps)
    plans = [(order, _placed(order, sizes, forbidden, start)) for order in _orders(storages)]
    order, best = min(plans, key=lambda plan: _end(plan[1], sizes))
    changes = random.Random(0)  # the same plan every time
    for _ in range(ROUNDS if len(storages) <= MOST else 0):
        changed = list(order)
        first, second = changes.randrange(len(changed)), changes.randrange(len(changed))
        changed.insert(second, changed.pop(first))
        offsets = _placed(changed, sizes, forbidden, start)
        if _end(offsets, sizes) <= _end(best, sizes):
            order, best = changed, offsets
    for storage, offset in zip(storages, best, strict=True):
        storage.offset = offset
    return _end(best, sizes)


def _orders(storages: Sequence[Storage]) -> list[list[int]]:
    """Orders to begin with: the largest first, or large ones from the last to the first, so that each operand starts
    behind its result, and then the others."""
    found = [list(range(len(storages)))]
    most = max((storage.size for storage in storages), default=0)
    for share in (2, 4, 8, 16, most or 1):
        late = [index for index, storage in enumerate(storages) if storage.size * share >= most]
        late.sort(key=lambda index: (-storages[index].last, -storages[index].first))
        found.append([*late, *(index for index in found[0] if index not in late)])
    return found


def _end(offsets: Sequence[int], sizes: Sequence[int]) -> int:
    return max((offset + size for offset, size in zip(offsets, sizes, strict=True)), default=0)


def _forbidden(
    storages: Sequence[Storage], sizes: Sequence[int], overlaps: Mapping[tuple[Storage, Storage], int]
) -> Forbidden:
    found: Forbidden = [[] for _ in storages]
    for index, one in enumerate(storages):
        for other, two in enumerate(storages):
            if index == other or one.first > two.last or two.first > one.last:
                continue
            low, high = 1 - sizes[index], sizes[other]
            if (two, one) in overlaps:  # this is the result: it may start so far before the operand
                low = 1 - aligned(overlaps[two, one])
            elif (one, two) in overlaps:
                high = aligned(overlaps[one, two])
            found[index].append((other, low, high))
    return found


def _placed(order: Sequence[int], sizes: Sequence[int], forbidden: Forbidden, start: int) -> list[int]:
    """The offsets if each storage, in this order, takes the first place where it may start."""
    offsets = [-1] * len(sizes)
    for index in order:
        spans = sorted(
            (offsets[other] + low, offsets[other] + high)
            for other, low, high in forbidden[index]
            if offsets[other] >= 0
        )
        place = start
        for low, high in spans:
            if place >= low:
                place = max(place, high)
        offsets[index] = place
    return offsets

"""Batches kept back from calibration: what a model does on data that its ranges, factors and roundings do not come
from."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from .dataset import Batches, ShardedBatches

_ONE_OF = 4
_FEWEST = 8  # batches of which any is kept back


def kept_back(data: Batches, samples: int, sequence: bool) -> list[int]:
    """Which of the first `samples` batches calibration shall not see: every fourth, the last ones of a sequence; none
    of few, or of those that other machines read."""
    if isinstance(data, ShardedBatches) and data.dataset.map is not None:
        return []
    count = min(samples, sum(1 for _ in data) if data.count is None else data.count)
    if count < _FEWEST:
        return []
    return list(range(count - count // _ONE_OF, count) if sequence else range(_ONE_OF - 1, count, _ONE_OF))


class Others(Batches):
    """A data set without the batches at these positions."""

    def __init__(self, data: Batches, without: Collection[int]) -> None:
        super().__init__(tuple, data.inputs, None if data.count is None else data.count - len(without))
        self._data, self._without = data, frozenset(without)

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        return (batch for position, batch in enumerate(self._data) if position not in self._without)

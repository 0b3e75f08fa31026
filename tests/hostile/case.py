"""A case: a model of one operator, and its input values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qnn_ext.module import QnnModule

INDICES = (0, -1, 3, 4, -4, -5, 1 << 31, -(1 << 31) - 1, 1 << 62, -(1 << 62), (1 << 63) - 1, -(1 << 63))
"""For an axis of 4: in range, counted from the end, just outside, and where sizes and products overflow."""

FLOATS = np.float32(
    [
        np.nan,
        np.inf,
        -np.inf,
        0,
        -0.0,
        1e-45,
        -1e-45,
        0.5,
        -0.5,
        1,
        -1,
        127.5,
        -128.5,
        255.5,
        3e9,
        -3e9,
        1e19,
        -1e19,
        3.4e38,
    ]
)


@dataclass(frozen=True)
class Case:
    """A model of one operator.

    name:      "ONNX Gather int64"
    trials:    the inputs of successive calls
    framework: its own answer; None where it would kill the process, or leaves the result undefined
    """

    name: str
    build: Callable[[], QnnModule]
    trials: Sequence[Sequence[np.ndarray]]
    framework: Callable[[Sequence[np.ndarray]], Any] | None = None


def with_each(indices: np.ndarray, values: Sequence[int] = INDICES) -> list[np.ndarray]:
    """Copies of the indices, one of them replaced in turn by each value that fits the dtype."""
    info = np.iinfo(indices.dtype)
    found = []
    for count, value in enumerate(value for value in values if info.min <= value <= info.max):
        hostile = indices.copy()
        hostile.reshape(-1)[count % indices.size] = value
        found.append(hostile)
    return found


def divisors(dtype: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Dividends and divisors: extremes divided by zero, by −1, by each other."""
    info = np.iinfo(dtype)
    low = int(info.min)
    pairs = [
        (7, 2),
        (low, -1 if low else 1),
        (low, 1),
        (info.max, low or 1),
        (-7 if low else 9, 2),
        (5, 0),
        (low, 0),
        (0, 0),
    ]
    return [(np.full(5, a, dtype), np.resize(np.array([3, b], dtype), 5)) for a, b in pairs]

"""The matrices of discrete Fourier transforms."""

from __future__ import annotations

import numpy as np

from ..limits import charge


def exponentials(length: int, count: int, label: str) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of 2π n k / length, each (n < length, k < count), in float64; exact at multiples of a right angle.

    label: what they are for. Raises LimitError if they are too large
    """
    charge((2, length, count), label)
    turns = np.arange(length)
    angles = 2 * np.pi / max(length, 1) * turns
    right = 4 * turns % max(length, 1) == 0
    products = np.outer(turns, np.arange(count)) % max(length, 1)
    cosines, sines = (np.where(right, np.rint(values), values) for values in (np.cos(angles), np.sin(angles)))
    return cosines[products], sines[products]

"""Piecewise functions and arguments at and beyond their ends."""

from __future__ import annotations

import numpy as np

from qnn_ext.numerics.piecewise import ROWS, SEGMENTS

LOW, HIGH, FACTOR, OFFSET = (np.float32(value) for value in (-4.2, 11.0, 1.06, 4.0))
ARGUMENTS = (LOW, HIGH, FACTOR, OFFSET)
COEFFICIENTS = np.random.default_rng(3).normal(size=(ROWS, SEGMENTS)).astype(np.float32)
SPECIAL = np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0, LOW, HIGH])


def arguments(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Random arguments, most of them inside, and special values as far as they fit."""
    values = rng.normal(3, 6, int(np.prod(shape))).astype(np.float32)
    values[: len(SPECIAL)] = SPECIAL[: len(values)]
    return values.reshape(shape)

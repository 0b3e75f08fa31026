"""Normalization of integer rows: the real units of their exact statistics."""

from __future__ import annotations

import numpy as np


def units(scale: float, count: int) -> tuple[np.float32, np.float32]:
    """(s / n, (s / n)²): the real values of one step of n·x − Σx and of n·Σx² − (Σx)²."""
    step = float(np.float32(scale)) / count
    return np.float32(step), np.float32(step * step)

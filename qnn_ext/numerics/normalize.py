"""Normalization of integer rows: what their exact statistics are worth in real units."""

from __future__ import annotations

import numpy as np


def units(scale: float, count: int) -> tuple[np.float32, np.float32]:
    """(s / n, (s / n)²): what one step of n·x − Σx and of n·Σx² − (Σx)² stands for."""
    step = float(np.float32(scale)) / count
    return np.float32(step), np.float32(step * step)

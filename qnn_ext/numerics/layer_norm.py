"""TFLite's fixed-point formats for qnn.layer_norm, shared by its reference and its kernel."""

from __future__ import annotations

import numpy as np

MEAN_BITS = 10  # fraction bits of the mean and of the normalized values
OUT_BITS = 12  # results are in Q3.12


def variance_guard(scale: float) -> int:
    """The value that replaces a variance below 1, so that constant rows do not overflow."""
    return max(1, int(np.float32(10000) * np.float32(scale)))

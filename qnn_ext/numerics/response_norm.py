"""Local response normalization of floats on NumPy arrays, with the bits of ONNX Runtime.

`topi_int8/generic/response_norm.py` has the same in TE, equal bit for bit for finite values.
"""

from __future__ import annotations

import numpy as np

from . import eigen, elementary
from .reference import Array


def response_norm(data: Array, size: int, alpha: float, beta: float, bias: float) -> Array:
    """x · sumᶜ^−β over the channels, which are the second axis."""
    before = (size - 1) // 2
    factor = np.float32(alpha) / np.float32(size)
    squares = np.zeros((data.shape[0], data.shape[1] + size - 1, *data.shape[2:]), np.float32)
    sums, total = np.empty_like(data), np.full_like(data[:, 0], bias)
    with np.errstate(all="ignore"):
        squares[:, before : before + data.shape[1]] = data * data
        for channel in range(size - 1):
            total = total + factor * squares[:, channel]
        for channel in range(data.shape[1]):
            total = total + factor * squares[:, channel + size - 1]
            if channel:
                total = total + -factor * squares[:, channel - 1]
            sums[:, channel] = total
        power = eigen.inverse_power(sums, float(np.float32(beta)), elementary.NUMPY)
        return np.asarray(data * power, np.float32)

"""Tables of 256 entries, and every byte to look up in them."""

from __future__ import annotations

import numpy as np

from qnn_ext.op.base import constant

DTYPES = [("int8", "int8"), ("int8", "uint8"), ("uint8", "int8"), ("uint8", "uint8")]


def table(dtype: str) -> object:
    info = np.iinfo(dtype)
    return constant(np.random.default_rng(0).integers(info.min, info.max + 1, 256).astype(dtype))


def every_byte(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.resize(np.arange(256, dtype=np.uint8).view(dtype), shape)

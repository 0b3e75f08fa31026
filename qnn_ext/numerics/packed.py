"""Integers of 2, 4 and 8 bits stored side by side in bytes: what block-wise quantized weights consist of.

The values of a row fill its bytes from the lowest bits up; the last byte of a row is padded with zeros. Signed integers
are in two's complement.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from . import bfloat16

WIDTHS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "int8": 8, "uint8": 8}
"""The dtypes that can be stored, with their bits."""


def packed_bytes(count: int, dtype: str) -> int:
    """The bytes that a row of `count` values takes."""
    return -(-count * WIDTHS[dtype] // 8)


def narrow_range(dtype: str) -> tuple[int, int]:
    """The least and the greatest value of a dtype."""
    bits = WIDTHS[dtype]
    return (0, (1 << bits) - 1) if dtype.startswith("u") else (-1 << (bits - 1), (1 << (bits - 1)) - 1)


def narrowest(*values: np.ndarray, signed: bool = True) -> str | None:
    """The signed, or unsigned, dtype with the fewest bits that holds all values; None if none does."""
    ends = [int(end) for array in values if array.size for end in (array.min(), array.max())]
    low, high = min(ends, default=0), max(ends, default=0)
    for dtype in ("int2", "int4", "int8") if signed else ("uint2", "uint4", "uint8"):
        least, greatest = narrow_range(dtype)
        if least <= low and high <= greatest:
            return dtype
    return None


def pack(values: np.ndarray, dtype: str) -> np.ndarray:
    """Integers within `dtype`, (…, count), as bytes (…, packed_bytes): uint8."""
    bits = WIDTHS[dtype]
    each = 8 // bits
    size = packed_bytes(values.shape[-1], dtype)
    padded = np.zeros((*values.shape[:-1], size * each), np.uint8)
    padded[..., : values.shape[-1]] = values.astype(np.int16) & ((1 << bits) - 1)
    parts = padded.reshape(*values.shape[:-1], size, each)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(parts << shifts, axis=-1)


def unpack(packed: np.ndarray, dtype: str, count: int) -> np.ndarray:
    """The inverse of `pack`: int8 or uint8 (…, count)."""
    bits = WIDTHS[dtype]
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    values = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    values = values.reshape(*packed.shape[:-1], -1)[..., :count]
    if dtype.startswith("u"):
        return values
    top = np.uint8(8 - bits)
    return (values << top).view(np.int8) >> top.view(np.int8)


def unpacked(byte: Any, position: Any, dtype: str) -> Any:
    """The value number `position` in a byte, as an int32 expression."""
    bits = WIDTHS[dtype]
    value = byte.astype("int32")
    if bits < 8:
        shifted = tirx.shift_right(value, position.astype("int32") * tirx.const(bits, "int32"))
        value = tirx.bitwise_and(shifted, tirx.const((1 << bits) - 1, "int32"))
    if dtype.startswith("u"):
        return value
    half = tirx.const(1 << (bits - 1), "int32")
    return tirx.bitwise_xor(value, half) - half


def floats_of(values: np.ndarray) -> np.ndarray:
    """Scales, or zero points that are floats, as float32, which is exact."""
    return bfloat16.from_bits(values) if str(values.dtype) == bfloat16.BITS else values.astype(np.float32)


def zero_points(zero_point: np.ndarray, groups: int, weight_dtype: str) -> np.ndarray:
    """Zero points as int32, or float32, that broadcast against (N, G)."""
    if zero_point.dtype == np.uint8:
        return unpack(zero_point, weight_dtype, groups).astype(np.int32)
    return zero_point if zero_point.dtype == np.int32 else floats_of(zero_point)

"""Reads `.params` files (MXNet's NDArray list format) into NumPy arrays; every offset and count is checked.

    u64 0x112, u64 reserved, u64 n, n arrays, u64 m, m names (u64 length, UTF-8 bytes)

An array is u32 magic, i32 storage type (magics V2 and V3), i32 ndim, i64 dims, i32 device type, i32 device id,
i32 dtype, raw little-endian data. Before V1 the magic itself was ndim, and dims were u32.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ModelFormatError, UnsupportedOperatorError
from ...files.reading import read_bytes
from ...limits import check_elements

LIST_MAGIC = 0x112
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
MAX_RANK = 32  # NumPy 1's limit
DTYPES = {
    0: "<f4", 1: "<f8", 2: "<f2", 3: "|u1", 4: "<i4", 5: "|i1", 6: "<i8", 7: "|b1", 8: "<i2", 9: "<u2",
    10: "<u4", 11: "<u8",
}  # fmt: skip
BFLOAT16 = 12
_DENSE = (-1, 0)  # dense storage types; the others are sparse

Source = str | os.PathLike | bytes


def read_params(source: Source | Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays by name, without the prefixes "arg:" and "aux:" that `save_checkpoint` and `export` write.

    source: path or bytes of a `.params` file, or a dict of arrays with or without these prefixes

    Raises ModelFormatError when the file is missing, truncated, corrupt or not a `.params` file.
    """
    if isinstance(source, Mapping):
        return _without_prefix([(str(name), _as_array(name, value)) for name, value in source.items()])
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _read(bytes(source), "params")
    path = Path(source)
    return _read(read_bytes(path, ModelFormatError), str(path))


def _as_array(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value)
    if array.dtype.kind not in "fiub":
        raise ModelFormatError(f"parameter '{name}' must be an array of numbers, found dtype {array.dtype}")
    return array


def _without_prefix(named: list[tuple[str, np.ndarray]]) -> dict[str, np.ndarray]:
    result: dict[str, np.ndarray] = {}
    for name, array in named:
        short = name.split(":", 1)[1] if name.startswith(("arg:", "aux:")) else name
        if short in result:
            raise ModelFormatError(f"two parameters have the name '{short}'")
        result[short] = array
    return result


def _read(data: bytes, where: str) -> dict[str, np.ndarray]:
    cursor = _Cursor(data, where)
    if len(data) < 24 or cursor.number("Q") != LIST_MAGIC:
        raise ModelFormatError(f"{where} is not an MXNet .params file: it does not begin with 0x112")
    cursor.number("Q")
    arrays = [_array(cursor, index) for index in range(cursor.count("arrays", least=8))]
    names = [cursor.text() for _ in range(cursor.count("names", least=8))]
    if cursor.offset != len(data):
        raise ModelFormatError(f"{where}: {len(data) - cursor.offset} bytes follow the end of the list")
    if len(names) != len(arrays):
        raise ModelFormatError(
            f"{where} holds {len(arrays)} arrays but {len(names)} names: save it with mx.nd.save(dict)"
        )
    return _without_prefix([(name, array) for name, array in zip(names, arrays, strict=True) if array is not None])


class _Cursor:
    """A read position in the bytes, which refuses to go past their end."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data = data
        self.where = where
        self.offset = 0

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self.data) - self.offset:
            left = len(self.data) - self.offset
            raise ModelFormatError(f"{self.where} is truncated or corrupt: {size} bytes expected, {left} left")
        self.offset += size
        return self.data[self.offset - size : self.offset]

    def number(self, code: str) -> int:
        return int(struct.unpack("<" + code, self.take(struct.calcsize(code)))[0])

    def count(self, what: str, least: int) -> int:
        """An item count, where each item takes at least `least` bytes."""
        number = self.number("Q")
        if number > (len(self.data) - self.offset) // least:
            raise ModelFormatError(f"{self.where} is truncated or corrupt: it declares {number} {what}")
        return number

    def text(self) -> str:
        try:
            return self.take(self.number("Q")).decode()
        except UnicodeDecodeError as error:
            raise ModelFormatError(f"{self.where}: a parameter's name is not valid UTF-8: {error}") from error


def _array(cursor: _Cursor, index: int) -> np.ndarray | None:
    """One array, None for one that was never initialized."""
    magic = cursor.number("I")
    if magic in (V2, V3):
        storage = cursor.number("i")
        if storage not in _DENSE:
            raise UnsupportedOperatorError(
                f"{cursor.where}: array {index} is sparse (storage type {storage}); save it dense, with "
                "tostype('default')"
            )
    if magic in (V1, V2, V3):
        shape = _shape(cursor, index, cursor.number("i"), "q")
    else:
        shape = _shape(cursor, index, magic, "I")
    if shape is None or (magic != V3 and not shape):
        return None
    cursor.take(8)  # device type and id
    dtype = cursor.number("i")
    elements = math.prod(shape)
    if dtype == BFLOAT16:
        halves = np.frombuffer(cursor.take(2 * elements), "<u2")
        return (halves.astype("<u4") << 16).view("<f4").reshape(shape)
    if dtype not in DTYPES:
        raise ModelFormatError(f"{cursor.where}: array {index} has the unknown dtype {dtype}")
    kind = np.dtype(DTYPES[dtype])
    raw = np.frombuffer(cursor.take(elements * kind.itemsize), np.uint8 if kind.kind == "b" else kind)
    return (raw != 0 if kind.kind == "b" else raw.astype(kind.newbyteorder("="))).reshape(shape)


def _shape(cursor: _Cursor, index: int, ndim: int, code: str) -> tuple[int, ...] | None:
    if ndim == -1:
        return None
    if not 0 <= ndim <= MAX_RANK:
        raise ModelFormatError(f"{cursor.where}: array {index} has {ndim} dimensions: the file is corrupt")
    shape = tuple(cursor.number(code) for _ in range(ndim))
    if any(dim < 0 for dim in shape):
        raise ModelFormatError(f"{cursor.where}: array {index} has the shape {shape}: the file is corrupt")
    check_elements([max(dim, 1) for dim in shape], f"{cursor.where}: array {index}")
    return shape

"""Bounds-checked access to a FlatBuffer through the accessor classes that flatc generates.

The generated accessors trust every offset. They reach the bytes only through their `_tab` member, so a `CheckedTable`
in its place verifies each read: anything that points outside the file raises ModelFormatError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...errors import ModelFormatError

_UINT32, _INT32, _UINT16 = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<H")

# In an honest file each byte is read about once. References that share a target could otherwise describe more work and
# memory than any machine has; 4 reads per byte leave room for names and vectors that converters share.
_VISITS_PER_BYTE = 4
_FREE_VISITS = 1 << 16


class FlatFile:
    """The bytes of one FlatBuffer and a budget for how much may be read from them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.budget = _VISITS_PER_BYTE * len(data) + _FREE_VISITS

    def charge(self, size: int) -> None:
        """Count `size` bytes read or copied; raise ModelFormatError when references multiply the file's content."""
        self.budget -= size
        if self.budget < 0:
            raise ModelFormatError("the file is corrupt: its tables refer to the same bytes too many times")

    def check(self, start: int, size: int) -> None:
        """Raise ModelFormatError unless bytes [start, start + size) lie inside the file."""
        if start < 0 or start + size > len(self.data):
            raise ModelFormatError(
                f"the file is corrupt or truncated: it refers to bytes {start} to {start + size}, "
                f"but has only {len(self.data)}"
            )

    def number(self, kind: struct.Struct, start: int) -> Any:
        """One little-endian number at `start`."""
        self.check(start, kind.size)
        return kind.unpack_from(self.data, start)[0]

    def follow(self, start: int) -> int:
        """Position that the unsigned relative offset stored at `start` points to: a table, vector or string."""
        target = start + self.number(_UINT32, start)
        self.check(target, 4)
        return target

    def root(self, accessor: type) -> Any:
        """The root table, seen through the generated class `accessor`."""
        return self._attach(accessor(), self.follow(0))

    def table(self, obj: Any) -> Any:
        """Make every further read through the generated object `obj` a checked one; None stays None."""
        return None if obj is None else self._attach(obj, obj._tab.Pos)

    def tables(self, parent: Any, field: str) -> Iterator[Any]:
        """The elements of `parent`'s vector of tables `field`."""
        element = getattr(parent, field)
        for i in range(getattr(parent, field + "Length")()):
            yield self.table(element(i))

    def _attach(self, obj: Any, position: int) -> Any:
        obj._tab = CheckedTable(self, position)
        return obj


class CheckedTable:
    """Stands in for `flatbuffers.table.Table` (same method names) and verifies each access. Built from an untrusted
    position: the vtable and the table itself must lie inside the file.
    """

    __slots__ = ("Bytes", "Pos", "_file", "_highest_slot", "_size", "_vtable", "_vtable_size")

    def __init__(self, file: FlatFile, position: int) -> None:
        self.Bytes, self.Pos, self._file = file.data, position, file
        self._vtable = position - file.number(_INT32, position)
        self._vtable_size = file.number(_UINT16, self._vtable)
        file.check(self._vtable, max(self._vtable_size, 4))
        self._size = file.number(_UINT16, self._vtable + 2)
        file.check(position, self._size)
        if self._vtable_size < 4 or self._vtable_size % 2 or self._size < 4:
            raise ModelFormatError(f"the file is corrupt: the table at byte {position} has a malformed header")
        file.charge(self._size)
        self._highest_slot = 2

    def Offset(self, slot: int) -> int:
        """Where the field of vtable slot `slot` starts inside the table, 0 when absent."""
        self._highest_slot = max(self._highest_slot, slot)
        return self._field(slot) if slot + 2 <= self._vtable_size else 0

    def Get(self, flags: Any, position: int) -> Any:
        """The scalar of flatbuffers number type `flags` at an absolute position."""
        return flags.py_type(self._file.number(flags.packer_type, position))

    def Indirect(self, position: int) -> int:
        """Follow the relative offset at an absolute position."""
        return self._file.follow(position)

    def Union(self, target: Any, field: int) -> None:
        """Point the plain table `target` at this table's union member."""
        target.Bytes, target.Pos = self.Bytes, self._file.follow(self.Pos + field)

    def VectorLen(self, field: int) -> int:
        """Number of elements of a vector; each must occupy at least one byte of the file."""
        start = self._file.follow(self.Pos + field)
        length = self._file.number(_UINT32, start)
        self._file.check(start + 4, length)
        return length

    def Vector(self, field: int) -> int:
        """Absolute position of a vector's first element."""
        return self._file.follow(self.Pos + field) + 4

    def GetVectorAsNumpy(self, flags: Any, field: int) -> np.ndarray:
        """A read-only view of a vector of numbers."""
        start, length = self.Vector(field), self.VectorLen(field)
        self._file.check(start, length * flags.bytewidth)
        return np.frombuffer(self.Bytes, np.dtype(flags.packer_type.format), length, start)

    def String(self, position: int) -> bytes:
        """The bytes of the string that the offset at an absolute position refers to."""
        start = self._file.follow(position)
        length = self._file.number(_UINT32, start)
        self._file.check(start + 4, length)
        self._file.charge(length)
        return bytes(self.Bytes[start + 4 : start + 4 + length])

    def int32(self, slot: int) -> int:
        """The int32 field of a vtable slot, by default 0."""
        field = self.Offset(slot)
        return self._file.number(_INT32, self.Pos + field) if field else 0

    def int32s(self, slot: int) -> tuple[int, ...]:
        """The vector of int32 of a vtable slot, by default empty."""
        field = self.Offset(slot)
        if not field:
            return ()
        start, length = self.Vector(field), self.VectorLen(field)
        self._file.charge(8 * length)
        self._file.check(start, 4 * length)
        return struct.unpack_from(f"<{length}i", self.Bytes, start)

    def has_unread_fields(self) -> bool:
        """Whether the table has fields beyond every slot queried so far: those of a newer schema."""
        return any(self._field(slot) for slot in range(self._highest_slot + 2, self._vtable_size, 2))

    def _field(self, slot: int) -> int:
        offset = self._file.number(_UINT16, self._vtable + slot)
        if offset and not 4 <= offset < self._size:
            raise ModelFormatError(f"the file is corrupt: a field of the table at byte {self.Pos} lies outside it")
        return offset


class AbsentTable:
    """Stands in for a table that the file omits: every accessor then returns its field's default."""

    def Offset(self, slot: int) -> int:
        """No field is present."""
        return 0


def numbers(file: FlatFile, table: Any, field: str) -> tuple[Any, ...]:
    """The vector of numbers `field` of a checked accessor, () when absent."""
    length = getattr(table, field + "Length")()
    file.charge(8 * length)
    return tuple(getattr(table, field + "AsNumpy")().tolist()) if length else ()


def text(raw: bytes | None) -> str:
    """A string field as one line of text; invalid UTF-8 and unprintable characters become replacement characters."""
    decoded = (raw or b"").decode("utf-8", errors="replace")
    return "".join(char if char.isprintable() else "\ufffd" for char in decoded)

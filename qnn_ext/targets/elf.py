"""Reads what our own object files hold: sections and symbols of relocatable ELF files, 32 and 64 bits wide."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property

X86_64, ARM, AARCH64, RISCV = 62, 40, 183, 243
"""ELF's numbers of architectures."""

_ALLOCATED, _WRITABLE = 2, 1
_SYMBOLS, _NO_BITS = 2, 8  # types of sections
_FUNCTION = 2  # type of a symbol
_LOCAL, _WEAK = 0, 2  # bindings of a symbol


@dataclass(frozen=True)
class Section:
    """One section; flags as in ELF."""

    name: str
    kind: int
    flags: int
    content: bytes
    size: int
    link: int
    offset: int


@dataclass(frozen=True)
class Symbol:
    """One symbol; section 0: defined elsewhere."""

    name: str
    value: int
    size: int
    section: int
    is_function: bool
    is_local: bool
    is_weak: bool


def is_object(content: bytes) -> bool:
    """Whether this is a file that `Object` reads."""
    return content[:4] == b"\x7fELF" and content[5] == 1


class Object:
    """A relocatable ELF file."""

    def __init__(self, content: bytes) -> None:
        assert is_object(content), "an object file of ours is little-endian ELF"
        self._content, self._wide = content, content[4] == 2

    @cached_property
    def sections(self) -> list[Section]:
        """All sections, the empty first one too."""
        start, size, count, names = (
            (*struct.unpack_from("<Q", self._content, 40), *struct.unpack_from("<HHH", self._content, 58))
            if self._wide
            else (*struct.unpack_from("<I", self._content, 32), *struct.unpack_from("<HHH", self._content, 46))
        )
        form = "<IIQQQQIIQQ" if self._wide else "<IIIIIIIIII"
        headers = [struct.unpack_from(form, self._content, start + index * size) for index in range(count)]
        strings = self._bytes(headers[names])
        return [
            Section(
                _name(strings, header[0]), header[1], header[2], self._bytes(header), header[5], header[6], header[4]
            )
            for header in headers
        ]

    def _bytes(self, header: tuple[int, ...]) -> bytes:
        return b"" if header[1] == _NO_BITS else self._content[header[4] : header[4] + header[5]]

    @cached_property
    def _table(self) -> Section | None:
        """The section with the symbols."""
        return next((section for section in self.sections if section.kind == _SYMBOLS), None)

    def without_need_of(self, name: str) -> bytes:
        """The file with an undefined symbol weak: linked without what defines it, it is 0."""
        content = bytearray(self._content)
        size, info = (24, 4) if self._wide else (16, 12)
        for index, symbol in enumerate(self.symbols):
            if symbol.name == name and symbol.section == 0 and self._table is not None:
                place = self._table.offset + index * size + info
                content[place] = (_WEAK << 4) | (content[place] & 15)
        return bytes(content)

    @cached_property
    def symbols(self) -> list[Symbol]:
        """All symbols."""
        table = self._table
        if table is None:
            return []
        strings = self.sections[table.link].content
        rows = struct.iter_unpack("<IBBHQQ" if self._wide else "<IIIBBH", table.content)
        found = []
        for row in rows:
            name, info, section, value, size = (
                (row[0], row[1], row[3], row[4], row[5]) if self._wide else (row[0], row[3], row[5], row[1], row[2])
            )
            bind = info >> 4
            found.append(
                Symbol(
                    _name(strings, name), value, size, section, info & 15 == _FUNCTION, bind == _LOCAL, bind == _WEAK
                )
            )
        return found

    @property
    def undefined(self) -> list[str]:
        """The names that it needs from elsewhere."""
        return sorted({one.name for one in self.symbols if one.section == 0 and one.name and not one.is_weak})

    @property
    def code_bytes(self) -> int:
        """What the program takes where it is stored: code and constants, without what linkers leave out."""
        return sum(
            section.size
            for section in self.sections
            if section.flags & _ALLOCATED and section.name != ".eh_frame" and ".fp16.conv" not in section.name
        )

    @property
    def has_variables(self) -> bool:
        """Whether it has memory of its own that changes."""
        return any(
            s.size and s.flags & _ALLOCATED and s.flags & _WRITABLE and "rel.ro" not in s.name for s in self.sections
        )

    @cached_property
    def functions(self) -> dict[str, bytes]:
        """The instructions of every function."""
        found = {}
        for symbol in self.symbols:
            if symbol.is_function and symbol.section and not symbol.is_weak:
                start = symbol.value & ~1 if self.machine == ARM else symbol.value  # Thumb code has odd addresses
                found[symbol.name] = self.sections[symbol.section].content[start : start + symbol.size]
        return found

    @property
    def machine(self) -> int:
        """ELF's number of the architecture."""
        return int.from_bytes(self._content[18:20], "little")

    @property
    def is_thumb(self) -> bool:
        """Whether the functions are Thumb code."""
        return self.machine == ARM and any(symbol.is_function and symbol.value & 1 for symbol in self.symbols)


def _name(strings: bytes, start: int) -> str:
    return strings[start : strings.index(b"\0", start)].decode()

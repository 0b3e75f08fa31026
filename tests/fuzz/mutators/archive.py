"""Damage to zip archives: their members' content (by kind), names, order, compression and sizes."""

from __future__ import annotations

import io
import random
import re
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace

from . import raw, tree

Mutator = Callable[[bytes, random.Random], bytes]
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_BOMB = 1 << 24  # bytes of zeros, which deflate to a thousandth of their size


@dataclass(frozen=True)
class Member:
    """One file of an archive."""

    name: str
    content: bytes
    method: int


@dataclass(frozen=True)
class Rules:
    """How members are damaged: the first pattern found in a name decides; None leaves such members unchanged."""

    by_name: tuple[tuple[str, Mutator | None], ...]

    def mutator(self, name: str) -> Mutator | None:
        """The mutator for a member."""
        return next((mutator for pattern, mutator in self.by_name if re.search(pattern, name)), raw.anything)


def members(data: bytes) -> list[Member]:
    """All files; raises zipfile.BadZipFile and the like where there is no archive (any more)."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [Member(info.filename, archive.read(info), info.compress_type) for info in archive.infolist()]


def packed(files: list[Member]) -> bytes:
    """The archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file in files:
            info = zipfile.ZipInfo(file.name)
            info.compress_type = file.method
            archive.writestr(info, file.content)
    return buffer.getvalue()


def archive_mutators(rules: Rules) -> tuple[Mutator, ...]:
    """Mutators of archives whose members are damaged by these rules."""

    def change_member(data: bytes, chance: random.Random) -> bytes:
        """Damages the content of a member; rare kinds of members as often as common ones."""
        files = _read(data)
        groups: dict[Mutator, list[int]] = {}
        for index, file in enumerate(files):
            mutator = rules.mutator(file.name)
            if mutator is not None:
                groups.setdefault(mutator, []).append(index)
        if not groups:
            return data
        mutator = chance.choice(list(groups))
        index = chance.choice(groups[mutator])
        files[index] = replace(files[index], content=mutator(files[index].content, chance))
        return packed(files)

    def change_members(data: bytes, chance: random.Random) -> bytes:
        """A member is removed, duplicated, renamed, gets another's content or compression, or becomes a zip bomb."""
        files = _read(data)
        free = [index for index, file in enumerate(files) if rules.mutator(file.name) is not None]
        if not free:
            return data
        place, other = chance.choice(free), chance.choice(free)
        file, action = files[place], chance.randrange(6)
        if action == 0:
            del files[place]
        elif action == 1:
            files.append(replace(file, content=files[other].content))
        elif action == 2:
            names = (
                files[other].name,
                f"../{file.name}",
                f"/{file.name}",
                file.name + "\x00",
                file.name.upper(),
                "x",
                "",
            )
            files[place] = replace(file, name=chance.choice(names))
        elif action == 3:
            files[place] = replace(file, content=files[other].content)
        elif action == 4:
            files[place] = replace(file, method=chance.choice(_METHODS))
        elif chance.random() < 0.1:
            files[place] = replace(file, content=bytes(_BOMB), method=zipfile.ZIP_DEFLATED)
        return packed(files)

    # Damaged headers are mostly refused at once, so they are drawn only often enough to test that
    return (change_member,) * 20 + (change_members, change_header)


def _read(data: bytes) -> list[Member]:
    """The members; none where earlier mutations left no archive."""
    try:
        return members(data)
    except Exception:  # zipfile raises a dozen types on damaged archives
        return []


def change_header(data: bytes, chance: random.Random) -> bytes:
    """A number in a header or in the directory: sizes, offsets, methods, flags, checksums, counts."""
    places = [match.start() for match in re.finditer(rb"PK(?:\x03\x04|\x01\x02|\x05\x06|\x06\x06|\x06\x07)", data)]
    if not places:
        return data
    place = chance.choice(places) + chance.randrange(4, 46)
    width = chance.choice((2, 4))
    old = data[place : place + width]
    if len(old) < width:
        return data
    new = chance.choice((0, 1, 8, 12, 14, 0xFFFF, 0xFFFFFFFF, 1 << 31, int.from_bytes(old, "little") + 1))
    return data[:place] + struct.pack("<Q", new)[:width] + data[place + width :]


def nested(rules: Rules) -> Mutator:
    """Damage to an archive that is a member of another."""
    mutators = archive_mutators(rules)
    return lambda data, chance: chance.choice(mutators)(data, chance)


JSON: Mutator = tree.change_text

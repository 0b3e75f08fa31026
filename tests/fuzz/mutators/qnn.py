"""Damage to `.qnn` files: damage that checksums detect, and, with checksums recomputed, damage that they do not, since
whoever alters a file can write those too. Machine code is trusted and is left alone where its checksum is right."""

from __future__ import annotations

import io
import random

from qnn_ext import ArtifactError
from qnn_ext.files.container import MANIFEST, Reader, Writer

from . import archive, raw, tree


def change_content(data: bytes, chance: random.Random) -> bytes:
    """Damages a description, the states or the weights, with new checksums."""
    contents = _contents(data)
    free = sorted(name for name in contents if not name.endswith(".so"))
    if not free:
        return data
    name = "qnn.json" if "qnn.json" in free and chance.random() < 0.7 else chance.choice(free)
    mutate = tree.change_tree if name.endswith(".json") else raw.anything
    contents[name] = mutate(contents[name], chance)
    return _packed(contents)


def change_members(data: bytes, chance: random.Random) -> bytes:
    """A member is removed, or gets another's content or another name, with new checksums."""
    contents = _contents(data)
    free = sorted(name for name in contents if not name.endswith(".so"))
    if not free:
        return data
    name, other, action = chance.choice(free), chance.choice(free), chance.randrange(3)
    if action == 0:
        del contents[name]
    elif action == 1:
        contents[name] = contents[other]
    else:
        contents[chance.choice((f"../{name}", "x", "weights7.bin", "states.bin"))] = contents[name]
    return _packed(contents)


def _contents(data: bytes) -> dict[str, bytes]:
    """All members unpacked; none where earlier mutations left no container."""
    try:
        reader = Reader(io.BytesIO(data))
        return {name: reader.read(name) for name in reader.names()}
    except ArtifactError:
        return {}


def _packed(contents: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with Writer(buffer) as writer:
        for name, content in contents.items():
            writer.add_small(name, content)
        writer.finish(None)
    return buffer.getvalue()


_RULES = archive.Rules(((f"^{MANIFEST}$", archive.JSON),))
MUTATORS = (change_content,) * 14 + (change_members, *archive.archive_mutators(_RULES)[-3:], *raw.MUTATORS[:2])

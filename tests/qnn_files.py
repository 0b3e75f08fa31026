"""`.qnn` files taken apart and put together again: with other members and right checksums, or with wrong ones."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qnn_ext.files.container import Reader, Writer


def members_of(path: Path) -> dict[str, bytes]:
    """The members by name, unpacked."""
    with open(path, "rb") as file:
        reader = Reader(file)
        return {name: reader.read(name) for name in reader.names()}


KERNELS = "kernels0.json"


def kernels_of(path: Path) -> list[dict[str, Any]]:
    """The kernels of the first variant, for modification."""
    return json.loads(members_of(path)[KERNELS])


def description_of(path: Path) -> dict[str, Any]:
    """The description, for modification."""
    return json.loads(members_of(path)["qnn.json"])


def write_members(target: Path, members: Mapping[str, bytes]) -> None:
    """A file of these members, uncompressed, with a matching manifest."""
    with open(target, "wb") as file, Writer(file) as writer:
        for name, content in members.items():
            writer.add(name, content)
        writer.finish(None)


def rewrite(source: Path, target: Path, changes: Mapping[str, bytes | None]) -> None:
    """A copy with members replaced, or left out where the value is None, and a matching manifest."""
    members = {**members_of(source), **changes}
    write_members(target, {name: content for name, content in members.items() if content is not None})


def describe(source: Path, target: Path, description: Any) -> None:
    """A copy with another description, and a matching manifest."""
    rewrite(source, target, {"qnn.json": json.dumps(description).encode()})


def rezip(source: Path, target: Path, changes: Mapping[str, bytes | None]) -> None:
    """A copy whose zip has other bytes under some names, or nothing for None, and the old manifest unless it is one of
    them."""
    contents = {**zip_members(source), **changes}
    with zipfile.ZipFile(target, "w") as new:
        for name, content in contents.items():
            if content is not None:
                new.writestr(name, content)


def zip_members(path: Path) -> dict[str, bytes]:
    """The content of the zip as stored, including the manifest."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}

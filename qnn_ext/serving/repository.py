"""A repository of models on disk, laid out as Triton's: one folder for each model, one inside it for each version.

models/
  mobilenet/
    config.json      optional: {"streams": 4, "num_threads": 1}
    1/model.qnn
    2/model.qnn
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import ArtifactError
from ..files.reading import read_text

FILE = "model.qnn"
CONFIGURATION = "config.json"
_FIELDS = ("streams", "num_threads")


@dataclass(frozen=True)
class Entry:
    """One model of a repository.

    version:     the highest number among its folders
    streams:     requests that run at the same time; None: as many as the cores allow
    num_threads: of each
    """

    name: str
    version: int
    path: Path
    streams: int | None = None
    num_threads: int = 1


def names(folder: str | os.PathLike) -> list[str]:
    """The models of a repository, sorted. Raises ArtifactError if it is no folder, or has none."""
    root = Path(folder)
    if not root.is_dir():
        raise ArtifactError(f"{root}: no such folder of models")
    found = sorted(path.name for path in root.iterdir() if path.is_dir() and _versions(path))
    if not found:
        raise ArtifactError(f"{root}: there is no model in it: a model is a file MODEL/1/{FILE}")
    return found


def entry(folder: str | os.PathLike, name: str) -> Entry:
    """A model of a repository by its name. Raises ArtifactError if there is none, and for a configuration that is
    wrong."""
    known = names(folder)
    if name not in known:  # so that no name leads out of the repository
        raise ArtifactError(f"{os.fspath(folder)}: there is no model {name!r}; there are {', '.join(known)}")
    root = Path(folder) / name
    version = _versions(root)[-1]
    return Entry(name, version, root / str(version) / FILE, **_configuration(root / CONFIGURATION))


def _versions(folder: Path) -> list[int]:
    """The numbers of a model's versions, in order; Triton ignores folders with other names and leading zeros, too."""
    numbers = [path.name for path in folder.iterdir() if path.name.isdecimal() and str(int(path.name)) == path.name]
    return sorted(int(number) for number in numbers if (folder / number / FILE).is_file())


def _configuration(path: Path) -> dict[str, int]:
    if not path.exists():
        return {}
    try:
        found = json.loads(read_text(path, ArtifactError))
    except ValueError as error:
        raise ArtifactError(f"{path}: not JSON: {error}") from None
    known = isinstance(found, dict) and all(name in _FIELDS for name in found)
    if not known or not all(type(value) is int and value >= 1 for value in found.values()):
        raise ArtifactError(f"{path}: a configuration has {' and '.join(_FIELDS)}, numbers from 1 on; found {found}")
    return found

"""A cache on disk: values of bytes by key, in a folder that belongs to this user alone.

What is kept there is executed later, so nothing of a folder that someone else owns or can write to is used. An entry
is written whole or not at all and starts with a checksum of its key and value; a damaged one is removed and counts as
missing. When the entries take too much space, those unused for the longest time go first. Any number of processes may
share a folder. A disk that is full, read-only or gone only means that nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import QnnError
from .storage import replacing

FOLDER = "QNN_EXT_CACHE"
"""The environment variable that names the folder, or turns the cache off."""

OFF = "off"
MOST_BYTES = 1 << 30

_NAME = "qnn_ext"
_ENTRY = re.compile(r"[0-9a-f]{64}\.entry")
_UNFINISHED = re.compile(r"\.[0-9a-f]{64}\.entry\.[0-9a-f]{16}\.part")  # of a writer, possibly one that was killed
_CHECKSUM = 32  # bytes


def default_folder() -> Path | None:
    """The folder that QNN_EXT_CACHE names, otherwise `qnn_ext` in this user's folder for caches. None if the variable
    is "off" or the user has no home."""
    try:
        if given := os.environ.get(FOLDER):
            return None if given == OFF else Path(given).expanduser()
        if sys.platform == "win32":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / _NAME / "cache"
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / _NAME
        base = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / _NAME
    except RuntimeError:
        return None


@dataclass(frozen=True)
class Entry:
    """A file in the folder, complete or not: its name, bytes, and when it was last used."""

    name: str
    bytes: int
    used: float


class Cache:
    """The entries in a folder, which is made when the first one is written.

    most: bytes that all entries together may take
    """

    def __init__(self, folder: str | os.PathLike, most: int = MOST_BYTES) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.most = most

    @classmethod
    def of_user(cls) -> Cache | None:
        """The one in `default_folder`, if there is one."""
        folder = default_folder()
        return None if folder is None else cls(folder)

    def check(self) -> None:
        """Raise QnnError if the folder cannot be used, with the reason. One that does not exist yet can."""
        with contextlib.suppress(FileNotFoundError):
            self._close(self._open_folder())

    def get(self, key: str) -> memoryview | None:
        """The value stored under a key, a SHA-256 in hexadecimal; None if there is none."""
        try:
            folder = self._open_folder()
        except (OSError, QnnError):
            return None
        name = _file_name(key)
        try:
            content = self._read(name, folder)
        except (OSError, QnnError):
            return None
        finally:
            self._close(folder)
        value = memoryview(content)[_CHECKSUM:]
        if content[:_CHECKSUM] != _checksum(key, value):
            self.drop(key)
            return None
        with contextlib.suppress(OSError):
            os.utime(self.folder / name)
        return value

    def put(self, key: str, value: bytes) -> None:
        """Store a value, if that is possible."""
        with contextlib.suppress(OSError, QnnError):
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
            self.check()
            with replacing(self.folder / _file_name(key), durable=False) as file:  # a damaged one is noticed
                if hasattr(os, "fchmod"):
                    os.fchmod(file.fileno(), 0o600)
                file.write(_checksum(key, value))
                file.write(value)
            self._shrink()

    def drop(self, key: str) -> None:
        """Remove an entry that turned out to be useless."""
        with contextlib.suppress(OSError):
            (self.folder / _file_name(key)).unlink()

    def entries(self) -> list[Entry]:
        """What the folder holds, of this cache. Raises QnnError if it must not be used."""
        try:
            self.check()
            return list(self._entries())
        except OSError as error:
            raise QnnError(f"cannot read the cache {self.folder}: {error.strerror}") from error

    def clear(self) -> list[Entry]:
        """Remove all entries, and nothing else that the folder may hold; returns what was removed. Raises QnnError."""
        found = self.entries()
        for entry in found:
            try:
                (self.folder / entry.name).unlink(missing_ok=True)
            except OSError as error:
                raise QnnError(f"cannot remove {self.folder / entry.name}: {error.strerror}") from error
        return found

    def _entries(self) -> Iterator[Entry]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as items:
            for item in items:
                if _ENTRY.fullmatch(item.name) or _UNFINISHED.fullmatch(item.name):
                    with contextlib.suppress(FileNotFoundError):  # removed by another process
                        status = item.stat(follow_symlinks=False)
                        yield Entry(item.name, status.st_size, status.st_mtime)

    def _shrink(self) -> None:
        entries = sorted(self._entries(), key=lambda entry: entry.used)
        total = sum(entry.bytes for entry in entries)
        for entry in entries:
            if total <= self.most:
                break
            (self.folder / entry.name).unlink(missing_ok=True)
            total -= entry.bytes

    # ---- the folder ----------------------------------------------------------------------------------------------

    def _open_folder(self) -> int | None:
        """The folder, opened, so that what was checked is what is read; None on Windows, where a user's own folders are
        private. Raises OSError, and QnnError for a folder that is not private."""
        if os.name == "nt":
            os.stat(self.folder)
            return None
        folder = os.open(os.path.realpath(self.folder), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            _check_private(self.folder, os.fstat(folder))
        except BaseException:
            os.close(folder)
            raise
        return folder

    def _close(self, folder: int | None) -> None:
        if folder is not None:
            os.close(folder)

    def _read(self, name: str, folder: int | None) -> bytes:
        if folder is None:
            return (self.folder / name).read_bytes()
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder), "rb") as file:
            status = os.fstat(file.fileno())
            _check_private(self.folder / name, status)
            if not stat.S_ISREG(status.st_mode):
                raise QnnError(f"the cache's {name} is not a regular file")
            return file.read()


def _check_private(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise QnnError(f"{path} is not used as a cache: it belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise QnnError(f"{path} is not used as a cache: other users can write to it; make it private with chmod 700")


def _file_name(key: str) -> str:
    return f"{key}.entry"


def _checksum(key: str, value: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(bytes.fromhex(key))
    digest.update(value)
    return digest.digest()

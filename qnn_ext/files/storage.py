"""Writing files atomically: everything this package writes for its users goes through here.


A file is written beside its target under another name, flushed to disk and renamed: whoever opens the target sees
either the old content or the new, whatever happens in between. Of several writers the last one wins. Imports no TVM.
A writer that is killed leaves its temporary file, `.NAME.<16 digits>.part`, which nothing ever reads. It is locked
while its writer lives, so that the next writer of the same target recognizes those of dead writers and removes them. On
file systems without locks, they stay.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import QnnError

try:
    import fcntl
except ImportError:  # Windows: no locks, and a file is renamed after closing it
    fcntl = None  # type: ignore[assignment]

_SUFFIX = ".part"
_LONGEST = 200  # bytes of the target's name in that of its temporary file: names have at most 255
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)  # from folders that cannot be synced or opened

unfinished: set[Path] = set()
"""Temporary files that this process is writing, to be removed if it is ended at once."""


@contextlib.contextmanager
def replacing(path: str | os.PathLike, error: type[QnnError] = QnnError, durable: bool = True) -> Iterator[BinaryIO]:
    """A binary file that replaces `path` when the body ends, and is removed if the body raises, even on Ctrl-C.

    The file keeps the mode and owner of the one it replaces; a new one gets those of any new file. A symbolic link is
    kept, and its target replaced. Raises `error`, naming the path and the system's reason, if it cannot be written: a
    missing or read-only folder, a read-only file, a directory or device, a full disk.

    durable: whether the file must be intact even if the machine fails right afterwards, which takes time
    """
    try:
        target, old = _destination(path)
        _remove_leftovers(target)
        yield from _written(target, old, durable)
        if durable:
            _sync_folder(target.parent)
    except (OSError, _NoPath) as problem:
        raise error(f"cannot write {os.fspath(path)}: {_reason(problem)}") from problem


def check_writable(path: str | os.PathLike, error: type[QnnError] = QnnError) -> None:
    """Raise `error` now if `replacing` will not be able to write a file: before the work whose result it shall hold."""
    try:
        target, _ = _destination(path)
        if not target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}")
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "its folder is read-only")
    except (OSError, _NoPath) as problem:
        raise error(f"cannot write {os.fspath(path)}: {_reason(problem)}") from problem


def write_bytes(path: str | os.PathLike, content: bytes, error: type[QnnError] = QnnError) -> None:
    """Replace a file with one of this content, as `replacing` does."""
    with replacing(path, error) as file:
        file.write(content)


def write_text(path: str | os.PathLike, content: str, error: type[QnnError] = QnnError) -> None:
    """Replace a file with one of this content in UTF-8, as `replacing` does."""
    try:
        data = content.encode("utf-8")
    except UnicodeEncodeError as problem:  # half of a surrogate pair, from a name in a model
        raise error(f"cannot write {os.fspath(path)}: {problem}") from problem
    write_bytes(path, data, error)


def append_line(path: str | os.PathLike, line: str, error: type[QnnError] = QnnError) -> None:
    """Append a line to a file in one write, after whatever other processes append at the same time.

    An unfinished last line, from a process that was killed, is ended first; if this line does not fit on the disk, its
    written part is removed. Raises `error`.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            _lock(descriptor, wait=True)  # closing releases it
            end = os.lseek(descriptor, 0, os.SEEK_END)
            torn = end > 0 and _byte_at(descriptor, end - 1) != b"\n"
            content = b"\n" * torn + line.encode("utf-8") + b"\n"
            if os.write(descriptor, content) < len(content):
                os.ftruncate(descriptor, end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as problem:
        raise error(f"cannot write {os.fspath(path)}: {_reason(problem)}") from problem


def make_folder(path: str | os.PathLike, error: type[QnnError] = QnnError) -> None:
    """Make a folder and its parents, if missing. Raises `error`."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as problem:
        raise error(f"cannot create the folder {os.fspath(path)}: {_reason(problem)}") from problem


def _reason(problem: Exception) -> str:
    return (problem.strerror if isinstance(problem, OSError) else None) or str(problem)


class _NoPath(ValueError):
    """A path that no file can have."""


def _destination(path: str | os.PathLike) -> tuple[Path, os.stat_result | None]:
    """The file behind all symbolic links, and the status of what is there now. Raises OSError if it must not be
    replaced."""
    try:
        target = Path(os.path.realpath(path))
        old = target.lstat()
    except FileNotFoundError:
        return target, None
    except ValueError as problem:
        raise _NoPath(str(problem)) from problem
    if stat.S_ISLNK(old.st_mode):  # all others were followed
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if not stat.S_ISREG(old.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "it is read-only")
    return target, old


def _written(target: Path, old: os.stat_result | None, durable: bool) -> Iterator[BinaryIO]:
    """The temporary file, which becomes the target."""
    temporary = target.with_name(f"{_prefix(target)}{os.urandom(8).hex()}{_SUFFIX}")
    file: BinaryIO | None = None
    unfinished.add(temporary)
    try:
        file = _create(temporary, old)
        yield file
        file.flush()
        if durable:
            os.fsync(file.fileno())
        if fcntl is not None:
            os.replace(temporary, target)  # still locked
        file.close()
        if fcntl is None:
            os.replace(temporary, target)
    except BaseException:
        if file is not None:
            with contextlib.suppress(OSError):  # on a full disk, closing fails too; the first error is reported
                file.close()
        temporary.unlink(missing_ok=True)
        raise
    finally:
        unfinished.discard(temporary)


def _create(temporary: Path, old: os.stat_result | None) -> BinaryIO:
    """A new, locked file, with mode and owner of the old one if there was one."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        file = os.fdopen(os.open(temporary, flags, 0o666 if old is None else 0o600), "wb")
        _lock(file.fileno(), wait=True)
        if temporary.exists():
            break
        file.close()  # another writer saw it before it was locked, and removed it
    if old is not None and hasattr(os, "fchmod"):
        new = os.fstat(file.fileno())
        if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
            with contextlib.suppress(PermissionError):  # only root can change the owner
                os.fchown(file.fileno(), old.st_uid, old.st_gid)
        os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
    return file


def _prefix(target: Path) -> str:
    return "." + os.fsdecode(os.fsencode(target.name)[:_LONGEST]) + "."


def _remove_leftovers(target: Path) -> None:
    """Remove temporary files left by writers of this target that have died."""
    prefix = _prefix(target)
    names: list[str] = []
    with contextlib.suppress(OSError):  # a folder that cannot be listed may still be written to
        names = os.listdir(target.parent)
    for name in names:
        if name.startswith(prefix) and name.endswith(_SUFFIX):
            with contextlib.suppress(OSError):  # another user's, or already gone
                _remove_unlocked(target.with_name(name))


def _remove_unlocked(path: Path) -> None:
    if fcntl is None:
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not _lock(descriptor, wait=False):
            return
        if os.path.samestat(status, path.lstat()):  # else another writer removed it, and a new file has its name
            path.unlink()
    finally:
        os.close(descriptor)


def _lock(descriptor: int, wait: bool) -> bool:
    """Lock an open file for this process; returns whether that succeeded, as not all file systems have locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _byte_at(descriptor: int, position: int) -> bytes:
    os.lseek(descriptor, position, os.SEEK_SET)
    return os.read(descriptor, 1)


def _sync_folder(folder: Path) -> None:
    """Flush the new name to disk."""
    if os.name == "nt":  # folders cannot be opened there
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as problem:
        if problem.errno not in _NO_SYNC:
            raise

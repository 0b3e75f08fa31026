"""Reading untrusted files: only regular files, and never more memory than the file's size justifies.

Reading a named pipe or a device might block or never end; an array may claim any shape, and a zip any size. All checks
are arithmetic on a few bytes, done before anything is allocated. Pickles are not read. Imports no TVM.
"""

from __future__ import annotations

import ast
import math
import os
import stat
import zipfile
from typing import IO, Any, BinaryIO

from ..errors import QnnError
from ..lazily import np

_FREE, _RATIO = (
    1 << 28,
    100,
)  # what compressed arrays may unpack to: this many bytes, or this many times those in the file
_MOST_MEMBERS = 1 << 16
_MOST_HEADER = 10_000  # bytes, NumPy's own limit
_HEADER_LENGTHS = {(1, 0): 2, (2, 0): 4, (3, 0): 4}  # version of .npy -> bytes of the header's length
_KINDS = "biufc"  # of arrays of numbers


def open_file(path: str | os.PathLike, error: type[QnnError]) -> BinaryIO:
    """A regular file, opened for reading. Raises `error`, naming the path and what is wrong with it."""
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise error(f"{os.fspath(path)}: {'a directory, ' if stat.S_ISDIR(mode) else ''}not a regular file")
        return open(path, "rb")
    except FileNotFoundError:
        raise error(f"{os.fspath(path)}: no such file") from None
    except (OSError, ValueError) as problem:  # ValueError: a path with a NUL character
        raise error(f"{os.fspath(path)}: cannot be read: {_reason(problem)}") from problem


def read_bytes(path: str | os.PathLike, error: type[QnnError]) -> bytes:
    """The content of a regular file. Raises `error`, naming the path and what is wrong with it."""
    with open_file(path, error) as file:
        try:
            return file.read()
        except (OSError, MemoryError) as problem:
            raise error(f"{os.fspath(path)}: cannot be read: {_reason(problem)}") from problem


def read_text(path: str | os.PathLike, error: type[QnnError]) -> str:
    """The content of a UTF-8 text file. Raises `error`."""
    try:
        return read_bytes(path, error).decode("utf-8")
    except UnicodeDecodeError as problem:
        raise error(f"{os.fspath(path)}: not a text file in UTF-8") from problem


def _reason(problem: BaseException) -> str:
    return getattr(problem, "strerror", None) or str(problem) or type(problem).__name__


# ---- arrays ------------------------------------------------------------------------------------------------------


def read_npy(path: str | os.PathLike, error: type[QnnError], mapped: bool = False) -> np.ndarray:
    """The array of a `.npy` file; `mapped`: its values stay in the file until they are used.

    Raises `error` for anything that is no such file, for arrays of objects, and if the file is too short for the shape.
    """
    with open_file(path, error) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            _check_header(file, size)
            if mapped and size:
                return np.load(path, mmap_mode="r", allow_pickle=False)
            file.seek(0)
            return np.load(file, allow_pickle=False)
        except Exception as problem:  # NumPy's types differ from version to version
            raise error(f"{os.fspath(path)}: not a .npy file of numbers ({_reason(problem)})") from problem


class Npz:
    """The arrays of an `.npz` file by name, each read on access. Raises `error`, naming path and array."""

    def __init__(self, path: str | os.PathLike, error: type[QnnError]) -> None:
        self._path, self._error = path, error
        self._file = open_file(path, error)
        try:
            self._zip = zipfile.ZipFile(self._file)
            infos = self._zip.infolist()
            self._infos = {info.filename.removesuffix(".npy"): info for info in infos}
            if len(infos) > _MOST_MEMBERS or len(self._infos) < len(infos):
                raise ValueError("it has too many arrays, or two with the same name")
            packed, unpacked = (sum(getattr(info, f"{kind}_size") for info in infos) for kind in ("compress", "file"))
            size = os.fstat(self._file.fileno()).st_size
            if unpacked > max(_FREE, _RATIO * min(packed, size)):
                raise ValueError(f"{size} bytes would unpack to {unpacked}, which is too much; save it with np.savez")
        except Exception as problem:  # zipfile raises a dozen types on damaged archives
            self._file.close()
            raise error(f"{os.fspath(path)}: not a .npz file of numbers ({_reason(problem)})") from problem

    def __enter__(self) -> Npz:
        return self

    def __exit__(self, *problem: Any) -> None:
        self._file.close()

    def names(self) -> list[str]:
        """The arrays' names."""
        return list(self._infos)

    def __getitem__(self, name: str) -> np.ndarray:
        info = self._infos[name]
        try:
            with self._zip.open(info) as member:
                _check_header(member, info.file_size)
            with self._zip.open(info) as member:
                return np.lib.format.read_array(member, allow_pickle=False)
        except Exception as problem:  # those of zipfile, of the decompressors and of NumPy
            text = f"{os.fspath(self._path)}: array {name!r} cannot be read: {_reason(problem)}"
            raise self._error(text) from problem


def _check_header(file: IO[bytes], size: int) -> None:
    """Raise ValueError unless this starts a `.npy` of `size` bytes whose shape and dtype take exactly what follows."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADER_LENGTHS:
        raise ValueError(f"version {version} of the .npy format is unknown")
    length = int.from_bytes(_taken(file, _HEADER_LENGTHS[version]), "little")
    if length > _MOST_HEADER:
        raise ValueError(f"its header has {length} bytes, which is too many")
    header = ast.literal_eval(_taken(file, length).decode("utf-8" if version == (3, 0) else "latin1"))
    shape, dtype = header["shape"], np.dtype(header["descr"])
    if dtype.kind not in _KINDS or dtype.subdtype is not None:
        raise ValueError(f"its elements are {dtype}, not numbers")
    if not isinstance(shape, tuple) or not all(type(dim) is int and dim >= 0 for dim in shape):
        raise ValueError(f"{shape!r} is not a shape")
    start = len(np.lib.format.magic(1, 0)) + _HEADER_LENGTHS[version] + length
    needed = start + math.prod(shape) * dtype.itemsize
    if needed > size:
        raise ValueError(f"shape {shape} of {dtype} takes {needed} bytes, but the file has {size}")


def _taken(file: IO[bytes], count: int) -> bytes:
    content = file.read(count)
    if len(content) < count:
        raise ValueError("the file ends within its header")
    return content

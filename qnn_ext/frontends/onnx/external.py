"""External data files of an ONNX model: only within the model's folder, and no more bytes than the files have.

The folder is that of the path by which the model was opened. If the model file is itself a link, as in Hugging Face's
cache (`snapshots/…/model.onnx` → `../../blobs/…`), links in the model's folder may also lead to data in the folder of
the link's target: opening the target by its own name would allow the same.

Tensors name a file and a range of it. Equal ranges are one shared tensor; no exporter writes ranges that overlap
otherwise, which would let a small file claim any amount of memory.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from ...errors import ModelFormatError
from ...files.reading import open_file

_DIGITS = 19  # decimal digits of a 63-bit number


class ExternalData:
    """What the tensors of one model have read so far from files in its folder.

    model: the path by which the model was opened
    """

    def __init__(self, model: Path) -> None:
        self._folder = model.parent.resolve()
        self._allowed = {self._folder, Path(os.path.realpath(model)).parent}
        self._read: dict[tuple[Path, int, int], bytes] = {}
        self._ranges: dict[Path, list[tuple[int, int]]] = {}  # (offset, bytes) of each range read, sorted

    def read(self, entries: Mapping[str, str], size: int, label: str) -> bytes:
        """The `size` bytes of a tensor.

        entries: "location", "offset" and "length" as written in the file

        Raises ModelFormatError, naming the tensor, for a file elsewhere and for a range that does not fit the tensor or
        the file.
        """
        path = self._path(entries.get("location", ""), label)
        offset, length = (self._number(entries, key, label) for key in ("offset", "length"))
        offset = offset or 0
        if length is not None and length != size:
            raise ModelFormatError(f"{label} takes {size} bytes, but its external data has {length}")
        with open_file(path, ModelFormatError) as file:
            available = os.fstat(file.fileno()).st_size
            if offset + size > available or (length is None and offset + size != available):
                raise ModelFormatError(
                    f"{label} takes {size} bytes at offset {offset} of {path}, which has {available}; if no length is "
                    "given, it must end where the file ends"
                )
            key = path, offset, size
            if key not in self._read:
                self._add_range(path, offset, size, label)
                self._read[key] = _taken(file, offset, size, label)
        return self._read[key]

    def _add_range(self, path: Path, offset: int, size: int, label: str) -> None:
        """Raise ModelFormatError where a range overlaps another of the file."""
        ranges = self._ranges.setdefault(path, [])
        index = bisect_right(ranges, (offset, size))
        for start, count in ranges[max(index - 1, 0) : index + 1]:
            if start < offset + size and offset < start + count:
                raise ModelFormatError(
                    f"{label}: bytes {offset} to {offset + size} of its external data overlap those of another tensor, "
                    f"{start} to {start + count}"
                )
        if size:
            ranges.insert(index, (offset, size))

    def _number(self, entries: Mapping[str, str], key: str, label: str) -> int | None:
        text = entries.get(key)
        if not text:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > _DIGITS:
            raise ModelFormatError(f"{label}: the {key} of its external data is not a number of bytes: {text[:40]!r}")
        return int(text)

    def _path(self, location: str, label: str) -> Path:
        """The external file: a regular file, named within the model's folder. Links must not leave the allowed
        folders."""
        if not isinstance(location, str):
            raise ModelFormatError(f"{label}: the name of its external data file is not text")
        is_named = bool(location) and "\0" not in location and _is_inside(location)
        try:
            path = (self._folder / location).resolve() if is_named else self._folder
            is_allowed = is_named and any(path.is_relative_to(folder) for folder in self._allowed)
            if is_allowed and not path.is_file():
                raise ModelFormatError(f"{label}: external data file {path} is missing; it belongs beside the model")
        except (OSError, RuntimeError) as error:  # an overlong name, or a cycle of links
            raise ModelFormatError(f"{label}: external data file {location[:80]!r} cannot be opened: {error}") from None
        if not is_allowed:
            raise ModelFormatError(
                f"{label}: external data file {location[:80]!r} lies outside the model's folder {self._folder}; "
                "copy the model and its data into one folder"
            )
        return path


def _is_inside(location: str) -> bool:
    """Whether a relative name stays within its folder, links aside."""
    return not Path(location).is_absolute() and ".." not in Path(os.path.normpath(location)).parts


def _taken(file: BinaryIO, offset: int, size: int, label: str) -> bytes:
    try:
        file.seek(offset)
        content = file.read(size)
    except (OSError, MemoryError) as error:
        raise ModelFormatError(f"{label}: its external data cannot be read: {error or 'out of memory'}") from error
    if len(content) != size:
        raise ModelFormatError(f"{label}: its external data file was truncated while it was read")
    return content

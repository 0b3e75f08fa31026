"""The records of a PyTorch archive (a zip file): their unpacked sizes are checked before anything is unpacked.

PyTorch opens the archive with its own reader. Whatever the two readers could interpret differently is refused: records
of the same name, a second directory, names that lead out of the archive.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence

from ...errors import ModelFormatError
from ...limits import check

# PyTorch stores tensors as they are and deflates only TorchScript's code, to a sixth of its size at best
_MOST_COMPRESSION = 32
_MOST_RECORDS = 1 << 17
_ENTRY, _END = b"PK\x01\x02", b"PK\x05\x06"  # signatures of a directory entry, and of the end record
_END_SIZE = 22
_ENCRYPTED = 1


def open_archive(content: bytes) -> zipfile.ZipFile:
    """The archive; reading its records one by one takes memory bounded by the size of the content.

    Raises ModelFormatError when it is damaged, unpacks to an absurd size, or is ambiguous; LimitError when it unpacks
    to more than the memory limit.
    """
    if content.count(_ENTRY) > _MOST_RECORDS:
        raise ModelFormatError(f"the zip archive has over {_MOST_RECORDS:,} records, which no model needs")
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        if content[-_END_SIZE:][: len(_END)] != _END or archive.comment:
            raise ModelFormatError("the zip archive has data after its directory")
        _check_records(archive.infolist(), len(content))
    except ModelFormatError:
        raise
    except Exception as error:  # zipfile raises a dozen types on damaged archives
        raise ModelFormatError(
            f"the zip archive is truncated or damaged ({error}); copy or export the file again"
        ) from error
    return archive


def checked_names(archive: zipfile.ZipFile) -> list[str]:
    """The names of all records, after reading each and checking its checksum. Raises ModelFormatError."""
    try:
        damaged = archive.testzip()
    except Exception as error:
        raise ModelFormatError(
            f"the zip archive is truncated or damaged ({error}); copy or export the file again"
        ) from error
    if damaged is not None:
        raise ModelFormatError(f"record {damaged!r} is damaged; copy or export the file again")
    return archive.namelist()


def _check_records(records: Sequence[zipfile.ZipInfo], size: int) -> None:
    names = set()
    for record in records:
        _check_name(record.orig_filename)
        name = record.filename.partition("/")[2] or record.filename  # PyTorch puts everything into one folder
        if name in names:
            raise ModelFormatError(f"two records are named {name!r}")
        names.add(name)
        if record.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or record.flag_bits & _ENCRYPTED:
            raise ModelFormatError(f"record {name!r} is compressed in a way that PyTorch does not use, or encrypted")
        if record.compress_type == zipfile.ZIP_STORED and record.file_size != record.compress_size:
            raise ModelFormatError(
                f"record {name!r} has two sizes, {record.compress_size} and {record.file_size} bytes"
            )
    if sum(record.compress_size for record in records) > size:
        raise ModelFormatError("records of the zip archive overlap")
    unpacked = sum(record.file_size for record in records)
    if unpacked > _MOST_COMPRESSION * size:
        raise ModelFormatError(f"the zip archive of {size:,} bytes unpacks to {unpacked:,} bytes, which is too much")
    if unpacked > size:
        check("memory", unpacked - size, "unpacking the zip archive")


def _check_name(name: str) -> None:
    parts = name.split("/")
    if name.startswith("/") or "\\" in name or "\0" in name or ".." in parts or ":" in parts[0]:
        raise ModelFormatError(f"record {name!r} has a name that points outside the archive")

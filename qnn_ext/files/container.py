"""The container of a `.qnn` file: a zip of packed members, and a manifest with the size and the SHA-256 of each.

A member's content is used only after its checksum has been verified; it is read once, in pieces, and never takes more
memory than the manifest allows. So a signature over the manifest covers every byte that is used. Where no signature is
verified, a checksum only shows damage: for large members that are mapped then, the zip's own CRC-32 does, which takes
half the time, and no OpenSSL, whose library is 3.5 MB.

    manifest.json   {"format": 3, "members": {NAME: {"bytes": stored, "unpacked": n, "sha256": of the stored bytes}}}
    manifest.sig    Ed25519 signature of manifest.json, where the file is signed
    NAME            any other member: unpacked, or packed by xz or zlib, as its name's ending says

The zip itself compresses nothing, since its own methods check only after unpacking, and without a limit. A large member
that packing would hardly make smaller is stored as it is, from a page's start on, so that it can be mapped.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import lzma
import mmap
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from ..errors import ArtifactError

FORMAT = 3
MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"
XZ, ZLIB = ".xz", ".zlib"

_CHUNK = 1 << 18  # bytes that are read, and unpacked, at a time
_MOST_MEMBERS = 1000
_MOST_MANIFEST = 1 << 20  # bytes
_FREE, _RATIO = 1 << 26, 100  # what a member may unpack to: this many bytes, or this many times its size in the file
_LZMA_MEMORY = 1 << 25  # bytes for a decoder, whose dictionary size is set by the file
_OPENSSL_FROM = 1 << 23  # bytes
_SAMPLE, _LEAST_SAVING = 1 << 20, 0.15  # bytes that are packed to see whether the rest is worth it
_MAPPED_FROM = 1 << 24  # bytes
_PAGE = 1 << 12
_PADDING = 0x4E51  # kind of the zip's extra field that pads a member to a page's start
_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest date in a zip: equal contents make equal files
_DELTA_16 = {"id": lzma.FILTER_DELTA, "dist": 2}
_LZMA_DICTIONARY = 1 << 12, 1 << 23  # bytes, the least and the most


@dataclass(frozen=True)
class Member:
    """A member's entry in the manifest: bytes in the file and unpacked, and the SHA-256 of those in the file."""

    bytes: int
    unpacked: int
    sha256: str


def _sha256(size: int) -> Any:
    """A hash for `size` bytes. OpenSSL's takes a fifth of the time, but 3.6 MB of memory if nothing else uses it."""
    if size < _OPENSSL_FROM and "_hashlib" not in sys.modules:
        for name in ("_sha2", "_sha256"):  # Python's own, from 3.12 on and before
            with contextlib.suppress(ImportError):
                return importlib.import_module(name).sha256()
    return importlib.import_module("hashlib").sha256()


# ---- write -------------------------------------------------------------------------------------------------------


class Writer:
    """Writes members, then the manifest; used in `with`, like a ZipFile.

    packs: whether members are packed at all, which takes far longer than to write them
    """

    def __init__(self, file: BinaryIO, packs: bool = True) -> None:
        self._packs = packs
        self._zip = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED)
        self._members: dict[str, Member] = {}

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *error: Any) -> None:
        self._zip.close()

    def add(self, name: str, content: bytes | memoryview) -> None:
        """Add a member without packing it."""
        self._store(name, content, len(content))

    def add_small(self, name: str, content: bytes, of_words: bool = False) -> None:
        """Add a member packed by xz, which is slow to unpack and makes code and tables a fifth smaller than zlib.

        of_words: it may consist of 16-bit values, whose differences are packed if that is smaller
        """
        if not self._packs:
            self.add(name, content)
            return
        least, most = _LZMA_DICTIONARY
        dictionary = min(max(least, 1 << len(content).bit_length()), most)  # no encoder needs one larger than the data
        lzma2 = {"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": dictionary}
        chains = [[lzma2], *([[_DELTA_16, lzma2]] if of_words else [])]
        packed = [lzma.compress(content, check=lzma.CHECK_NONE, filters=filters) for filters in chains]
        self._store(name + XZ, min(packed, key=len), len(content), content)

    def add_large(self, name: str, content: bytes | memoryview) -> None:
        """Add a member packed by zlib, or as it is if that would make it hardly smaller."""
        if not self._packs or _saving(content) < _LEAST_SAVING:
            self.add(name, content)
            return
        self._store(name + ZLIB, zlib.compress(content), len(content), content)

    def _store(
        self, name: str, stored: bytes | memoryview, unpacked: int, content: bytes | memoryview | None = None
    ) -> None:
        if content is not None and not _is_fair(
            len(stored), unpacked
        ):  # the reader would take it for a decompression bomb
            name, stored = name.removesuffix(XZ).removesuffix(ZLIB), content
        digest = _sha256(len(stored))
        digest.update(stored)
        self._members[name] = Member(len(stored), unpacked, digest.hexdigest())
        self._write(name, stored)

    def finish(self, sign: Callable[[bytes], bytes] | None) -> None:
        """Write the manifest and, with `sign`, its signature."""
        members = {name: asdict(member) for name, member in self._members.items()}
        manifest = json.dumps({"format": FORMAT, "members": members}, indent=1).encode()
        self._write(MANIFEST, manifest)
        if sign is not None:
            self._write(SIGNATURE, sign(manifest))

    def _write(self, name: str, content: bytes | memoryview) -> None:
        info = zipfile.ZipInfo(name, _DATE)
        if len(content) >= _MAPPED_FROM:
            assert self._zip.fp is not None
            start = self._zip.fp.tell() + _HEADER.size + len(name.encode()) + _EXTRA.size
            start += _LARGE.size if len(content) * 1.05 > zipfile.ZIP64_LIMIT else 0  # zipfile's rule
            padding = -start % _PAGE
            info.extra = _EXTRA.pack(_PADDING, padding) + bytes(padding)
        self._zip.writestr(info, content)  # type: ignore[arg-type]  # any buffer will do


_HEADER = struct.Struct("<4s22x2H")
"""A member's header in a zip: its signature, and at the end the lengths of its name and of its extra fields."""
_EXTRA = struct.Struct("<2H")
"""The head of an extra field: its kind and length."""
_LARGE = struct.Struct("<2H2Q")
"""The extra field with the sizes of a large member."""


def _saving(content: bytes | memoryview) -> float:
    """The share of a content that packing would save, by a piece from its middle; all of it for short ones."""
    if len(content) < _MAPPED_FROM:
        return 1.0
    middle = len(content) // 2
    return 1 - len(zlib.compress(content[middle : middle + _SAMPLE])) / _SAMPLE


def _is_fair(stored: int, unpacked: int) -> bool:
    return unpacked <= max(_FREE, _RATIO * stored)


# ---- read --------------------------------------------------------------------------------------------------------


class Reader:
    """The members of an open file. Everything raises ArtifactError, without the file's name."""

    def __init__(self, file: BinaryIO, verify: Callable[[bytes, bytes], None] | None = None) -> None:
        """verify: raises ArtifactError unless its second argument signs the first; if given, every member is checked"""
        self._file, self._is_verified = file, verify is not None
        with _damages("its list of members"):
            self._zip = zipfile.ZipFile(file)
        infos = self._zip.infolist()
        self._infos = {info.filename: info for info in infos}
        if MANIFEST not in self._infos and "qnn.json" in self._infos:
            raise ArtifactError("written by an older version of qnn_ext; compile the model again")
        if len(infos) > _MOST_MEMBERS or len(self._infos) < len(infos):
            raise ArtifactError("damaged: it has too many members, or two with the same name")
        self.manifest = manifest = self._small(MANIFEST, _MOST_MANIFEST)
        self.is_signed = SIGNATURE in self._infos
        if verify is not None:
            if not self.is_signed:
                raise ArtifactError("it is not signed, but a signature is required: do not load it")
            verify(manifest, self._small(SIGNATURE, _MOST_MANIFEST))
        self._members = _members(manifest)
        self._check_stored()
        if verify is not None:
            for name in self._members:
                self._check(name)

    def _small(self, name: str, limit: int) -> bytes:
        info = self._infos.get(name)
        if info is None or info.file_size > limit:
            raise ArtifactError(f"damaged: it has no {name}" if info is None else f"damaged: {name} is too large")
        self._check_info(info)
        with _damages(name):
            return self._zip.read(info)

    def _check_info(self, info: zipfile.ZipInfo) -> None:
        is_plain = info.compress_type == zipfile.ZIP_STORED and info.file_size == info.compress_size
        if not is_plain or info.flag_bits & 1 or info.orig_filename != info.filename:
            raise ArtifactError(f"damaged: {info.filename!r} is compressed or encrypted by the zip archive")

    def _check_stored(self) -> None:
        """Check that the zip contains what the manifest says, and nothing else."""
        found = set(self._infos) - {MANIFEST, SIGNATURE}
        if found != set(self._members):
            name = min(found ^ set(self._members))
            raise ArtifactError(f"damaged: {name!r} is {'not in its manifest' if name in found else 'missing'}")
        for name, member in self._members.items():
            self._check_info(self._infos[name])
            if self._infos[name].file_size != member.bytes:
                raise ArtifactError(f"damaged: {name} has {self._infos[name].file_size} bytes, not {member.bytes}")
            is_packed = name.endswith((XZ, ZLIB))
            if not (_is_fair(member.bytes, member.unpacked) if is_packed else member.bytes == member.unpacked):
                raise ArtifactError(
                    f"damaged: {name} would unpack from {member.bytes} bytes to {member.unpacked}, which is too much"
                )

    def names(self) -> list[str]:
        """The members' names without the ending for their packing. Raises ArtifactError for duplicates."""
        names = [name.removesuffix(XZ).removesuffix(ZLIB) for name in self._members]
        if len(set(names)) < len(names):
            raise ArtifactError("damaged: it has two members with the same name")
        return names

    def size(self, name: str) -> int:
        """Bytes of a member when unpacked."""
        return self._members[self._stored_name(name)].unpacked

    def _stored_name(self, name: str) -> str:
        for ending in ("", XZ, ZLIB):
            if name + ending in self._members:
                return name + ending
        raise ArtifactError(f"damaged: {name} is missing")

    def read(self, name: str, limit: int = sys.maxsize) -> bytes:
        """A member of at most `limit` bytes, unpacked."""
        self._check_size(name, limit)
        return b"".join(self.pieces(name))

    def unread(self, name: str, limit: int) -> Callable[[], bytes]:
        """A member of at most `limit` bytes, checked now and unpacked when this is called: until then it takes only its
        packed bytes, and the file may be closed."""
        self._check_size(name, limit)
        stored = self._stored_name(name)
        size = self._members[stored].unpacked
        with _damages(name):
            parts = list(self._stored_pieces(stored))

        def read() -> bytes:
            with _damages(name):
                return b"".join(_unpacked(iter(parts), stored, size))

        return read

    def _check_size(self, name: str, limit: int) -> None:
        member = self._members[self._stored_name(name)]
        size = max(member.unpacked, member.bytes)
        if size > limit:
            raise ArtifactError(f"damaged: {name} has {size} bytes, more than {limit}")

    def pieces(self, name: str) -> Iterator[bytes]:
        """A member unpacked, in pieces. None may be used before the last has been read: only then is it checked."""
        stored = self._stored_name(name)
        with _damages(name):
            yield from _unpacked(self._stored_pieces(stored), stored, self._members[stored].unpacked)

    def mapped(self, name: str) -> memoryview | None:
        """A large member that is stored as it is, checked and mapped from the file, whose pages all processes share;
        None for others.

        Nor is a file mapped whose signature was verified: somebody could write to it afterwards.
        """
        member = self._members.get(name)
        if member is None or member.bytes < _MAPPED_FROM or self._is_verified:
            return None
        try:
            number = self._file.fileno()
        except OSError:  # it is in memory
            return None
        with _damages(name):
            start = self._start(name)
            if start % _PAGE or _PAGE % mmap.ALLOCATIONGRANULARITY:
                return None
            content = memoryview(mmap.mmap(number, member.bytes, access=mmap.ACCESS_READ, offset=start))
            if zlib.crc32(content) != self._infos[name].CRC:
                raise ArtifactError(f"damaged: the checksum of {name} differs from the one in the zip archive")
            return content

    def _start(self, name: str) -> int:
        """Where in the file the bytes of a member begin."""
        info = self._infos[name]
        self._file.seek(info.header_offset)
        _, *lengths = _HEADER.unpack(self._file.read(_HEADER.size))
        return info.header_offset + _HEADER.size + sum(lengths)

    def _stored_pieces(self, name: str) -> Iterator[bytes]:
        member, taken = self._members[name], 0
        digest = _sha256(member.bytes)
        with self._zip.open(self._infos[name]) as file:
            while part := file.read(_CHUNK):
                digest.update(part)
                taken += len(part)
                yield part
        self._compare(name, taken, digest)

    def _compare(self, name: str, taken: int, digest: Any) -> None:
        if taken != self._members[name].bytes or digest.hexdigest() != self._members[name].sha256:
            raise ArtifactError(f"damaged: the checksum of {name} differs from the one in its manifest")

    def _check(self, name: str) -> None:
        with _damages(name):
            for _ in self._stored_pieces(name):
                pass


def _unpacked(parts: Iterator[bytes], name: str, size: int) -> Iterator[bytes]:
    """The content of packed parts, which must have `size` bytes and end with the last part."""
    if not name.endswith((XZ, ZLIB)):
        yield from parts
        return
    unpack = _xz() if name.endswith(XZ) else _zlib()
    left, whole = size, False
    for part in parts:
        rest: bytes | None = part
        while rest is not None and left >= 0:
            if whole:
                raise ArtifactError(f"damaged: {name} has data after its end")
            piece, rest, whole = unpack(rest)
            left -= len(piece)
            if left >= 0:
                yield piece
        if left < 0:
            break
    for _ in parts:  # up to its checksum, which says more than a wrong size
        pass
    if left or not whole:
        raise ArtifactError(f"damaged: {name} does not unpack to {size} bytes")


_Unpack = Callable[[bytes], "tuple[bytes, bytes | None, bool]"]
"""Packed bytes → (a piece of their content, the packed bytes left or None, whether the data have ended)."""


def _xz() -> _Unpack:
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_LZMA_MEMORY)

    def unpack(data: bytes) -> tuple[bytes, bytes | None, bool]:
        piece = decoder.decompress(data, _CHUNK)
        if decoder.eof:
            return piece, decoder.unused_data or None, True
        return piece, None if decoder.needs_input else b"", False

    return unpack


def _zlib() -> _Unpack:
    decoder = zlib.decompressobj()

    def unpack(data: bytes) -> tuple[bytes, bytes | None, bool]:
        piece = decoder.decompress(data, _CHUNK)
        if decoder.eof:
            return piece, decoder.unused_data or None, True
        return piece, decoder.unconsumed_tail or (b"" if len(piece) == _CHUNK else None), False

    return unpack


def _members(manifest: bytes) -> dict[str, Member]:
    """The members that a manifest lists."""
    content = parse_json(manifest, MANIFEST)
    if not isinstance(content, dict) or content.get("format") != FORMAT or isinstance(content["format"], bool):
        raise ArtifactError("written by another version of qnn_ext; compile the model again")
    listed = content.get("members")
    if set(content) != {"format", "members"} or not isinstance(listed, dict):
        raise ArtifactError(f"damaged: {MANIFEST} does not list the members")
    return {name: _member(name, fields) for name, fields in listed.items()}


def _member(name: str, fields: Any) -> Member:
    is_known = isinstance(fields, Mapping) and set(fields) == {"bytes", "unpacked", "sha256"}
    if is_known and all(type(fields[key]) is int and fields[key] >= 0 for key in ("bytes", "unpacked")):
        digest = fields["sha256"]
        if isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest):
            return Member(fields["bytes"], fields["unpacked"], digest)
    raise ArtifactError(f"damaged: {MANIFEST} lacks the sizes or the SHA-256 of {name!r}")


def parse_json(content: bytes, name: str) -> Any:
    """Strict JSON, without Python's extensions (NaN, infinities) or duplicate keys. Raises ArtifactError."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("it has a key twice")
        return found

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=once, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"damaged: {name} is not valid JSON ({error})") from None


@contextlib.contextmanager
def _damages(what: str) -> Iterator[None]:
    """Within the context, errors from reading a member mean that the file is damaged."""
    try:
        yield
    except (
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        struct.error,
        EOFError,
        OSError,
        ValueError,
        OverflowError,
        RuntimeError,  # from zipfile, includes NotImplementedError
        MemoryError,
    ) as error:
        raise ArtifactError(f"not a .qnn file, or damaged: {what}: {error or type(error).__name__}") from error

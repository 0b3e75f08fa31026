"""Checks of the files that a command will write, made before its work: nothing valuable is replaced."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import ModelFormatError, QnnError
from ..files.storage import check_writable
from .formats import recognize

STANDARD_OUTPUT = Path("-")


def check_output(path: Path, inputs: Sequence[Path | None], suffixes: Sequence[str] = ()) -> None:
    """Raise QnnError if a file cannot be written, has another suffix than these, or is one of the inputs."""
    if path == STANDARD_OUTPUT:
        raise QnnError("this is written to a file, not to the standard output: give a file name instead of -")
    if suffixes and path.suffix not in suffixes:
        raise QnnError(f"{path}: the name must end in {' or '.join(suffixes)}")
    check_writable(path)
    for other in inputs:
        if other is not None and path.exists() and other.exists() and path.samefile(other):
            raise QnnError(f"{path} is an input of this command and would be replaced: choose another name")


def check_standard_output(as_json: bool = False) -> None:
    """Raise QnnError if the content of a file cannot or must not go to the standard output."""
    if as_json:
        raise QnnError("-o - and --json both write to the standard output: give a file name instead of -")
    if sys.stdout is None or sys.stdout.isatty():
        raise QnnError("-o - would write the file to this terminal: redirect the output, or give a file name")


@contextmanager
def destination(path: Path) -> Iterator[Path]:
    """The file to write: the path, or, if that is -, a temporary one that then goes to the standard output."""
    if path != STANDARD_OUTPUT:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="qnn-ext-") as folder:
        place = Path(folder) / "output"
        yield place
        sys.stdout.buffer.write(place.read_bytes())
        sys.stdout.buffer.flush()


def check_new_folder(option: str, folder: Path) -> None:
    """Make a folder. Raises QnnError if it cannot be made or holds anything."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        filled = any(folder.iterdir())
    except OSError as error:
        raise QnnError(f"{option} {folder}: {error.strerror}") from None
    if filled:
        raise QnnError(f"{option} {folder}: the folder is not empty: give a new one, so that its files do not mix")


def check_compiled(path: Path, inputs: Sequence[Path | None], as_json: bool = False) -> None:
    """Raise QnnError if a compiled model cannot or must not be written there. Only a .qnn file is replaced by it."""
    if path == STANDARD_OUTPUT:
        check_standard_output(as_json)
        return
    check_output(path, inputs)
    if not path.exists() or not path.stat().st_size:
        return
    try:
        compiled = recognize(path) == "qnn"
    except ModelFormatError:
        compiled = False
    if not compiled:
        raise QnnError(f"{path} exists and is not a compiled model: choose another name, or remove it first")
